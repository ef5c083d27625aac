"""Contexts on overlapping communicators, all alive at once, and used in turn.

COMM_WORLD; its ranks modulo 3, in reversed order; all but the first; and one for each half.
"""

import contextlib

import numpy as np
from mpi4py import MPI

import pypartial as pp

STEPS = 40
world = MPI.COMM_WORLD
me, size = world.rank, world.size
parts = [world, world.Split(me % 3, -me), world.Split(int(me > 0), me)]
parts.append(world.Split(int(2 * me < size), me))
with contextlib.ExitStack() as stack:
    handles = []
    for comm in parts:
        ctx = stack.enter_context(pp.Context(comm))
        for length in (3, 30_000):
            receive = np.zeros(length, np.int64)
            send = np.full(length, 1 + me, np.int64)
            request = ctx.Allreduce_init(send, receive, policy=pp.Full())
            handles.append((request, receive, comm.allreduce(1 + me)))
        receive = np.zeros(7, np.int64)
        drawn = ctx.Allreduce_init(np.ones(7, np.int64), receive, deliver="sum", max_lag=3)
        total = 0
        for _ in range(STEPS):
            drawn.Start()
            drawn.Wait(timeout=20)
            total += int(receive[0])
        drawn.Flush()
        total += int(receive[0])
        assert total == STEPS * comm.size, (total, comm.size)
        drawn.Free()
    for _ in range(STEPS):
        for request, receive, expected in handles:
            request.Start()
            request.Wait(timeout=20)
            assert receive.min() == receive.max() == expected, (receive, expected)
    for request, _, _ in handles:
        request.Free()
print(f"end of rank {me}", flush=True)
