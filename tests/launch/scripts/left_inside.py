"""A thread of rank 0 is inside a call when MPI ends: left_inside.py CALL END.

CALL: "wait" or "flush". END: "script", a daemon thread, and the interpreter ends; "finalize", the
script calls MPI.Finalize(), and then looks at what the thread was told. Rank 1 does not make the
call, and ends later, so that it cannot complete before.
"""

import sys
import threading
import time

import numpy as np
from mpi4py import MPI

import pypartial as pp

call, end = sys.argv[1:]
comm, rank = MPI.COMM_WORLD, MPI.COMM_WORLD.rank
ctx = pp.Context(comm)
request = ctx.Allreduce_init(np.ones(3), np.zeros(3), policy=pp.Full())
other = pp.Context(comm, progress="caller")  # that the thread looks at, too, while it waits
told = []


def stay():
    try:
        request.Wait() if call == "wait" else request.Flush()
    except pp.Error as error:
        told.append(error)


thread = threading.Thread(target=stay, daemon=True)
if rank == 0:
    request.Start()
    thread.start()
    time.sleep(0.1)  # else the call may be refused before it has begun, which is not the case here
comm.Barrier()
if rank == 1 and end == "finalize":
    time.sleep(5)  # when it has ended, rank 0's call goes on without it; MPI is no help any more
print(f"end of rank {rank}", flush=True)
if end == "finalize":
    MPI.Finalize()
    if rank == 0:
        thread.join()
        assert len(told) == 1, told
        print(f"rank 0 was told: {told[0]}", flush=True)
