/* choose.h - what AUTO means: a cost model, and switch points that were measured. */
#ifndef PP_CHOOSE_H
#define PP_CHOOSE_H

#include "../base/base.h"

/* Fails with the wrong value if the rows are not what pp_choose() can rely on. */
pp_status_t pp_tuned_check(const pp_tuned_t *tuned, size_t tuned_count);

#endif
