"""Data-parallel training of a small model, with one slow rank: `comm.Allreduce` against a majority.

    mpirun -n 4 python -m mpi4py examples/data_parallel.py

Every rank has data of its own. The last rank needs 10 ms longer for each gradient. With
`comm.Allreduce` all ranks wait for it in every step. With `pp.Majority()` a round begins when a
randomly drawn rank is there, as in eager-SGD; the gradients of the slow rank enter later rounds,
and none is lost. Both reach the same loss; compare the time of a step.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from mpi4py import MPI

import pypartial as pp

STEPS = 150
FEATURES = 30
BATCH = 64
RATE = 0.1
SLOW_S = 0.01

comm = MPI.COMM_WORLD
truth = np.random.default_rng(7).normal(size=FEATURES)


def draw(random: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Make inputs, and outputs of the true model with some noise."""
    x = random.normal(size=(count, FEATURES))
    return x, x @ truth + random.normal(scale=0.1, size=count)


held_out = draw(np.random.default_rng(8), 1000)  # the same on every rank


def loss(w: np.ndarray) -> float:
    """Return the mean square error on the held-out data."""
    x, y = held_out
    return float(np.mean((x @ w - y) ** 2))


def compute(w: np.ndarray, gradient: np.ndarray, random: np.random.Generator) -> None:
    """Put the gradient of a batch of this rank's data into `gradient`."""
    x, y = draw(random, BATCH)
    gradient[:] = x.T @ (x @ w - y) / BATCH
    if comm.rank == comm.size - 1:
        time.sleep(SLOW_S)


def synchronous() -> np.ndarray:
    """Train with MPI's allreduce."""
    random = np.random.default_rng([1, comm.rank])
    w, gradient, total = (np.zeros(FEATURES) for _ in range(3))
    for _ in range(STEPS):
        compute(w, gradient, random)
        comm.Allreduce(gradient, total)
        w -= RATE * total / comm.size
    return w


def partial(ctx: pp.Context) -> np.ndarray:
    """Train with partial allreduces; a slow rank makes fewer steps in as many rounds."""
    random = np.random.default_rng([1, comm.rank])
    w, gradient, total = (np.zeros(FEATURES) for _ in range(3))
    status = pp.Status()
    policy = pp.Majority()
    with ctx.Allreduce_init(gradient, total, policy=policy, deliver="sum") as request:
        rounds = 0
        while rounds < STEPS:
            compute(w, gradient, random)
            request.Start()  # contributes this gradient; waits for nobody
            request.Wait(status)  # the sum of all rounds that this rank was not given yet
            w -= RATE * total / comm.size
            rounds = status.round + 1
        request.Flush(status)  # what was on its way: every gradient enters exactly one round
        w -= RATE * total / comm.size
    return w


def timed(name: str, train: Callable[[], np.ndarray]) -> np.ndarray:
    """Train, and print the loss and the time of a step."""
    comm.barrier()
    began = time.perf_counter()
    w = train()
    step_ms = 1e3 * (time.perf_counter() - began) / STEPS
    if comm.rank == 0:
        print(f"{name:16} loss {loss(w):.4f}, {step_ms:.2f} ms a step", flush=True)
    return w


if __name__ == "__main__":
    timed("comm.Allreduce", synchronous)
    with pp.Context(comm, seed=7) as ctx:
        w = timed("pp.Majority()", lambda: partial(ctx))
    spread = max(abs(other - w).max() for other in comm.allgather(w))
    if comm.rank == 0:
        print(f"the models of the ranks differ by {spread:.0e} at most", flush=True)
