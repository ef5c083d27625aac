"""Each rank of an mpirun imports mpi4py and NumPy; rank 0 writes when all were ready.

Usage: mpirun -n P python imports.py FILE
"""

import json
import sys
from pathlib import Path

import numpy  # noqa: F401
from mpi4py import MPI

from pypartial._launch import seconds_since_launch

MPI.COMM_WORLD.Barrier()
if MPI.COMM_WORLD.rank == 0:
    found = {"meta": {}, "rows": [{"seconds": seconds_since_launch()}]}
    Path(sys.argv[1]).write_text(json.dumps(found), encoding="utf-8")
