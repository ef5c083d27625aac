"""Loading the compiled module for a command: on all ranks or on none, explained once."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from .._native import Native, load

if TYPE_CHECKING:
    from mpi4py import MPI


def load_on_all(comm: MPI.Intracomm) -> tuple[Native | None, str | None]:
    """Load the compiled module; collective.

    Returns
    -------
    native : Native or None
        None if this rank cannot load it.
    problem : str or None
        Why the first of the ranks that cannot load it cannot; None if all can. The same on all.
    """
    native, problem = None, None
    try:
        native = load()
    except ImportError as error:
        problem = str(error)
    problems = comm.allgather(problem)
    return native, next((text for text in problems if text is not None), None)


def print_problem(problem: str) -> None:
    """Print why the library cannot be used, after what was printed before."""
    sys.stdout.flush()
    print(f"pypartial cannot be used here:\n{problem}", file=sys.stderr)
