"""An average that takes 5 ms at most, no matter which ranks are missing.

    mpirun -n 4 python -m mpi4py examples/deadline.py

Every rank measures something in each step and wants the average over the ranks. `pp.Full` waits for
all of them; with `deadline=5e-3` a rank that has waited for 5 ms activates the round without the
others. The last rank needs 40 ms for each measurement: it is in few rounds, and never holds one up.
`deliver="latest"` gives the newest average only, so no bound on staleness keeps a round back.
"""

from __future__ import annotations

import time

import numpy as np
from mpi4py import MPI

import pypartial as pp

ROUNDS = 40
DEADLINE_S = 5e-3

comm = MPI.COMM_WORLD
measured, average = np.zeros(1), np.zeros(1)
status = pp.Status()
waits_ms: list[float] = []
late_ones = 0

with (
    pp.Context(comm, seed=7) as ctx,
    ctx.Allreduce_init(
        measured,
        average,
        policy=pp.Full(deadline=DEADLINE_S),
        deliver="latest",
        average="contributions",
    ) as request,
):
    finished = False
    while not finished:
        time.sleep(0.04 if comm.rank == comm.size - 1 else 0.001)
        measured[0] = 20 + comm.rank
        request.Start()
        began = time.perf_counter()
        request.Wait(status)
        waits_ms.append(1e3 * (time.perf_counter() - began))
        assert status.contributors is not None  # None above 1,024 ranks
        late_ones += comm.size - 1 in status.contributors
        if comm.rank == 0 and status.round % 10 == 0:
            print(f"round {status.round}: {average[0]:.1f} of ranks {status.contributors}")
        finished = status.round >= ROUNDS

if comm.rank == 0:
    print(
        f"rank 0 waited {np.median(waits_ms):.1f} ms a round (median of {len(waits_ms)}); rank "
        f"{comm.size - 1} was in {late_ones} of them",
        flush=True,
    )
