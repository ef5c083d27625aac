"""The script of rank 0 ends before the ranks meet: torch_early_end.py WAY CALL.

WAY: "each", "groups", "overlap", or "hook" of DistributedDataParallel. The other ranks say what
they see in CALL: "flush" or "finish".
"""

import sys

import torch
import torch.distributed as dist
from mpi4py import MPI
from torch.nn.parallel import DistributedDataParallel

import pypartial as pp
import pypartial.torch

way, call = sys.argv[1:]
rank = MPI.COMM_WORLD.rank
torch.set_num_threads(1)
model = torch.nn.Linear(10, 1)
sgd = torch.optim.SGD(model.parameters(), lr=0.01)
ctx = pp.Context(MPI.COMM_WORLD)
if way == "hook":
    dist.init_process_group("pypartial", init_method="mpi://")
    model = DistributedDataParallel(model)
    training = pp.torch.HookState(ctx, model, optimizer=sgd)
    model.register_comm_hook(training, pp.torch.partial_allreduce_hook)
    step = sgd.step
else:
    method = pp.methods.PartialReduce(2) if way == "groups" else pp.methods.EagerSGD()
    if way == "overlap":
        method = pp.methods.EagerSGD(deliver="sum")
    overlap = 2 if way == "overlap" else None
    training = pp.torch.DistributedOptimizer(sgd, ctx, method, overlap=overlap)
    step = training.step
for _ in range(2):
    sgd.zero_grad()
    model(torch.ones(2, 10)).sum().backward()
    step()
if rank == 0:
    sys.exit()
try:
    getattr(training, call)()
except pp.PeerFailedError as error:
    print(f"rank {rank} sees {error}", flush=True)
