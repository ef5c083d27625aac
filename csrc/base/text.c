/* text.c - a growing text. */
#include "base.h"

#include <stdarg.h>

void pp_text_add(pp_text_t *text, const char *format, ...)
{
    va_list args, again;

    if (text->failed)
        return;
    va_start(args, format);
    va_copy(again, args);
    int added = vsnprintf(NULL, 0, format, args);
    va_end(args);

    void *chars = text->chars;
    if (added < 0 || !pp_grow(&chars, &text->capacity, text->length + (size_t)added + 1, 1)) {
        text->failed = true;
    } else {
        text->chars = chars;
        vsnprintf(text->chars + text->length, (size_t)added + 1, format, again);
        text->length += (size_t)added;
    }
    va_end(again);
}
