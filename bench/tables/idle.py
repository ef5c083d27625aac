"""What an idle handle costs: the CPU time of ranks that have used one and make no calls."""

from __future__ import annotations

import sys

from _common import PROGRAMS, Run, Table, extremes, main

SECONDS = (90, 20)
REPEATS = (3, 1)
RANKS = 4
SIDES = {"one node": {}, "as if on two nodes, which cannot ring": {"PYPARTIAL_NODE_RANKS": "2"}}
HEAD = ["4 ranks", "CPU time of a rank, % of a core"]
NOTES = "All threads; medians over ranks and launches (least-most)."


def measure(run: Run) -> Table:
    found: dict[str, list[float]] = {side: [] for side in SIDES}
    seconds = "3" if run.quick else "8"
    for side in run.turns(list(SIDES)):
        words = [sys.executable, str(PROGRAMS / "idle.py"), seconds]
        rows = run.program(RANKS, words, env=SIDES[side])
        found[side] += [100 * row["share"] for row in rows]
    return Table(HEAD, [[side, extremes(values)] for side, values in found.items()], NOTES)


if __name__ == "__main__":
    main(__file__, __doc__, measure, REPEATS)
