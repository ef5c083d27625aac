"""What ci/long torch-own makes of the outcomes of PyTorch's own tests."""

from __future__ import annotations

import json

import pytest
from support.mpirun import Run
from support.torch_own import (
    LIST,
    Entry,
    Outcome,
    Watch,
    differences,
    read_list,
    updated,
    write_list,
)

TEXT = """# A head.
test_a  passed   passed
test_b  passed   failed   has no such call
test_c  skipped  -
"""
LISTED = {
    "test_a": Entry("passed", "passed"),
    "test_b": Entry("passed", "failed", "has no such call"),
    "test_c": Entry("skipped", "-"),
}


def test_the_list_is_read_and_written() -> None:
    assert read_list(TEXT) == LISTED
    assert write_list(LISTED, "# A head.\n") == TEXT


def test_the_list_that_is_committed() -> None:
    """It can be read, and every reason was written by somebody."""
    entries = read_list(LIST.read_text())
    assert len(entries) > 250
    assert not [name for name, entry in entries.items() if entry.reason.startswith("?")]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("test_a passed", "line 1: a name"),
        ("test_a passed good", "line 1: a name"),
        ("test_a passed failed", "line 1: a reason"),
        ("test_a passed passed why", "line 1: a reason"),
        ("test_a passed passed\ntest_a passed passed", "line 2: test_a is there twice"),
        ("test_b passed passed\ntest_a passed passed", "not sorted"),
    ],
)
def test_a_wrong_list(line: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        read_list(line)


@pytest.mark.parametrize(
    ("name", "gloo", "pypartial", "said"),
    [
        ("test_a", "passed", "passed", None),
        ("test_a", "passed", "failed", "failed, and gloo passes it: ValueError: no"),
        ("test_a", "passed", "skipped", "skipped, and gloo"),
        ("test_a", "passed", "hang", "hang, and gloo"),
        ("test_a", "failed", "-", None),
        ("test_b", "passed", "crash", None),
        ("test_b", "passed", "passed", "passed, but the list says why it is not: has no such call"),
        ("test_b", "failed", "-", None),
        ("test_new", "passed", "failed", "failed, and gloo"),
        ("test_new", "passed", "passed", None),
    ],
)
def test_what_is_a_difference(name: str, gloo: str, pypartial: str, said: str | None) -> None:
    text = (
        "Traceback (most recent\n  raise it\nValueError: no\n\nException raised from it\n a frame"
    )
    own = {} if pypartial == "-" else {name: Outcome(pypartial, text)}
    found = differences(LISTED, {name: Outcome(gloo)}, own)
    assert list(found) == ([name] if said else [])
    assert said is None or found[name].startswith(said)


def test_an_update_keeps_reasons_and_marks_new_ones() -> None:
    gloo = {name: Outcome("passed") for name in ("test_a", "test_b", "test_new")}
    own = {name: Outcome("failed", "ValueError: no") for name in gloo}
    entries = updated(LISTED, gloo, own)
    assert entries["test_a"] == Entry("passed", "failed", "? ValueError: no")
    assert entries["test_b"] == LISTED["test_b"]
    assert entries["test_c"] == LISTED["test_c"]  # did not run
    assert entries["test_new"].reason == "? ValueError: no"
    assert updated(LISTED, {"test_a": Outcome("skipped")}, {}) == LISTED
    assert updated(LISTED, gloo, {**own, "test_b": Outcome("passed")})["test_b"].reason == ""


def watch(tmp_path, told: dict[tuple[int, int], str], limit_s: float = 100) -> Watch:
    """Look at a launch of 2 ranks in which tests have ended, by their number and the rank."""
    (tmp_path / "0").mkdir()
    for (n, rank), outcome in told.items():
        result = {"outcome": outcome, "text": f"of rank {rank}", "seconds": 1.0}
        (tmp_path / f"{n}.{rank}.json").write_text(json.dumps(result))
    return Watch(tmp_path, ["test_0", "test_1", "test_2"], 2, limit_s, print)


PASSED = {(0, 0): "passed", (0, 1): "passed"}
FAILED = {(0, 0): "failed", (0, 1): "failed"}


@pytest.mark.parametrize(
    ("told", "ends", "outcomes"),
    [
        ({}, "crash", ["crash"]),
        (PASSED, "crash", ["passed", "crash"]),
        (FAILED, "crash", ["failed"]),  # test_1 again
        ({**FAILED, (1, 0): "failed"}, "crash", ["failed"]),
        ({**PASSED, (1, 1): "failed"}, "crash", ["passed", "failed"]),
        ({**PASSED, (1, 0): "passed", (1, 1): "skipped"}, "hang", ["passed", "skipped", "hang"]),
        (FAILED, "hang", ["failed"]),
    ],
)
def test_how_a_launch_ends(tmp_path, told, ends: str, outcomes: list[str]) -> None:
    """The worst rank counts; what ends a launch after a failure is not judged."""
    seen = watch(tmp_path, told, limit_s=-100.0 if ends == "hang" else 100.0)
    assert seen.over() == (ends == "hang")
    seen.ended(Run(["mpirun"], 1, "Segmentation fault", 1.0))
    assert [outcome.name for outcome in seen.done] == outcomes


def test_ranks_that_do_not_begin(tmp_path) -> None:
    """That is no outcome of a test."""
    seen = Watch(tmp_path, ["test_0"], 2, 100.0, print)
    assert not seen.over()
    seen.since -= 1000.0
    assert seen.over()
    seen.ended(Run(["mpirun"], None, "", 1.0))
    assert not seen.begun and seen.done == []


def test_others_may_report_after_a_failure(tmp_path) -> None:
    seen = watch(tmp_path, {(0, 1): "failed"})
    assert not seen.over()
    assert seen.failed_at is not None
    seen.failed_at -= 100.0
    assert seen.over()
    assert [outcome.name for outcome in seen.done] == ["failed"]
