"""Trials that exceptions end, one after the other: trials.py KIND LEAVERS ELEMENTS.

KIND: a policy, or "groups", "static" or "table" of P-Reduce. LEAVERS: "all" ranks raise after a
number of steps of their own, or "one" alone; or one after a "flush", or while the others have yet
to "collect" what is complete. Every rank catches that, or what it is told, outside of the context's
block, and makes the next context at once.
"""

import re
import sys
import time

import numpy as np
from mpi4py import MPI

import pypartial as pp

TRIALS, STEPS = 4, 12

kind, leavers, elements = sys.argv[1], sys.argv[2], int(sys.argv[3])
comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
LEFT = r"an exception left its with block \(.*Pruned: rank \d leaves trial (\d)"
TOLD = re.compile(rf"rank \d gave the context up: {LEFT}")


class Pruned(Exception):
    pass


def make(ctx, out):
    if kind == "groups":
        return ctx.Preduce_init(out, groups=pp.groups.Random(2))
    if kind == "static":
        return ctx.Preduce_init(out, groups=pp.groups.Static(per_node=size))
    if kind == "table":
        return ctx.Preduce_init(out, groups=pp.groups.Table([[list(range(size))]]))
    return ctx.Allreduce_init(np.full(elements, 10.0**rank), out, policy=pp.Policy.parse(kind))


def end_together(request, leaves, status):
    """Complete a round on all ranks, after which one of them leaves."""
    request.Start()
    if leavers == "flush":
        request.Flush(status)
    while leavers == "collect" and not leaves:
        try:
            request.Start()
        except pp.PeerFailedError:  # this rank has been told
            break
        except pp.Error:  # the request is not collected
            time.sleep(0.001)
    if leavers == "collect":
        request.Wait(status)


def train(trial, out, rounds):
    """Make steps, and then leave; return what was told instead."""
    leaver = trial % size
    steps = STEPS + 3 * rank if leavers == "all" or rank == leaver else 10_000_000
    try:
        with pp.Context(comm, seed=trial, stall_warning=None) as ctx:
            request, status = make(ctx, out), pp.Status()
            if leavers in ("flush", "collect"):
                end_together(request, rank == leaver, status)
                rounds[status.round] = out[0], out[-1]
                if rank == leaver:
                    raise Pruned(f"rank {rank} leaves trial {trial}")
            for _ in range(steps):
                time.sleep(0.002 if rank == trial % 2 else 0.0002)
                request.Start()
                request.Wait(status)
                rounds[status.round] = out[0], out[-1]
            raise Pruned(f"rank {rank} leaves trial {trial}")
    except Pruned:
        return None
    except pp.PeerFailedError as error:
        return str(error)


for trial in range(TRIALS):
    out, rounds = np.ones(elements), {}
    told = train(trial, out, rounds)
    if told is not None:
        found = TOLD.match(told)
        assert found and int(found[1]) == trial, told
    everywhere = comm.allgather((told is None, rounds))
    assert any(left for left, _ in everywhere)
    if kind == "full":  # what was complete where a rank left is complete everywhere
        assert all(seen == rounds for _, seen in everywhere), [sorted(r) for _, r in everywhere]
        assert set(rounds.values()) == {((10.0**size - 1) / 9,) * 2}, rounds

with pp.Context(comm) as ctx:  # old messages would show
    out = np.zeros(elements)
    request = ctx.Allreduce_init(np.full(elements, 10.0**rank), out, policy=pp.Full())
    for _ in range(5):
        request.Start()
        request.Wait()
        assert set(out.tolist()) == {(10.0**size - 1) / 9}, out
    request.Free()
print(f"end of rank {rank}", flush=True)
