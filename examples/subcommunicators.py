"""Contexts on sub-communicators: often within a group, now and then over all ranks.

    mpirun -n 4 python -m mpi4py examples/subcommunicators.py

The even ranks are one group and the odd ranks another. In each step a group averages its gradients
with a majority, which costs little; every tenth step all ranks average their models, synchronously.
Each rank has two contexts, on overlapping communicators. A rank that waits in one of them would
hold the rounds of the other up, so every phase in a group ends with its `Flush`: the ranks of the
group meet in it, and nobody is left behind who needs their rounds. The ranks have different data,
so that a group by itself would find another model than all of them together.
"""

from __future__ import annotations

import numpy as np
from mpi4py import MPI

import pypartial as pp

STEPS = 100
RATE = 0.05

comm = MPI.COMM_WORLD
group = comm.Split(comm.rank % 2, comm.rank)
target = np.full(20, float(comm.rank))  # what this rank's data would have
best = np.full(20, (comm.size - 1) / 2)  # what all data together have
w, gradient, total = np.zeros(20), np.zeros(20), np.zeros(20)
status = pp.Status()

with (
    pp.Context(comm, seed=1) as everybody,
    pp.Context(group, seed=2) as some,
    everybody.Allreduce_init(MPI.IN_PLACE, w, policy=pp.Full(), average="size") as models,
    some.Allreduce_init(gradient, total, policy=pp.Majority()) as gradients,
):
    for step in range(STEPS):
        gradient[:] = w - target
        gradients.Start()
        gradients.Wait(status)
        w -= RATE * total / group.size
        if step % 10 == 9:
            gradients.Flush(status)
            w -= RATE * total / group.size
            models.Start()
            models.Wait()
    alone = target.copy()
    group.Allreduce(MPI.IN_PLACE, alone)

error = comm.reduce(abs(w - best).max(), MPI.MAX)
if comm.rank == 0:
    of_group = abs(alone / group.size - best).max()
    print(f"the model of rank 0's group alone would be off by {of_group:.2f}")
    print(f"{status.round + 1} rounds in the group; the model of all is off by {error:.2g}")
group.Free()
