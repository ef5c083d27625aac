"""The examples with PyTorch do what their heads say, on 4 ranks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.mpirun import mpirun, python
from support.pytorch import need_torch

need_torch()

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
LIMIT_S = 180
RANKS = 4
TRAINS_S = "6"  # so long that a rank which a busy machine holds up goes on
UNTRAINED = 7.0  # about: the mean square of what the models are to learn

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(LIMIT_S + 60)]


def run_example(name: str, *arguments: str) -> str:
    """Run an example, and return what rank 0 printed; its models must be equal, and have learnt."""
    command = python("-m", "mpi4py", str(EXAMPLES / name), *arguments)
    run = mpirun(RANKS, command, timeout_s=LIMIT_S)
    run.check()
    text = "\n".join(run.lines(0))
    assert "the models of the ranks differ by 0.0 at most" in text, run.explain()
    (loss,) = numbers(r"loss (\S+)", text)
    assert loss < UNTRAINED / 10, text
    return text


def numbers(pattern: str, text: str) -> list[float]:
    """Return the groups of the one match as numbers."""
    match = re.search(pattern, text)
    assert match is not None, f"{pattern!r} is not in:\n{text}"
    return [float(number) for number in match.groups()]


def test_loop() -> None:
    """Fewer rounds than steps of all ranks together: contributions are merged, none is lost."""
    text = run_example("torch_loop.py")
    (rounds,) = numbers(r"(\d+) rounds", text)
    assert 80 <= rounds <= 3 * 80 + 40, text


def test_hook() -> None:
    run_example("torch_hook.py")


def test_backend() -> None:
    text = run_example("torch_backend.py")
    assert f"backend pypartial, {RANKS} ranks" in text


def test_groups() -> None:
    """How many steps the ranks make depends on the load."""
    text = run_example("torch_groups.py", TRAINS_S)
    steps, of_slow = numbers(r"rank 0 made (\d+) steps, the slow rank (\d+)", text)
    assert steps > of_slow, text
    with_slow, groups = numbers(r"in (\d+) of the (\d+) groups", text)
    assert 0 < with_slow < groups, text
