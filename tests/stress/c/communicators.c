/* communicators.c - a library to be loaded before MPI: it counts the communicators that a process makes. */
#include "communicators.h"

int communicators_made(void) { return communicators; }
