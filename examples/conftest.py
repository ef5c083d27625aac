"""For tests inside the ranks of an mpirun: a context, and no hang when one rank fails.

Copy it beside your own tests.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import time
from collections.abc import Generator, Iterator
from typing import TextIO

import pytest

import pypartial as pp

LIMIT_S = 60.0  # for one test on one rank
GRACE_S = 2.0  # for the rank that failed first to say why

errors: TextIO = sys.stderr


def pytest_configure() -> None:
    """Keep the true standard error, which pytest redirects during the tests."""
    global errors
    errors = os.fdopen(os.dup(2), "w")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """End the job if a test fails here: the other ranks would wait for this one."""
    report = yield
    if report.failed and item.config.getoption("--with-mpi"):
        from mpi4py import MPI

        rank, size = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
        if call.excinfo is not None and call.excinfo.errisinstance(pp.PeerFailedError):
            time.sleep(GRACE_S)  # the rank that failed ends the job, and this one with it
        print(f"\nrank {rank} FAILED {item.nodeid}\n{report.longreprtext}", file=errors, flush=True)
        if size > 1:
            MPI.COMM_WORLD.Abort(1)
    return report


@pytest.fixture(autouse=True)
def limited() -> Iterator[None]:
    """Print the stacks of a rank that takes too long, and end it; mpirun then ends the others."""
    faulthandler.dump_traceback_later(LIMIT_S, exit=True, file=errors)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture
def ctx() -> Iterator[pp.Context]:
    """A context over all ranks, freed after the test.

    `patience=None` if a test is to see what a hang looks like; the default lets rounds go on.
    """
    from mpi4py import MPI

    with pp.Context(MPI.COMM_WORLD, seed=7) as context:
        yield context
