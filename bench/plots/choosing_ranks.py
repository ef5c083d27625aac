"""The ranks of choosing.py: what `deliver`, `average` and `patience` do to a slow rank.

Four ranks or more; the last one is slow. Times are those of this machine; everything else that is
written (divisors, drift) follows from which contributions met in a round.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
from mpi4py import MPI

import pypartial as pp

Deliver = Literal["latest", "sum", "each"]
Average = Literal["size", "contributors", "contributions"]

SEED = 7
STEP_S = 1e-3  # what a rank computes
SLOWNESS = 4  # of the last rank
BLOCKED_S = 2.0  # of the last rank, once
ELEMENTS = 1000
RATE, MOMENTUM = 0.05, 0.9
WARM_UP = 5

comm = MPI.COMM_WORLD
SLOW = comm.rank == comm.size - 1


class Model:
    """One replica, which takes steps of plain descent and of descent with momentum."""

    def __init__(self) -> None:
        self.target = np.random.default_rng(comm.rank).normal(size=ELEMENTS).astype("f4")
        self.plain, self.heavy, self.speed = (np.zeros(ELEMENTS, "f4") for _ in range(3))

    def gradient(self) -> np.ndarray[Any, Any]:
        """Return this rank's gradients of both."""
        return np.concatenate([self.plain - self.target, self.heavy - self.target])

    def apply(self, total: np.ndarray[Any, Any]) -> None:
        """Take a step of both."""
        of_plain, of_heavy = np.split(total / comm.size, 2)
        self.plain -= RATE * of_plain
        self.speed = MOMENTUM * self.speed + of_heavy
        self.heavy -= RATE * self.speed

    def drift(self) -> tuple[float, float]:
        """Return how far the replicas are apart, relative to rank 0's, the farthest. Collective."""
        apart = []
        for mine in (self.plain, self.heavy):
            first = comm.bcast(mine)
            apart.append(float(np.linalg.norm(mine - first) / np.linalg.norm(first)))
        worst = np.max(comm.allgather(apart), axis=0)
        return float(worst[0]), float(worst[1])


def rounds_taken(request: Any, status: pp.Status, more: bool) -> Iterator[pp.Status]:
    """Give what a Wait gave, and with `more` all that is complete."""
    yield status
    while more and request.More(status):
        yield status


def deliver(kind: Deliver, more: bool, steps: int) -> dict[str, Any]:
    """Train with one way to deliver; a slow rank takes fewer steps."""
    model, status = Model(), pp.Status()
    send, out = np.empty(2 * ELEMENTS, "f4"), np.empty(2 * ELEMENTS, "f4")
    mine = steps // SLOWNESS if SLOW else steps
    waits, missed = [], []
    with pp.Context(comm, seed=SEED, patience=None) as ctx:
        request = ctx.Allreduce_init(send, out, policy=pp.Majority(), deliver=kind)
        comm.Barrier()
        began = time.perf_counter()
        for step in range(mine):
            time.sleep(STEP_S * SLOWNESS if SLOW else STEP_S)
            send[:] = model.gradient()
            before = time.perf_counter()
            request.Start()
            request.Wait(status)
            if step >= WARM_UP:
                waits.append(time.perf_counter() - before)
                missed.append(status.missed)
            for _ in rounds_taken(request, status, more):
                model.apply(out)
        seconds = (time.perf_counter() - began) / mine
        if kind == "each":
            for _ in request.Drain():
                model.apply(out)
        else:
            request.Flush()
            model.apply(out)
        request.Free()
    plain, heavy = model.drift()
    fast = comm.allgather((seconds, waits))[:-1]
    return {
        "deliver": kind,
        "more": more,
        "step_ms": 1e3 * statistics.fmean(seconds for seconds, _ in fast),
        "wait_ms": 1e3 * statistics.fmean(wait for _, waits in fast for wait in waits),
        "missed": comm.bcast(statistics.fmean(missed), root=comm.size - 1),
        "missed_most": comm.bcast(max(missed), root=comm.size - 1),
        "drift_plain": plain,
        "drift_momentum": heavy,
    }


def average(kind: Average | None, steps: int) -> dict[str, Any]:
    """Add ones, by ranks that come one after the other, and look at the result of each round."""
    send, out, status = np.ones(1), np.empty(1), pp.Status()
    results, contributors, contributions = [], [], []

    def note(status: pp.Status) -> None:
        results.append(float(out[0]))
        contributors.append(len(status.contributors or ()))
        contributions.append(status.contributions)

    with pp.Context(comm, seed=SEED, patience=None) as ctx:
        request = ctx.Allreduce_init(send, out, policy=pp.Majority(), deliver="each", average=kind)
        for _ in range(steps):
            time.sleep(STEP_S * (1 + comm.rank))
            request.Start()
            request.Wait(status)
            for _ in rounds_taken(request, status, True):
                note(status)
        for _ in request.Drain():
            pass
        request.Free()
    # Rank 0 makes its steps first: until then no rank has left.
    seen: dict[str, Any] = comm.bcast(
        {
            "average": kind,
            "rounds": len(results),
            "result": [min(results), statistics.fmean(results), max(results)],
            "contributors": statistics.fmean(contributors),
            "contributions": statistics.fmean(contributions),
        }
    )
    return seen


def patience(value: float | str | None, steps: int) -> dict[str, Any]:
    """Block one rank for a while; return the longest time that another one waited."""
    send, out = np.ones(ELEMENTS), np.empty(ELEMENTS)
    waits = []
    setting: Any = value
    with pp.Context(comm, seed=SEED, patience=setting) as ctx:
        request = ctx.Allreduce_init(send, out, policy=pp.Majority())
        for step in range(steps):
            time.sleep(STEP_S)
            if step == steps // 2 and SLOW:
                time.sleep(BLOCKED_S)
            before = time.perf_counter()
            request.Start()
            request.Wait()
            waits.append(time.perf_counter() - before)
        request.Flush()
        request.Free()
    return {
        "patience": value,
        "longest_wait_s": max(comm.allgather(max(waits))[:-1]),
    }


def main() -> None:
    """Read the options, run everything, and write the results on rank 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200, help="of a rank that is not slow")
    parser.add_argument("--json", type=Path, required=True, help="where rank 0 writes the results")
    options = parser.parse_args()
    steps: int = options.steps

    def each(trial: Callable[..., dict[str, Any]], *cases: tuple[Any, ...]) -> list[dict[str, Any]]:
        return [trial(*case) for case in cases]

    results = {
        "meta": {
            "ranks": comm.size,
            "steps": steps,
            "mpi": MPI.Get_library_version().split(",")[0],
            "step_ms": 1e3 * STEP_S,
            "slowness": SLOWNESS,
            "blocked_s": BLOCKED_S,
        },
        "deliver": each(
            deliver,
            ("latest", False, steps),
            ("sum", False, steps),
            ("each", False, steps),
            ("each", True, steps),
        ),
        "average": each(
            average,
            (None, steps // 2),
            ("size", steps // 2),
            ("contributors", steps // 2),
            ("contributions", steps // 2),
        ),
        "patience": each(
            patience,
            (None, steps // 2),
            ("auto", steps // 2),
            (0.2, steps // 2),
        ),
    }
    if comm.rank == 0:
        options.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
