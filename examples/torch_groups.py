"""Model averaging in PyTorch: groups of three ranks instead of an average over all.

    mpirun -n 4 python -m mpi4py examples/torch_groups.py [SECONDS]

Each rank makes its own steps, and averages its *model* with two others: the first that ask, as in
Partial Reduce. The last rank needs 20 ms longer for each batch; it holds up only the groups that it
is in. Models differ while training, for SECONDS (1); `finish`, at the end of the block, averages
over all ranks.
"""

from __future__ import annotations

import sys
import time

import torch
from mpi4py import MPI
from torch import nn

import pypartial as pp

SECONDS = float(sys.argv[1]) if sys.argv[1:] else 1.0
SLOW_S = 0.02

comm = MPI.COMM_WORLD
is_slow = comm.rank == comm.size - 1
torch.set_num_threads(1)  # the ranks share the cores
torch.manual_seed(comm.rank)
truth = torch.linspace(-1, 1, 20).unsqueeze(1)

model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 1))
sgd = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
method = pp.methods.PartialReduce(size=min(3, comm.size))
steps = with_slow = 0

with (
    pp.Context(comm, seed=7) as ctx,
    pp.torch.DistributedOptimizer(sgd, ctx, method) as optimizer,
):
    end = time.perf_counter() + SECONDS
    while time.perf_counter() < end:
        inputs = torch.randn(64, 20)
        time.sleep(SLOW_S if is_slow else 0.002)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), inputs @ truth).backward()
        optimizer.step()
        steps += 1
        with_slow += comm.size - 1 in optimizer.status.group

with torch.no_grad():
    held_out = torch.randn(1000, 20)
    loss = nn.functional.mse_loss(model(held_out), held_out @ truth)
weights = nn.utils.parameters_to_vector(model.parameters()).detach().numpy()
spread = max(abs(other - weights).max() for other in comm.allgather(weights))
every = comm.gather(steps)
if comm.rank == 0:
    print(f"rank 0 made {every[0]} steps, the slow rank {every[-1]}, loss {loss:.4f}")
    print(f"the slow rank was in {with_slow} of the {steps} groups of rank 0")
    print(f"the models of the ranks differ by {spread} at most")
