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

import numpy as np
from mpi4py import MPI

import pypartial as pp

PIECE = 1 << 26  # elements that are made and compared at a time
comm = MPI.COMM_WORLD


def fill(vector: np.ndarray, rank: int) -> None:
    """Give every element a value that depends on its place: a shift would show."""
    for start in range(0, len(vector), PIECE):
        places = np.arange(start, min(start + PIECE, len(vector)))
        vector[start : start + PIECE] = (places % 31) + (places >> 20) % 7 + rank


def count_wrong(vector: np.ndarray, ranks: int) -> int:
    wrong, extra = 0, sum(range(ranks))
    for start in range(0, len(vector), PIECE):
        places = np.arange(start, min(start + PIECE, len(vector)))
        expected = (ranks * ((places % 31) + (places >> 20) % 7) + extra).astype(np.int8)
        wrong += int((vector[start : start + PIECE] != expected).sum())
    return wrong


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
        print(
            f"{options.elements} elements by {used} in {seconds:.1f} s; the library held {held} bytes"
        )
        print(f"wrong elements by rank: {wrong}")
        print(f"{int(not any(wrong))} passed, {int(any(wrong))} failed", flush=True)
    sys.exit(any(wrong))


try:
    main()
except Exception:
    sys.stderr.write(f"rank {comm.rank}:\n{traceback.format_exc()}")
    sys.stderr.flush()
    comm.Abort(1)
