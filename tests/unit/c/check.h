/* check.h - a condition of a case: if it does not hold, the program says which line was wrong, and exits with 1. */
#ifndef CHECK_H
#define CHECK_H

#include <stdio.h>
#include <stdlib.h>

#define CHECK(condition)                                                       \
    do {                                                                       \
        if (!(condition)) {                                                    \
            fprintf(stderr, "line %d: not so: %s\n", __LINE__, #condition);    \
            exit(1);                                                           \
        }                                                                      \
    } while (0)

#endif
