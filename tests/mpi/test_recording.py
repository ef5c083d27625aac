"""`pp.record` in ranks: who is slow, clocks that differ, and ranks that end differently."""

from __future__ import annotations

import time

import numpy as np
import pytest
from mpi4py import MPI

import pypartial as pp
from pypartial import recording

pytestmark = [pytest.mark.mpi(min_size=2), pytest.mark.sizes(2, 3, 4)]

STEPS = 12
SLEEP_S, SLOWER_S = 2e-3, 30e-3


@pytest.fixture
def file(comm, tmp_path):
    """A path that all ranks have, in the folder of rank 0."""
    return comm.bcast(tmp_path / "arrivals.csv")


def loop(comm, recorder, slow, steps=STEPS):
    value = np.ones(1)
    for _ in range(steps):
        time.sleep(SLOWER_S if comm.rank == slow else SLEEP_S)
        recorder.step()
        comm.Allreduce(MPI.IN_PLACE, value)


def check(comm, file, slow):
    """The slow rank is slow in the file, and the others have not the time that they waited."""
    comm.barrier()
    seconds = np.loadtxt(file, delimiter=",")
    assert seconds.shape == (STEPS - 1, comm.size)
    medians = np.median(seconds, axis=0)
    assert medians.argmax() == slow
    assert medians[slow] >= SLOWER_S
    assert np.delete(medians, slow).max() < medians[slow] - (SLOWER_S - SLEEP_S) / 2


@pytest.mark.parametrize("slow", [0, 1])
def test_one_slow_rank(comm, file, slow):
    with pp.record(file) as recorder:
        loop(comm, recorder, slow)
    check(comm, file, slow)


def test_clocks_that_differ_and_drift(comm, file, monkeypatch):
    """The last rank's clock is years ahead, and a fifth too fast: worse than between nodes."""
    if comm.rank == comm.size - 1:
        real = time.monotonic_ns
        monkeypatch.setattr(recording, "monotonic_ns", lambda: int(1.2 * real()) + 10**17)
    with pp.record(file) as recorder:
        loop(comm, recorder, slow=0)
    check(comm, file, slow=0)


def test_only_the_ranks_of_comm(comm, file):
    with pp.record(file if comm.rank else None, comm=MPI.COMM_SELF) as recorder:
        recorder.step()
        recorder.step()
    comm.barrier()
    assert len(file.read_text().splitlines()) == 2


def test_the_file_of_rank_0_counts(comm, tmp_path, file):
    with pp.record(file if comm.rank == 0 else tmp_path / "other.csv") as recorder:
        loop(comm, recorder, slow=1)
    check(comm, file, slow=1)
    assert comm.rank == 0 or not (tmp_path / "other.csv").exists()


def test_a_file_that_cannot_be_written_is_refused_on_all_ranks(comm, file):
    given = file.parent / "none" / "a.csv" if comm.rank == 0 else None
    with pytest.raises(pp.ArgumentError, match="cannot be written: No such file"):
        pp.record(given).__enter__()


def test_ranks_that_make_different_numbers_of_calls(comm, file, recwarn):
    with pp.record(file) as recorder:
        loop(comm, recorder, slow=0)
        if comm.rank == 1:
            recorder.step()
    said = [str(warning.message) for warning in recwarn]
    many = (
        f"has the first {STEPS} calls of step(): rank 0 made no more, and rank 1 made {STEPS + 1}"
    )
    assert len(said) == (comm.rank == 0) and all(many in text for text in said)
    check(comm, file, slow=0)


@pytest.mark.parametrize("raising", [0, 1])
def test_an_exception_on_one_rank_keeps_no_rank(comm, file, raising, recwarn):
    def leave():
        with pp.record(file) as recorder:
            loop(comm, recorder, slow=0)
            if comm.rank == raising:
                raise KeyError("mine")
            comm.barrier()  # the rank with the exception has left the block

    if comm.rank == raising:
        with pytest.raises(KeyError, match="mine"):
            leave()
        comm.barrier()
    else:
        leave()
    said = [str(warning.message) for warning in recwarn]
    assert len(said) == (comm.rank == 0)
    assert all(f"is not written: an exception on rank {raising}" in text for text in said)
    comm.barrier()
    assert file.read_text() == ""
