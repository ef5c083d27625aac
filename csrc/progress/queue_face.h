/* queue_face.h - what applications do with handles of queues.  See context.h. */
#ifndef PP_QUEUE_FACE_H
#define PP_QUEUE_FACE_H

#include "../coll/queues/queue.h"
#include "context.h"

extern const pp_face_t pp_queue_face;

#endif
