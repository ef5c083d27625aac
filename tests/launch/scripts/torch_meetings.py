"""Training whose ranks also meet, every 20 steps: torch_meetings.py WAY FOLDER.

They sum up a metric, save a checkpoint, evaluate, and meet at a barrier. WAY is optimizer: with
DistributedOptimizer, inside its `away`; or backend: DistributedDataParallel in a partial process
group, with nothing around these calls. One rank is slow, and ranks have different numbers of
batches.
"""

import contextlib
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import pypartial as pp
import pypartial.torch

EVERY, MEETINGS = 20, 3
SLOW_S = 0.005

way, folder = sys.argv[1], Path(sys.argv[2])
dist.init_process_group("pypartial", init_method="mpi://")
rank, ranks = dist.get_rank(), dist.get_world_size()
torch.set_num_threads(1)
torch.manual_seed(rank)
model = torch.nn.Sequential(torch.nn.Linear(10, 20), torch.nn.ReLU(), torch.nn.Linear(20, 1))
sgd = torch.optim.SGD(model.parameters(), lr=0.01)
steps = EVERY * MEETINGS + 5 * (ranks - rank)


def backward(called):
    inputs = torch.randn(8, 10)
    if rank == 1:
        time.sleep(SLOW_S)
    torch.nn.functional.mse_loss(called(inputs), inputs.sum(1, keepdim=True)).backward()


def meet(step):
    metric = torch.tensor([1.0 + rank])
    dist.all_reduce(metric)
    assert metric.item() == ranks * (ranks + 1) / 2, metric
    if rank == 0:
        torch.save(model.state_dict(), folder / f"{step}.pt")
        time.sleep(SLOW_S)
    with torch.no_grad():
        assert torch.isfinite(model(torch.ones(4, 10))).all()
    dist.barrier()


def train(called, zero_grad, step, away=contextlib.nullcontext):
    for number in range(steps):
        zero_grad()
        backward(called)
        step()
        if number % EVERY == EVERY - 1 and number < EVERY * MEETINGS:
            with away():
                meet(number)


if way == "optimizer":
    from mpi4py import MPI

    with (
        pp.Context(MPI.COMM_WORLD, patience=None) as ctx,
        pp.torch.DistributedOptimizer(sgd, ctx) as optimizer,
    ):
        train(model, optimizer.zero_grad, optimizer.step, optimizer.away)
else:
    group = pp.torch.new_group(policy=pp.Majority(), patience=None)
    ddp = DistributedDataParallel(model, process_group=group)
    train(ddp, sgd.zero_grad, sgd.step)
    dist.barrier(group)  # a rank with fewer batches waits here, and holds up no round
dist.destroy_process_group()
assert len(list(folder.glob("*.pt"))) == MEETINGS
print(f"end of rank {rank}", flush=True)
