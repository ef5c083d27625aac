"""The traces of programs that end without freeing their context, or are killed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.mpirun import mpirun, python
from support.traces import TraceFile

SCRIPT = Path(__file__).resolve().parent / "scripts" / "traced.py"
LIMIT_S, STEPS, RANKS = 60, 50, 3

pytestmark = pytest.mark.timeout(2 * LIMIT_S)


def launch(folder, how, **options):
    return mpirun(RANKS, python(str(SCRIPT), str(folder), how), timeout_s=LIMIT_S, **options)


def check(file, rank):
    """All steps are there, and nothing after the end."""
    assert (file.head["rank"], file.head["size"]) == (rank, RANKS)
    assert file.head["met"][0][0] > 0
    assert not file.head["met"][1].any()
    assert set(file.events["kind"]) <= set(range(1, 14))
    given = file.of("GIVEN")
    assert list(given["number"][:STEPS]) == list(range(STEPS))
    assert set(given["a"][:STEPS]) == {RANKS}
    starts = file.of("START")
    assert list(starts["number"]) == list(range(1, len(starts) + 1))
    assert [file.name(int(event["a"])) for event in file.of("SPAN")] == ["loop"]
    assert not len(file.of("SPAN_END"))
    assert (file.events["ns"] > 0).all() and np.ptp(file.events["ns"].astype(float)) < 60e9


def test_a_killed_rank_leaves_what_it_had(tmp_path):
    run = launch(tmp_path / "trace", "killed")
    assert run.returncode, run.explain()
    for rank in range(RANKS):
        check(TraceFile(tmp_path / "trace", rank), rank)
    # The others had begun one more step.
    assert len(TraceFile(tmp_path / "trace", 1).of("START")) == STEPS


@pytest.mark.parametrize("how", ["unfreed", "inside"])
def test_a_program_that_never_frees_its_context(tmp_path, how):
    launch(tmp_path / "trace", how).check_all_ended(RANKS)
    for rank in range(RANKS):
        file = TraceFile(tmp_path / "trace", rank)
        check(file, rank)
        assert len(file.of("START")) == STEPS + (how == "inside")


def test_a_variable_traces_a_program_that_never_frees_its_context(tmp_path):
    """It has a trace of its own then: the program's is the second one, and is refused."""
    run = launch(tmp_path / "own", "unfreed", env={"PYPARTIAL_TRACE": str(tmp_path / "trace")})
    assert run.returncode, run.explain()
    assert "the context has a trace already" in run.output
    for rank in range(RANKS):
        assert TraceFile(tmp_path / "trace", rank).head["size"] == RANKS
    assert not (tmp_path / "own").exists()
