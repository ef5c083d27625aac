"""A metric of all ranks in the middle of a training loop: inside `ctx.away()`.

    mpirun -n 4 python -m mpi4py examples/metrics.py

Every tenth step the ranks sum a metric with `comm.allreduce`, a blocking call of the application.
The first rank there waits in it for the others; these may wait, in a round of theirs, for that
rank. They would stand still until its patience is over (0.3 s here, at least 1 s by default).
`ctx.away()` says that the rank has left for so long, and their rounds go on at once. The example
runs the loop with and without it.
"""

from __future__ import annotations

import contextlib
import time

import numpy as np
from mpi4py import MPI

import pypartial as pp

STEPS = 30

comm = MPI.COMM_WORLD


def train(*, says_so: bool) -> tuple[float, float]:
    """Return the seconds that the loop took, and the last metric."""
    target = np.arange(100.0)
    w, gradient, total = np.zeros(100), np.zeros(100), np.zeros(100)
    mean = 0.0
    with (
        pp.Context(comm, seed=7, patience=0.3) as ctx,
        ctx.Allreduce_init(gradient, total) as request,
    ):
        comm.barrier()
        began = time.perf_counter()
        for step in range(STEPS):
            time.sleep(0.001 * (1 + comm.rank))  # the higher the rank, the slower
            gradient[:] = w - target
            request.Start()
            request.Wait()
            w -= 0.1 * total / comm.size
            if step % 10 == 9:
                with ctx.away() if says_so else contextlib.nullcontext():
                    mean = comm.allreduce(float(np.mean((w - target) ** 2))) / comm.size
        seconds = time.perf_counter() - began
        request.Flush()
    return seconds, mean


for says_so in (True, False):
    seconds, mean = train(says_so=says_so)
    slowest = comm.allreduce(seconds, MPI.MAX)
    if comm.rank == 0:
        how = "inside ctx.away()" if says_so else "without it"
        print(f"metrics {how}: {slowest:.2f} s; mean loss {mean:.3g}", flush=True)
