"""Thousands of averages of gossip (AD-PSGD) with random delays, adds, reads, leavers and returns.

    mpirun -n 3 python -m mpi4py tests/stress/gossip.py --averages 10000
    mpirun -n 3 python -m mpi4py tests/stress/gossip.py --short

Every rank works for a random time of up to 1 ms before each Start and before each Wait, adds to its
model, and reads, or locks and changes it. At random moments, which differ between the ranks, it is
away for a while, or in a collective call of the context. A Flush ends each part of some hundred
averages. Then

mean       the average of all models is that of what the ranks have added, so that nothing is lost
whole      all elements of a model are equal at any time, and those of each copy: it is not torn
flush      all ranks have the same bits

The last line is "N passed, N failed".
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import numpy as np
from checks import HANGS_S, Checks, run
from mpi4py import MPI

import pypartial as pp

MODES: dict[str, dict[str, Any]] = {
    "all": {},
    "active": {"initiators": "active"},
    "continuous": {"continuous": True},
}
COUNTS = (2, 25_000)  # elements
STEPS = 100  # of a part


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--averages", type=int, help="of each mode and rank (10000)")
    parser.add_argument("--short", action="store_true", help="100 averages")
    parser.add_argument("--mode", action="append", choices=tuple(MODES))
    parser.add_argument("--delay-us", type=float, default=1000, help="longest delay")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit", type=float, default=3600, help="seconds until it counts as hung")
    options = parser.parse_args()
    options.averages = options.averages or (STEPS if options.short else 10_000)
    return options


def is_whole(model: np.ndarray) -> bool:
    """Whether all elements are equal, but for the order in which a flush sums up its blocks."""
    return bool(np.ptp(model) < 1e-12)


class Rank:
    """One rank's life with a handle."""

    def __init__(self, ctx: pp.Context, mode: str, count: int, options: argparse.Namespace) -> None:
        graph = pp.topology.star() if mode == "active" else pp.topology.complete()
        self.ctx, self.longest_s = ctx, options.delay_us * 1e-6
        self.own = random.Random(f"{options.seed} {mode} {count} {ctx.rank}")
        self.common = random.Random(f"{options.seed} {mode} {count}")
        self.buf, self.out, self.added = np.zeros(count), np.zeros(count), 0.0
        self.request = ctx.Gossip_init(self.buf, graph, **MODES[mode])

    def work(self) -> None:
        if self.own.random() > 0.7:
            time.sleep(self.own.uniform(0, self.longest_s))

    def add(self) -> float:
        """Draw what is added."""
        amount = self.own.uniform(-1, 1)
        self.added += amount
        return amount

    def look(self) -> None:
        """Read the model, or change it in place."""
        if self.own.random() < 0.5:
            self.request.Read(self.out)
            assert is_whole(self.out), "a torn copy"
        else:
            with self.request.locked() as model:
                assert is_whole(model), "a torn model"
                model += self.add()

    def leave(self, how: str) -> None:
        """Make a call in which this rank has left; the others make theirs at other times."""
        if how == "away":
            with self.ctx.away():
                time.sleep(self.own.uniform(0, 5 * self.longest_s))
        else:
            self.ctx.Allreduce_init(np.zeros(1), np.zeros(1)).Free()

    def part(self) -> None:
        """Make some averages, and flush."""
        leaves = [self.common.choice(("away", "init")) for _ in range(self.common.randint(0, 6))]
        at = dict(zip(sorted(self.own.sample(range(STEPS), len(leaves))), leaves, strict=True))
        for step in range(STEPS):
            if step in at:
                self.leave(at[step])
            self.work()
            self.request.Start(add=np.full(self.buf.size, self.add()))
            self.work()
            self.request.Wait(timeout=HANGS_S)
            assert is_whole(self.buf), "a torn average"
            if self.own.random() < 0.2:
                self.look()
        self.request.Flush(timeout=HANGS_S)


def live(ctx: pp.Context, mode: str, count: int, options: argparse.Namespace) -> None:
    """Run one case."""
    rank = Rank(ctx, mode, count, options)
    averages = options.averages if count == COUNTS[0] else options.averages // 10
    for _ in range(max(1, averages // STEPS)):
        rank.part()
        added = ctx.comm.allgather((rank.added, rank.buf.tobytes()))
        assert len({bits for _, bits in added}) == 1, "a Flush gave different models"
        mean = sum(amount for amount, _ in added) / ctx.size
        assert abs(rank.buf - mean).max() < 1e-9, f"the mean is {mean}, and the model {rank.buf}"
    rank.request.Free(HANGS_S)


def main() -> None:
    comm, options = MPI.COMM_WORLD, parse()
    checks = Checks(comm)
    with pp.Context(comm, seed=options.seed) as ctx:
        for mode in options.mode or MODES:
            for count in COUNTS:
                began = time.monotonic()
                live(ctx, mode, count, options)
                checks.note(True, f"{mode}, {8 * count} bytes: {time.monotonic() - began:.1f} s")
    checks.end()


if __name__ == "__main__":
    run(main, parse().limit)
