"""Tests that run inside ranks: starting a folder of them under mpirun, and reading the reports."""

from __future__ import annotations

import functools
import shutil
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .mpirun import mpirun, python

INNER = Path(__file__).resolve().parent / "inner.py"


@dataclass(frozen=True)
class Counts:
    """How many tests of each rank passed, and how many were skipped."""

    passed: int
    skipped: int


def run_tests(
    tests: Path,
    ranks: int,
    *,
    test_limit_s: int,
    limit_s: int,
    env: dict[str, str] | None = None,
    under: Sequence[str] = (),
    selected: str = "",
) -> Counts:
    """Run tests in every rank of a job; each rank must run the same ones, and all must pass.

    Parameters
    ----------
    tests : Path
        A folder, or a file.
    ranks : int
    test_limit_s : int
        For one test in one rank.
    limit_s : int
        For all of them: mpirun's.
    env : dict, optional
        Variables to set (an empty value: to remove).
    under : sequence of str, optional
        A program that runs each rank, and its options.
    selected : str, optional
        Only tests that pytest's ``-k`` finds by this.
    """
    reports = Path(tempfile.mkdtemp(prefix="pp-reports-"))
    try:
        limit = str(test_limit_s)
        command = python(str(INNER), str(reports), limit, _bytecode().name, str(tests))
        command = [*under, *command, *(["-k", selected] if selected else [])]
        run = mpirun(ranks, command, timeout_s=limit_s, env=env)
        run.check()
        files = sorted(reports.glob("rank-*.xml"))
        assert len(files) == ranks, f"{len(files)} reports of {ranks} ranks\n{run.explain()}"
        by_rank = [_outcomes(file) for file in files]
    finally:
        shutil.rmtree(reports)
    assert all(one == by_rank[0] for one in by_rank), "the ranks ran different tests"
    results = list(by_rank[0].values())
    assert set(results) <= {"passed", "skipped"}, run.explain()
    counts = Counts(results.count("passed"), results.count("skipped"))
    assert counts.passed > 0, f"no test ran on {ranks} ranks\n{run.explain()}"
    return counts


@functools.cache
def _bytecode() -> tempfile.TemporaryDirectory[str]:
    """Return the folder of the compiled tests, kept from one run to the next of this process."""
    return tempfile.TemporaryDirectory(prefix="pp-bytecode-")


def _outcomes(report: Path) -> dict[str, str]:
    """Return the outcome of every test of one rank's report."""
    found = {}
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        marks = {child.tag for child in case} & {"failure", "error", "skipped"}
        found[f"{case.get('classname')}::{case.get('name')}"] = (marks or {"passed"}).pop()
    return found
