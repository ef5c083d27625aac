"""More elements than 31 bits can count.

    mpirun -n 2 python tests/stress/huge.py [--elements N]

Reduces 2**31 + 5 int8 elements on all ranks, with window=1 and in place to save memory, and checks
every one of them: about 6 GiB a rank. The last line is "N passed, N failed".
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections.abc import Iterator

import numpy as np
from mpi4py import MPI

import pypartial as pp

PERIOD, PIECE = 31, 1 << 20  # of the pattern; elements that are made and compared at a time
PATTERN = (np.arange(PERIOD + PIECE) % PERIOD).astype(np.int8)
comm = MPI.COMM_WORLD


def pieces(vector: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield pieces of the vector and what they hold: by the place, so a shift would show."""
    for start in range(0, len(vector), PIECE):
        piece = vector[start : start + PIECE]
        pattern = PATTERN[start % PERIOD :][: len(piece)]
        yield piece, pattern + np.int8(start // PIECE % 7)


def fill(vector: np.ndarray, rank: int) -> None:
    for piece, pattern in pieces(vector):
        piece[:] = pattern + np.int8(rank)


def count_wrong(vector: np.ndarray, ranks: int) -> int:
    extra = np.int8(sum(range(ranks)))
    return sum(
        int(np.count_nonzero(piece != pattern * np.int8(ranks) + extra))
        for piece, pattern in pieces(vector)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--elements", type=int, default=2**31 + 5)
    parser.add_argument("--algorithm", default="auto")
    options = parser.parse_args()
    vector = np.zeros(options.elements, np.int8)
    with pp.Context(comm, window=1, stall_warning=120) as ctx:
        request = ctx.Allreduce_init(
            MPI.IN_PLACE, vector, policy=pp.Full(), algorithm=options.algorithm
        )
        fill(vector, comm.rank)
        comm.barrier()
        began = time.monotonic()
        request.Start()
        request.Wait()
        seconds = time.monotonic() - began
        wrong = comm.allgather(count_wrong(vector, comm.size))
        held = ctx.stats().buffer_bytes
        used = request.algorithm
        request.Free()
    if comm.rank == 0:
        print(f"{options.elements} elements by {used}: {seconds:.1f} s, {held} bytes of buffers")
        print(f"wrong elements by rank: {wrong}")
        print(f"{int(not any(wrong))} passed, {int(any(wrong))} failed", flush=True)
    sys.exit(any(wrong))


try:
    main()
except Exception:
    sys.stderr.write(f"rank {comm.rank}:\n{traceback.format_exc()}")
    sys.stderr.flush()
    comm.Abort(1)
