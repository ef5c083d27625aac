"""For the conftest of tests that run inside the ranks of an mpirun, which `tests/launch` starts.

A rank that fails or hangs cannot simply report it: its peers wait for it. So a failure aborts the
whole job, and says first which rank failed where; and a test that takes too long prints the stacks
of all ranks, and then ends the job.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Generator, Iterator

import pytest

import pypartial as pp

EXIT_AFTER_STACKS_S = 5.0


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "sizes(*ranks): run on these numbers of ranks only; where one more adds nothing"
    )


def in_mpi(config: pytest.Config) -> bool:
    return bool(config.getoption("--with-mpi"))


def shout(text: str) -> None:
    """Write past pytest's capturing."""
    assert sys.__stderr__ is not None
    sys.__stderr__.write(text)
    sys.__stderr__.flush()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed and in_mpi(item.config):
        from mpi4py import MPI

        rank = MPI.COMM_WORLD.rank
        shout(f"\nrank {rank} FAILED {item.nodeid} ({report.when})\n{report.longreprtext}\n")
        if MPI.COMM_WORLD.size > 1:
            MPI.COMM_WORLD.Abort(1)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    limit_s = float(item.config.getini("faulthandler_timeout") or 0)
    if not in_mpi(item.config) or limit_s == 0:
        return (yield)
    from mpi4py import MPI

    def give_up() -> None:
        shout(f"\nrank {MPI.COMM_WORLD.rank} HANGS in {item.nodeid} (stacks above)\n")
        os._exit(1)

    watchdog = threading.Timer(limit_s + EXIT_AFTER_STACKS_S, give_up)
    watchdog.daemon = True
    watchdog.start()
    try:
        return (yield)
    finally:
        watchdog.cancel()


def pytest_runtest_setup(item: pytest.Item) -> None:
    if in_mpi(item.config):
        from mpi4py import MPI

        for mark in item.iter_markers("sizes"):
            if MPI.COMM_WORLD.size not in mark.args:
                pytest.skip(f"for {mark.args} ranks only")


@pytest.fixture(scope="session")
def comm():
    """All ranks of the job."""
    from mpi4py import MPI

    return MPI.COMM_WORLD


@pytest.fixture(params=["auto", "mpi"])
def transport(request: pytest.FixtureRequest) -> str:
    """What to ask a context for; where the environment names it, the test was run before."""
    if os.environ.get("PYPARTIAL_TRANSPORT") == "mpi":
        pytest.skip("the test asks for this transport where PYPARTIAL_TRANSPORT is not set")
    return str(request.param)


@pytest.fixture
def gate(comm):
    """A communicator of the user's own: holds ranks back without the library knowing."""
    private = comm.Dup()
    yield private
    private.Free()


@pytest.fixture
def ctx(comm) -> Iterator[pp.Context]:
    """A context over all ranks, freed after the test."""
    with pp.Context(comm, seed=7) as context:
        yield context


@pytest.fixture(name="ctx")
def patient_ctx(comm) -> Iterator[pp.Context]:
    """The same for loops that are judged: no rank leaves them by patience.

    The automatic patience is a second at least. A busy machine may stop a rank for longer.
    """
    with pp.Context(comm, seed=7, patience=None) as context:
        yield context
