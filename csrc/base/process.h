/*
 * process.h - whether another process of this machine lives, by its number and its start time: the kernel uses numbers
 * again.  About a process whose number is of another namespace nothing can be said.
 */
#ifndef PP_PROCESS_H
#define PP_PROCESS_H

#include "base.h"

typedef struct pp_process {
    int64_t  pid;
    uint64_t born;             /* start time */
    uint64_t numbers;          /* the namespace that `pid` is of; 0: other processes cannot look this one up */
} pp_process_t;

/* This process, as others of the same namespace know it. */
pp_process_t pp_process_self(void);
/* The namespace of this process's number; 0: /proc does not list this process under its own number. */
uint64_t     pp_process_numbers(void);
/* `process` must be of the same namespace as this one. */
bool         pp_process_died(const pp_process_t *process);

#endif
