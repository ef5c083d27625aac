"""Trains beside one rank that is always slow, each way for the same time; gives steps and loss.

Usage: mpirun -n P python -m mpi4py slow_rank.py SECONDS WAY... FILE

A way is `ddp`, which is DistributedDataParallel over gloo, or a policy of DistributedOptimizer, as
`majority` or `quorum:3`. Name the ways again to repeat them: ddp quorum:3 ddp quorum:3. A step
sleeps, in place of computation that the cores would have no time for, and computes; the last rank
takes SLOWER times as long for both. All ranks must have the same model at the end. It prints rows
of a table in Markdown, and saves them as JSON.
"""

import hashlib
import json
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from mpi4py import MPI
from torch.nn import Linear, ReLU, Sequential
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

import pypartial as pp
import pypartial.torch  # and mpi://

SLOWER = 3
SLEEP_S = 0.03
INPUTS, WIDTH, BATCH, HELD_OUT = 64, 1380, 16, 1024  # 2.0 million parameters
RATE, SEED = 0.01, 7
HEAD = (
    "| way | steps/s, fast ranks | steps/s, slow rank | rounds/s | loss before | loss after | s |"
)

comm = MPI.COMM_WORLD
IS_SLOW = comm.rank == comm.size - 1
Step = Callable[[torch.nn.Module, torch.optim.Optimizer], None]


def make(seed: int, width: int = WIDTH) -> torch.nn.Module:
    torch.manual_seed(seed)
    return Sequential(Linear(INPUTS, width), ReLU(), Linear(width, width), ReLU(), Linear(width, 1))


class Task:
    """What is learnt: a network of random weights. Each rank draws batches of its own."""

    def __init__(self) -> None:
        self._teacher, self.batches = make(SEED, 64), torch.Generator().manual_seed(comm.rank)
        self._held_out = torch.randn(HELD_OUT, INPUTS, generator=torch.Generator().manual_seed(-1))
        with torch.no_grad():
            told = self._teacher(self._held_out)
        self._mean, self._scale = told.mean(), told.std()
        computes_s = self._computes_s()
        self.pause_s = SLEEP_S
        if IS_SLOW:
            self.pause_s += (SLOWER - 1) * (SLEEP_S + computes_s)

    def _computes_s(self) -> float:
        """Return how long a step computes beside the other ranks, which compute, too."""
        model, began = make(SEED), 0.0
        for step in range(40):
            if step == 10:
                began = time.monotonic()
            self.backward(model)
        return (time.monotonic() - began) / 30

    def _answer(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return (self._teacher(x) - self._mean) / self._scale

    def backward(self, model: torch.nn.Module) -> None:
        x = torch.randn(BATCH, INPUTS, generator=self.batches)
        mse_loss(model(x), self._answer(x)).backward()

    def step(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        time.sleep(self.pause_s)
        optimizer.zero_grad()
        self.backward(model)
        optimizer.step()

    def loss(self, model: torch.nn.Module) -> float:
        with torch.no_grad():
            return float(mse_loss(model(self._held_out), self._answer(self._held_out)))


def by_gloo(model: torch.nn.Module, sgd: torch.optim.Optimizer, step: Step, s: float) -> list[int]:
    """Train until rank 0 says that the time is over; return the steps, which are rounds."""
    parallel, goes_on, steps = DistributedDataParallel(model), torch.ones(1), 0
    until = time.monotonic() + s
    while goes_on:
        step(parallel, sgd)
        steps += 1
        goes_on.fill_(time.monotonic() < until)
        dist.broadcast(goes_on, 0)
    return [steps, steps]


def by_policy(
    policy: str, model: torch.nn.Module, sgd: torch.optim.Optimizer, step: Step, s: float
) -> list[int]:
    """Train until the time of each rank is over; return this rank's steps, and the rounds."""
    method, steps = pp.methods.EagerSGD(pp.Policy.parse(policy)), 0
    with pp.Context(comm, seed=SEED) as ctx:
        with pp.torch.DistributedOptimizer(sgd, ctx, method, model=model) as optimizer:
            until = time.monotonic() + s
            while time.monotonic() < until:
                step(model, optimizer)
                steps += 1
        return [steps, optimizer.rounds]


def measure(way: str, task: Task, seconds: float) -> dict:
    model = make(SEED + 1)
    task.batches.manual_seed(comm.rank)
    sgd, before = torch.optim.SGD(model.parameters(), RATE), task.loss(model)
    comm.Barrier()
    began = time.monotonic()
    if way == "ddp":
        counts = by_gloo(model, sgd, task.step, seconds)
    else:
        counts = by_policy(way, model, sgd, task.step, seconds)
    took, after = time.monotonic() - began, task.loss(model)
    bits = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters()))
    rows = comm.allgather((counts, took, after, bits.hexdigest()))
    assert len({row[-1] for row in rows}) == 1, f"{way}: the models of the ranks differ"
    assert len({row[0][1] for row in rows}) == 1, f"{way}: the ranks counted different rounds"
    *fast, slow = [row[0][0] for row in rows]
    took = max(row[1] for row in rows)
    return {
        "way": way,
        "fast_steps_per_s": sum(fast) / len(fast) / took,
        "slow_steps_per_s": slow / took,
        "rounds_per_s": counts[1] / took,
        "before": before,
        "loss": after,
        "seconds": took,
    }


def main() -> None:
    seconds, ways, file = float(sys.argv[1]), sys.argv[2:-1], Path(sys.argv[-1])
    assert comm.size > 1, "one rank is slow, and the others are not: start at least 2"
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="mpi://")  # idle but for ddp
    task, rows = Task(), []
    if comm.rank == 0:
        print(f"{HEAD}\n{'| --- ' * HEAD.count(' |')}|", flush=True)
    for way in ways:
        rows.append(measure(way, task, seconds))
        if comm.rank == 0:
            name, fast, slow, rounds, before, after, took = rows[-1].values()
            print(
                f"| {name} | {fast:.1f} | {slow:.1f} | {rounds:.1f} | {before:.3f} | {after:.4f} | "
                f"{took:.1f} |",
                flush=True,
            )
    dist.destroy_process_group()
    if comm.rank == 0:
        vendor, numbers = MPI.get_vendor()
        meta = {
            "mpi": f"{vendor} {'.'.join(map(str, numbers))}",
            "version": pp.__version__,
            "python": platform.python_version(),
            "torch": str(torch.__version__),
            "parameters": sum(p.numel() for p in make(SEED).parameters()),
        }
        file.write_text(json.dumps({"meta": meta, "rows": rows}), encoding="utf-8")


if __name__ == "__main__":
    main()
