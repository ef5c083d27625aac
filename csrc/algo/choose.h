/* choose.h - how AUTO becomes an algorithm: by a cost model, or by measured switch points. */
#ifndef PP_CHOOSE_H
#define PP_CHOOSE_H

#include "../base/base.h"

/* PP_ERR_ARGUMENT if pp_choose() cannot use the rows; the text has the wrong value. */
pp_status_t pp_tuned_check(const pp_tuned_t *tuned, size_t tuned_count);

#endif
