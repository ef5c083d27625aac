"""The cases of `tests/launch/scripts/live.py`, and running many of them in one mpirun."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Sequence
from pathlib import Path

from .mpirun import Run, mpirun, python

SCRIPT = Path(__file__).resolve().parent.parent / "launch" / "scripts" / "live.py"
PROGRAMS = ("metric", "phases", "threads", "passes", "contexts")
POLICIES = ("solo", "majority", "quorum", "first")
DELIVERIES = ("latest", "sum", "each")
TRANSPORTS = ("auto", "mpi")
CURES = ("patience", "away")
PLACES: tuple[int | tuple[int, ...], ...] = (2, 3, 4, 5, (2, 2))  # ranks; or so many on each host
START_S = 30


def cases(cures: Sequence[str] = CURES) -> list[str]:
    """Return all of them, as the script takes them."""
    return [
        "/".join(one)
        for one in itertools.product(PROGRAMS, POLICIES, DELIVERIES, TRANSPORTS, cures)
    ]


def drawn(number: int, seed: int) -> list[str]:
    """Return some with patience: every program, policy, delivery and transport as often."""
    chance = random.Random(seed)
    columns = []
    for values in (PROGRAMS, POLICIES, DELIVERIES, TRANSPORTS):
        column = list(itertools.islice(itertools.cycle(values), number))
        chance.shuffle(column)
        columns.append(column)
    return ["/".join((*one, "patience")) for one in zip(*columns, strict=True)]


def run_live(
    ranks: int | tuple[int, ...], chosen: Sequence[str], *, patience: float, case_s: float
) -> Run:
    """Run cases, each of which may take so long, in one mpirun.

    What is left in the output are their lines, and, if one does not end, the stacks of all ranks.
    """
    arguments = [f"--patience={patience}", f"--limit={case_s}"]
    return mpirun(
        ranks,
        python(str(SCRIPT), *arguments, *chosen),
        timeout_s=START_S + case_s + 3 * len(chosen),
        env={"PYPARTIAL_TRANSPORT": ""},  # each case says its own
    )


def departed(run: Run, chosen: Sequence[str]) -> int:
    """Check that every case ended well; return how many rounds did without some rank."""
    run.check_counts()
    found = {}
    for line in run.lines(0):
        if match := re.match(r"(\S+) ok \d+ rounds (\d+) departed ", line):
            found[match[1]] = int(match[2])
    assert set(found) == set(chosen), run.explain()
    return sum(found.values())
