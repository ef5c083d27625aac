"""Compares ways to average a metric in a loop: how long the loop takes, beside that inside away().

Usage: mpirun -n P python -m mpi4py meetings.py [EVERY [REPEATS]]

The default optimizer on a small model, 60 steps of 2 ms and on the last rank of 20 ms, with the
metric after every EVERY of them (10). The ways take turns. Printed are the medians of REPEATS (9)
runs, and the quotients.
"""

import sys
import time
from statistics import median

import torch
import torch.distributed as dist
from mpi4py import MPI

import pypartial as pp
import pypartial.torch

STEPS, BASE_S, LATE_S = 60, 0.002, 0.02
WAYS = ("away", "ctx.comm", "mean", "backend")


def seconds(comm: MPI.Intracomm, way: str, every: int) -> float:
    """Return how long a loop takes on the rank that takes longest."""
    model = torch.nn.Linear(10, 1)
    adam = torch.optim.AdamW(model.parameters(), 1e-2)
    with (
        pp.Context(comm, seed=3) as ctx,
        pp.torch.DistributedOptimizer(adam, ctx, model=model) as optimizer,
    ):
        comm.Barrier()
        began = time.perf_counter()
        for step in range(STEPS):
            time.sleep(LATE_S if comm.rank == comm.size - 1 else BASE_S)
            optimizer.zero_grad()
            loss = model(torch.ones(16, 10)).square().mean()
            loss.backward()
            optimizer.step()
            if step % every != every - 1:
                continue
            if way == "away":
                with optimizer.away():
                    comm.allreduce(float(loss))
            elif way == "ctx.comm":
                ctx.comm.allreduce(float(loss))
            elif way == "mean":
                optimizer.mean(float(loss))
            else:
                dist.all_reduce(loss.detach())
        took = time.perf_counter() - began
    return comm.allreduce(took, MPI.MAX)


def main() -> None:
    """Print a line for each way."""
    every, repeats = map(int, [*sys.argv[1:], *("10", "9")[len(sys.argv) - 1 :]])
    torch.set_num_threads(1)
    dist.init_process_group("pypartial", init_method="mpi://")
    comm = MPI.COMM_WORLD
    took = {way: [] for way in WAYS}
    for _ in range(repeats):
        for way in WAYS:
            took[way].append(seconds(comm, way, every))
    usual = median(took["away"])
    for way in WAYS if comm.rank == 0 else ():
        print(f"{way:9} {median(took[way]):.3f} s, {median(took[way]) / usual:.3f} of away()")
    dist.destroy_process_group()


main()
