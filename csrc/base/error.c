/* error.c - the calling thread's error text. */
#include "base.h"

#include <stdarg.h>
#include <string.h>

enum { TEXT_BYTES = 1024 };    /* longer texts are cut */

static _Thread_local char error_text[TEXT_BYTES];

pp_status_t pp_fail(pp_status_t status, const char *format, ...)
{
    /* Not straight into error_text: an argument may be error_text itself. */
    char fresh[TEXT_BYTES];
    va_list args;

    va_start(args, format);
    if (vsnprintf(fresh, sizeof fresh, format, args) < 0)
        fresh[0] = '\0';
    va_end(args);
    memcpy(error_text, fresh, strlen(fresh) + 1);
    return status;
}

const char *pp_error_text(void)
{
    return error_text;
}
