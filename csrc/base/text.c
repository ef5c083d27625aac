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

void pp_listing_add(pp_listing_t *listing, int32_t rank, const char *does)
{
    uint32_t before = listing->count++;
    if (before >= PP_LISTED)
        return;
    pp_text_add(listing->text, "%srank %d", before == 0 ? listing->before : ", ", rank);
    if (does)
        pp_text_add(listing->text, " (%s)", does);
}

bool pp_listing_end(const pp_listing_t *listing, const char *after)
{
    if (listing->count > PP_LISTED)
        pp_text_add(listing->text, " and %u more", listing->count - PP_LISTED);
    if (listing->count > 0)
        pp_text_add(listing->text, "%s\n", after);
    return listing->count > 0;
}
