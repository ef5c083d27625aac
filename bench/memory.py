"""Measures the memory of a handle, in vectors a rank: the table of docs/threads.md.

    mpirun -n 4 --oversubscribe python -m mpi4py bench/memory.py [--size 4M] [--steps 60]

Ranks loop over Start and Wait: without a pause, or each after a random time of up to 5 ms. What the
ranks of a node share is counted by the kernel (Pss of the mapped memfd), and divided by their
number; what a rank has for itself by Context.stats().
"""

from __future__ import annotations

import argparse
import re
import time
from pathlib import Path

import numpy as np
from mpi4py import MPI

import pypartial as pp
from pypartial.units import format_size, parse_size

PAUSE_S = 0.005
comm = MPI.COMM_WORLD


def shared_bytes() -> int:
    """Return this rank's part of the memory that the node shares."""
    total, counts = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if re.match("[0-9a-f]+-[0-9a-f]+ ", line):
            counts = "memfd" in line
        elif counts and line.startswith("Pss:"):
            total += 1024 * int(line.split()[1])
    return total


def measure(
    size: int, steps: int, transport: str, pause_s: float, policy: pp.Policy
) -> tuple[float, float]:
    """Return the vectors that a handle takes: shared, a rank; and the most that a rank has."""
    late = np.random.default_rng(comm.rank)
    mine, total = np.ones(size // 4, "f4"), np.zeros(size // 4, "f4")
    with pp.Context(comm, seed=7, transport=transport) as ctx:
        own, shared = -ctx.stats().buffer_bytes, -shared_bytes()
        request = ctx.Allreduce_init(mine, total, policy=policy)
        for _ in range(steps):
            if pause_s:
                time.sleep(late.uniform(0, pause_s))
            request.Start()
            request.Wait()
        with ctx.away():
            comm.Barrier()
            own += ctx.stats().buffer_bytes
            shared = comm.allreduce(shared + shared_bytes())
            most = comm.allreduce(own, MPI.MAX)
        request.Flush()
        request.Free()
    return shared / size / comm.size, most / size


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", type=parse_size, default=4 << 20)
    parser.add_argument("--steps", type=int, default=60)
    options = parser.parse_args()
    if comm.rank == 0:
        print(f"{comm.size} ranks, vectors of {format_size(options.size)}\n")
        print("| transport | policy | shared, balanced | uneven | own, balanced | uneven |")
        print("| --- | --- | --- | --- | --- | --- |")
    for transport in ("auto", "mpi"):
        for policy in (pp.Full(), pp.Majority(), pp.Solo()):
            balanced, uneven = (
                measure(options.size, options.steps, transport, pause_s, policy)
                for pause_s in (0.0, PAUSE_S)
            )
            cells = [balanced[0], uneven[0], balanced[1], uneven[1]]
            if comm.rank == 0:
                figures = " | ".join(f"{cell:.1f}" for cell in cells)
                print(f"| {transport} | {policy} | {figures} |", flush=True)


main()
