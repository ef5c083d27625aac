"""Ranks of one node that cannot share memory, or not enough: fallback.py LIMIT.

LIMIT is what is taken from every rank. Each prints the warnings that it got and how rounds were
made; the results are checked.
"""

import resource
import sys
import time
import warnings
from pathlib import Path

import numpy as np
from mpi4py import MPI

import pypartial as pp

GIB = 1 << 30
LARGE = 1 << 25  # elements; nobody touches them
LATE_S = 0.5  # several times what a waiter sleeps before it looks whether the others live

comm = MPI.COMM_WORLD


def address_space() -> int:
    """Bytes of it that this process has."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def run(ctx, **options):
    """Make a few rounds; return how."""
    out = np.zeros(1000, "i8")
    request = ctx.Allreduce_init(np.full(1000, comm.rank), out, policy=pp.Full(), **options)
    for step in range(3):
        if step == 1 and comm.rank == 1:
            time.sleep(LATE_S)
        request.Start()
        request.Wait()
        assert (out == comm.size * (comm.size - 1) // 2).all(), out[0]
    how = request.algorithm
    request.Free()
    return how


def large(ctx):
    """Return how rounds of a large handle would be made."""
    buffers = [np.zeros(LARGE, "f4") for _ in range(2)]
    request = ctx.Allreduce_init(*buffers, policy=pp.Full())
    how = request.algorithm
    request.Free()
    return how


limits = {
    "nothing": (),
    "files": (resource.RLIMIT_FSIZE, 0),
    "most-files": (resource.RLIMIT_FSIZE, 1 << 20),
    "large-files": (resource.RLIMIT_FSIZE, GIB),
    "address-space": (resource.RLIMIT_AS, address_space() + 2 * GIB),
}[sys.argv[1]]
if limits:
    resource.setrlimit(limits[0], (limits[1], resource.getrlimit(limits[0])[1]))
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    with pp.Context(comm) as ctx:
        print("small:", run(ctx))
        print("large:", large(ctx), large(ctx))
    told = len(caught)
    with pp.Context(comm, transport="mpi") as ctx:
        run(ctx), large(ctx)
    assert len(caught) == told, caught[told].message
for warning in caught:
    print(f"{warning.category.__name__} in {Path(warning.filename).name}: {warning.message}")
sys.stdout.flush()
