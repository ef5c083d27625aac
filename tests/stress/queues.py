"""Thousands of iterations of queues (Hop) with random delays, leavers and returns, replayed.

    mpirun -n 3 python -m mpi4py tests/stress/queues.py --iterations 10000
    mpirun -n 3 python -m mpi4py tests/stress/queues.py --short

Every rank works for a random time of up to 1 ms before each Start and before each Wait, and changes
its model. At random moments, which differ between the ranks, it is away for a while, or in a
collective call of the context, with a request outstanding or without. A Flush ends each part of
some hundred iterations. Rank 0 then judges the part:

replay     each average is one of updates that were due then, bit for bit (`support.queue_replay`);
           with staleness each model is one number, and so is each average: it is whole (but for the
           last bits, since a Flush by messages adds in an order of its own in each part)
order      iterations ascend, by one and what was skipped
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
from support.queue_replay import Request, ways

import pypartial as pp

MODES: dict[str, dict[str, Any]] = {
    "standard": {},
    "max_ig=1": {"max_ig": 1},
    "backup": {"backup": 1},
    "staleness": {"staleness": 3, "max_ig": 8},
    "hybrid": {"staleness": 2, "backup": 1},
    "skip": {"backup": 1, "skip": 5, "skip_trigger": 1},
    "skip,staleness": {"staleness": 3, "skip": 3, "skip_trigger": 1},
    "notify-ack": {"protocol": "notify-ack"},
    "none": {"protocol": "none"},
}


class Rank(Life):
    """One rank's life with a handle."""

    def __init__(self, ctx: pp.Context, mode: str, count: int, options: argparse.Namespace) -> None:
        super().__init__(ctx, mode, count, options)
        graph = pp.topology.ring() if ctx.size > 2 else pp.topology.complete()
        given = dict(MODES[mode])
        self.ins = graph.on(ctx.size).in_neighbours
        if len(self.ins[0]) < 2 and given.pop("backup", 0) and "staleness" not in given:
            given = {}
        self.bound = given.get("staleness")
        self.values = np.random.default_rng((options.seed, count, ctx.rank))
        self.model = np.zeros(count)
        self.request = ctx.Queue_init(self.model, graph, **given)
        self.iteration, self.skipped, self.status = 0, 0, pp.Status()

    def part(self) -> list[Request]:
        """Make some iterations, and flush."""
        leaves = self.leaves(2 * STEPS)
        log = []
        for step in range(STEPS):
            self.leave(leaves.get(2 * step))
            self.work()
            size = 1 if self.bound is not None else self.model.size
            self.model *= 0.75
            self.model += self.values.standard_normal(size)
            self.request.Start()
            asked = Request(self.model.copy(), self.iteration)
            self.leave(leaves.get(2 * step + 1))
            self.work()
            self.request.Wait(self.status, HANGS_S)
            asked.result, asked.data = self.status._data, self.model.tobytes()
            assert asked.result.iteration == self.iteration + 1 + asked.result.skipped
            self.iteration = asked.result.iteration
            self.skipped += asked.result.skipped
            log.append(asked)
        self.request.Flush(self.status, HANGS_S)
        return log

    def judge(self, logs: list[list[Request]]) -> None:
        """Replay what all ranks have logged."""
        for rank, log in enumerate(logs):
            ins = [logs[sender] for sender in self.ins[rank]]
            for asked in log:
                where = f"rank {rank}, {asked.result}"
                if self.bound is None:
                    assert any(ways(asked, ins, None, True)), f"no such average: {where}"
                else:
                    model = np.frombuffer(asked.data)
                    assert np.ptp(model) < 1e-12, f"torn: {where}"


def live(ctx: pp.Context, mode: str, count: int, options: argparse.Namespace) -> str:
    """Run one case; say how many iterations were skipped."""
    rank = Rank(ctx, mode, count, options)
    for _ in range(rank.parts):
        logs = ctx.comm.gather(rank.part())
        flushed = ctx.comm.gather(rank.model.tobytes())
        if logs is not None and flushed is not None:
            rank.judge(logs)
            assert len(set(flushed)) == 1, "a Flush gave different models"
        ctx.comm.Barrier()
    rank.request.Free(HANGS_S)
    return f"{ctx.comm.allreduce(rank.skipped)} skipped, "


if __name__ == "__main__":
    run_all(parse(__doc__, "iterations", MODES), live)
