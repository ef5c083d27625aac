"""MPI_Finalize while a context and requests are alive; they are used afterwards.

Rank 0's Free of one of the requests has timed out before.
"""

import numpy as np
from mpi4py import MPI

import pypartial as pp

comm, rank = MPI.COMM_WORLD, MPI.COMM_WORLD.rank
ctx = pp.Context(comm)
request = ctx.Allreduce_init(None, np.zeros(1), policy=pp.Solo())
freed = ctx.Allreduce_init(None, np.zeros(1), policy=pp.Solo())
request.Start()
request.Wait()
if rank == 0:
    try:
        freed.Free(timeout=0)  # rank 1 does not free it
    except pp.TimeoutError:
        pass
    else:
        raise AssertionError("Free did not wait for rank 1")
comm.Barrier()  # a rank 1 that has ended its script would go along with the Free
MPI.Finalize()
for call in (freed.Free, request.Start, request.Wait, request.Free, ctx.stats, ctx.Free):
    try:
        call()
    except pp.Error as error:
        assert "finalised" in str(error), error
    else:
        raise AssertionError(f"{call} after MPI_Finalize")
print(f"end of rank {rank}", flush=True)
