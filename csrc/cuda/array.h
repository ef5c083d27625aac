/*
 * array.h - arrays of the application in the memory of a device, which other processes may map.
 *
 * The library allocates them, so that it knows the allocation's beginning, and that the driver can share it.  An array
 * has several holders: the application, and each handle whose rounds read it.  The last one that drops it disposes of
 * the memory.  Any thread may drop it, without a lock: garbage collectors do.
 */
#ifndef PP_ARRAY_H
#define PP_ARRAY_H

#include "driver.h"

typedef struct pp_array pp_array_t;

/* Allocates memory on a device, by its number, which stays open as long.  It is not zeroed.  PP_ERR_ARGUMENT: there is
   no device of this number.  PP_ERR_STATE: there is no driver, or no device.  *array is NULL then. */
pp_status_t pp_array_new(int32_t device, size_t bytes, pp_array_t **array);
/* Finds the array in which all of a range lies, and holds it; NULL: there is none. */
pp_array_t *pp_array_hold(CUdeviceptr address, size_t bytes);
/* Whether there is such an array. */
bool        pp_array_has(CUdeviceptr address, size_t bytes);
/* NULL is fine.  Does nothing in a forked child.  True: the caller was the last holder. */
bool        pp_array_drop(pp_array_t *array);

/* Where the array begins. */
CUdeviceptr pp_array_address(const pp_array_t *array);

#endif
