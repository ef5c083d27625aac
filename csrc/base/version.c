/* version.c - what the build calls this library. */
#include "base.h"

#ifndef PP_VERSION
#define PP_VERSION "0.1.0"
#endif

const char *pp_version(void)
{
    return PP_VERSION;
}
