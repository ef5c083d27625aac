/*
 * groups.c - a schedule on any set of ranks: sums over random groups that overlap, many at once, opened in any order.
 *
 *     groups sim RANKS GROUPS SEED     simulated ranks
 *     groups mpi GROUPS SEED           the ranks of an mpirun, over MPI
 *     groups bound SEED                simulated: more early messages than may be kept
 *     groups refusals SEED             what cannot be opened
 *
 * It speaks to csrc/exec and the transports, below contexts and handles.  A rank has the `ahead` lowest of its groups
 * that are not complete open, or opens them in any order: so the lowest of all can always run.  Every element of every
 * result is compared: sums of uint64, and of float64 that no order of additions rounds, by every algorithm.
 * At the end nothing is open or kept, and no more memory was in use in the second half than in the first.  Over MPI no
 * communicator was made meanwhile.
 */
#include "../../../csrc/algo/algo.h"
#include "../../../csrc/exec/instances.h"
#include "../../../csrc/transport/pp_mpi.h"
#include "../../../csrc/transport/sim.h"
#include "check.h"
#include "communicators.h"

#include <malloc.h>
#include <mpi.h>
#include <sched.h>

enum { KINDS = 2, AHEAD_MAX = 6, TEMPLATES_MAX = 40, RANKS_MAX = 4096 };
typedef enum sort { INTEGERS, FLOATS } sort_t;

static const int32_t TYPES[KINDS] = {[INTEGERS] = PP_UINT64, [FLOATS] = PP_FLOAT64};
static const size_t  SIZES[] = {1, 1, 2, 3, 8, 8, 64, 300, 1000, 5000, 20000};

static uint64_t seed;
static int32_t  ranks;
static int32_t  ahead;

/* ---- the groups, which everybody computes ----------------------------------------------------------- */

typedef struct group {
    uint64_t number;
    sort_t   sort;
    int32_t  algorithm;
    size_t   count;
    pp_map_t map;
    int32_t  members[RANKS_MAX];
} group_t;

static uint64_t drawn(uint64_t number, uint64_t index) { return pp_mix(pp_mix(seed, number), index); }

static void draw_members(group_t *group, int32_t size)
{
    int32_t left = size, at = 0;
    for (int32_t rank = 0; rank < ranks; rank++)
        if ((int32_t)(drawn(group->number, 100 + (uint64_t)rank) % (uint64_t)(ranks - rank)) < left) {
            group->members[at++] = rank;
            left--;
        }
    group->map = pp_map_listed(group->members, size);
    int32_t stride = group->members[1] - group->members[0];
    for (int32_t i = 2; i < size; i++)
        if (group->members[i] - group->members[i - 1] != stride)
            return;
    group->map = pp_map_strided(group->members[0], stride, size);
}

/* Small groups in half of all cases, and large vectors rarely. */
static void draw_group(uint64_t number, group_t *group)
{
    const uint64_t wide = drawn(number, 0) % 2 ? (uint64_t)ranks - 1 : (uint64_t)(ranks < 5 ? ranks - 1 : 4);
    group->number = number;
    group->sort = (sort_t)(drawn(number, 1) % KINDS);
    group->count = SIZES[drawn(number, 2) % (drawn(number, 3) % 16 ? 8 : PP_COUNT_OF(SIZES))];
    int32_t size = 2 + (int32_t)(drawn(number, 4) % wide);
    group->algorithm = PP_ALGORITHM_FIRST + (int32_t)(drawn(number, 5) % pp_algorithm_count());
    draw_members(group, size);
}

static bool is_member(const group_t *group, int32_t rank)
{
    return pp_map_participant(&group->map, rank, group->number) >= 0;
}

/* What a member gives: element i. */
static uint64_t integer(const group_t *group, int32_t rank, size_t i)
{
    return pp_mix(pp_mix(seed, group->number) + (uint64_t)rank, i);
}

static double floating(const group_t *group, int32_t rank, size_t i)
{
    return (double)(integer(group, rank, i) >> 40);
}

static void give(const group_t *group, int32_t rank, void *data)
{
    for (size_t i = 0; i < group->count; i++)
        if (group->sort == INTEGERS)
            ((uint64_t *)data)[i] = integer(group, rank, i);
        else
            ((double *)data)[i] = floating(group, rank, i);
}

static bool is_right(const group_t *group, const void *data, size_t i)
{
    uint64_t integers = 0;
    double   floats = 0;
    for (int32_t at = 0; at < group->map.count; at++) {
        integers += integer(group, group->members[at], i);
        floats += floating(group, group->members[at], i);
    }
    return group->sort == INTEGERS ? ((const uint64_t *)data)[i] == integers : ((const double *)data)[i] == floats;
}

static pp_status_t build(const void *builder, const pp_template_key_t *key, pp_graph_t **graph)
{
    (void)builder;
    const int32_t segments = 1 + (int32_t)(key->count % 3);
    return pp_algo_synchronous_allreduce(key->algorithm, key->position, key->size, key->count, segments, graph);
}

/* ---- a rank ---------------------------------------------------------------------------------------------- */

typedef struct rank rank_t;

typedef struct part {              /* what a rank has of one sort of groups */
    pp_handle_t    handle;         /* first: the engine knows it only */
    rank_t        *rank;
    pp_kernels_t   kernels;
    pp_instances_t instances;
} part_t;

typedef struct due {               /* a group of the next `ahead` */
    uint64_t number;
    bool     open;
} due_t;

struct rank {
    pp_engine_t engine;
    part_t      parts[KINDS];
    due_t       due[AHEAD_MAX];
    int32_t     due_count;
    uint64_t    next, groups;      /* the next number to look at, of so many */
    uint64_t    done;
    uint64_t    random;
    size_t      early_most;
};

static group_t scratch_group;      /* too large for the stack */

static const group_t *group_of(uint64_t number)
{
    if (scratch_group.number != number || scratch_group.map.count == 0)
        draw_group(number, &scratch_group);
    return &scratch_group;
}

static void on_take(void *owner, pp_instance_t *instance, pp_share_of_round_t *share)
{
    part_t        *part = owner;
    const group_t *group = group_of(instance->key);
    void          *data = pp_instance_accumulator(instance);
    share->tally.contributions = 1;
    if (data)
        give(group, part->rank->engine.rank, data);
}

static void on_done(void *owner, pp_instance_t *instance)
{
    part_t        *part = owner;
    const int32_t  rank = part->rank->engine.rank;
    const group_t *group = group_of(instance->key);
    CHECK(instance->registers[0].tally.contributions == (uint64_t)group->map.count,
          "%llu parts in group %llu of %d", (unsigned long long)instance->registers[0].tally.contributions,
          (unsigned long long)group->number, group->map.count);
    for (size_t i = 0; i < group->count; i++)
        CHECK(is_right(group, instance->accumulator->data, i), "group %llu: element %zu of %zu is wrong at rank "
              "%d, algorithm %d, %d members", (unsigned long long)group->number, i, group->count, rank,
              group->algorithm, group->map.count);
}

static void on_retired(void *owner, pp_instance_t *instance)
{
    part_t *part = owner;
    rank_t *rank = part->rank;
    for (int32_t i = 0; i < rank->due_count; i++)
        if (rank->due[i].number == instance->key) {
            rank->due[i] = rank->due[--rank->due_count];
            break;
        }
    rank->done++;
    pp_instance_close(&part->instances, instance);
}

static void on_operation(pp_handle_t *handle, int32_t peer, const pp_prefix_t *prefix, size_t bytes)
{
    part_t *part = (part_t *)handle;
    pp_instances_message(&part->instances, peer, prefix, bytes);
    if (part->instances.early_bytes > part->rank->early_most)
        part->rank->early_most = part->instances.early_bytes;
}

static const pp_host_t        host = {.take = on_take, .done = on_done, .retired = on_retired};
static const pp_handle_kind_t kind = {.init = "groups"};
static const pp_handle_ops_t  ops = {.operation = on_operation};

static void open_part(rank_t *rank, sort_t sort, size_t early_bytes_max)
{
    part_t *part = &rank->parts[sort];
    part->rank = rank;
    part->handle.kind = &kind;
    part->handle.ops = &ops;
    must(pp_kernels_find(PP_SUM, TYPES[sort], &part->kernels), "kernels");
    must(pp_engine_register(&rank->engine, &part->handle, (uint32_t)sort + 1), "handle");
    const pp_instances_config_t config = {
        .engine = &rank->engine, .handle = (uint32_t)sort + 1, .host = &host, .owner = part,
        .kernels = &part->kernels, .names_ranks = sort == INTEGERS, .build = build,
        .templates_max = TEMPLATES_MAX, .early_bytes_max = early_bytes_max};
    must(pp_instances_open(&config, &part->instances), "instances");
}

/* Nobody is further ahead of a rank than `ahead` groups with it. */
static size_t early_bytes_max(void)
{
    return (size_t)ahead * 2 * (size_t)ranks * 3 * (PP_MESSAGE_BYTES + sizeof(pp_stored_t));
}

static void open_rank(rank_t *rank, pp_transport_t *transport, uint64_t groups, size_t early)
{
    *rank = (rank_t){.groups = groups, .random = pp_mix(seed, 77 + (uint64_t)transport->rank)};
    must(pp_engine_init(&rank->engine, transport, seed), "engine");
    for (int sort = 0; sort < KINDS; sort++)
        open_part(rank, (sort_t)sort, early);
}

static void close_rank(rank_t *rank)
{
    for (int sort = 0; sort < KINDS; sort++) {
        pp_instances_close(&rank->parts[sort].instances);
        pp_engine_forget(&rank->engine, &rank->parts[sort].handle);
    }
    pp_engine_release(&rank->engine);
}

static void look_ahead(rank_t *rank)
{
    for (; rank->due_count < ahead && rank->next < rank->groups; rank->next++)
        if (is_member(group_of(rank->next), rank->engine.rank))
            rank->due[rank->due_count++] = (due_t){.number = rank->next};
}

static void open_group(rank_t *rank, due_t *due)
{
    const group_t  *group = group_of(due->number);
    pp_instances_t *instances = &rank->parts[group->sort].instances;
    pp_instance_t  *instance;
    const pp_instance_spec_t spec = {.key = group->number, .algorithm = group->algorithm, .count = group->count,
                                     .map = group->map};
    must(pp_instance_open(instances, &spec, &instance), "open");
    due->open = true;
    pp_instance_fire(instance, instance->template->graph->gate);
    pp_engine_settle(&rank->engine);
    must(pp_engine_check(&rank->engine), "engine");
}

static uint64_t roll(rank_t *rank, uint64_t below) { return (rank->random = pp_mix(rank->random, 1)) % below; }

/* Opens one of those that are due, whichever.  false: all are open. */
static bool open_one(rank_t *rank)
{
    look_ahead(rank);
    int32_t closed = 0, chosen = -1;
    for (int32_t i = 0; i < rank->due_count; i++)
        if (!rank->due[i].open && roll(rank, (uint64_t)++closed) == 0)
            chosen = i;
    if (chosen >= 0)
        open_group(rank, &rank->due[chosen]);
    return chosen >= 0;
}

static bool is_through(const rank_t *rank) { return rank->due_count == 0 && rank->next == rank->groups; }

/* ---- memory ----------------------------------------------------------------------------------------------- */

/* The most that was in use while the first half of all groups ran, and the second. */
typedef struct usage {
    uint64_t looks;
    size_t   most[2];
} usage_t;

static void look_at_memory(usage_t *usage, bool second_half)
{
    if (usage->looks++ % 64 > 0)
        return;
    const struct mallinfo2 info = mallinfo2();
    const size_t           bytes = info.uordblks + info.hblkhd;
    if (bytes > usage->most[second_half])
        usage->most[second_half] = bytes;
}

/* Which large groups meet differs: half as much again is no growth.  With few groups a rank it says nothing. */
static void check_usage(const usage_t *usage, uint64_t groups)
{
    if (groups < 200 * (uint64_t)ranks)
        return;
    CHECK(usage->most[1] <= usage->most[0] + usage->most[0] / 2 + (1 << 20), "memory grows: %zu KiB in use in the first "
          "half, %zu in the second", usage->most[0] >> 10, usage->most[1] >> 10);
}

static void check_end(rank_t *rank)
{
    for (int sort = 0; sort < KINDS; sort++) {
        const pp_instances_t *instances = &rank->parts[sort].instances;
        CHECK(instances->open == 0 && instances->known == 0 && instances->early_bytes == 0,
              "rank %d: %zu instances, %zu keys and %zu bytes are left", rank->engine.rank, instances->open,
              instances->known, instances->early_bytes);
        CHECK(instances->templates.count <= TEMPLATES_MAX, "%u templates are kept", instances->templates.count);
    }
}

/* ---- simulated ranks ---------------------------------------------------------------------------------------- */

static const pp_network_t NETWORK = {
    .between = {.latency_ns = 2000, .overhead_ns = 300, .byte_ps = 100, .rendezvous_bytes = 17000, .jitter_ns = 9000},
    .node_ranks = 1};

static rank_t *some_rank(rank_t *all, uint64_t *random)
{
    *random = pp_mix(*random, 2);
    return &all[*random % (uint64_t)ranks];
}

static void stuck(const rank_t *all)
{
    pp_text_t text = {0};
    for (int32_t r = 0; r < ranks; r++)
        for (int sort = 0; sort < KINDS; sort++) {
            pp_text_add(&text, "rank %d, handle %d:\n", r, sort + 1);
            pp_instances_explain(&all[r].parts[sort].instances, &text);
        }
    fputs(text.chars, stderr);
    die("nothing moves any more");
}

static void play(pp_simnet_t *net, rank_t *all, uint64_t groups)
{
    uint64_t random = seed, total = 0, done = 0;
    size_t   early = 0;
    pp_held_t buffers = {0};
    usage_t  usage = {0};
    for (uint64_t number = 0; number < groups; number++)
        total += (uint64_t)group_of(number)->map.count;
    while (done < total) {
        bool    moved = false;
        int32_t rank;
        for (int i = 0; i < ranks && !moved; i++)
            moved = open_one(some_rank(all, &random));
        for (int i = 0; i < 8; i++)
            moved |= pp_simnet_step(net, &rank);
        for (int r = 0; !moved && r < ranks; r++)
            moved = open_one(&all[r]);
        done = 0;
        for (int r = 0; r < ranks; r++) {
            must(pp_engine_check(&all[r].engine), "a rank's engine");
            done += all[r].done;
        }
        if (!moved && done < total)
            stuck(all);
        look_at_memory(&usage, done > total / 2);
    }
    for (int r = 0; r < ranks; r++) {
        look_ahead(&all[r]);      /* past the last groups, which may be others' */
        CHECK(is_through(&all[r]), "rank %d is not through", r);
        check_end(&all[r]);
        early = all[r].early_most > early ? all[r].early_most : early;
        for (int sort = 0; sort < KINDS; sort++)
            pp_instances_count_buffers(&all[r].parts[sort].instances, &buffers);
    }
    CHECK(buffers.used_bytes == 0, "%llu bytes of buffers were not put back", (unsigned long long)buffers.used_bytes);
    check_usage(&usage, groups);
    printf("%llu groups on %d ranks, %d at once; %zu KiB early at most; %zu KiB in use in the first half, %zu in the "
           "second; %llu KiB of buffers left\n", (unsigned long long)groups, ranks, ahead, early >> 10,
           usage.most[0] >> 10, usage.most[1] >> 10, (unsigned long long)buffers.bytes >> 10);
}

static void simulate(uint64_t groups)
{
    pp_simnet_t *net;
    rank_t      *all = calloc((size_t)ranks, sizeof *all);
    must(pp_simnet_new(ranks, seed, &NETWORK, &net), "network");
    for (int32_t r = 0; r < ranks; r++)
        open_rank(&all[r], pp_simnet_transport(net, r), groups, early_bytes_max());
    play(net, all, groups);
    for (int32_t r = 0; r < ranks; r++)
        close_rank(&all[r]);
    pp_simnet_free(net);
    free(all);
}

/* Rank 1 opens nothing: rank 0's messages are kept up to the bound, and then rank 1 says so. */
static void overflow(void)
{
    pp_simnet_t *net;
    rank_t       all[2];
    int32_t      rank;
    ranks = 2;
    ahead = AHEAD_MAX;
    must(pp_simnet_new(ranks, seed, &NETWORK, &net), "network");
    for (int32_t r = 0; r < ranks; r++)
        open_rank(&all[r], pp_simnet_transport(net, r), 1000, 400);
    while (open_one(&all[0]))
        continue;
    while (pp_simnet_step(net, &rank))
        continue;
    CHECK(pp_engine_check(&all[1].engine) == PP_ERR_MISMATCH, "no mismatch");
    CHECK(strstr(pp_error_text(), "not open here") && strstr(pp_error_text(), "the bound is 400"), "it says %s",
          pp_error_text());
    printf("%s\n", pp_error_text());
    for (int32_t r = 0; r < ranks; r++)
        close_rank(&all[r]);
    pp_simnet_free(net);
}

/* ---- what cannot be opened ------------------------------------------------------------------------------- */

static void refused(part_t *part, pp_instance_spec_t spec, pp_status_t status, const char *text)
{
    pp_instance_t *instance;
    CHECK(pp_instance_open(&part->instances, &spec, &instance) == status && !instance, "it is opened, or not so: %s", text);
    CHECK(strstr(pp_error_text(), text), "it says: %s", pp_error_text());
}

static void refuse_maps(part_t *part, pp_instance_spec_t spec)
{
    static const int32_t others[] = {0, 2}, turned[] = {1, 0}, twice[] = {1, 1}, far[] = {1, 4};
    static const struct { pp_map_t map; const char *text; } wrong[] = {
        {{.kind = PP_MAP_LISTED, .count = 2, .ranks = others}, "rank 1 is not among the ranks of instance 9"},
        {{.kind = PP_MAP_LISTED, .count = 2, .ranks = turned}, "names rank 0 after rank 1"},
        {{.kind = PP_MAP_LISTED, .count = 2, .ranks = twice}, "names rank 1 after rank 1"},
        {{.kind = PP_MAP_LISTED, .count = 2, .ranks = far}, "names rank 4, which is not in 0..3"},
        {{.kind = PP_MAP_LISTED, .count = 0, .ranks = far}, "a map has 0 ranks"},
        {{.kind = PP_MAP_STRIDED, .count = 2, .first = 0, .stride = 2}, "rank 1 is not among"},
        {{.kind = PP_MAP_STRIDED, .count = 1, .first = 2, .stride = 1}, "rank 1 is not among"},
        {{.kind = PP_MAP_STRIDED, .count = 2, .first = 1, .stride = 0}, "stride 0, which is not positive"},
        {{.kind = PP_MAP_STRIDED, .count = 2, .first = -1, .stride = 2}, "from rank -1 to rank 1"},
        {{.kind = PP_MAP_STRIDED, .count = 3, .first = 1, .stride = INT32_MAX}, "but ranks are in 0..3"},
        {{.kind = PP_MAP_COMPUTED, .count = 2}, "instance 9 has a computed map"}};
    for (size_t i = 0; i < PP_COUNT_OF(wrong); i++) {
        spec.map = wrong[i].map;
        refused(part, spec, PP_ERR_ARGUMENT, wrong[i].text);
    }
}

/* Rank 1 of 4 opens what it may not. */
static void refusals(void)
{
    pp_simnet_t   *net;
    pp_instance_t *instance;
    rank_t         rank;
    ranks = 4;
    must(pp_simnet_new(ranks, seed, &NETWORK, &net), "network");
    open_rank(&rank, pp_simnet_transport(net, 1), 0, 0);
    pp_instance_spec_t spec = {.key = 9, .algorithm = PP_ALGORITHM_FIRST, .count = 4, .map = pp_map_strided(1, 2, 2)};
    refuse_maps(&rank.parts[INTEGERS], spec);
    spec.algorithm = PP_ALGORITHM_AUTO;
    refused(&rank.parts[FLOATS], spec, PP_ERR_ARGUMENT, "algorithm=0 is not one of");
    spec.algorithm = PP_ALGORITHM_FIRST;
    must(pp_instance_open(&rank.parts[FLOATS].instances, &spec, &instance), "open");
    CHECK(pp_instances_find(&rank.parts[FLOATS].instances, 9) == instance, "it is not found");
    refused(&rank.parts[FLOATS], spec, PP_ERR_STATE, "instance 9 is open already");
    close_rank(&rank);                        /* with an open instance */
    pp_simnet_free(net);
}

/* ---- real ranks ----------------------------------------------------------------------------------------------- */

/* One step of a rank: opens a group, polls, or dawdles. */
static void work(rank_t *rank)
{
    if (roll(rank, 2) == 0)
        open_one(rank);
    if (pp_engine_poll(&rank->engine) == 0 && roll(rank, 4) == 0)
        sched_yield();
    if (roll(rank, 500) == 0)
        usleep((useconds_t)roll(rank, 300));
    must(pp_engine_check(&rank->engine), "engine");
}

static void run_mpi(uint64_t groups)
{
    MPI_Comm    comm = MPI_COMM_WORLD;
    MPI_Request all_through;
    pp_mpi_t   *mpi;
    rank_t      rank;
    uint64_t    total = 0;
    usage_t     usage = {0};
    int         over = 0;
    must(pp_mpi_meet(&comm, &mpi), "meeting");
    must(pp_mpi_agree(mpi, pp_mpi_open(mpi, 0, 0)), "transport");
    const int before = communicators;
    open_rank(&rank, pp_mpi_transport(mpi), groups, early_bytes_max());
    pp_mpi_opened(mpi);
    for (uint64_t number = 0; number < groups; number++)
        total += is_member(group_of(number), my_rank);
    for (look_ahead(&rank); !is_through(&rank); look_ahead(&rank)) {
        work(&rank);
        look_at_memory(&usage, rank.done > total / 2);
    }
    CHECK(rank.done == total, "%llu of %llu groups", (unsigned long long)rank.done, (unsigned long long)total);
    CHECK(communicators == before, "%d communicators were made", communicators - before);
    check_usage(&usage, groups);
    MPI_Ibarrier(comm, &all_through);
    for (; !over; MPI_Test(&all_through, &over, MPI_STATUS_IGNORE))
        pp_engine_poll(&rank.engine);
    check_end(&rank);
    printf("rank %d: %llu groups, %d at once; %zu KiB early at most; %zu KiB in use in the first half, %zu in the "
           "second\n", my_rank, (unsigned long long)total, ahead, rank.early_most >> 10, usage.most[0] >> 10,
           usage.most[1] >> 10);
    close_rank(&rank);
    must(pp_mpi_close(mpi), "close");
}

int main(int argc, char **argv)
{
    CHECK(argc > 2, "usage: groups sim RANKS GROUPS SEED, groups mpi GROUPS SEED, groups bound|refusals SEED");
    seed = strtoull(argv[argc - 1], NULL, 10);
    ahead = 1 + (int32_t)(seed % AHEAD_MAX);
    if (strcmp(argv[1], "sim") == 0 && argc == 5) {
        ranks = atoi(argv[2]);
        CHECK(ranks >= 2 && ranks <= RANKS_MAX, "%d ranks", ranks);
        simulate(strtoull(argv[3], NULL, 10));
    } else if (strcmp(argv[1], "bound") == 0) {
        overflow();
    } else if (strcmp(argv[1], "refusals") == 0) {
        refusals();
    } else {
        int level;
        MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
        MPI_Comm_rank(MPI_COMM_WORLD, &my_rank);
        MPI_Comm_size(MPI_COMM_WORLD, &ranks);
        run_mpi(strtoull(argv[2], NULL, 10));
        MPI_Finalize();
    }
    if (my_rank <= 0)
        printf("%s: passed\n", argv[1]);
    return 0;
}
