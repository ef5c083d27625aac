"""Ends without Free: no_free.py WHO STATE PROGRESS.

WHO: "all" ranks forget it, or "some" (the odd ones). STATE: "quiet", all rounds were collected and
nothing is pending; "outstanding", requests were started and not waited for; "pending", late ranks
have contributions that no round took; "unequal", the ranks make different numbers of calls;
"context", there is no handle.
"""

import sys

import numpy as np
from mpi4py import MPI

import pypartial as pp

who, state, progress = sys.argv[1:]
comm = MPI.COMM_WORLD
ctx = pp.Context(comm, progress=progress)
if state != "context":
    out = np.zeros(3)
    policy = pp.Full() if state == "quiet" else pp.Solo()
    request = ctx.Allreduce_init(np.ones(3), out, policy=policy)
    other = ctx.Allreduce_init(np.ones(200_000), np.zeros(200_000), policy=pp.Full())
    for _ in range(20 * comm.rank if state == "unequal" else 10):
        request.Start()
        request.Wait()
    if state == "outstanding":
        request.Start()
        other.Start()
    if state == "pending" and comm.rank == 0:
        comm.barrier()
        request.Start()
    elif state == "pending":
        request.Start()
        comm.barrier()
forgets = who == "all" or comm.rank % 2 == 1
if not forgets:
    if state != "context":
        if state == "outstanding":
            other.Wait()
        request.Free()
        other.Free()
    ctx.Free()
print(f"end of rank {comm.rank}", flush=True)
