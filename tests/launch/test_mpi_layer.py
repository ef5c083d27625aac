"""Runs the tests of tests/mpi under mpirun, once for every number of ranks."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.layer import run_tests

TESTS = Path(__file__).resolve().parent.parent / "mpi"
# On one node "auto" is shared memory; the messages between nodes are tested apart, and so are nodes
# with some of the ranks each, which share memory: the last number is how many.
QUICK = [(1, "auto", 0), (2, "auto", 0), (5, "auto", 0), (3, "mpi", 0), (7, "auto", 3)]
THOROUGH = [(3, "auto", 0), (9, "auto", 0), (3, "auto", 2)]
LONG = [(7, "auto", 0), (8, "auto", 0), (2, "mpi", 0), (5, "mpi", 0), (4, "auto", 2)]
TEST_LIMIT_S = 60  # for one test in one rank
LIMIT_S = 900  # for all of them: mpirun's


@pytest.mark.timeout(LIMIT_S + 60)
@pytest.mark.parametrize(
    ("ranks", "transport", "node_ranks"),
    [
        *QUICK,
        *(pytest.param(*run, marks=pytest.mark.thorough) for run in THOROUGH),
        *(pytest.param(*run, marks=pytest.mark.long) for run in LONG),
    ],
)
def test_mpi_layer(ranks, transport, node_ranks, record_property):
    """Every rank ran the same tests, at least one, and all of them passed."""
    env = {"PYPARTIAL_TRANSPORT": transport, "PYPARTIAL_NODE_RANKS": str(node_ranks or "")}
    counts = run_tests(TESTS, ranks, test_limit_s=TEST_LIMIT_S, limit_s=LIMIT_S, env=env)
    record_property("inner_passed", counts.passed)
    where = f"{ranks} ranks, {transport}, nodes of {node_ranks or ranks}"
    print(f"{where}: {counts.passed} passed, {counts.skipped} skipped")
