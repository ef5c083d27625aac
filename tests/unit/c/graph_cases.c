/*
 * graph_cases.c - what the public interface does not show of graph/ and algo/.  Run by
 * tests/unit/test_schedule.py:
 *
 *     graph_cases refuse NAME             builds a bad schedule, prints the status and the error text
 *     graph_cases names                   the NAMEs
 *     graph_cases outs SIZE               successors in firing order, of a partial allreduce
 *     graph_cases synchronous SIZE COUNT  all ranks' synchronous allreduce, GOAL-like
 */
#include "algo/algo.h"
#include "graph/dump.h"

#include <stdlib.h>
#include <string.h>

static const pp_region_t FOUR = {0, 4};

/* ---- refused by commit ---------------------------------------------------------------------------- */

static void cycle(pp_graph_t *g)
{
    uint32_t a = pp_graph_nop(g, PP_NEED_ALL, "a"), b = pp_graph_nop(g, PP_NEED_ALL, "b");
    uint32_t c = pp_graph_nop(g, PP_NEED_ALL, "c");
    pp_graph_edge(g, a, b);
    pp_graph_edge(g, b, c);
    pp_graph_edge(g, c, b);
}

static void self_edge(pp_graph_t *g)
{
    uint32_t a = pp_graph_nop(g, PP_NEED_ALL, "a");
    pp_graph_edge(g, a, a);
}

static void double_edge(pp_graph_t *g)
{
    uint32_t a = pp_graph_nop(g, PP_NEED_ALL, "a"), b = pp_graph_nop(g, PP_NEED_ALL, "b");
    pp_graph_edge(g, a, b);
    pp_graph_edge(g, a, b);
}

static void double_tag(pp_graph_t *g)
{
    pp_graph_recv(g, PP_NEED_ALL, 1, 5, 0, FOUR, 0);
    pp_graph_recv(g, PP_NEED_ALL, 2, 5, 0, FOUR, 0);
}

static void edge_to_nowhere(pp_graph_t *g)
{
    uint32_t a = pp_graph_nop(g, PP_NEED_ALL, "a");
    pp_graph_edge(g, a, a + 1);
}

static void need_more_than_there_are(pp_graph_t *g)
{
    uint32_t a = pp_graph_nop(g, PP_NEED_ALL, "a"), b = pp_graph_nop(g, PP_NEED_ALL, "b");
    uint32_t c = pp_graph_nop(g, 3, "c");
    pp_graph_edge(g, a, c);
    pp_graph_edge(g, b, c);
}

static void any_of_none(pp_graph_t *g) { pp_graph_nop(g, PP_NEED_ANY, "a"); }
static void send_to_self(pp_graph_t *g) { pp_graph_send(g, PP_NEED_ALL, 0, 0, 0, FOUR); }
static void send_to_nobody(pp_graph_t *g) { pp_graph_send(g, PP_NEED_ALL, 3, 0, 0, FOUR); }
static void recv_from_nobody(pp_graph_t *g) { pp_graph_recv(g, PP_NEED_ALL, -1, 0, 0, FOUR, PP_IN_PLACE); }
static void sparse_tag(pp_graph_t *g) { pp_graph_send(g, PP_NEED_ALL, 1, 1u << 31, 0, FOUR); }
static void region_too_long(pp_graph_t *g)
{
    pp_graph_send(g, PP_NEED_ALL, 1, 0, 0, (pp_region_t){1, 4});
}
static void region_wraps(pp_graph_t *g)
{
    pp_graph_recv(g, PP_NEED_ALL, 1, 0, 0, (pp_region_t){2, SIZE_MAX}, PP_IN_PLACE);
}
static void reduce_of_send(pp_graph_t *g)
{
    pp_graph_reduce(g, pp_graph_send(g, PP_NEED_ALL, 1, 0, 0, FOUR), true);
}
static void reduce_of_placed(pp_graph_t *g)
{
    pp_graph_reduce(g, pp_graph_recv(g, PP_NEED_ALL, 1, 0, 0, FOUR, PP_IN_PLACE), true);
}
static void reduce_of_nothing(pp_graph_t *g) { pp_graph_reduce(g, 7, true); }
static void two_takes(pp_graph_t *g)
{
    pp_graph_take(g);
    pp_graph_take(g);
}
static void commit_twice(pp_graph_t *g) { pp_graph_commit(g); }

/* ---- refused by check: rank 0 sends to 1, and what is wrong with it -------------------------------- */

static pp_graph_t *new_rank(int32_t rank) { return pp_graph_new(rank, 3, 4); }

static pp_status_t check3(pp_graph_t *a, pp_graph_t *b, pp_graph_t *c)
{
    pp_graph_t *graphs[3] = {a, b, c};
    pp_status_t status = PP_OK;
    for (int i = 0; i < 3 && status == PP_OK; i++)
        status = pp_graph_commit(graphs[i]);
    if (status == PP_OK)
        status = pp_graph_check(graphs, 3);
    for (int i = 0; i < 3; i++)
        pp_graph_free(graphs[i]);
    return status;
}

/* `sends` from rank 0, then one receive at rank 1 (reg, count, activation) unless `from` < 0. */
static pp_status_t one_message(int sends, int32_t from, uint32_t reg, size_t count, bool activation)
{
    pp_graph_t *a = new_rank(0), *b = new_rank(1), *c = new_rank(2);
    for (int i = 0; i < sends; i++)
        pp_graph_send(a, PP_NEED_ALL, 1, 0, 0, FOUR);
    if (from >= 0) {
        uint32_t recv = pp_graph_recv(b, PP_NEED_ALL, from, 0, reg, (pp_region_t){0, count}, PP_IN_PLACE);
        b->vertices[recv].activation = activation;
    }
    a->tag_count = b->tag_count = c->tag_count = 1;
    return check3(a, b, c);
}

static pp_status_t matched(void) { return one_message(1, 0, 0, 4, 0); }
static pp_status_t no_recv(void) { return one_message(1, -1, 0, 4, 0); }
static pp_status_t no_send(void) { return one_message(0, 0, 0, 4, 0); }
static pp_status_t other_sender(void) { return one_message(1, 2, 0, 4, 0); }
static pp_status_t sent_twice(void) { return one_message(2, 0, 0, 4, 0); }
static pp_status_t other_register(void) { return one_message(1, 0, 1, 4, 0); }
static pp_status_t other_count(void) { return one_message(1, 0, 0, 3, 0); }
static pp_status_t half_activation(void) { return one_message(1, 0, 0, 4, true); }
static pp_status_t wrong_order(void) { return check3(new_rank(0), new_rank(2), new_rank(1)); }
static pp_status_t other_vector(void)
{
    return check3(new_rank(0), pp_graph_new(1, 3, 5), new_rank(2));
}
static pp_status_t other_tags(void)
{
    pp_graph_t *b = new_rank(1);
    b->tag_count = 2;
    return check3(new_rank(0), b, new_rank(2));
}
static pp_status_t not_committed(void)
{
    pp_graph_t *graph = pp_graph_new(0, 1, 4);
    pp_status_t status = pp_graph_check(&graph, 1);
    pp_graph_free(graph);
    pp_graph_free(NULL);
    return status;
}
static pp_status_t late_vertex(void)
{
    pp_graph_t *graph = new_rank(0);
    pp_graph_commit(graph);
    uint32_t late = pp_graph_nop(graph, PP_NEED_ALL, "late");
    pp_status_t status = late == PP_NO_VERTEX ? graph->error : PP_OK;
    pp_graph_free(graph);
    return status;
}
static pp_status_t no_such_rank(void)
{
    pp_graph_t *graph;
    return pp_algo_partial_allreduce(pp_algorithm_count(), 3, 3, 4, 1, &graph);
}
static pp_status_t no_ranks(void)
{
    pp_graph_t *graph;
    return pp_algo_synchronous_allreduce(PP_ALGORITHM_FIRST, 0, 0, 4, 1, &graph);
}
static pp_status_t auto_is_no_algorithm(void)
{
    pp_graph_t *graph;
    return pp_algo_partial_allreduce(PP_ALGORITHM_AUTO, 0, 3, 4, 1, &graph);
}

typedef struct refusal {
    const char *name;
    void (*build)(pp_graph_t *);
    pp_status_t (*run)(void);
} refusal_t;

#define BUILD(name) {#name, name, NULL}
#define RUN(name) {#name, NULL, name}
static const refusal_t REFUSALS[] = {
    BUILD(cycle), BUILD(self_edge), BUILD(double_edge), BUILD(double_tag), BUILD(edge_to_nowhere),
    BUILD(need_more_than_there_are), BUILD(any_of_none), BUILD(send_to_self), BUILD(send_to_nobody),
    BUILD(recv_from_nobody), BUILD(sparse_tag), BUILD(region_too_long), BUILD(region_wraps),
    BUILD(reduce_of_send), BUILD(reduce_of_placed), BUILD(reduce_of_nothing), BUILD(two_takes),
    BUILD(commit_twice),
    RUN(late_vertex), RUN(matched), RUN(no_recv), RUN(no_send), RUN(other_sender), RUN(sent_twice),
    RUN(other_register), RUN(other_count), RUN(half_activation), RUN(wrong_order), RUN(other_vector),
    RUN(other_tags), RUN(not_committed), RUN(no_such_rank), RUN(no_ranks), RUN(auto_is_no_algorithm),
};

static int refuse(const char *name)
{
    for (size_t i = 0; i < PP_COUNT_OF(REFUSALS); i++) {
        if (strcmp(REFUSALS[i].name, name) != 0)
            continue;
        pp_status_t status;
        if (REFUSALS[i].run) {
            status = REFUSALS[i].run();
        } else {
            pp_graph_t *graph = new_rank(0);
            REFUSALS[i].build(graph);
            status = pp_graph_commit(graph);
            pp_graph_free(graph);
        }
        printf("%d %s\n", status, status < 0 ? pp_error_text() : "");
        return 0;
    }
    return 2;
}

/* ---- what else is to be seen ----------------------------------------------------------------------- */

static int outs(int32_t size)
{
    for (int32_t rank = 0; rank < size; rank++) {
        pp_graph_t *graph;
        if (pp_algo_partial_allreduce(PP_ALGORITHM_FIRST, rank, size, 0, 1, &graph) < 0)
            return 1;
        printf("rank %d\n", rank);
        for (uint32_t v = 0; v < graph->vertex_count; v++) {
            printf("l%u:", v);
            for (uint32_t i = graph->vertices[v].outs_begin; i < graph->vertices[v].outs_end; i++)
                printf(" l%u", graph->outs[i]);
            printf("\n");
        }
        pp_graph_free(graph);
    }
    return 0;
}

static int synchronous(int32_t size, size_t count)
{
    pp_graph_t *graphs[64] = {NULL};
    pp_text_t text = {0};
    for (int32_t rank = 0; rank < size && rank < 64; rank++)
        if (pp_algo_synchronous_allreduce(PP_ALGORITHM_FIRST, rank, size, count, 1, &graphs[rank]) < 0)
            return 1;
    int failed = pp_graph_check(graphs, size) < 0;
    failed |= graphs[0]->start != PP_NO_VERTEX || graphs[0]->join != PP_NO_VERTEX
              || graphs[0]->activated != PP_NO_VERTEX;
    pp_graph_dump_all(graphs, size, PP_GOAL, 8, &text);
    if (!failed)
        fputs(text.chars, stdout);
    free(text.chars);
    for (int32_t rank = 0; rank < size; rank++)
        pp_graph_free(graphs[rank]);
    return failed;
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    if (strcmp(what, "names") == 0)
        for (size_t i = 0; i < PP_COUNT_OF(REFUSALS); i++)
            printf("%s\n", REFUSALS[i].name);
    else if (strcmp(what, "refuse") == 0 && argc == 3)
        return refuse(argv[2]);
    else if (strcmp(what, "outs") == 0 && argc == 3)
        return outs(atoi(argv[2]));
    else if (strcmp(what, "synchronous") == 0 && argc == 4)
        return synchronous(atoi(argv[2]), strtoull(argv[3], NULL, 10));
    else
        return 2;
    return 0;
}
