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
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import numpy as np
from averages import STEPS, Life, parse, run_all
from checks import HANGS_S

import pypartial as pp

MODES: dict[str, dict[str, Any]] = {
    "all": {},
    "active": {"initiators": "active"},
    "continuous": {"continuous": True},
}


def is_whole(model: np.ndarray) -> bool:
    """Whether all elements are equal, but for the order in which a flush sums up its blocks."""
    return bool(np.ptp(model) < 1e-12)


class Rank(Life):
    """One rank's life with a handle."""

    def __init__(self, ctx: pp.Context, mode: str, count: int, options: argparse.Namespace) -> None:
        super().__init__(ctx, mode, count, options)
        graph = pp.topology.star() if mode == "active" else pp.topology.complete()
        self.buf, self.out, self.added = np.zeros(count), np.zeros(count), 0.0
        self.request = ctx.Gossip_init(self.buf, graph, **MODES[mode])

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

    def part(self) -> None:
        """Make some averages, and flush."""
        leaves = self.leaves(STEPS)
        for step in range(STEPS):
            self.leave(leaves.get(step))
            self.work()
            self.request.Start(add=np.full(self.buf.size, self.add()))
            self.work()
            self.request.Wait(timeout=HANGS_S)
            assert is_whole(self.buf), "a torn average"
            if self.own.random() < 0.2:
                self.look()
        self.request.Flush(timeout=HANGS_S)


def live(ctx: pp.Context, mode: str, count: int, options: argparse.Namespace) -> str:
    """Run one case."""
    rank = Rank(ctx, mode, count, options)
    for _ in range(rank.parts):
        rank.part()
        added = ctx.comm.allgather((rank.added, rank.buf.tobytes()))
        assert len({bits for _, bits in added}) == 1, "a Flush gave different models"
        mean = sum(amount for amount, _ in added) / ctx.size
        assert abs(rank.buf - mean).max() < 1e-9, f"the mean is {mean}, and the model {rank.buf}"
    rank.request.Free(HANGS_S)
    return ""


if __name__ == "__main__":
    run_all(parse(__doc__, "averages", MODES), live)
