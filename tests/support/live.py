"""The cases of `live.py` and `metrics.py` of `tests/launch/scripts`; many of them in one mpirun."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Sequence
from pathlib import Path

from .mpirun import Run, mpirun, python
from .pytorch import has_torch

SCRIPTS = Path(__file__).resolve().parent.parent / "launch" / "scripts"
PROGRAMS = ("metric", "phases", "threads", "passes", "contexts")
POLICIES = ("solo", "majority", "quorum", "first")
DELIVERIES = ("latest", "sum", "each")
TRANSPORTS = ("auto", "mpi")
CURES = ("patience", "away")
PLACES: tuple[int | tuple[int, ...], ...] = (2, 3, 4, 5, (2, 2))  # ranks; or so many on each host
START_S = 30

# Of metrics.py.  Those that meet in steps, or whose end does, have mean() alone.
LOOPS = {
    "request": "latest sum each",
    "worker": "each sum latest synchronous preduce ripples",
    "optimizer": "each sum latest synchronous preduce ripples overlap overlap-sum meets",
    "hook": "sum latest meets",
}
CALLS = "ctx backend barrier checkpoint empty scan gather allgatherv mean plain gloo"
EVERY = (1, 10, 50)
OF_TORCH = {"optimizer", "hook", "backend", "barrier", "mean", "gloo"}


def cases(cures: Sequence[str] = CURES) -> list[str]:
    """Return all of them, as the script takes them."""
    return [
        "/".join(one)
        for one in itertools.product(PROGRAMS, POLICIES, DELIVERIES, TRANSPORTS, cures)
    ]


def metric_cases() -> list[str]:
    """Return all of metrics.py; without torch those that need none."""
    return [
        f"{loop}-{name}/{call}/{every}/{transport}"
        for loop, names in LOOPS.items()
        for name, call in itertools.product(names.split(), CALLS.split())
        if call == "mean" or name != "meets"
        if call != "mean" or loop in OF_TORCH
        if has_torch() or not OF_TORCH & {loop, call}
        for every, transport in itertools.product(EVERY, TRANSPORTS)
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
    ranks: int | tuple[int, ...],
    chosen: Sequence[str],
    *,
    patience: float,
    case_s: float,
    script: str = "live",
    node_ranks: str = "",
) -> Run:
    """Run cases, each of which may take so long, in one mpirun.

    What is left in the output are their lines, and, if one does not end, the stacks of all ranks.
    """
    arguments = [f"--patience={patience}", f"--limit={case_s}"]
    return mpirun(
        ranks,
        python("-W", "ignore", str(SCRIPTS / f"{script}.py"), *arguments, *chosen),
        timeout_s=START_S + case_s + 3 * len(chosen),
        # Each case says its own transport.
        env={"PYPARTIAL_TRANSPORT": "", "PYPARTIAL_NODE_RANKS": node_ranks},
    )


def check_ended(run: Run, chosen: Sequence[str]) -> None:
    """Check that every case of metrics.py ended well."""
    run.check_counts()
    ended = [line.split()[0] for line in run.lines(0) if " ok " in line]
    assert ended == list(chosen), run.explain()


def departed(run: Run, chosen: Sequence[str]) -> int:
    """Check that every case ended well; return how many rounds did without some rank."""
    run.check_counts()
    found = {}
    for line in run.lines(0):
        if match := re.match(r"(\S+) ok \d+ rounds (\d+) departed ", line):
            found[match[1]] = int(match[2])
    assert set(found) == set(chosen), run.explain()
    return sum(found.values())
