"""Thousands of iterations of queues (Hop) with random delays, leavers and returns, replayed.

    mpirun -n 3 python -m mpi4py tests/stress/queues.py --iterations 10000
    mpirun -n 3 python -m mpi4py tests/stress/queues.py --short

Every rank works for a random time of up to 1 ms before each Start and before each Wait, and changes
its model. At random moments, which differ between the ranks, it is away for a while, or in a
collective call of the context, with a request outstanding or without. A Flush ends each part of
some hundred iterations. Rank 0 then judges the part:

replay     each average is one of updates that were due then, bit for bit (`support.queue_replay`);
           with staleness each model is one number, and so is each average: it is whole
order      iterations ascend, by one and what was skipped
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
COUNTS = (2, 25_000)  # elements
STEPS = 100  # of a part


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--iterations", type=int, help="of each mode and rank (10000)")
    parser.add_argument("--short", action="store_true", help="100 iterations")
    parser.add_argument("--mode", action="append", choices=tuple(MODES))
    parser.add_argument("--delay-us", type=float, default=1000, help="longest delay")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit", type=float, default=3600, help="seconds until it counts as hung")
    options = parser.parse_args()
    options.iterations = options.iterations or (STEPS if options.short else 10_000)
    return options


class Rank:
    """One rank's life with a handle."""

    def __init__(self, ctx: pp.Context, mode: str, count: int, options: argparse.Namespace) -> None:
        graph = pp.topology.ring() if ctx.size > 2 else pp.topology.complete()
        given = dict(MODES[mode])
        self.ins = graph.on(ctx.size).in_neighbours
        if len(self.ins[0]) < 2 and given.pop("backup", 0) and "staleness" not in given:
            given = {}
        self.ctx, self.bound, self.longest_s = ctx, given.get("staleness"), options.delay_us * 1e-6
        self.own = random.Random(f"{options.seed} {mode} {count} {ctx.rank}")
        self.common = random.Random(f"{options.seed} {mode} {count}")
        self.values = np.random.default_rng((options.seed, count, ctx.rank))
        self.model = np.zeros(count)
        self.request = ctx.Queue_init(self.model, graph, **given)
        self.iteration, self.skipped, self.status = 0, 0, pp.Status()

    def work(self) -> None:
        if self.own.random() > 0.7:
            time.sleep(self.own.uniform(0, self.longest_s))

    def leave(self, how: str) -> None:
        """Make a call in which this rank has left; the others make theirs at other times."""
        if how == "away":
            with self.ctx.away():
                time.sleep(self.own.uniform(0, 5 * self.longest_s))
        else:
            self.ctx.Allreduce_init(np.zeros(1), np.zeros(1)).Free()

    def part(self) -> list[Request]:
        """Make some iterations, and flush."""
        leaves = [self.common.choice(("away", "init")) for _ in range(self.common.randint(0, 6))]
        at = dict(zip(sorted(self.own.sample(range(2 * STEPS), len(leaves))), leaves, strict=True))
        log = []
        for step in range(STEPS):
            if 2 * step in at:
                self.leave(at[2 * step])
            self.work()
            size = 1 if self.bound is not None else self.model.size
            self.model *= 0.75
            self.model += self.values.standard_normal(size)
            self.request.Start()
            asked = Request(self.model.copy(), self.iteration)
            if 2 * step + 1 in at:
                self.leave(at[2 * step + 1])
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
                    assert model.min() == model.max(), f"torn: {where}"


def live(ctx: pp.Context, mode: str, count: int, options: argparse.Namespace) -> int:
    """Run one case; return how many iterations were skipped."""
    rank = Rank(ctx, mode, count, options)
    iterations = options.iterations if count == COUNTS[0] else options.iterations // 10
    for _ in range(max(1, iterations // STEPS)):
        logs = ctx.comm.gather(rank.part())
        flushed = ctx.comm.gather(rank.model.tobytes())
        if logs is not None and flushed is not None:
            rank.judge(logs)
            assert len(set(flushed)) == 1, "a Flush gave different models"
        ctx.comm.Barrier()
    rank.request.Free(HANGS_S)
    return int(ctx.comm.allreduce(rank.skipped))


def main() -> None:
    comm, options = MPI.COMM_WORLD, parse()
    checks = Checks(comm)
    with pp.Context(comm, seed=options.seed) as ctx:
        for mode in options.mode or MODES:
            for count in COUNTS:
                began = time.monotonic()
                skipped = live(ctx, mode, count, options)
                seconds = time.monotonic() - began
                checks.note(True, f"{mode}, {8 * count} bytes: {skipped} skipped, {seconds:.1f} s")
    checks.end()


if __name__ == "__main__":
    run(main, parse().limit)
