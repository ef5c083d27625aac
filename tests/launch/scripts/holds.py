"""A drawn rank that computes holds its round up, as long as its patience in that context lasts.

    holds.py TRANSPORT...

The others wait in vain for 1 s while it blocks in a call of the application's own: its patience is
10 s, also with each of two handles of one context. That its patience with another handle is over,
of the same context or of another one, changes nothing. The round is then made by its call: by the
policy, with the drawn rank as initiator. Judged by who was in the rounds and how they came about;
the only times are those that were asked for.
"""

from __future__ import annotations

import itertools
import sys
from contextlib import ExitStack

import numpy as np
from mpi4py import MPI
from whole import whole

import pypartial as pp

HELD_S = 1.0  # by a rank with
LONG_S = 10.0  # of patience,
SHORT_S = 0.2  # when it had this in another context
comm = MPI.COMM_WORLD


class Handle:
    """A request under Majority, to which each rank adds 1 in its own element."""

    def __init__(self, ctx: pp.Context) -> None:
        send = np.zeros(comm.size, "i8")
        send[comm.rank] = 1
        self.out = np.zeros_like(send)
        self.request = ctx.Allreduce_init(send, self.out, policy=pp.Majority())
        self.status = pp.Status()

    def held(self, seconds: float) -> None:
        """Start, and wait in vain."""
        self.request.Start()
        try:
            self.request.Wait(self.status, timeout=seconds)
        except pp.TimeoutError:
            return
        raise AssertionError(f"the round did not wait for who was drawn: {self.status}")

    def made_by(self, rank: int) -> None:
        """Collect the round that a rank's call has brought about, with everybody."""
        self.request.Wait(self.status)
        assert (self.status.cause, self.status.initiator) == ("policy", rank), self.status
        assert self.status.contributors == tuple(range(comm.size)), self.status
        assert self.out.tolist() == [1] * comm.size, self.out

    def made_without(self, rank: int) -> None:
        """Start, and collect a round that goes on without a rank whose patience is over."""
        self.request.Start()
        self.request.Wait(self.status)
        assert self.status.cause == "departed", self.status
        assert rank not in self.status.contributors, self.status
        assert self.out[rank] == 0, self.out

    def free(self) -> None:
        self.request.Flush()
        self.request.Free()


def drawn(transport: str, seed: int, handles: int) -> list[int]:
    """Return who is drawn for round 0 of each handle of a context: all ranks are there."""
    with pp.Context(comm, seed=seed, transport=transport, patience=None) as ctx:
        made = [Handle(ctx) for _ in range(handles)]
        for handle in made:
            handle.request.Start()
            comm.Barrier()
            handle.request.Wait(handle.status)
            handle.free()
        found = [handle.status.initiator for handle in made]
        assert None not in found
        return [rank for rank in found if rank is not None]


def check(transport: str, *, same_context: bool) -> None:
    handles = 2 if same_context else 1
    draws = ((seed, set(drawn(transport, seed, handles))) for seed in itertools.count())
    seed, (rank,) = next((seed, ranks) for seed, ranks in draws if len(ranks) == 1)
    with ExitStack() as stack:

        def context(patience: float) -> pp.Context:
            made = pp.Context(comm, seed=seed, transport=transport, patience=patience)
            return stack.enter_context(made)

        if same_context:  # each handle has its own time, as long as the other's
            ctx = context(LONG_S)
            other, mine = Handle(ctx), Handle(ctx)
        else:
            other, mine = Handle(context(SHORT_S)), Handle(context(LONG_S))
        if comm.rank != rank:
            other.made_without(rank)
            mine.held(HELD_S)
        comm.Barrier()
        if comm.rank == rank:
            mine.request.Start()
        mine.made_by(rank)
        for handle in (other, mine):
            handle.free()


def main() -> None:
    for transport in sys.argv[1:]:
        for same_context in (False, True):
            check(transport, same_context=same_context)


whole(main)
