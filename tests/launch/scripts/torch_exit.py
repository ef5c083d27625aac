"""A short training to its end: torch_exit.py POLICY. One rank is slow, and one ends early."""

import sys
import time

import torch
from mpi4py import MPI

import pypartial as pp

comm = MPI.COMM_WORLD
torch.set_num_threads(1)
torch.manual_seed(comm.rank)
model = torch.nn.Linear(100, 10)
sgd = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
method = pp.methods.EagerSGD(policy=pp.Policy.parse(sys.argv[1]))
with pp.Context(comm) as ctx, pp.torch.DistributedOptimizer(sgd, ctx, method) as optimizer:
    for _ in range(10 if comm.rank else 25):
        optimizer.zero_grad()
        model(torch.randn(4, 100)).square().mean().backward()
        time.sleep(0.005 if comm.rank == comm.size - 1 else 0)
        optimizer.step()
weights = torch.nn.utils.parameters_to_vector(model.parameters()).tolist()
assert all(other == weights for other in comm.allgather(weights))
print(f"end of rank {comm.rank}", flush=True)
