"""torch.distributed over MPI: the backend `pypartial`, in a program that has no other change.

    mpirun -n 4 python -m mpi4py examples/torch_backend.py

`init_method="mpi://"` takes rank and size from MPI; no address is needed. DistributedDataParallel
and the calls of torch.distributed then go through MPI, synchronously.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from mpi4py import MPI
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import pypartial.torch  # noqa: F401  registers the backend, and mpi://

STEPS = 50

dist.init_process_group("pypartial", init_method="mpi://")
rank, size = dist.get_rank(), dist.get_world_size()
assert (rank, size) == (MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size)
torch.set_num_threads(1)  # the ranks share the cores
torch.manual_seed(rank)
truth = torch.linspace(-1, 1, 20).unsqueeze(1)

model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 1))
ddp = DistributedDataParallel(model)
sgd = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
for _ in range(STEPS):
    inputs = torch.randn(64, 20)
    sgd.zero_grad()
    nn.functional.mse_loss(ddp(inputs), inputs @ truth).backward()
    sgd.step()

with torch.no_grad():
    held_out = torch.randn(250, 20)  # of each rank
    loss = nn.functional.mse_loss(model(held_out), held_out @ truth)
dist.all_reduce(loss, dist.ReduceOp.AVG)
weights = nn.utils.parameters_to_vector(model.parameters()).detach()
everyone = [torch.empty_like(weights) for _ in range(size)]
dist.all_gather(everyone, weights)
spread = max(float((other - weights).abs().max()) for other in everyone)
if rank == 0:
    print(f"backend {dist.get_backend()}, {size} ranks, mean loss {loss:.4f}")
    print(f"the models of the ranks differ by {spread} at most")
dist.destroy_process_group()
