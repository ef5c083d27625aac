"""One rank: ``mpirun -n P python inner.py REPORTS LIMIT BYTECODE PYTEST-ARGUMENTS``.

Every rank runs pytest on the same tests and writes its own report ``REPORTS/rank-R.xml``. A test
that takes longer than LIMIT seconds prints the stacks of its rank. The compiled tests are kept in
BYTECODE, because it takes most of a second to compile them, on each rank of each run. Of pytest's
plugins only pytest-mpi is loaded: others take time, or were never tried inside ranks.
"""

from __future__ import annotations

import os
import sys
import traceback

import numpy as np  # noqa: F401  # before `main`, like the others: they are compiled already
import pytest
from mpi4py import MPI

import pypartial  # noqa: F401


def main() -> None:
    reports, limit_s, bytecode, *arguments = sys.argv[1:]
    sys.pycache_prefix, sys.dont_write_bytecode = bytecode, False
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    comm = MPI.COMM_WORLD
    code = pytest.main(
        [
            "-p",
            "pytest_mpi",
            "--with-mpi",
            "--import-mode=importlib",
            "-p",
            "no:cacheprovider",
            "--capture=sys",
            "--color=no",
            "-q",
            "-o",
            f"faulthandler_timeout={limit_s}",
            f"--junitxml={reports}/rank-{comm.rank}.xml",
            *arguments,
        ]
    )
    if code != 0:
        sys.stderr.write(f"rank {comm.rank}: pytest returned {int(code)}\n")
        sys.stderr.flush()
        comm.Abort(1)


try:
    main()
except BaseException:
    traceback.print_exc()
    sys.stderr.flush()
    MPI.COMM_WORLD.Abort(1)
