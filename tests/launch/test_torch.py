"""Runs the tests of tests/torch under mpirun, once for every number of ranks; and on a device."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import fakecuda
from support.layer import run_tests
from support.pytorch import need_torch

need_torch()

TESTS = Path(__file__).resolve().parent.parent / "torch"
TEST_LIMIT_S = 60  # for one test in one rank
LIMIT_S = 900  # for all of them: mpirun's


@pytest.mark.timeout(LIMIT_S + 60)
@pytest.mark.parametrize(
    ("ranks", "selected"),
    [
        pytest.param(3, "", id="3"),
        pytest.param(4, "test_equals_ddp", id="4-as-gloo", marks=pytest.mark.thorough),
        pytest.param(2, "", id="2", marks=pytest.mark.long),
        pytest.param(4, "", id="4", marks=pytest.mark.long),
    ],
)
def test_torch_layer(ranks, selected, record_property):
    """Every rank ran the same tests, at least one, and all of them passed."""
    limits = {"test_limit_s": TEST_LIMIT_S, "limit_s": LIMIT_S}
    counts = run_tests(TESTS, ranks, selected=selected, **limits)
    record_property("inner_passed", counts.passed)
    print(f"{ranks} ranks: {counts.passed} passed, {counts.skipped} skipped")


@pytest.mark.thorough
@pytest.mark.timeout(LIMIT_S + 60)
@pytest.mark.parametrize(("ranks", "selected"), [(2, ""), (3, "test_device")])
def test_torch_layer_on_a_device(record_property, ranks, selected):
    """The tests of the optimizer and the hook, with models on the stand-in's device.

    Those that compare it with the CPU are for 3 ranks, of which groups may have 2.
    """
    env = {**fakecuda.environment(), "PYPARTIAL_TEST_TORCH_DEVICE": "1"}
    limits = {"test_limit_s": TEST_LIMIT_S, "limit_s": LIMIT_S}
    counts = run_tests(TESTS, ranks, env=env, selected=selected, **limits)
    assert ranks == 2 or counts.skipped == 0 or fakecuda.cpp_compiler() is None
    record_property("inner_passed", counts.passed)
