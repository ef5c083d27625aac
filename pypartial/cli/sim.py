"""``pypartial sim``: run simulated ranks on rank 0, and print the results.

Simulated ranks need no launcher. Under one, the other ranks sleep until rank 0 has finished.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from .._native import load
from .core import print_problem

if TYPE_CHECKING:
    from mpi4py import MPI

_POLL_S = 2e-2
REDRAWS_PER_S = 5
INTERRUPTED = 128 + 2  # as a shell reports SIGINT


def alone(work: Callable[[], int], comm: MPI.Intracomm | None) -> int:
    """Run a function on rank 0 only; collective.

    Parameters
    ----------
    work : callable
        Returns the exit code. It may fork, but its children must not use MPI.
    comm : MPI.Intracomm or None
        All ranks; None without a launcher, where MPI is loaded but not initialised.

    Returns
    -------
    int
        The exit code, the same on all ranks: 1 if the compiled module cannot be loaded.
    """
    if comm is None:
        import mpi4py

        mpi4py.rc.initialize = False
        return _loaded(work)
    code = _loaded(work) if comm.rank == 0 else 0
    done = comm.Ibarrier()
    while not done.Test():
        time.sleep(_POLL_S)
    return int(comm.bcast(code))


def _loaded(work: Callable[[], int]) -> int:
    try:
        load()
    except ImportError as error:
        print_problem(str(error))
        return 1
    try:
        return work()
    except KeyboardInterrupt:
        print("pypartial: interrupted", file=sys.stderr)
        return INTERRUPTED
