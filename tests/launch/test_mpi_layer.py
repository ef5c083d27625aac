"""Runs the tests of tests/mpi under mpirun, once for every number of ranks."""

from __future__ import annotations

import shutil
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.mpirun import mpirun, python

TESTS = Path(__file__).resolve().parent.parent
# On one node "auto" is shared memory; the messages between nodes are tested apart, and so are nodes
# with some of the ranks each, which share memory: the last number is how many.
RUNS = [(ranks, "auto", 0) for ranks in (1, 2, 3, 4, 5, 7, 8, 9)]
RUNS += [(ranks, "mpi", 0) for ranks in (2, 3, 5)]
RUNS += [(3, "auto", 2), (4, "auto", 2), (7, "auto", 3)]
TEST_LIMIT_S = 60  # for one test in one rank
LIMIT_S = 300  # for all of them: mpirun's


@pytest.fixture
def reports() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="pp-reports-"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def bytecode() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="pp-bytecode-") as folder:
        yield folder


def outcomes(report: Path) -> dict[str, str]:
    """Return the outcome of every test of one rank's report."""
    found = {}
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        marks = {child.tag for child in case} & {"failure", "error", "skipped"}
        found[f"{case.get('classname')}::{case.get('name')}"] = (marks or {"passed"}).pop()
    return found


@pytest.mark.timeout(LIMIT_S + 60)
@pytest.mark.parametrize(("ranks", "transport", "node_ranks"), RUNS)
def test_mpi_layer(ranks, transport, node_ranks, reports, bytecode, record_property):
    """Every rank ran the same tests, at least one, and all of them passed."""
    inner = [str(TESTS / "support" / "inner.py"), str(reports), str(TEST_LIMIT_S), bytecode]
    env = {"PYPARTIAL_TRANSPORT": transport, "PYPARTIAL_NODE_RANKS": str(node_ranks or "")}
    run = mpirun(ranks, python(*inner, str(TESTS / "mpi")), timeout_s=LIMIT_S, env=env)
    run.check()
    files = sorted(reports.glob("rank-*.xml"))
    assert len(files) == ranks, f"{len(files)} reports of {ranks} ranks\n{run.explain()}"
    by_rank = [outcomes(file) for file in files]
    assert all(one == by_rank[0] for one in by_rank), "the ranks ran different tests"
    results = list(by_rank[0].values())
    assert set(results) <= {"passed", "skipped"}, run.explain()
    passed = results.count("passed")
    assert passed > 0, f"no test ran on {ranks} ranks\n{run.explain()}"
    record_property("inner_passed", passed)
    skipped = results.count("skipped")
    where = f"{ranks} ranks, {transport}, nodes of {node_ranks or ranks}"
    print(f"{where}: {passed} passed, {skipped} skipped")
