"""Forked children of processes that have imported the package."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.mpirun import mpirun, python

SCRIPT = Path(__file__).resolve().parent / "scripts" / "forked.py"
LIMIT_S = 120

pytestmark = pytest.mark.timeout(LIMIT_S + 60)


@pytest.mark.parametrize(("when", "ranks"), [("after", 1), ("after", 3), ("before", 1)])
def test_a_forked_child_makes_a_context(when, ranks):
    """It is refused if it shares MPI with its parent, whose job goes on."""
    run = mpirun(ranks, python(str(SCRIPT), when), timeout_s=LIMIT_S)
    run.check()
    for rank in range(ranks):
        assert f"end of rank {rank}" in run.lines(rank), run.explain()
