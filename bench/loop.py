"""Balanced calls in a tight loop: MPI_Allreduce, Full and Solo in turn, as ratios of medians.

mpirun -n 2 python bench/loop.py [BYTES ...]

Unlike ``pypartial bench skew --skew 0`` there is no barrier between the calls.
"""

from __future__ import annotations

import sys
import time

import numpy as np
from mpi4py import MPI

import pypartial as pp

BLOCKS = 9
SIZES = [64, 4096, 16384, 65536, 262144, 1 << 20, 4 << 20]


def calls_in_a_block(size: int) -> int:
    """Return fewer calls for larger vectors."""
    return 200 if size <= 4096 else 60 if size <= 65536 else 8


def measure(comm: MPI.Intracomm, ctx: pp.Context, size: int) -> dict[str, float]:
    """Return each variant's median time of a call in µs, of the slowest rank."""
    send, out = np.ones(size // 4, "f4"), np.empty(size // 4, "f4")
    full = ctx.Allreduce_init(send, out, policy=pp.Full())
    solo = ctx.Allreduce_init(send, out, policy=pp.Solo())

    def call(request: pp.Request) -> None:
        request.Start()
        request.Wait()

    variants = {
        "mpi": lambda: comm.Allreduce(send, out),
        "full": lambda: call(full),
        "solo": lambda: call(solo),
    }
    times: dict[str, list[float]] = {name: [] for name in variants}
    calls = calls_in_a_block(size)
    for _ in range(BLOCKS):
        for name, variant in variants.items():
            comm.Barrier()
            began = time.perf_counter()
            for _ in range(calls):
                variant()
            times[name].append((time.perf_counter() - began) / calls * 1e6)
    solo.Flush()
    solo.Free()
    full.Free()
    return {name: comm.allreduce(float(np.median(t)), MPI.MAX) for name, t in times.items()}


def main() -> None:
    """Print a line a size."""
    comm = MPI.COMM_WORLD
    with pp.Context(comm) as ctx:
        for size in [int(word) for word in sys.argv[1:]] or SIZES:
            t = measure(comm, ctx, size)
            if comm.rank == 0:
                print(
                    f"{comm.size} ranks, {size:>8} bytes: MPI_Allreduce {t['mpi']:8.1f} us, "
                    f"Full {t['full'] / t['mpi']:.2f}x, Solo {t['solo'] / t['mpi']:.2f}x",
                    flush=True,
                )


main()
