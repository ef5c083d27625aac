/*
 * graph.h - schedule templates: an immutable DAG of operations, one for each rank.
 *
 * A vertex fires when the number of its finished predecessors *equals* its `need`: all of them (AND), one (OR) or k.
 * Later predecessors raise the count beyond `need`, so an operation is consumable by construction (eager-SGD,
 * section 4.1.1).  Each round is a fresh instance of the template, so a schedule is persistent by construction.
 * Instances live in exec/.
 *
 * Data of a round.  The *accumulator* is the vector being reduced.  It starts as this rank's contribution, or as null.
 * A *register* describes a region of the accumulator: it is a header, which says who has contributed so far, and a null
 * flag.  A schedule that treats the vector as one piece uses register 0.  A ring uses one register a chunk.  Each
 * segment of a vector has registers of its own.
 *   SEND    sends the register's header to `peer`, and the region's elements unless the register is null
 *   RECV    receives a header and a region from `peer`: into a lane of scratch, for a REDUCE, or straight into
 *           the register and the accumulator, which it replaces (PP_IN_PLACE)
 *   REDUCE  merges the message of the RECV `source` into the register and the region; the lower rank's operand is
 *           always the left one (`incoming_left`)
 *   COPY    "take": makes the pending slot the accumulator; a template has one
 *   NOP     joins edges; its predecessors fire it, or, if it has none, the host does
 *
 * A message is named by (sender, receiver, tag).  Tags are dense in a template.  A step has the same tag on both sides,
 * and a rank receives at most one message of a tag in a round.  So the number of messages of a round does not depend
 * on the rank that started it.
 *
 * Pure data: no atomics, no clock, no thread.
 */
#ifndef PP_GRAPH_H
#define PP_GRAPH_H

#include "../base/base.h"

typedef enum pp_kind { PP_NOP, PP_SEND, PP_RECV, PP_REDUCE, PP_COPY } pp_kind_t;

typedef struct pp_region {
    size_t offset, count;        /* elements of the accumulator */
} pp_region_t;

typedef struct pp_vertex {
    uint8_t     kind;            /* pp_kind_t */
    int8_t      lane;            /* RECV: of scratch, or PP_IN_PLACE */
    bool        activation;      /* SEND, RECV: carries no header of data, only "round r is on" */
    bool        incoming_left;   /* REDUCE: what it merges is the left operand */
    uint32_t    need;            /* finished predecessors that it waits for */
    int32_t     peer;            /* SEND, RECV */
    uint32_t    tag;             /* SEND, RECV */
    uint32_t    reg;             /* register; all but NOP */
    uint32_t    source;          /* REDUCE: the RECV whose data it merges */
    uint32_t    in_count;        /* its predecessors */
    uint32_t    outs_begin, outs_end;  /* its successors in pp_graph.outs, in the order of pp_graph_edge() calls.
                                          They fire in that order, so add the urgent ones first */
    pp_region_t region;
    const char *label;           /* static text for dumps, e.g. "take" */
} pp_vertex_t;

_Static_assert(sizeof(pp_vertex_t) <= 64, "an operation fits one cache line, because many ranks are simulated");

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
    size_t       scratch_count;  /* elements of a lane of scratch: of the largest region that a RECV puts there */
    uint32_t     lane_count;     /* lanes of scratch */

    /* Where protocols hook in; PP_NO_VERTEX: the schedule has no such vertex. */
    uint32_t start;              /* NOP that the host fires: internal activation */
    uint32_t join;               /* NOP that the host fires: join the round and tell no rank (flush) */
    uint32_t gate;               /* NOP that the host fires: this rank may give its part now */
    uint32_t activated;          /* NOP: the round is on here, by start, a message or join */
    uint32_t take;               /* COPY: needs `activated` and `gate` */
    uint32_t done;               /* NOP: the accumulator is the result */

    /* Builder state. */
    struct pp_edge { uint32_t from, to; } *edges;
    size_t       edge_count, edge_capacity, vertex_capacity;
    pp_status_t  error;          /* first error of the builder; commit returns it */
} pp_graph_t;

/* The builder.  It latches its first error in the graph, and pp_graph_commit() returns that, so that an algorithm reads
   like its paper.  NULL: no memory. */
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

/* Freezes the template: computes the `need` of PP_NEED_ALL vertices and the tables of successors and tags.  Refuses
   cycles, duplicate tags, edges out of range and needs that can never be met. */
pp_status_t pp_graph_commit(pp_graph_t *graph);

/* Checks all ranks' templates together: each send has exactly one receive of the same tag, register and number of
   elements, and each receive one send.  The error text names the first operation that has none. */
pp_status_t pp_graph_check(pp_graph_t *const *graphs, int32_t size);

/* Appends the template as DOT or as GOAL-like text ("l3: send 8b to 5 tag 2", "l3 requires l1"; an OR
   or k-of-n vertex says so). */
void pp_graph_dump(const pp_graph_t *graph, int32_t format, size_t element_bytes, pp_text_t *text);

#endif
