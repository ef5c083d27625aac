"""How much address space a context takes: rounds of 4 MB in shared memory, with 4 ranks.

Each rank prints how rounds were made, whether context and handle together took less than 1 GB,
and whether they take more when arrays and handles are made and freed again and again.
"""

import resource
import sys
from pathlib import Path

import numpy as np
from mpi4py import MPI

import pypartial as pp

COUNT = 1 << 20  # of four bytes
HANDLES = 40  # many times those that fit into 1 GB, were none of their places used again
comm = MPI.COMM_WORLD


def address_space() -> int:
    """Bytes of it that this process has."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def rounds(ctx):
    """Make rounds on a handle of its own, with arrays of its own; return how."""
    send, out = ctx.alloc(COUNT, "i4"), np.zeros(COUNT, "i4")
    request = ctx.Allreduce_init(send, out, policy=pp.Full())
    for step in range(3):
        send[:] = step + comm.rank
        request.Start()
        request.Wait()
        assert (out == sum(step + rank for rank in range(comm.size))).all()
    how = request.algorithm
    request.Free()
    return how


before = address_space()
with pp.Context(comm) as ctx:
    print(rounds(ctx))
    first = address_space() - before
    print("modest" if first < 1 << 30 else f"{first >> 20} MB")
    made = {rounds(ctx) for _ in range(HANDLES)}
    assert made == {"shared_memory"}, made
    later = address_space() - before
    print("constant" if later < 2 * first else f"{first >> 20} MB, then {later >> 20} MB")
sys.stdout.flush()
