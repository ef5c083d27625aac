#!/usr/bin/env python3
"""Draws docs/images/timeline.svg: four ranks, of which one is slow, under Full and under Majority.

    python bench/plots/timeline.py [FILE]

Two runs of the engine on simulated ranks, one a policy, with the same times of computation: ranks
0 to 2 take 7 to 9 ms a step, rank 3 takes 24 ms. Nothing is random but by the seed, so the picture
is always the same. It is written as text, with a background of its own, and follows the reader's
choice of light or dark: it can be read on any page.

Needs an installed pypartial, and no launcher.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pypartial.policy import Full, Majority, Policy
from pypartial.sim.allreduce_handle import Options
from pypartial.sim.network import parse_network
from pypartial.sim.world import World

RANKS, SLOW = 4, 3
END_MS = 124  # the synchronous ranks have just made a step
LAST_TICK_MS = 120
FAST_MS, SLOW_MS = (7.0, 9.0), 24.0
SEED = 13  # one in which Majority makes as many steps as in the mean of long runs, 8
WINDOW = 4
NETWORK = "L=1us,o=0ns"  # too short to be seen

LEFT, TOP, PIXELS_A_MS, ROW, BAR, GAP = 72, 16, 5.8, 26, 16, 1.5
PANEL = 34 + RANKS * ROW + 14  # its title, its rows, a gap
AXIS = 58
WIDTH, HEIGHT = round(LEFT + END_MS * PIXELS_A_MS) + 88, TOP + 2 * PANEL + AXIS

# Okabe and Ito's blue and vermilion, which colour-blind readers tell apart.
STYLE = """
    .page { fill: #ffffff; stroke: #d0d7de }
    text { fill: #1f2328; font: 13px system-ui, -apple-system, 'Segoe UI', Helvetica, sans-serif }
    .title { font-weight: 600 }
    .small { font-size: 12px; fill: #57606a }
    .fast { fill: #0072b2 } .slow { fill: #d55e00 } .wait { fill: #d8dee4 }
    .round { stroke: #1f2328; stroke-width: 1.2; stroke-dasharray: 3 2 }
    .axis { stroke: #8c959f }
    @media (prefers-color-scheme: dark) {
      .page { fill: #0d1117; stroke: #30363d }
      text { fill: #e6edf3 } .small { fill: #9198a1 }
      .fast { fill: #56b4e9 } .slow { fill: #e8853d } .wait { fill: #30363d }
      .round { stroke: #e6edf3 }
    }"""


@dataclass
class Step:
    """A step of a rank, in ns: it computes, calls, and goes on when it has a result."""

    begun: int
    called: int | None = None
    ended: int | None = None


@dataclass
class Timeline:
    """What the ranks did until the end."""

    steps: list[list[Step]] = field(default_factory=lambda: [[] for _ in range(RANKS)])
    rounds: dict[int, int] = field(default_factory=dict)  # when each was first given to a rank

    def made(self, rank: int) -> int:
        """Return how many steps the rank has made."""
        return sum(step.ended is not None for step in self.steps[rank])


def work_ns(rank: int) -> Iterator[int]:
    """Give the times that a rank computes, the same for every policy."""
    draw = random.Random(f"{SEED} {rank}")
    while True:
        yield int(1e6 * (SLOW_MS if rank == SLOW else draw.uniform(*FAST_MS)))


def simulate(policy: Policy) -> Timeline:
    """Run the ranks until the end of the picture."""
    world = World(RANKS, seed=SEED, network=parse_network(NETWORK), window=WINDOW)
    handles = world.agreed(Options(policy=policy, deliver="sum", max_lag=WINDOW - 1))
    timeline, end = Timeline(), END_MS * 10**6

    def program(rank: int) -> Iterator[object]:
        handle = handles[rank]
        handle.send[:] = 1
        for work in work_ns(rank):
            step = Step(world.now)
            timeline.steps[rank].append(step)
            yield work
            if world.now >= end:
                world.stop()
            step.called = world.now
            yield ("start", handle)
            result = yield ("wait", handle)
            step.ended = world.now
            timeline.rounds.setdefault(result.round, world.now)

    world.run([program(rank) for rank in range(RANKS)])
    return timeline


def x(ns: int | None) -> float:
    """Return where a time is in the picture, its end if it has not come."""
    ms = END_MS if ns is None else min(ns / 1e6, END_MS)
    return round(LEFT + ms * PIXELS_A_MS, 1)


def bar(kind: str, begin: int, end: int | None, y: float) -> str:
    """Return a stretch of a rank's time."""
    width = round(max(x(end) - x(begin) - GAP, 0.5), 1)
    return f'<rect class="{kind}" x="{x(begin)}" y="{y}" width="{width}" height="{BAR}"/>'


def panel(title: str, timeline: Timeline, top: float) -> Iterator[str]:
    """Draw one run."""
    yield f'<text class="title" x="{LEFT}" y="{top + 14}">{title}</text>'
    right = x(None)
    yield f'<text class="small" x="{right + 12}" y="{top + 14}">steps made</text>'
    for rank, steps in enumerate(timeline.steps):
        y = top + 28 + rank * ROW
        yield f'<text x="{LEFT - 12}" y="{y + 13}" text-anchor="end">rank {rank}</text>'
        for step in steps:
            yield bar("slow" if rank == SLOW else "fast", step.begun, step.called, y)
            if step.called is not None and x(step.ended) > x(step.called):
                yield bar("wait", step.called, step.ended, y)
        yield f'<text x="{right + 12}" y="{y + 13}">{timeline.made(rank)}</text>'
    low, high = top + 23, top + 28 + (RANKS - 1) * ROW + BAR + 5
    for when in sorted(timeline.rounds.values()):
        if when < END_MS * 10**6:
            yield f'<line class="round" x1="{x(when)}" x2="{x(when)}" y1="{low}" y2="{high}"/>'


def axis(top: float) -> Iterator[str]:
    """Draw the time and the legend."""
    yield f'<line class="axis" x1="{LEFT}" x2="{x(None)}" y1="{top}" y2="{top}"/>'
    for ms in range(0, LAST_TICK_MS + 1, 20):
        at = x(ms * 10**6)
        yield f'<line class="axis" x1="{at}" x2="{at}" y1="{top}" y2="{top + 4}"/>'
        unit = " ms" if ms == LAST_TICK_MS else ""
        yield f'<text class="small" x="{at}" y="{top + 18}" text-anchor="middle">{ms}{unit}</text>'
    at, y = LEFT, top + 28
    for kind, what in (
        ("fast", "computes"),
        ("slow", "computes, slow"),
        ("wait", "waits"),
        ("round", "a round completes"),
    ):
        if kind == "round":
            yield f'<line class="round" x1="{at + 8}" x2="{at + 8}" y1="{y - 1}" y2="{y + 15}"/>'
        else:
            yield f'<rect class="{kind}" x="{at}" y="{y}" width="{BAR}" height="14"/>'
        yield f'<text x="{at + 24}" y="{y + 12}">{what}</text>'
        at += 60 + 7.5 * len(what)


def draw(runs: list[tuple[str, Timeline]]) -> str:
    """Return the picture."""
    alone = " and ".join(f"{title}: {t.made(0)} steps of rank 0" for title, t in runs)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" '
        f'height="{HEIGHT}" role="img">',
        "<title>One slow rank, synchronous against majority</title>",
        f"<desc>Four ranks over {END_MS} ms, of which rank 3 is slow. {alone}.</desc>",
        f"<style>{STYLE}\n</style>",
        f'<rect class="page" x="0.5" y="0.5" width="{WIDTH - 1}" height="{HEIGHT - 1}" rx="6"/>',
    ]
    for number, (title, timeline) in enumerate(runs):
        lines += panel(title, timeline, TOP + number * PANEL)
    lines += [*axis(TOP + 2 * PANEL), "</svg>", ""]
    return "\n".join(lines)


def main() -> None:
    """Write the file that is named, or the one of the documentation."""
    root = Path(__file__).resolve().parents[2]
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else root / "docs/images/timeline.svg"
    runs = [
        ("Synchronous: every round waits for rank 3", simulate(Full())),
        ("Majority: a round waits for the rank that is drawn for it", simulate(Majority())),
    ]
    target.write_text(draw(runs), encoding="utf-8")


main()
