"""Functions that several commands share: load the compiled module, report errors, save files."""

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
        None if this rank cannot load the module.
    problem : str or None
        The error of the lowest rank that cannot load the module; None if all ranks can. The same on
        every rank.
    """
    native, problem = None, None
    try:
        native = load()
    except ImportError as error:
        problem = str(error)
    problems = comm.allgather(problem)
    return native, next((text for text in problems if text is not None), None)


def print_problem(problem: str) -> None:
    """Print why the library cannot be used, after all earlier output."""
    sys.stdout.flush()
    print(f"pypartial cannot be used here:\n{problem}", file=sys.stderr)


def save(what: str, path: Path, save: Callable[[Path], None]) -> bool:
    """Save a file; print its path, or why it cannot be written (the disk may be full by now)."""
    try:
        save(path)
    except OSError as error:
        sys.stdout.flush()
        print(f"pypartial: {path} cannot be written: {error.strerror or error}", file=sys.stderr)
        return False
    print(f"{what}: {path}")
    return True
