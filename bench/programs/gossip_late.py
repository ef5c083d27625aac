"""Gossip beside a rank that sleeps 100 times as long, and beside one that computes.

mpirun -n 8 python -m mpi4py bench/programs/gossip_late.py
"""

from __future__ import annotations

import statistics
import time

import numpy as np
from mpi4py import MPI

import pypartial as pp

Vector = np.ndarray[tuple[int], np.dtype[np.float32]]

COMM = MPI.COMM_WORLD
BASE_S, RUN_S, RUNS, TIMES = 0.02, 4.0, 3, 100
FLOATS = 16384


def meet() -> None:
    """Wait for all ranks, without taking the cores from them."""
    met = COMM.Ibarrier()
    while not met.Test():
        time.sleep(0.005)


def gradients(request: pp.GossipRequest, times: int) -> int:
    """Let rank 0 sleep so many times as long as the others; return how often this rank came."""
    meet()
    done, until = 0, time.monotonic() + RUN_S
    while time.monotonic() < until:
        time.sleep(BASE_S * (times if COMM.rank == 0 else 1))
        request.Start()
        request.Wait()
        done += 1
    return done


def loop_s(request: pp.GossipRequest, asks: bool) -> float:
    """Let the last rank compute while the first asks for averages, or not; return how long."""
    meet()
    values, begin = np.linspace(1.0, 2.0, FLOATS), time.process_time()
    if COMM.rank == COMM.size - 1:
        for _ in range(20_000):
            np.sqrt(values, out=values)
    elif COMM.rank == 0 and asks:
        for _ in range(200):
            request.Start()
            request.Wait()
            time.sleep(0.001)
    took = time.process_time() - begin
    meet()
    return COMM.bcast(took, COMM.size - 1)


def asks_over_exchanges(request: pp.GossipRequest, model: Vector, asks: int = 500) -> float:
    """Return rank 0's time for an average while the others compute, over MPI_Sendrecv and a sum."""
    meet()
    partner, received = COMM.rank ^ 1, np.empty_like(model)
    begin = time.perf_counter()
    for _ in range(asks if partner < COMM.size else 0):
        COMM.Sendrecv(model, partner, 0, received, partner, 0)
        np.add(model, received, out=received)
    exchanged, begin = time.perf_counter() - begin, time.perf_counter()
    if COMM.rank == 0:
        for _ in range(asks):
            request.Start()
            request.Wait()
    asked, over = time.perf_counter() - begin, COMM.Ibarrier()
    while not over.Test():
        np.sqrt(received, out=received)
    return COMM.bcast(asked / exchanged)


with pp.Context(COMM, patience=None) as ctx:
    model = ctx.alloc(FLOATS, "f4")
    model[:] = 1
    request = ctx.Gossip_init(model, "complete")
    ratios, others = [], []
    for _ in range(RUNS):
        slow, even = (COMM.allgather(gradients(request, times)) for times in (TIMES, 1))
        ratios.append(sum(even) / sum(slow))
        others.append(sum(even[1:]) / sum(slow[1:]))
    computed = [loop_s(request, True) / loop_s(request, False) for _ in range(5)]
    averages = [asks_over_exchanges(request, model) for _ in range(9)]
    request.Free()
if COMM.rank == 0:
    for what, found in (
        ("time for as many gradients", ratios),
        ("an iteration of the other ranks", others),
        ("a loop that computes", computed),
    ):
        print(f"{what}: {statistics.median(found):.3f} of undisturbed {sorted(found)}")
    print(f"an average beside ranks that compute: {statistics.median(averages):.3f} of an exchange")
