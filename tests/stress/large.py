"""More elements than a 31-bit count can say: slow, and needs memory, so it is run by hand.

    mpirun -n 2 python -m mpi4py tests/stress/large.py                  # 2**31 + 5 elements
    mpirun -n 2 python -m mpi4py tests/stress/large.py --elements 70000 --chunk 1000

Reduces int8 vectors in place with window=1, and looks at every element of the result on every
rank. The values depend on the place with a period of 41, so that a piece that lands a power of two
away shows. A rank needs 2 GiB for the vector, up to 2 GiB for the pending contribution and up to
2 GiB of the library's scratch (docs/engine.md); it prints what it came to. 2 ranks fit in 16 GiB;
it refuses to start when there is less. Seconds once the memory is there. The last line is
"N passed, N failed".
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import numpy as np
from checks import Checks, run
from mpi4py import MPI

import pypartial as pp

PERIOD = 41
PIECE = PERIOD << 16  # elements written and compared at a time: a whole number of periods
GIB = 1 << 30
COPIES = 3.2  # memory of a rank, in vectors


def pattern(ranks: int, extra: int) -> np.ndarray:
    """Return a piece of the sum over `ranks` ranks whose extras add up to `extra`."""
    return (ranks * (np.arange(PIECE) % PERIOD) + extra).astype(np.int8)


def fill(vector: np.ndarray, rank: int) -> None:
    piece = pattern(1, rank)
    for start in range(0, len(vector), PIECE):
        part = vector[start : start + PIECE]
        part[:] = piece[: len(part)]


def count_wrong(vector: np.ndarray, ranks: int) -> int:
    piece = pattern(ranks, sum(range(ranks)))
    wrong = 0
    for start in range(0, len(vector), PIECE):
        part = vector[start : start + PIECE]
        wrong += int(np.count_nonzero(part != piece[: len(part)]))
    return wrong


def free_bytes() -> int:
    """Return the memory that the machine can give without swapping; much, if it does not say."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return 1 << 62
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))


def reduce(checks: Checks, ctx: pp.Context, vector: np.ndarray, algorithm: str) -> None:
    comm, status = ctx.comm, pp.Status()
    request = ctx.Allreduce_init(MPI.IN_PLACE, vector, policy=pp.Full(), algorithm=algorithm)
    fill(vector, comm.rank)
    comm.barrier()
    began = time.monotonic()
    request.Start()
    request.Wait(status)
    seconds = comm.allreduce(time.monotonic() - began, MPI.MAX)
    held = comm.allreduce(ctx.stats().buffer_bytes, MPI.MAX)
    wrong = comm.allgather(count_wrong(vector, comm.size))
    everybody = status.contributions == status.active == comm.size
    peak = 1024 * comm.allreduce(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, MPI.MAX)
    checks.note(
        not any(wrong) and comm.allreduce(everybody, MPI.LAND),
        f"{len(vector)} int8 elements on {comm.size} ranks, {request.algorithm}: {seconds:.1f} s; "
        f"the library held {held / GIB:.2f} GiB, a rank at most {peak / GIB:.2f} GiB; wrong "
        f"elements by rank: {wrong}",
    )
    request.Free()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--elements", type=int, default=2**31 + 5)
    parser.add_argument("--algorithm", default="auto")
    parser.add_argument("--chunk", type=int, default=0, help="largest MPI transfer in bytes")
    parser.add_argument("--limit", type=float, default=1800, help="seconds until it counts as hung")
    return parser.parse_args()


def main() -> None:
    comm, options = MPI.COMM_WORLD, parse()
    if (PERIOD - 1) * comm.size + sum(range(comm.size)) > np.iinfo(np.int8).max:
        raise SystemExit(f"{comm.size} ranks would overflow int8")
    needed, free = COPIES * options.elements * comm.size, comm.bcast(free_bytes())
    if needed > free:
        raise SystemExit(f"needs {needed / GIB:.1f} GiB, of which {free / GIB:.1f} GiB are free")
    checks = Checks(comm)
    pp.Context._chunk_bytes = options.chunk
    vector = np.zeros(options.elements, np.int8)
    with pp.Context(comm, window=1, stall_warning=120) as ctx:
        reduce(checks, ctx, vector, options.algorithm)
    checks.end()


if __name__ == "__main__":
    run(main, parse().limit)
