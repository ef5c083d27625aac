"""How long it takes from mpirun to the first round, and how much of that are imports."""

from __future__ import annotations

import sys

from _common import PROGRAMS, Run, Table, extremes, main

SECONDS = (150, 20)
REPEATS = (5, 1)
RANKS = (2, 8, 32)
SIDES = ("bench skew", "import of mpi4py and NumPy")
HEAD = ["ranks", "first round of `bench skew`, s", "import of mpi4py and NumPy alone, s"]
NOTES = "From the start of mpirun. Medians over the launches (least-most)."


def measure(run: Run) -> Table:
    ranks = RANKS[:2] if run.quick else RANKS
    found = {(number, side): [] for number in ranks for side in SIDES}
    for number, side in run.turns(list(found)):
        if side == SIDES[0]:
            run.bench(number, "bench skew --policy full --size 8 --skew 0 --rounds 1 --warmup 0")
            seconds = run.launches[-1]["meta"]["first_round_s"]
        else:
            rows = run.program(number, [sys.executable, str(PROGRAMS / "imports.py")])
            seconds = rows[0]["seconds"]
        found[number, side].append(seconds)
    rows = [[str(number), *(extremes(found[number, side]) for side in SIDES)] for number in ranks]
    return Table(HEAD, rows, NOTES)


if __name__ == "__main__":
    main(__file__, __doc__, measure, REPEATS)
