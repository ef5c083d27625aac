/* move.h - moves the data of a round: reduces the sources in the order of ranks, and writes the result to all targets.
   */
#ifndef PP_MOVE_H
#define PP_MOVE_H

#include "../reduce/memory.h"
#include "board.h"

/* Moves elements first .. first + count - 1 of the plan's vectors.  A source may also be a target.  `pieces`: receive
   buffers of this rank that get the result, too; NULL: none. */
void pp_move(const pp_board_t *board, const pp_kernels_t *kernels, const pp_piece_t *pieces, size_t first,
             size_t count);
/* Moves one chunk of the plan. */
void pp_move_chunk(const pp_board_t *board, const pp_kernels_t *kernels, const pp_piece_t *pieces, uint32_t chunk);

/* Copies between a buffer of this rank and a vector of the board, or a piece of it. */
void pp_move_copy(const pp_board_t *board, const pp_memory_t *memory, void *to, const void *from, size_t bytes);
/* Copies elements first .. first + count - 1 of a result, which begin at `from`, into this rank's receive buffers. */
void pp_move_out(const pp_board_t *board, const pp_kernels_t *kernels, const pp_piece_t *pieces, size_t first,
                 const void *from, size_t count);

#endif
