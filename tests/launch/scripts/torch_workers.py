"""Training with forked workers of a DataLoader, which are started while rounds are under way."""

import torch
from mpi4py import MPI
from torch.utils.data import DataLoader, TensorDataset

import pypartial as pp

comm = MPI.COMM_WORLD
torch.set_num_threads(1)
torch.manual_seed(comm.rank)
inputs = torch.randn(40 + 8 * comm.rank, 10)  # ranks have different numbers of batches
data = TensorDataset(inputs, inputs.sum(1, keepdim=True))
loader = DataLoader(data, 8, shuffle=True, num_workers=2, multiprocessing_context="fork")
model = torch.nn.Linear(10, 1)
sgd = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
steps = 0
with pp.Context(comm) as ctx, pp.torch.DistributedOptimizer(sgd, ctx) as optimizer:
    for _ in range(3):  # epochs; each forks its workers anew
        for batch, target in loader:
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(batch), target).backward()
            optimizer.step()
            steps += 1
assert steps == 3 * (5 + comm.rank), steps
weights = torch.nn.utils.parameters_to_vector(model.parameters()).tolist()
assert all(other == weights for other in comm.allgather(weights))
print(f"end of rank {comm.rank}", flush=True)
