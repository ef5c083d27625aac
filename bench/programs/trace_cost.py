"""How much longer rounds take with a trace than without.

Usage: mpirun -n P python -m mpi4py trace_cost.py TURNS FOLDER

In each turn a context without a trace and one with make BLOCKS blocks of STEPS calls of Start and
Wait on memory of the library. Of each it takes the block in the middle. It prints the medians over
the turns, and that of the turns' ratios with its quartiles. Traces are in FOLDER, and deleted.
"""

import itertools
import shutil
import sys
import tempfile
import time

import numpy as np
from mpi4py import MPI

import pypartial as pp

SIZES, POLICIES = (8, 65536), ("full", "solo")
STEPS, BLOCKS = 100, 31
comm = MPI.COMM_WORLD


def step_us(size: int, policy: str, folder: str) -> float:
    """Return the mean over the ranks of a step's time; collective."""
    blocks = []
    with pp.Context(comm, seed=1, patience=None) as ctx:
        if folder:
            ctx.trace(folder)
        buffers = (ctx.alloc(size // 8, float), ctx.alloc(size // 8, float))
        request = ctx.Allreduce_init(*buffers, policy=policy)
        for _ in range(BLOCKS):
            with ctx.away():
                comm.Barrier()
            began = time.perf_counter_ns()
            for _ in range(STEPS):
                request.Start()
                request.Wait()
            blocks.append(time.perf_counter_ns() - began)
        request.Flush()
    return comm.allreduce(float(np.median(blocks))) / STEPS / 1e3 / comm.size


def main() -> None:
    turns, folder = int(sys.argv[1]), sys.argv[2]
    for size, policy in itertools.product(SIZES, POLICIES):
        found = []
        for turn in range(turns):
            pair = {}
            for traced in (False, True) if turn % 2 else (True, False):
                name = comm.bcast(tempfile.mkdtemp(dir=folder) if comm.rank == 0 else "")
                pair[traced] = step_us(size, policy, name if traced else "")
                if comm.rank == 0:
                    shutil.rmtree(name)
            found.append((pair[False], pair[True]))
        off, on = np.array(found).T
        low, middle, high = np.percentile(on / off, [25, 50, 75])
        if comm.rank == 0:
            print(
                f"{size} B {policy}: {np.median(off):.2f} us, traced {np.median(on):.2f} us, "
                f"ratio {middle:.3f} ({low:.3f}-{high:.3f})",
                flush=True,
            )


main()
