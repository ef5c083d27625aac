"""The last rank dies, and the launcher lets the others go on: died.py TRANSPORT POLICY [PROGRESS].

With PROGRESS, they do not wait for it, but test.

Each of the others prints what it sees.
"""

import os
import signal
import sys
import time

import numpy as np
from mpi4py import MPI
from survivors import end

import pypartial as pp

transport, policy = sys.argv[1], {"full": pp.Full(), "quorum": pp.Quorum(3)}[sys.argv[2]]
comm = MPI.COMM_WORLD
tests = len(sys.argv) > 3
ctx = pp.Context(comm, transport=transport, progress=sys.argv[3] if tests else "thread")
request = ctx.Allreduce_init(np.ones(4), np.zeros(4), policy=policy)
until = time.monotonic() + 20
try:
    for _ in range(5):
        request.Start()
        request.Wait()
    if comm.rank == comm.size - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    while time.monotonic() < until:
        request.Start()
        while tests and time.monotonic() < until and not request.Test():
            pass
        if not tests:
            request.Wait(timeout=20)
except pp.PeerFailedError as error:
    print(f"rank {comm.rank} sees: {error}", flush=True)
end(comm.rank, comm.size - 1)
