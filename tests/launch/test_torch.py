"""Runs the tests of tests/torch under mpirun, once for every number of ranks."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.layer import run_tests
from support.pytorch import need_torch

need_torch()

TESTS = Path(__file__).resolve().parent.parent / "torch"
TEST_LIMIT_S = 60  # for one test in one rank
LIMIT_S = 300  # for all of them: mpirun's


@pytest.mark.timeout(LIMIT_S + 60)
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_torch_layer(ranks, record_property):
    """Every rank ran the same tests, at least one, and all of them passed."""
    counts = run_tests(TESTS, ranks, test_limit_s=TEST_LIMIT_S, limit_s=LIMIT_S)
    record_property("inner_passed", counts.passed)
    print(f"{ranks} ranks: {counts.passed} passed, {counts.skipped} skipped")
