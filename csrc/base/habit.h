/*
 * habit.h - how long a rank usually computes.
 */
#ifndef PP_HABIT_H
#define PP_HABIT_H

#include "base.h"

enum { PP_PATIENCE_SAMPLES = 16, PP_PATIENCE_ENOUGH = 3 };

/* The last times from a result to the next Start. */
typedef struct pp_habit {
    uint64_t ns[PP_PATIENCE_SAMPLES];
    uint64_t count;                  /* of all times so far; 32 bits would overflow after hours of short rounds */
} pp_habit_t;

void     pp_habit_add(pp_habit_t *habit, uint64_t ns);
/* Five times the median of the handle's own times.  While the handle has too few, those of all handles count; while there
   are too few of these, too, it is 2 s: to leave a round too early is mild, and to wait for long before a first metric
   looks like a hang. */
uint64_t pp_habit_pace(const pp_habit_t *own, const pp_habit_t *others);
/* The automatic patience: the same, and at least a second. */
uint64_t pp_habit_patience(const pp_habit_t *own, const pp_habit_t *others);

#endif
