"""How many ranks are active under FirstOf(m), if they come one after the other, in random orders.

    first_of.py ROUNDS M...

A rank starts, and hands a token to the next of the order; they wait when all have started. In the
memory of a node the Start of the first drawn rank makes the round, so that as many are active as
have come by then: its place in the order. (Rarely more, if another thread looks at the round in
that moment, and loses its core; then several ranks may have triggered.) The rest come late to that
round. Rank 0 prints for each m the mean, what is expected, (P + 1) / (m + 1), and within how much
of it the mean lies in 999 of 1000 experiments.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Sequence

import numpy as np
from mpi4py import MPI
from whole import whole

import pypartial as pp

SIGMAS = 3.2905  # on either side: 99.9 %
comm = MPI.COMM_WORLD


def place_of(order: Sequence[int], call: pp.Request, status: pp.Status) -> int:
    """Make one round; return how many had come when it was made."""
    at = order.index(comm.rank)
    if at > 0:
        comm.recv(source=order[at - 1])
    call.Start()
    if at + 1 < comm.size:
        comm.send(None, order[at + 1])
    comm.Barrier()
    call.Wait(status)
    # The status names the lowest of the ranks that have triggered; who came first may be another.
    triggered = comm.allgather(status.activation == "internal")
    assert status.initiator is not None and triggered[status.initiator], (status, triggered)
    return 1 + min(at for at, rank in enumerate(order) if triggered[rank])


def mean_active(m: int, rounds: int) -> tuple[float, int]:
    """Return the mean, and in how many rounds others came while it was made."""
    chance, active, more = random.Random(m), [], 0
    order = list(range(comm.size))
    with pp.Context(comm, seed=m, patience=None) as ctx:
        assert ctx.stats().shares_memory
        request = ctx.Allreduce_init(None, np.ones(1, "i8"), policy=pp.FirstOf(m))
        status = pp.Status()
        for number in range(rounds):
            chance.shuffle(order)
            place = place_of(order, request, status)
            assert (status.round, status.cause) == (number, "policy"), status
            assert status.active >= place, (status, order)
            more += status.active > place
            active.append(status.active)
            comm.Barrier()
        request.Flush()
        request.Free()
    return sum(active) / rounds, more


def check(m: int, rounds: int) -> None:
    size = comm.size
    (mean, more), expected = mean_active(m, rounds), (size + 1) / (m + 1)
    # Of the least of m different numbers from 1 to P.
    variance = m * (size + 1) * (size - m) / ((m + 1) ** 2 * (m + 2))
    within = SIGMAS * math.sqrt(variance / rounds)
    report = f"{mean:.3f} active, {expected:.3f} +- {within:.3f} expected, {more} rounds had more"
    assert abs(mean - expected) <= within + more / rounds * size, (m, report)
    assert more <= rounds / 20, (m, report)
    if comm.rank == 0:
        print(f"m {m}: {report}", flush=True)


def main() -> None:
    rounds, *draws = map(int, sys.argv[1:])
    for m in draws:
        check(m, rounds)


whole(main)
