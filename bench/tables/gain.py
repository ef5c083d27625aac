"""What `pypartial sim gain` predicts, and what the same ranks then take."""

from __future__ import annotations

import sys
from statistics import median

from _common import PROGRAMS, Run, Table, main

SECONDS = (480, 70)
REPEATS = (2, 1)
RANKS, TURNS, QUICK_TURNS = (4, 8), 3, 1
WAYS = ("full", "solo", "majority", "quorum:3", "smart:2", "controller:2")
HEAD = ["P", "arrivals", *WAYS]
NOTES = (
    "Mean time of a step in ms, predicted from a recording / measured in other steps with the same "
    "sleeps, and the error of the prediction. A step sleeps 5 ms, and then makes a round or group "
    "of 8 KB. Turns of 100 recorded and 100 measured steps alternate; medians over the turns."
)


def measure(run: Run) -> Table:
    words = [sys.executable, "-m", "mpi4py", str(PROGRAMS / "gain.py")]
    turns = str(QUICK_TURNS if run.quick else TURNS)
    found: dict[tuple[str, str], dict[str, list]] = {}
    for _ in run.turns():
        for ranks in RANKS:
            for row in run.program(ranks, [*words, turns]):
                shape = (str(ranks), row["shape"])
                found.setdefault(shape, {}).setdefault(row["way"], []).append(row)
    rows = [[*shape, *(cell(ways[way]) for way in WAYS)] for shape, ways in found.items()]
    return Table(HEAD, rows, NOTES)


def cell(rows: list) -> str:
    told, took = (median(row[name] for row in rows) for name in ("predicted_ms", "measured_ms"))
    return f"{told:.1f} / {took:.1f} ({100 * (told / took - 1):+.0f} %)"


if __name__ == "__main__":
    main(__file__, __doc__, measure, REPEATS)
