"""`pp.record`: from times of calls to computations, on one rank, and off."""

from __future__ import annotations

import time
import warnings
from pathlib import Path

import numpy as np
import pytest

import pypartial as pp
from pypartial.recording import computations
from pypartial.sim.arrivals import parse_arrivals

MS = 1_000_000


def synchronous(work: np.ndarray, collective_ns: int) -> np.ndarray:
    """Return when each rank calls, if every step's collective begins when the last rank calls."""
    calls, now = [], 0
    for times in work:
        calls.append(now + times)
        now = int(calls[-1].max()) + collective_ns
    return np.array(calls)


@pytest.mark.parametrize("collective_ns", [0, 3 * MS])
def test_computations_are_those_of_the_ranks_and_the_collective(collective_ns: int) -> None:
    work = np.random.default_rng(1).integers(MS, 20 * MS, (50, 5))
    seconds, waited = computations(synchronous(work, collective_ns))
    assert waited
    np.testing.assert_allclose(seconds, (work[1:] + collective_ns) / 1e9)


def test_clocks_that_differ_a_little_are_taken_for_one() -> None:
    calls = np.array([[0, 5 * MS], [5 * MS - 1000, 11 * MS]])
    seconds, waited = computations(calls)
    assert waited and seconds.tolist() == [[0, 0.006]]


def test_ranks_that_do_not_wait_have_their_whole_times() -> None:
    calls = np.cumsum(np.full((5, 2), [5 * MS, 9 * MS]), axis=0)
    seconds, waited = computations(calls)
    assert not waited
    np.testing.assert_allclose(seconds, [[0.005, 0.009]] * 4)


def test_one_rank_writes_what_the_simulation_reads(tmp_path: Path) -> None:
    path = tmp_path / "arrivals.csv"
    with pp.record(path) as recorder:
        for _ in range(4):
            time.sleep(2e-3)
            recorder.step()
    model = parse_arrivals(f"trace:{path}", 1, 3, 0)
    assert all(model.times(step)[0] >= 2 * MS for step in range(3))
    with pytest.raises(ValueError, match="use --steps 3"):
        parse_arrivals(f"trace:{path}", 1, 4, 0)


def test_the_environment_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "arrivals.csv"
    monkeypatch.setenv("PYPARTIAL_RECORD", str(path))
    for file in (None, tmp_path / "other.csv"):
        with pp.record(file) as recorder:
            recorder.step()
            recorder.step()
    assert len(path.read_text().splitlines()) == 2
    assert path.read_text().startswith("# seconds")
    assert (tmp_path / "other.csv").exists()


def test_without_a_file_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYPARTIAL_RECORD", "")
    with pp.record() as recorder:
        recorder.step()
        assert not recorder._calls


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("none/a.csv", "file='none/a.csv' cannot be written: No such file"),
        (".", "it is not a regular file"),
        (3, "file='3' cannot be written: expected str, bytes or os.PathLike object"),
        ("a\0b", "cannot be written: embedded null"),
    ],
)
def test_a_file_that_cannot_be_written(file: object, said: str) -> None:
    with pytest.raises(pp.ArgumentError, match=said), pp.record(file):  # type: ignore[arg-type]
        raise AssertionError("the block was entered")


def test_a_communicator_is_asked_for() -> None:
    with pytest.raises(pp.ArgumentError, match="comm must be an mpi4py communicator"):
        pp.record("x", comm=3).__enter__()  # type: ignore[arg-type]


def test_a_recording_of_one_step(tmp_path: Path) -> None:
    path = tmp_path / "arrivals.csv"
    path.write_text("of before")
    with pytest.warns(RuntimeWarning, match="rank 0 called step"), pp.record(path) as recorder:
        recorder.step()
    assert path.read_text() == "of before"


def test_an_exception_leaves_no_file(tmp_path: Path) -> None:
    path = tmp_path / "arrivals.csv"
    with (
        pytest.warns(RuntimeWarning, match="not written: an exception on rank 0 left the block"),
        pytest.raises(KeyError, match="mine"),
        pp.record(path) as recorder,
    ):
        recorder.step()
        recorder.step()
        raise KeyError("mine")
    assert path.read_text() == ""


def test_a_disk_that_is_full_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savetxt", full)
    with (
        pytest.warns(RuntimeWarning, match="not written: No space left"),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("default")
        with pp.record(tmp_path / "arrivals.csv") as recorder:
            recorder.step()
            recorder.step()


def test_step_outside_of_the_block(tmp_path: Path) -> None:
    recorder = pp.record(tmp_path / "arrivals.csv")
    with pytest.raises(pp.Error, match="outside of its with block"):
        recorder.step()
