"""One handle over several buffers, and why not one handle for each of them.

    mpirun -n 4 python -m mpi4py examples/several_buffers.py

The four layers of a model are views of one flat array. Each handle has rounds of its own: with four
handles the draw of the majority, and so the contributors, are others for each layer. A step then
mixes layers of different sets of ranks. One handle over the flat array, or over the list of its
views, reduces all of them in one round with one set of contributors. The example counts in how many
of 50 steps the layers had the same contributors.
"""

from __future__ import annotations

import time

import numpy as np
from mpi4py import MPI

import pypartial as pp

STEPS = 50
SHAPES = [(20, 30), (30,), (30, 10), (10,)]

comm = MPI.COMM_WORLD


def make() -> tuple[np.ndarray, list[np.ndarray]]:
    """Return a flat array, and the layers, which are views of it."""
    ends = np.cumsum([int(np.prod(shape)) for shape in SHAPES])
    flat = np.ones(ends[-1], "f4")
    parts = np.split(flat, ends[:-1])  # views
    return flat, [part.reshape(shape) for part, shape in zip(parts, SHAPES, strict=True)]


def count_equal(requests: list[pp.AllreduceRequest]) -> int:
    """Run the steps; return in how many of them all requests had the same contributors."""
    random = np.random.default_rng(comm.rank)
    statuses = [pp.Status() for _ in requests]
    equal = 0
    for _ in range(STEPS):
        time.sleep(random.uniform(0, 0.004))  # ranks come at different times
        pp.Startall(requests)
        pp.Waitall(requests, statuses)
        equal += len({status.contributors for status in statuses}) == 1
    for request in requests:
        request.Flush()
        request.Free()
    return equal


gradient, gradients = make()
total, totals = make()

with pp.Context(comm, seed=7) as ctx:
    four = [
        ctx.Allreduce_init(send, receive) for send, receive in zip(gradients, totals, strict=True)
    ]
    equal = count_equal(four)
    if comm.rank == 0:
        print(f"four handles: the same contributors in {equal} of {STEPS} steps", flush=True)
    # ctx.Allreduce_init(gradient, total) is the same: the list is for buffers that lie apart.
    one = ctx.Allreduce_init(gradients, totals)
    assert one.count == gradient.size
    equal = count_equal([one])
    if comm.rank == 0:
        print(f"one handle: the same contributors in {equal} of {STEPS} steps", flush=True)
