/* direct_parts.h - what the files of direct.h share. */
#ifndef PP_DIRECT_PARTS_H
#define PP_DIRECT_PARTS_H

#include "device_kind.h"
#include "direct.h"

typedef struct pp_direct {
    pp_device_kind_t    kind;        /* first: end() gets its address */
    pp_device_failure_t failure;
    pp_device_marks_t   marks;       /* of rounds; groups have their thread wait */
    pp_wish_t           wish;
    pp_ctx_t           *ctx;
    struct pp_direct   *next;        /* of the context's, if it is in use */
    pp_folds_t         *folds;
    pp_pinned_t        *receive;     /* the bounce buffer of the first result, until the handle takes it */
    bool                gives_back;  /* when the handle ends; else the process does */
    bool                ends_alone;  /* it ends when the handle is released; else when its rounds are, as their kind of
                                        memory */
} pp_direct_t;

/* The elements of a handle. */
typedef struct pp_direct_elements {
    int32_t op, type;
    size_t  count;
} pp_direct_elements_t;

/* Has the handle wish for it, and meet() when the ranks have agreed. */
void pp_direct_begin(pp_handle_t *handle, pp_direct_t *direct, pp_status_t (*meet)(pp_handle_t *));
/* Opens kernels and stream, and makes the first bounce buffer. */
pp_status_t pp_direct_open(const pp_handle_t *handle, pp_direct_t *direct, const pp_direct_elements_t *elements);
/* This rank cannot have it, for the reason that the calling thread's error says. */
void pp_direct_lack(pp_direct_t *direct);

/* Gives it its operations, before anything is opened. */
void pp_direct_make_kind(pp_direct_t *direct);
void pp_direct_unpin_receive(pp_direct_t *direct);
/* Closes what was opened; errors have no one to hear them. */
void pp_direct_close(pp_direct_t *direct);

#endif
