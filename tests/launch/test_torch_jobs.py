"""Whole jobs with PyTorch, judged from outside: how they end, and how they go on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.mpirun import Run, mpirun, python
from support.pytorch import need_torch

need_torch()

SCRIPTS = Path(__file__).resolve().parent / "scripts"
LIMIT_S = 120
AGAIN = int(os.environ.get("PYPARTIAL_TEST_AGAIN", "1"))  # ci/long torch: 20

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(5 * LIMIT_S + 2 * AGAIN * LIMIT_S)]


def launch(ranks: int, script: str, *arguments: str) -> Run:
    program = python(str(SCRIPTS / f"torch_{script}.py"), *arguments)
    return mpirun(ranks, program, timeout_s=LIMIT_S)


def test_ctrl_c_on_a_rank() -> None:
    """The others are told when it ends its script; nothing stays behind."""
    culprit = 1
    run = launch(3, "ctrl_c", str(culprit))
    run.check()
    for rank in range(3):
        seen = run.lines(rank)[-1]
        expected = "KeyboardInterrupt" if rank == culprit else "PeerFailedError"
        assert seen.startswith(f"rank {rank} sees {expected}"), run.explain()


def test_ctrl_c_on_the_launcher() -> None:
    run = launch(3, "ctrl_c", "launcher")
    assert run.returncode not in (0, None), run.explain()
    run.check_clean()


@pytest.mark.parametrize(
    ("way", "call"),
    [("each", "finish"), ("groups", "flush"), ("overlap", "finish"), ("hook", "finish")],
)
def test_a_script_that_ends_early(way: str, call: str) -> None:
    """The ranks that meet without it are told, and do not wait for it."""
    run = launch(3, "early_end", way, call)
    for rank in (1, 2):
        seen = run.lines(rank)[-1]
        assert seen.startswith(f"rank {rank} sees the ranks cannot meet: the script of rank 0"), (
            seen
        )
    run.check_clean()


def test_workers_of_a_data_loader() -> None:
    launch(3, "workers").check_all_ended(3)


@pytest.mark.parametrize("policy", ["majority", pytest.param("solo", marks=pytest.mark.long)])
def test_clean_exits(policy: str) -> None:
    for _ in range(AGAIN):
        launch(3, "exit", policy).check_all_ended(3)


@pytest.mark.parametrize("way", ["optimizer", pytest.param("backend", marks=pytest.mark.long)])
def test_ranks_that_also_meet(way: str, tmp_path: Path) -> None:
    """Without patience nothing but `away`, or the backend, keeps them from holding rounds up."""
    for number in range(AGAIN):
        folder = tmp_path / str(number)
        folder.mkdir()
        launch(4, "meetings", way, str(folder)).check_all_ended(4)


def test_a_script_that_imports_torch_only() -> None:
    launch(2, "unimported").check_all_ended(2)


# ---- a checkpoint --------------------------------------------------------------------------------


def told(run: Run, what: str, ranks: int) -> str:
    """Return what the ranks have told, the same on all."""
    lines = [[line for line in run.lines(rank) if line.startswith(what)] for rank in range(ranks)]
    assert all(len(found) == 1 and found == lines[0] for found in lines), run.explain()
    return lines[0][0].removeprefix(what)


@pytest.mark.parametrize("method", ["sync", pytest.param("eager", marks=pytest.mark.long)])
def test_a_killed_run_goes_on(method: str, tmp_path: Path) -> None:
    """What is loaded is what was saved; synchronous, the end is that of a run without a break."""
    file = tmp_path / "checkpoint"
    broken = launch(3, "resumed", method, str(file), "40", "25")
    assert broken.returncode not in (0, None), broken.explain()
    broken.check_clean()
    resumed = launch(3, "resumed", method, str(file), "40")
    resumed.check()
    assert told(resumed, "loaded at 20", 3) == told(broken, "saved at 20", 3)
    end = told(resumed, "end", 3)
    assert end == told(resumed, "saved at 40", 3)
    if method == "sync":
        unbroken = launch(3, "resumed", method, str(tmp_path / "other"), "40")
        unbroken.check()
        assert told(unbroken, "end", 3) == end
