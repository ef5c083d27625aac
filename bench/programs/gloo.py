"""Times torch.distributed's allreduce over gloo, in blocks of calls, on the ranks of an mpirun.

    mpirun -n P python gloo.py BUDGET_MS SIZE... FILE

A block counts with the mean time of a call on its slowest rank, as in `bench latency`.
"""

import json
import os
import platform
import statistics
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

BLOCKS = 9
MOST_CALLS = 10_000


def launched(name: str) -> int:
    """Return what the launcher says: Open MPI's names, or those of PMI."""
    return int(os.environ.get(f"OMPI_COMM_WORLD_{name}", os.environ.get(f"PMI_{name}", "")))


def slowest(value: float) -> float:
    tensor = torch.tensor([value], dtype=torch.float64)
    dist.all_reduce(tensor, dist.ReduceOp.MAX)
    return float(tensor)


def block(tensor: torch.Tensor, calls: int) -> float:
    dist.barrier()
    began = time.perf_counter_ns()
    for _ in range(calls):
        dist.all_reduce(tensor)
    return slowest((time.perf_counter_ns() - began) / calls / 1e3)


def main() -> None:
    budget_us, sizes, file = 1e3 * float(sys.argv[1]), map(int, sys.argv[2:-1]), Path(sys.argv[-1])
    rank, ranks = launched("RANK"), launched("SIZE")
    torch.set_num_threads(1)
    meet = file.with_name("meet")
    dist.init_process_group("gloo", init_method=f"file://{meet}", rank=rank, world_size=ranks)
    rows = []
    for size in sizes:
        tensor = torch.ones(size // 4)
        dist.all_reduce(tensor)
        assert bool((tensor == ranks).all()), "gloo's sum is wrong"
        tensor.zero_()  # which stays what it is
        one = block(tensor, 3)
        calls = int(max(1, min(MOST_CALLS, budget_us / BLOCKS / one)))
        times = [block(tensor, calls) for _ in range(BLOCKS)]
        rows.append({"bytes": size, "ranks": ranks, "us": statistics.median(times)})
    if rank == 0:
        meta = {"torch": torch.__version__, "python": platform.python_version()}
        file.write_text(json.dumps({"meta": meta, "rows": rows}), encoding="utf-8")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
