"""What the stress of gossip and of queues shares: options, and how a rank lives beside averages."""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Collection

import numpy as np
from checks import Checks, run
from mpi4py import MPI

import pypartial as pp

COUNTS = (2, 25_000)  # elements; with many a case is a tenth as long
STEPS = 100  # of a part


def parse(text: str | None, what: str, modes: Collection[str]) -> argparse.Namespace:
    """Read the command line; `what` is counted, and `steps` says how many."""
    parser = argparse.ArgumentParser(
        description=text, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(f"--{what}", dest="steps", type=int, help="of each mode and rank (10000)")
    parser.add_argument("--short", action="store_true", help=f"{STEPS} {what}")
    parser.add_argument("--mode", action="append", choices=tuple(modes))
    parser.add_argument("--delay-us", type=float, default=1000, help="longest delay")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit", type=float, default=3600, help="seconds until it counts as hung")
    options = parser.parse_args()
    options.mode = options.mode or list(modes)
    options.steps = options.steps or (STEPS if options.short else 10_000)
    return options


class Life:
    """A rank that works for random times, and leaves at random moments."""

    def __init__(self, ctx: pp.Context, mode: str, count: int, options: argparse.Namespace) -> None:
        self.ctx, self.longest_s = ctx, options.delay_us * 1e-6
        self.own = random.Random(f"{options.seed} {mode} {count} {ctx.rank}")
        self.common = random.Random(f"{options.seed} {mode} {count}")
        steps = options.steps if count == COUNTS[0] else options.steps // 10
        self.parts = max(1, steps // STEPS)

    def work(self) -> None:
        if self.own.random() > 0.7:
            time.sleep(self.own.uniform(0, self.longest_s))

    def leaves(self, moments: int) -> dict[int, str]:
        """Draw when this rank leaves in a part, and how; all leave as often."""
        how = [self.common.choice(("away", "init")) for _ in range(self.common.randint(0, 6))]
        return dict(zip(sorted(self.own.sample(range(moments), len(how))), how, strict=True))

    def leave(self, how: str | None) -> None:
        """Make a call in which this rank has left; the others make theirs at other times."""
        if how == "away":
            with self.ctx.away():
                time.sleep(self.own.uniform(0, 5 * self.longest_s))
        elif how == "init":
            self.ctx.Allreduce_init(np.zeros(1), np.zeros(1)).Free()


def run_all(
    options: argparse.Namespace, live: Callable[[pp.Context, str, int, argparse.Namespace], str]
) -> None:
    """Run each case; `live` returns what there is to say of it."""

    def main() -> None:
        checks = Checks(MPI.COMM_WORLD)
        with pp.Context(checks.comm, seed=options.seed) as ctx:
            for mode in options.mode:
                for count in COUNTS:
                    began = time.monotonic()
                    said = live(ctx, mode, count, options)
                    seconds = time.monotonic() - began
                    checks.note(True, f"{mode}, {8 * count} bytes: {said}{seconds:.1f} s")
        checks.end()

    run(main, options.limit)
