"""A program with DistributedDataParallel, whose allreduce becomes partial by a communication hook.

    mpirun -n 4 python -m mpi4py examples/torch_hook.py

The last rank needs 20 ms longer for each batch. Two lines make the hook, and `finish` ends it. A
backward pass gives one gradient, so a rank that has missed rounds is given their sum: replicas
drift apart under momentum, and are averaged every 25 rounds and at the end.
"""

from __future__ import annotations

import time

import torch
import torch.distributed as dist
from mpi4py import MPI
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import pypartial as pp
import pypartial.torch  # it knows mpi://, for any backend

STEPS = 80
SLOW_S = 0.02

comm = MPI.COMM_WORLD
is_slow = comm.rank == comm.size - 1
torch.set_num_threads(1)  # the ranks share the cores
torch.manual_seed(comm.rank)
truth = torch.linspace(-1, 1, 20).unsqueeze(1)
dist.init_process_group("gloo", init_method="mpi://")

model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 1))
ddp = DistributedDataParallel(model)
sgd = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

with pp.Context(comm, seed=7) as ctx:
    state = pp.torch.HookState(ctx, ddp, policy=pp.Majority(), sync_every=25, optimizer=sgd)
    ddp.register_comm_hook(state, pp.torch.partial_allreduce_hook)
    began = time.perf_counter()
    for _ in range(STEPS):
        inputs = torch.randn(64, 20)
        time.sleep(SLOW_S if is_slow else 0)
        sgd.zero_grad()
        nn.functional.mse_loss(ddp(inputs), inputs @ truth).backward()  # the round is in here
        sgd.step()
    seconds = time.perf_counter() - began
    state.finish(sgd)  # collective: what was on its way; then all models are equal

with torch.no_grad():
    held_out = torch.randn(1000, 20)
    loss = nn.functional.mse_loss(model(held_out), held_out @ truth)
weights = nn.utils.parameters_to_vector(model.parameters()).detach().numpy()
spread = max(abs(other - weights).max() for other in comm.allgather(weights))
if comm.rank == 0:
    print(f"{1e3 * seconds / STEPS:.1f} ms a step, loss {loss:.4f}")
    print(f"the models of the ranks differ by {spread} at most")
dist.destroy_process_group()
