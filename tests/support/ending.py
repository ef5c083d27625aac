"""How a script of several ranks ends when one of them has an error."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable

from mpi4py import MPI


def end_all_at_an_error(main: Callable[[], None]) -> None:
    """Run a script's main function; an error ends all ranks, after it was printed with its rank."""
    try:
        main()
    except Exception:
        sys.stderr.write(f"rank {MPI.COMM_WORLD.rank}:\n{traceback.format_exc()}")
        sys.stderr.flush()
        MPI.COMM_WORLD.Abort(1)
