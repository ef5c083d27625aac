/*
 * process.h - whether another process of this machine lives, by its number and its start time (numbers are used
 * again).  Of a process whose numbers are of another namespace nothing can be said.
 */
#ifndef PP_PROCESS_H
#define PP_PROCESS_H

#include "base.h"

typedef struct pp_process {
    int64_t  pid;
    uint64_t born;             /* start time */
    uint64_t numbers;          /* what process numbers `pid` is one of; 0: others cannot look this process up */
} pp_process_t;

/* This process, as it is known to others with the same process numbers. */
pp_process_t pp_process_self(void);
/* Identifies the namespace of process numbers, if /proc has this process under its own; 0: it has not. */
uint64_t     pp_process_numbers(void);
/* Of a process with the numbers of this one. */
bool         pp_process_died(const pp_process_t *process);

#endif
