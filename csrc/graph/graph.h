/*
 * graph.h - schedule templates: an immutable DAG of operations, one per rank.
 *
 * A vertex fires when the number of its finished predecessors *equals* its `need`: all of them (AND),
 * one (OR) or k.  Later arrivals find the count beyond `need`, so an operation is consumable by
 * construction (eager-SGD, section 4.1.1).  A round is a fresh instance of the template, so a
 * schedule is persistent by construction; instances live in exec/.
 *
 * Data model of an operation.  A round has one *accumulator*: the vector being reduced.  It starts as
 * this rank's contribution, or as null.  A *register* is a header (who has contributed so far) with a
 * null flag; it describes a region of the accumulator.  Schedules that treat the vector as one piece
 * use register 0; a ring uses one a chunk, and a vector that is cut into segments others for each.
 *   SEND    the register's header to `peer`, and the region's elements unless the register is null
 *   RECV    a header and a region from `peer`, into a lane of scratch (a REDUCE follows) or straight into
 *           the accumulator and the register (PP_IN_PLACE: it replaces them)
 *   REDUCE  merges what the RECV `source` brought into the register and the region; the lower rank's
 *           operand is always the left one (`incoming_left`)
 *   COPY    takes the pending slot as the accumulator ("take"); one a template.  Others copy a region, with its
 *           register, to another one
 *   NOP     joins edges; fired by its predecessors, or from outside if it has none
 *
 * Besides the accumulator a template may have *named buffers*: pp_graph_buffer().  A register that is bound to one
 * describes a region of that buffer, and begins null; all operations then work there.  A REDUCE may merge such a
 * region instead of what a RECV brought.  REDUCE and COPY may carry a *weight*, by its number; the numbers' values
 * are the instance's: into += w * in, into = w * in.
 *
 * A message is named by (sender, receiver, tag): tags are dense per template, the same step has the
 * same tag on both sides, and one rank never receives two messages of one tag in a round.  The number
 * of messages of a round therefore never depends on who started it.
 *
 * Pure data: no atomics, no clock, no thread.
 */
#ifndef PP_GRAPH_H
#define PP_GRAPH_H

#include "../base/base.h"

typedef enum pp_kind { PP_NOP, PP_SEND, PP_RECV, PP_REDUCE, PP_COPY } pp_kind_t;

typedef struct pp_region {
    size_t offset, count;        /* elements of the register's buffer */
} pp_region_t;

/* A region and the register that describes it. */
typedef struct pp_operand {
    uint32_t    reg;
    pp_region_t region;
} pp_operand_t;

/* Buffers are numbered; named ones from 1 on. */
enum { PP_ACCUMULATOR = 0 };

typedef struct pp_graph_buffer {
    size_t      count;           /* elements */
    const char *label;           /* static text */
} pp_graph_buffer_t;

typedef struct pp_vertex {
    uint8_t     kind;            /* pp_kind_t */
    int8_t      lane;            /* RECV: of scratch, or PP_IN_PLACE */
    bool        activation;      /* SEND, RECV: carries no header of data, only "round r is on" */
    bool        incoming_left;   /* REDUCE */
    uint32_t    need;            /* finished predecessors it waits for */
    union {
        struct {
            int32_t  peer;       /* SEND, RECV */
            uint32_t tag;        /* SEND, RECV */
        };
        size_t  source_offset;   /* `local`: where the source's region begins */
    };
    uint32_t    reg;             /* register; all but NOP */
    uint32_t    source;          /* REDUCE: the RECV whose data it merges; `local`: the register */
    uint32_t    in_count;        /* edges that enter it */
    uint16_t    weight;          /* REDUCE, its RECV, COPY: 1 + the weight's number; 0: none */
    bool        local;           /* REDUCE, COPY: from another register */
    uint32_t    outs_begin, outs_end;  /* into pp_graph.outs, in the order of pp_graph_edge() calls:
                                          successors fire in that order, so add the urgent first */
    pp_region_t region;
    const char *label;           /* static text for dumps, e.g. "take" */
} pp_vertex_t;

_Static_assert(sizeof(pp_vertex_t) <= 64, "an operation is one cache line: many ranks are simulated");

enum { PP_NEED_ALL = 0, PP_NEED_ANY = 1 };
enum { PP_NO_VERTEX = 0xffffffffu };
enum { PP_IN_PLACE = -1 };

typedef struct pp_graph {
    int32_t      rank, size;
    size_t       count;          /* elements of the vector */
    pp_vertex_t *vertices;
    uint32_t     vertex_count;
    uint32_t    *outs;           /* successors, CSR; valid after commit */
    uint32_t    *recv_by_tag;    /* tag -> RECV vertex or PP_NO_VERTEX; valid after commit */
    uint32_t     tag_count;
    uint32_t     reg_count;
    size_t       scratch_count;  /* elements of the largest region that a RECV puts into scratch */
    uint32_t     lane_count;     /* such regions side by side in it */
    pp_graph_buffer_t *buffers;  /* named ones: buffer b is buffers[b - 1] */
    uint32_t     buffer_count;
    uint32_t    *bound;          /* registers' buffers; of those from bound_count on it is the accumulator */
    uint32_t     bound_count;
    uint32_t     weight_count;

    /* Where protocols hook in; PP_NO_VERTEX if the schedule has none. */
    uint32_t start;              /* NOP without predecessors: internal activation */
    uint32_t join;               /* NOP without predecessors: join without telling anyone (flush) */
    uint32_t gate;               /* NOP without predecessors: this rank may give its part now */
    uint32_t activated;          /* NOP: the round is on here (start, a message, or join) */
    uint32_t take;               /* COPY: needs `activated` and `gate` */
    uint32_t done;               /* NOP: the accumulator is the result */

    /* Builder state. */
    struct pp_edge { uint32_t from, to; } *edges;
    size_t       edge_count, edge_capacity, vertex_capacity, buffer_capacity, bound_capacity;
    pp_status_t  error;          /* first error of the builder; commit returns it */
} pp_graph_t;

/* Builder.  Errors are latched in the graph and reported by pp_graph_commit(), so that an algorithm
   reads like its paper.  NULL only when out of memory. */
pp_graph_t *pp_graph_new(int32_t rank, int32_t size, size_t count);
void        pp_graph_free(pp_graph_t *graph);

/* Each returns the new vertex's index.  `need`: PP_NEED_ALL, PP_NEED_ANY or k. */
uint32_t pp_graph_nop(pp_graph_t *graph, uint32_t need, const char *label);
uint32_t pp_graph_send(pp_graph_t *graph, uint32_t need, int32_t peer, uint32_t tag, uint32_t reg,
                       pp_region_t region);
uint32_t pp_graph_recv(pp_graph_t *graph, uint32_t need, int32_t peer, uint32_t tag, uint32_t reg,
                       pp_region_t region, int8_t lane);
uint32_t pp_graph_reduce(pp_graph_t *graph, uint32_t recv, bool incoming_left);
uint32_t pp_graph_take(pp_graph_t *graph);
void     pp_graph_edge(pp_graph_t *graph, uint32_t from, uint32_t to);

/* A buffer of `count` elements; returns its number.  Its memory is there from the first write on to the end of the
   instance. */
uint32_t pp_graph_buffer(pp_graph_t *graph, size_t count, const char *label);
/* From here on the register describes a region of that buffer.  Before its first use. */
void     pp_graph_bind(pp_graph_t *graph, uint32_t reg, uint32_t buffer);
/* The region and its register replace the other's; nothing is copied from a null register.  Onto itself: for a
   weight. */
uint32_t pp_graph_copy(pp_graph_t *graph, pp_operand_t from, pp_operand_t into);
/* The region and its register are merged into the other's. */
uint32_t pp_graph_merge(pp_graph_t *graph, pp_operand_t from, pp_operand_t into, bool from_left);
/* A REDUCE or COPY multiplies what it brings by a weight of the instance, rounded before it is added. */
void     pp_graph_weigh(pp_graph_t *graph, uint32_t vertex, uint32_t weight);

static inline uint32_t pp_graph_buffer_of(const pp_graph_t *graph, uint32_t reg)
{
    return reg < graph->bound_count ? graph->bound[reg] : PP_ACCUMULATOR;
}
/* Elements of a buffer. */
static inline size_t pp_graph_buffer_count(const pp_graph_t *graph, uint32_t buffer)
{
    return buffer == PP_ACCUMULATOR ? graph->count : graph->buffers[buffer - 1].count;
}

/* Freezes the template: computes `need` of PP_NEED_ALL vertices, the successor and tag tables;
   refuses cycles, duplicate tags, edges out of range and needs that can never be met. */
pp_status_t pp_graph_commit(pp_graph_t *graph);

/* All ranks' templates together: every send has exactly one receive of the same tag, register and
   number of elements, and the other way round.  The text names the first offender. */
pp_status_t pp_graph_check(pp_graph_t *const *graphs, int32_t size);

/* Appends the template as DOT or as GOAL-like text ("l3: send 8b to 5 tag 2", "l3 requires l1"; an OR
   or k-of-n vertex says so). */
void pp_graph_dump(const pp_graph_t *graph, int32_t format, size_t element_bytes, pp_text_t *text);

#endif
