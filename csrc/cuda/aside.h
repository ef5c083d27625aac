/*
 * aside.h - work for which the driver may wait for a device: it is done aside, in a thread of its own.
 *
 * Such a thread has no lock of a context while it waits, and nobody waits for it but those that need the work.
 */
#ifndef PP_ASIDE_H
#define PP_ASIDE_H

#include "../base/base.h"

/* Calls work(argument) in a new thread, which ends with it; in the calling thread, if there can be none.  The argument is
   there until then. */
void pp_aside(void (*work)(void *argument), void *argument);

/* Between these, work that the calling thread gives to pp_aside() does not begin yet.  While a driver waits before it
   takes memory back, it may let no call of another thread begin (NVIDIA's 580 is so); and this thread has calls to make
   with a lock that others need.  They nest: the last pp_aside_let() counts. */
void pp_aside_hold(void);
void pp_aside_let(void);

#endif
