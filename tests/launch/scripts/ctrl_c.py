"""Ctrl-C inside a Wait on one rank: ctrl_c.py CULPRIT.

The last rank withholds its part of a synchronous round until the culprit has given the context up,
and ends its script: then the others are told.
"""

import os
import signal
import sys

import numpy as np
from mpi4py import MPI

import pypartial as pp

culprit = int(sys.argv[1])
comm = MPI.COMM_WORLD
seen = None
try:
    with pp.Context(comm) as ctx:
        request = ctx.Allreduce_init(np.ones(20_000), np.zeros(20_000), policy=pp.Full())
        for _ in range(5):
            request.Start()
            request.Wait()
        if comm.rank == comm.size - 1:
            comm.recv(source=culprit)
        if comm.rank == culprit:
            signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGINT))
            signal.setitimer(signal.ITIMER_REAL, 0.2)
        request.Start()
        request.Wait()
except KeyboardInterrupt:
    seen = "KeyboardInterrupt"
    comm.send(None, dest=comm.size - 1)
except pp.PeerFailedError as error:
    seen = f"PeerFailedError: {error}"
print(f"rank {comm.rank} sees {seen}", flush=True)
