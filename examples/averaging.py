"""Model averaging beside one slow rank: groups of three ranks against an allreduce over all.

    mpirun -n 4 python -m mpi4py examples/averaging.py [SECONDS]

Every rank fits a model of its own to data of its own, and averages it with other ranks after each
step. The last rank needs 10 ms longer for a step. With `pp.Full()` every average is over all ranks,
so all are as slow as that one. With `pp.groups.Controller(3)` an average is over the first three
ranks that ask: the fast ranks go on, and the slow one joins a group whenever it comes. Both train
for SECONDS (1); compare how many steps the fast ranks make.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import numpy as np
from mpi4py import MPI

import pypartial as pp

SECONDS = float(sys.argv[1]) if sys.argv[1:] else 1.0
FEATURES = 30
BATCH = 64
RATE = 0.02
STEP_S = 0.002
SLOW_S = 0.01

comm = MPI.COMM_WORLD
is_slow = comm.rank == comm.size - 1
truth = np.random.default_rng(7).normal(size=FEATURES)


def draw(random: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Make inputs, and outputs of the true model with some noise."""
    x = random.normal(size=(count, FEATURES))
    return x, x @ truth + random.normal(scale=0.1, size=count)


held_out = draw(np.random.default_rng(8), 1000)  # the same on every rank


def loss(model: np.ndarray) -> float:
    """Return the mean square error on the held-out data."""
    x, y = held_out
    return float(np.mean((x @ model - y) ** 2))


def train(model: np.ndarray, average: Callable[[], None]) -> int:
    """Train for some time; return how many steps this rank has made."""
    random = np.random.default_rng([1, comm.rank])
    comm.Barrier()
    began = time.perf_counter()
    steps = 0
    while time.perf_counter() - began < SECONDS:
        x, y = draw(random, BATCH)
        model -= RATE * x.T @ (x @ model - y) / BATCH  # in place: the request knows this array
        time.sleep(STEP_S + SLOW_S * is_slow)
        average()
        steps += 1
    return steps


def report(name: str, model: np.ndarray, steps: int) -> None:
    """Print the steps of the ranks, and the loss of rank 0."""
    every = comm.gather(steps)
    if every is not None:
        print(f"{name}: rank 0 made {every[0]} steps, the slow rank {every[-1]}, ", end="")
        print(f"loss {loss(model):.4f}", flush=True)


def by_allreduce(ctx: pp.Context) -> None:
    """Average over all ranks; a rank whose time is up goes into Flush, and the others go on."""
    model, mean = np.zeros(FEATURES), np.zeros(FEATURES)
    request = ctx.Allreduce_init(model, mean, policy=pp.Full(), average="contributors")

    def average() -> None:
        request.Start()
        request.Wait()
        model[:] = mean

    steps = train(model, average)
    request.Flush()
    request.Free()
    report("allreduce, Full()", model, steps)


def by_groups(ctx: pp.Context) -> None:
    """Average over groups, and at the end over all ranks."""
    model = np.zeros(FEATURES)
    request = ctx.Preduce_init(model, pp.groups.Controller(min(3, comm.size)))
    status = pp.Status()
    groups = []

    def average() -> None:
        request.Start()
        request.Wait(status)
        groups.append(status.group)

    steps = train(model, average)
    request.Flush(status)
    request.Free()
    report("groups of three", model, steps)
    spread = max(abs(other - model).max() for other in comm.allgather(model))
    if comm.rank == 0:
        with_slow = sum(comm.size - 1 in group for group in groups)
        print(f"  the slow rank was in {with_slow} of the {len(groups)} groups of rank 0")
        print(f"  after the flush over the ranks {status.group} the models differ by {spread:.0e}")


if __name__ == "__main__":
    with pp.Context(comm, seed=7) as ctx:
        by_allreduce(ctx)
        by_groups(ctx)
