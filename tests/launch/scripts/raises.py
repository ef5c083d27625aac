"""One rank raises while the others are in their loop: raises.py WHERE [outside | inside with]."""

import sys

import numpy as np
from mpi4py import MPI

import pypartial as pp

where, culprit = sys.argv[1], int(sys.argv[2])
policy = {"solo": pp.Solo(), "full": pp.Full()}[sys.argv[3]]
comm = MPI.COMM_WORLD


def loop(ctx):
    request = ctx.Allreduce_init(np.ones(1000), np.zeros(1000), policy=policy)
    for step in range(10_000_000):
        if comm.rank == culprit and step == 50:
            raise RuntimeError(f"rank {comm.rank} gives up")
        request.Start()
        request.Wait()
        if where == "waiting" and comm.rank == culprit and step == 10:
            request.Start()
            comm.barrier()  # which nobody else calls


if where == "with":
    with pp.Context(comm) as ctx:
        loop(ctx)
else:
    loop(pp.Context(comm))
