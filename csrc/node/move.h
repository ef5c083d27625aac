/* move.h - the data of a round: sources reduced in the order of ranks, written to all targets. */
#ifndef PP_MOVE_H
#define PP_MOVE_H

#include "../reduce/reduce.h"
#include "board.h"

/* Elements first .. first + count - 1 of the plan's vectors.  Sources and targets may be the same buffers,
   element by element. */
void pp_move(const pp_board_t *board, const pp_kernels_t *kernels, size_t first, size_t count);
/* A chunk of the plan. */
void pp_move_chunk(const pp_board_t *board, const pp_kernels_t *kernels, uint32_t chunk);

/* Between a buffer of this rank alone and a vector of the board, or a piece of it. */
void pp_move_copy(const pp_board_t *board, void *to, const void *from, size_t bytes);

#endif
