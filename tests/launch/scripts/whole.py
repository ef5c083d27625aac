"""For the other scripts: a rank says that it came to its end, or ends the job with its error."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable

from mpi4py import MPI


def whole(main: Callable[[], None]) -> None:
    """Run a script's main function; an error ends all ranks, after it was printed with its rank."""
    rank = MPI.COMM_WORLD.rank
    try:
        main()
    except Exception:
        sys.stderr.write(f"rank {rank}:\n{traceback.format_exc()}")
        sys.stderr.flush()
        MPI.COMM_WORLD.Abort(1)
    print(f"end of rank {rank}", flush=True)
