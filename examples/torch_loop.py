"""A training loop of PyTorch beside a slow rank, with `pp.torch.DistributedOptimizer`.

    mpirun -n 4 python -m mpi4py examples/torch_loop.py

The last rank needs 20 ms longer for each batch, and has half as many. With the default method,
`EagerSGD`, the others wait for it in some rounds only. `step()` applies every round that this rank
has not applied yet, so the models stay equal bit for bit, with momentum and a scheduler, too.
"""

from __future__ import annotations

import time

import torch
from mpi4py import MPI
from torch import nn

import pypartial as pp

STEPS = 80
SLOW_S = 0.02

comm = MPI.COMM_WORLD
is_slow = comm.rank == comm.size - 1
torch.set_num_threads(1)  # the ranks share the cores
torch.manual_seed(comm.rank)
truth = torch.linspace(-1, 1, 20).unsqueeze(1)

model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 1))
sgd = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
decay = torch.optim.lr_scheduler.StepLR(sgd, step_size=30, gamma=0.5)

# Collective: all ranks begin with rank 0's parameters. The end of the block applies what is left.
with (
    pp.Context(comm, seed=7) as ctx,
    pp.torch.DistributedOptimizer(sgd, ctx, scheduler=decay, model=model) as optimizer,
):
    began = time.perf_counter()
    for _ in range(STEPS // 2 if is_slow else STEPS):
        inputs = torch.randn(64, 20)
        time.sleep(SLOW_S if is_slow else 0)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), inputs @ truth).backward()
        optimizer.step()
    seconds = time.perf_counter() - began

with torch.no_grad():
    held_out = torch.randn(1000, 20)
    loss = nn.functional.mse_loss(model(held_out), held_out @ truth)
weights = nn.utils.parameters_to_vector(model.parameters()).detach().numpy()
spread = max(abs(other - weights).max() for other in comm.allgather(weights))
if comm.rank == 0:
    print(f"{1e3 * seconds / STEPS:.1f} ms a step, {optimizer.rounds} rounds, loss {loss:.4f}")
    print(f"the models of the ranks differ by {spread} at most")
