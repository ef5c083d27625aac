"""For the other scripts: a rank says that it came to its end, or ends the job with its error."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from mpi4py import MPI

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # `support`

from support.ending import end_all_at_an_error


def whole(main: Callable[[], None]) -> None:
    """Run a script's main function, and say at its end that this rank came there."""
    end_all_at_an_error(main)
    print(f"end of rank {MPI.COMM_WORLD.rank}", flush=True)
