"""MPI_Finalize while a context and a request are alive; they are used afterwards."""

import numpy as np
from mpi4py import MPI

import pypartial as pp

comm, rank = MPI.COMM_WORLD, MPI.COMM_WORLD.rank
ctx = pp.Context(comm)
request = ctx.Allreduce_init(None, np.zeros(1), policy=pp.Solo())
request.Start()
request.Wait()
MPI.Finalize()
for call in (request.Start, request.Wait, request.Free, ctx.stats, ctx.Free):
    try:
        call()
    except pp.Error as error:
        assert "finalised" in str(error), error
    else:
        raise AssertionError(f"{call} after MPI_Finalize")
print(f"end of rank {rank}", flush=True)
