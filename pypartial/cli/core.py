"""What the commands share: loading the compiled module, explained once; saving files."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
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


def save(what: str, path: Path, save: Callable[[Path], None]) -> bool:
    """Save a file and say so, or why not: the disk may have become full meanwhile."""
    try:
        save(path)
    except OSError as error:
        sys.stdout.flush()
        print(f"pypartial: {path} cannot be written: {error.strerror or error}", file=sys.stderr)
        return False
    print(f"{what}: {path}")
    return True
