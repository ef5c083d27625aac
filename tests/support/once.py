"""What takes long to make, once for all of pytest-xdist's workers."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest

RUN = "PYTEST_XDIST_TESTRUNUID"  # set by xdist, in a worker only


def once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """Return a folder that the first caller of this session has filled; others wait for that.

    Parameters
    ----------
    factory : TempPathFactory
        The fixture `tmp_path_factory`: it removes the folder.
    name : str
        Of the folder; one for each thing that is made.
    make : callable
        Fills the folder. If it raises, the next caller tries again.
    """
    base, run = factory.getbasetemp(), os.environ.get(RUN)
    folder = base.parent / f"once-{run}-{name}" if run else base / f"once-{name}"
    made = folder / "made"
    with open(f"{folder}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            folder.mkdir(exist_ok=True)
            make(folder)
            made.touch()
    return folder
