"""The last rank gives a context up while the others are inside a call: told.py CALL HOW.

CALL: "wait", "test", "start" (in a loop), "flush", "drain", "free", "init", "context" (its Free),
"away", "groups" or "groups-flush". HOW: "raise", between its calls; "mid", out of a Wait in which
it had started, while rank 0 computes.
"""

import re
import sys
import time

import numpy as np
from mpi4py import MPI

import pypartial as pp

call, how = sys.argv[1:]
comm = MPI.COMM_WORLD
rank, leaver = comm.rank, comm.size - 1
text = "gründe" * 200 + "\0"  # longer than what is told, and cut between characters
policy = pp.Solo() if call == "start" else pp.Full()


class Lost(Exception):
    pass


def enter(ctx, request, out):
    """Make the call, which cannot end."""
    if how == "mid" and rank == 0:
        time.sleep(1)
    if call == "wait" or call == "groups":
        request.Start()
        request.Wait()
    elif call == "test":
        request.Start()
        while not request.Test():
            time.sleep(0.001)
    elif call == "start":
        while True:
            request.Start()
            request.Wait()
            time.sleep(0.001)
    elif call == "drain":
        list(request.Drain())
    elif call == "init":
        ctx.Allreduce_init(np.ones(3), np.ones(3))
    elif call == "context":
        ctx.Free()
    elif call == "away":
        while True:
            with ctx.away():
                time.sleep(0.01)
    else:
        request.Free() if call == "free" else request.Flush()


def leave(request):
    if how == "mid":
        request.Start()
        request.Wait(timeout=0.2)
    raise Lost(text)


seen = None
try:
    with pp.Context(comm, stall_warning=None) as ctx:
        out = np.ones(3)
        if call.startswith("groups"):
            request = ctx.Preduce_init(out, groups=pp.groups.Table([[range(comm.size)]]))
        else:
            deliver = "each" if call == "drain" else "sum"
            request = ctx.Allreduce_init(np.ones(3), out, policy=policy, deliver=deliver)
        request.Start()
        request.Wait()
        if call == "context":
            request.Free()
        comm.Barrier()
        began = time.monotonic()
        if rank == leaver:
            leave(request)
        enter(ctx, request, out)
except (Lost, pp.TimeoutError):
    assert rank == leaver
except pp.PeerFailedError as error:
    seen = str(error)
waited = time.monotonic() - began
for again in (request.Start, request.Wait, lambda: request.Flush(), ctx.away().__enter__):
    try:
        again()
        raise AssertionError(f"rank {rank}: a call of a context that is over")
    except pp.Error:
        pass
if rank != leaver:
    why = "Lost: gründegründe" if how == "raise" else "TimeoutError: Wait on handle 1"
    found = rf"rank {leaver} gave the context up: an exception left its with block \(\S*{why}"
    assert seen and re.match(found, seen) and "\ufffd" not in seen, seen
times = comm.allgather(waited)
with pp.Context(comm) as ctx, ctx.Allreduce_init(np.ones(3), out, policy=pp.Full()) as request:
    request.Start()
    request.Wait()
    assert set(out.tolist()) == {comm.size}
print(f"told after {max(times):.3f}", flush=True)
print(f"end of rank {rank}", flush=True)
