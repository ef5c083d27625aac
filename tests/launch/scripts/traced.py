"""Traces, and ends badly: traced.py FOLDER HOW.

HOW: "killed", rank 1 is killed by a signal while the others wait for it; "unfreed", no rank frees
its context; "inside", the same, and a request is outstanding.
"""

import os
import signal
import sys

import numpy as np
from mpi4py import MPI

import pypartial as pp

folder, how = sys.argv[1:]
ctx = pp.Context(MPI.COMM_WORLD)
ctx.trace(folder, events=20_000)
request = ctx.Allreduce_init(np.ones(3), np.zeros(3), policy=pp.Full())
span = ctx.span("loop")
span.__enter__()
for _ in range(50):
    request.Start()
    request.Wait()
if how == "killed":
    if ctx.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    request.Start()
    request.Wait()
elif how == "inside":
    request.Start()
print(f"end of rank {ctx.rank}", flush=True)
