/* move.h - the data of a round: sources reduced in the order of ranks, written to all targets. */
#ifndef PP_MOVE_H
#define PP_MOVE_H

#include "../reduce/memory.h"
#include "board.h"

/* Elements first .. first + count - 1 of the plan's vectors.  Sources and targets may be the same buffers,
   element by element.  `pieces`: receive buffers of this rank alone that get the result, too; NULL: none. */
void pp_move(const pp_board_t *board, const pp_kernels_t *kernels, const pp_piece_t *pieces, size_t first,
             size_t count);
/* A chunk of the plan. */
void pp_move_chunk(const pp_board_t *board, const pp_kernels_t *kernels, const pp_piece_t *pieces, uint32_t chunk);

/* Between a buffer of this rank alone and a vector of the board, or a piece of it. */
void pp_move_copy(const pp_board_t *board, const pp_memory_t *memory, void *to, const void *from, size_t bytes);
/* Elements first .. first + count - 1 of a result, which lie at `from`, into the receive buffers of this rank. */
void pp_move_out(const pp_board_t *board, const pp_kernels_t *kernels, const pp_piece_t *pieces, size_t first,
                 const void *from, size_t count);

#endif
