"""Training without a network: what tests of the methods of training have in common.

The model is a vector with one element for each rank, and a few more that nobody changes. Rank r's
steps change element r only, by integers, so that all numbers are exact and every gradient is known
in the result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import pypartial as pp
from pypartial.methods import (
    ADPSGD,
    DPSGD,
    EagerSGD,
    Hop,
    Method,
    PartialReduce,
    Ripples,
    Synchronous,
    Worker,
)

Vector = np.ndarray[Any, Any]
Make = Callable[[int], Method]  # from the number of ranks

POLICIES: dict[str, Callable[[int], pp.Policy]] = {
    "solo": lambda ranks: pp.Solo(),
    "majority": lambda ranks: pp.Majority(),
    "quorum": lambda ranks: pp.Quorum(min(2, ranks)),
    "full": lambda ranks: pp.Full(),
}
DELIVERIES: list[tuple[Any, int | None]] = [
    ("each", None),
    ("sum", None),
    ("sum", 4),
    ("latest", None),
    ("latest", 4),
]


def _eager(policy: Callable[[int], pp.Policy], deliver: Any, sync_every: int | None) -> Make:
    return lambda ranks: EagerSGD(policy(ranks), deliver, sync_every)


ROUNDS: dict[str, Make] = {"synchronous": lambda ranks: Synchronous()} | {
    f"{name}-{deliver}" + (f"-sync{sync_every}" if sync_every else ""): _eager(
        policy, deliver, sync_every
    )
    for name, policy in POLICIES.items()
    for deliver, sync_every in DELIVERIES
}
GROUPS: dict[str, Make] = {
    "partial-reduce": lambda ranks: PartialReduce(2),
    "partial-reduce-dynamic": lambda ranks: PartialReduce(2, "dynamic"),
    "partial-reduce-equal": lambda ranks: PartialReduce(2, final="equal"),
    "ripples-static": lambda ranks: Ripples(pp.groups.Static(nodes=1, per_node=ranks)),
    "ripples-random": lambda ranks: Ripples(pp.groups.Random(2)),
    "ripples-smart": lambda ranks: Ripples(pp.groups.Smart(2)),
}
GOSSIP: dict[str, Make] = {
    "ad-psgd": lambda ranks: ADPSGD("complete"),
    "ad-psgd-continuous": lambda ranks: ADPSGD("complete", continuous=True),
    "ad-psgd-active": lambda ranks: ADPSGD(pp.topology.star(), "active"),
}
# All ranks are neighbours and wait for each other, so that an average is of all.
LOCKSTEP: dict[str, Make] = {
    "d-psgd": lambda ranks: DPSGD("complete"),
    "hop": lambda ranks: Hop("complete"),
}
QUEUES = LOCKSTEP | {
    "hop-stale": lambda ranks: Hop("complete", backup=int(ranks > 2), staleness=1, skip=2),
}
METHODS = ROUNDS | GROUPS | GOSSIP | QUEUES
# One of each kind of worker, for what does not depend on policies and generators.
KINDS = ["synchronous", "majority-each", "majority-sum", "solo-latest-sync4", "partial-reduce"]


class Training:
    """One rank's worker, and all that its model was changed by.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
    ctx : Context
    method : Method
    options
        For `Method.worker`.
    """

    padding = 3  # elements that stay 0
    extra = 1  # behind the model: the number of steps

    def __init__(self, comm: Any, ctx: pp.Context, method: Method, **options: Any) -> None:
        self.rank, self.ranks = comm.rank, comm.size
        self.x = ctx.alloc(self.ranks + self.padding, "f8")
        self.x[:] = self.rank  # rank 0's zeros are for all
        self.worker: Worker = method.worker(ctx, self.x, extra=self.extra, **options)
        self.given = 0  # sum of what this rank has contributed
        self.steps = 0  # with a gradient
        self.applied: list[Vector] = []

    def update(self, gradient: Vector) -> None:
        """Take a step of plain descent, uphill, and note it."""
        self.applied.append(gradient.copy())
        np.add(self.x, gradient[: self.x.size], out=self.x)
        gradient[:] = np.nan  # it is ours: nothing may depend on it

    def gradient(self, amount: int, out: Vector) -> Vector:
        """Write this rank's gradient: so much in its own element of the average."""
        out[:] = 0
        out[self.rank] = amount * self.ranks
        out[self.x.size] = self.ranks
        return out

    def step(self, amount: int, *, copy: bool = False) -> None:
        """Make a step with a gradient in the worker's memory, or in an array of its own."""
        memory = np.zeros_like(self.worker.gradient) if copy else self.worker.gradient
        gradient = self.gradient(amount, memory)
        before = gradient.copy()
        self.given += amount
        self.steps += 1
        self.count(lambda: self.worker.step(gradient, self.update))
        assert not copy or np.array_equal(gradient, before), "step changed the caller's gradient"

    def idle(self) -> None:
        """Make a step without a gradient."""
        self.count(lambda: self.worker.step(None, self.update))

    def count(self, call: Callable[[], int]) -> None:
        """Check what a call says about the updates that it made."""
        before, rounds = len(self.applied), self.worker.rounds
        times = call()
        assert times == len(self.applied) - before
        assert self.worker.rounds == rounds + times

    def finish(self) -> None:
        self.count(lambda: self.worker.finish(self.update))

    def total(self) -> Vector:
        """The sum of all gradients that this rank has applied: the model's, and the extra part."""
        return np.sum(self.applied, axis=0, initial=0) + np.zeros(self.x.size + self.extra)


def same(comm: Any, *values: Any) -> bool:
    """Whether all ranks have the same values, arrays bit for bit; collective."""
    mine = [value.tobytes() if isinstance(value, np.ndarray) else value for value in values]
    return all(theirs == mine for theirs in comm.allgather(mine))
