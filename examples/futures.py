"""Partial collectives beside `mpi4py.futures`: some ranks train, others evaluate models for them.

    mpirun -n 4 python -m mpi4py examples/futures.py

Ranks 0 and 1 train in a context on a communicator of their own. Rank 0 and the others form a pool
of workers, `MPICommExecutor`: rank 0 hands each tenth model in and goes on training, while a worker
evaluates it. The pool has a communicator of its own, so its messages and those of the rounds do not
meet. `MPICommExecutor` starts no process. `MPIPoolExecutor` does (MPI_Comm_spawn): with Open MPI
5.0.11 it worked under `mpirun -n 1 --oversubscribe`, and under `mpirun -n 3 python -m
mpi4py.futures`, which starts none either; without mpirun it raised MPI_ERR_UNKNOWN.
"""

from __future__ import annotations

import contextlib
import time
from concurrent.futures import Executor

import numpy as np
from mpi4py import MPI
from mpi4py.futures import MPICommExecutor

import pypartial as pp

STEPS = 50
EVALUATION_S = 0.05

comm = MPI.COMM_WORLD
target = np.arange(100.0)


def evaluate(step: int, w: np.ndarray) -> tuple[int, float, int]:
    """Return step, loss, and the rank that computed it. It takes long, and runs on a worker."""
    time.sleep(EVALUATION_S)
    return step, float(np.mean((w - target) ** 2)), MPI.COMM_WORLD.rank


def train(trainers: MPI.Intracomm, pool: Executor | None) -> None:
    """Train; on the rank that has the pool, hand models in and print what comes back."""
    w, gradient, total = np.zeros(100), np.zeros(100), np.zeros(100)
    evaluations = []
    began = time.perf_counter()
    with pp.Context(trainers, seed=7) as ctx, ctx.Allreduce_init(gradient, total) as request:
        for step in range(1, STEPS + 1):
            gradient[:] = w - target
            request.Start()
            request.Wait()
            w -= 0.1 * total / trainers.size
            if pool is not None and step % 10 == 0:
                evaluations.append(pool.submit(evaluate, step, w.copy()))
        request.Flush()
    seconds = time.perf_counter() - began
    for evaluation in evaluations:
        step, loss, rank = evaluation.result()
        print(f"after step {step}: loss {loss:.3g}, says rank {rank}", flush=True)
    if pool is not None:
        evaluating = len(evaluations) * EVALUATION_S
        print(f"{seconds:.3f} s of training, beside {evaluating:.3f} s of evaluations", flush=True)


if __name__ == "__main__":
    trainers = comm.Split(0 if comm.rank < 2 else MPI.UNDEFINED, comm.rank)
    helpers = comm.Split(0 if comm.rank != 1 else MPI.UNDEFINED, comm.rank)
    executor = MPICommExecutor(helpers) if helpers else contextlib.nullcontext()
    with executor as pool:  # None on the workers, which stay inside until rank 0 leaves
        if trainers:
            train(trainers, pool)
