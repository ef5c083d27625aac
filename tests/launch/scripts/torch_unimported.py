"""A script that uses the backend, and imports torch only."""

import torch
import torch.distributed as dist

dist.init_process_group("pypartial", init_method="mpi://")
ones = torch.ones(2)
dist.all_reduce(ones)
assert ones.tolist() == [dist.get_world_size()] * 2
rank = dist.get_rank()
dist.destroy_process_group()
print(f"end of rank {rank}", flush=True)
