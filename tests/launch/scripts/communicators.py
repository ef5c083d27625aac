"""Groups of P-Reduce make no communicator, but with backend="comm".

    communicators.py LIBRARY

LIBRARY counts the calls that make a communicator, and was loaded before MPI. Each rank says of each
backend how many were made while it ran groups.
"""

from __future__ import annotations

import ctypes
import sys

import numpy as np
from mpi4py import MPI
from whole import whole

import pypartial as pp

STEPS = 20
made = ctypes.CDLL(sys.argv[1]).communicators_made
comm = MPI.COMM_WORLD


def generators() -> list[pp.groups.Generator]:
    return [
        pp.groups.Random(2),
        pp.groups.Random(3, reuse=True),
        pp.groups.Smart(2),
        pp.groups.Smart(2, inter_intra=True),
        pp.groups.Controller(2),
        pp.groups.Static(nodes=1, per_node=comm.size),
        pp.groups.Table([[range(comm.size)], [[0, 1]]]),
        pp.groups.Given(),
    ]


def run(request: pp.PreduceRequest, generator: pp.groups.Generator) -> int:
    """Run groups, and return in how many of them this rank was not alone."""
    status, together = pp.Status(), 0
    given = range(comm.size) if isinstance(generator, pp.groups.Given) else None
    for _ in range(STEPS):
        request.Start(group=given)
        request.Wait(status)
        together += len(status.group) > 1
    request.Flush()
    return together


def count(transport: str, backend: str) -> None:
    before_context = made()
    with pp.Context(comm, transport=transport) as ctx:
        assert made() > before_context, "what the library makes for a context is not counted"
        models = [np.full(count, float(comm.rank)) for count in (1, 50_000)]
        for generator in generators():
            for model in models:
                request = ctx.Preduce_init(model, generator, backend=backend)
                before = made()
                together = run(request, generator)
                more = made() - before
                name = f"{backend} {type(generator).__name__} {model.size}"
                print(f"{name}: {more} communicators, {together} groups", flush=True)
                request.Free()


def main() -> None:
    count("auto", "node")
    count("mpi", "schedule")
    count("auto", "comm")


whole(main)
