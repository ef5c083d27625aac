/*
 * dump.c - templates as text.
 *
 * GOAL-like, after Hoefler's Group Operation Assembly Language.  Everything the engine sees is in it:
 *
 *     rank 0 of 4 {
 *       // 1000 elements of 8b, registers 1, scratch 500, tags 6
 *       l0: nop "start"
 *       l4: send 0b to 1 tag 0 activation
 *       l8: copy 8000b reg 0 [0,1000) "take"
 *       l9: send 4000b to 1 tag 2 reg 0 [500,1000)
 *       l10: recv 4000b from 1 tag 2 reg 0 [0,500) into scratch
 *       l11: reduce 4000b of l10 reg 0 [0,500) incoming right
 *       l4 requires any of l0, l5
 *       l11 requires l10, l9
 *     }
 *
 * An operation without "requires" waits for nothing; if it is a nop, the host fires it.  An operation that waits for
 * some of its predecessors only says "any of" or "2 of".
 */
#include "dump.h"

#include <stdlib.h>

/* Predecessors, laid out like pp_graph_t.outs. */
typedef struct ins {
    uint32_t *begin;      /* vertex_count + 1 */
    uint32_t *from;
} ins_t;

static bool ins_make(const pp_graph_t *graph, ins_t *ins)
{
    size_t edges = 0;
    for (uint32_t v = 0; v < graph->vertex_count; v++)
        edges += graph->vertices[v].in_count;
    ins->begin = calloc((size_t)graph->vertex_count + 2, sizeof *ins->begin);
    ins->from = malloc((edges + 1) * sizeof *ins->from);
    if (!ins->begin || !ins->from)
        return false;
    /* begin[v + 1] is where v's list begins, and runs to where it ends while the list is filled. */
    for (uint32_t v = 0; v < graph->vertex_count; v++)
        ins->begin[v + 2] = ins->begin[v + 1] + graph->vertices[v].in_count;
    for (uint32_t v = 0; v < graph->vertex_count; v++)
        for (uint32_t i = graph->vertices[v].outs_begin; i < graph->vertices[v].outs_end; i++)
            ins->from[ins->begin[graph->outs[i] + 1]++] = v;
    return true;
}

static void ins_free(ins_t *ins)
{
    free(ins->from);
    free(ins->begin);
}

/* ---- one operation, the same words in both formats ------------------------------------------------ */

static void add_operation(const pp_vertex_t *v, size_t element_bytes, pp_text_t *text)
{
    size_t bytes = v->region.count * element_bytes;
    switch (v->kind) {
    case PP_NOP:
        pp_text_add(text, "nop");
        break;
    case PP_SEND:
        pp_text_add(text, "send %zub to %d tag %u", bytes, v->peer, v->tag);
        break;
    case PP_RECV:
        pp_text_add(text, "recv %zub from %d tag %u", bytes, v->peer, v->tag);
        break;
    case PP_REDUCE:
        pp_text_add(text, "reduce %zub of l%u", bytes, v->source);
        break;
    case PP_COPY:
        pp_text_add(text, "copy %zub", bytes);
        break;
    }
    if (v->activation)
        pp_text_add(text, " activation");
    else if (v->kind != PP_NOP)
        pp_text_add(text, " reg %u [%zu,%zu)", v->reg, v->region.offset, v->region.offset + v->region.count);
    if (v->kind == PP_RECV && !v->activation)
        pp_text_add(text, v->lane == PP_IN_PLACE ? " in place" : " into scratch");
    if (v->kind == PP_RECV && v->lane > 0)
        pp_text_add(text, " lane %d", v->lane);
    if (v->kind == PP_REDUCE)
        pp_text_add(text, " incoming %s", v->incoming_left ? "left" : "right");
}

/* ---- GOAL ----------------------------------------------------------------------------------------- */

static void goal_requires(const pp_graph_t *graph, const ins_t *ins, uint32_t index, pp_text_t *text)
{
    const pp_vertex_t *v = &graph->vertices[index];
    if (v->in_count == 0)
        return;
    pp_text_add(text, "  l%u requires ", index);
    if (v->need == 1 && v->in_count > 1)
        pp_text_add(text, "any of ");
    else if (v->need < v->in_count)
        pp_text_add(text, "%u of ", v->need);
    for (uint32_t i = ins->begin[index]; i < ins->begin[index + 1]; i++)
        pp_text_add(text, "%sl%u", i > ins->begin[index] ? ", " : "", ins->from[i]);
    pp_text_add(text, "\n");
}

static void goal_rank(const pp_graph_t *graph, const ins_t *ins, size_t element_bytes, pp_text_t *text)
{
    pp_text_add(text, "rank %d of %d {\n", graph->rank, graph->size);
    pp_text_add(text, "  // %zu elements of %zub, registers %u, scratch %zu, tags %u\n", graph->count,
                element_bytes, graph->reg_count, graph->scratch_count, graph->tag_count);
    for (uint32_t i = 0; i < graph->vertex_count; i++) {
        pp_text_add(text, "  l%u: ", i);
        add_operation(&graph->vertices[i], element_bytes, text);
        if (graph->vertices[i].label)
            pp_text_add(text, " \"%s\"", graph->vertices[i].label);
        pp_text_add(text, "\n");
    }
    for (uint32_t i = 0; i < graph->vertex_count; i++)
        goal_requires(graph, ins, i, text);
    pp_text_add(text, "}\n");
}

/* ---- DOT ------------------------------------------------------------------------------------------ */

static const char *const DOT_SHAPES[] = {
    [PP_NOP] = "circle", [PP_SEND] = "box", [PP_RECV] = "box", [PP_REDUCE] = "ellipse",
    [PP_COPY] = "ellipse",
};

/* Draws an operation dashed if it does not wait for all of its predecessors. */
static void dot_vertex(const pp_graph_t *graph, uint32_t index, size_t element_bytes, pp_text_t *text)
{
    const pp_vertex_t *v = &graph->vertices[index];
    pp_text_add(text, "    r%d_l%u [shape=%s%s, label=\"l%u", graph->rank, index, DOT_SHAPES[v->kind],
                v->need < v->in_count ? ", style=dashed" : "", index);
    if (v->need < v->in_count)
        pp_text_add(text, " (%u of %u)", v->need, v->in_count);
    if (v->label)
        pp_text_add(text, "\\n%s", v->label);
    if (v->kind != PP_NOP) {
        pp_text_add(text, "\\n");
        add_operation(v, element_bytes, text);
    }
    pp_text_add(text, "\"];\n");
}

static void dot_rank(const pp_graph_t *graph, const ins_t *ins, size_t element_bytes, pp_text_t *text)
{
    pp_text_add(text, "  subgraph cluster_rank_%d {\n    label=\"rank %d of %d\";\n", graph->rank,
                graph->rank, graph->size);
    for (uint32_t i = 0; i < graph->vertex_count; i++)
        dot_vertex(graph, i, element_bytes, text);
    for (uint32_t v = 0; v < graph->vertex_count; v++)
        for (uint32_t i = ins->begin[v]; i < ins->begin[v + 1]; i++)
            pp_text_add(text, "    r%d_l%u -> r%d_l%u;\n", graph->rank, ins->from[i], graph->rank, v);
    pp_text_add(text, "  }\n");
}

static void dot_messages(const pp_graph_t *from, pp_graph_t *const *graphs, pp_text_t *text)
{
    for (uint32_t i = 0; i < from->vertex_count; i++) {
        const pp_vertex_t *v = &from->vertices[i];
        if (v->kind == PP_SEND)
            pp_text_add(text, "  r%d_l%u -> r%d_l%u [style=dotted, constraint=false];\n", from->rank, i,
                        v->peer, graphs[v->peer]->recv_by_tag[v->tag]);
    }
}

/* ---- both ----------------------------------------------------------------------------------------- */

static void dump_rank(const pp_graph_t *graph, int32_t format, size_t element_bytes, pp_text_t *text)
{
    ins_t ins = {0};
    if (!ins_make(graph, &ins))
        text->failed = true;
    else if (format == PP_DOT)
        dot_rank(graph, &ins, element_bytes, text);
    else
        goal_rank(graph, &ins, element_bytes, text);
    ins_free(&ins);
}

void pp_graph_dump(const pp_graph_t *graph, int32_t format, size_t element_bytes, pp_text_t *text)
{
    if (format == PP_DOT)
        pp_text_add(text, "digraph schedule {\n");
    dump_rank(graph, format, element_bytes, text);
    if (format == PP_DOT)
        pp_text_add(text, "}\n");
}

void pp_graph_dump_all(pp_graph_t *const *graphs, int32_t size, int32_t format, size_t element_bytes,
                       pp_text_t *text)
{
    if (format == PP_DOT)
        pp_text_add(text, "digraph schedule {\n");
    else
        pp_text_add(text, "num_ranks %d\n", size);
    for (int32_t rank = 0; rank < size; rank++)
        dump_rank(graphs[rank], format, element_bytes, text);
    if (format != PP_DOT)
        return;
    for (int32_t rank = 0; rank < size; rank++)
        dot_messages(graphs[rank], graphs, text);
    pp_text_add(text, "}\n");
}
