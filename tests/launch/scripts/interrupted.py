"""Ctrl-C inside a collective Free on one rank, and the script goes on: interrupted.py WHAT.

WHAT: "request" or "context". The other ranks call theirs after that; the core of rank 0 takes part.
"""

import contextlib
import signal
import sys

import numpy as np
from mpi4py import MPI

import pypartial as pp

(what,) = sys.argv[1:]
comm = MPI.COMM_WORLD
ctx = pp.Context(comm)
request = None
if what == "request":
    request = ctx.Allreduce_init(np.ones(100_000), np.zeros(100_000), policy=pp.Full())
    request.Start()
    request.Wait()
ends = request or ctx


def interrupt(*_):
    raise KeyboardInterrupt


if comm.rank == 0:
    signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    with contextlib.suppress(KeyboardInterrupt):
        ends.Free()
        raise SystemExit("Free was not interrupted")
comm.barrier()
if comm.rank > 0:
    ends.Free()
comm.barrier()
if comm.rank == 0:
    calls = [ends.Free, ctx.Free] + ([request.Start, request.Wait, request.dump] if request else [])
    for call in calls:
        try:
            call()
        except pp.Error:
            continue
        raise SystemExit(f"{call} raised nothing")
print(f"end of rank {comm.rank}", flush=True)
