"""A metric of all ranks in the middle of a training loop: by `ctx.comm`.

    mpirun -n 4 python -m mpi4py examples/metrics.py

Every tenth step the ranks sum a metric by an `allreduce`, a blocking call of the application. The
first rank there waits in it for the others; these may wait, in a round of theirs, for that rank.
`ctx.comm` is the communicator that the context was made from, seen by the library: while a rank is
in a collective call of it, rounds go on without that rank. In a call of `comm` itself the others
stand still until its patience is over (0.3 s here, at least 1 s by default). The example runs the
loop with each of them.
"""

from __future__ import annotations

import time

import numpy as np
from mpi4py import MPI

import pypartial as pp

STEPS = 30

comm = MPI.COMM_WORLD


def train(*, is_seen: bool) -> tuple[float, float]:
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
                ranks = ctx.comm if is_seen else comm
                mean = ranks.allreduce(float(np.mean((w - target) ** 2))) / comm.size
        seconds = time.perf_counter() - began
        request.Flush()
    return seconds, mean


for is_seen in (True, False):
    seconds, mean = train(is_seen=is_seen)
    slowest = comm.allreduce(seconds, MPI.MAX)
    if comm.rank == 0:
        how = "ctx.comm" if is_seen else "comm"
        print(f"metrics by {how}: {slowest:.2f} s; mean loss {mean:.3g}", flush=True)
