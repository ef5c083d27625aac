"""Measures by how much the ranks of a node grow through a DistributedOptimizer of each window.

Usage: mpirun -n P python torch_memory.py POLICY WINDOW... FILE

The last rank is late. What is there before: the model, its gradients and SGD's momentum.
"""

import json
import platform
import sys
import time
from pathlib import Path

import torch
from memory import held
from mpi4py import MPI

import pypartial as pp

STEPS = 40
INPUTS, OUTPUTS = 1023, 2048  # 8 MB of parameters, with the bias
BASE_S, LATE_S = 0.002, 0.03


def measure(comm: MPI.Intracomm, policy: pp.Policy, window: int) -> tuple[int, int]:
    """Return the bytes of the parameters, and by how many all ranks have grown."""
    model = torch.nn.Linear(INPUTS, OUTPUTS)
    sgd = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    inputs = torch.randn(4, INPUTS)

    def backward() -> None:
        model(inputs).square().mean().backward()

    backward()
    sgd.step()
    with pp.Context(comm, window=window, patience=None) as ctx:
        before = held(comm)
        with pp.torch.DistributedOptimizer(sgd, ctx, pp.methods.EagerSGD(policy)) as optimizer:
            for _ in range(STEPS):
                time.sleep(LATE_S if comm.rank == comm.size - 1 else BASE_S)
                optimizer.zero_grad()
                backward()
                optimizer.step()
            with optimizer.away():
                grown = held(comm) - before
    return sum(4 * one.numel() for one in model.parameters()), grown


def main() -> None:
    policy, windows, file = pp.Policy.parse(sys.argv[1]), sys.argv[2:-1], Path(sys.argv[-1])
    comm = MPI.COMM_WORLD
    torch.set_num_threads(1)
    measure(
        comm, policy, int(windows[0])
    )  # a process also grows by what it uses for the first time
    rows = []
    for window in map(int, windows):
        vector, grown = measure(comm, policy, window)
        rows.append({"policy": str(policy), "window": window, "vector": vector, "bytes": grown})
    if comm.rank == 0:
        vendor, numbers = MPI.get_vendor()
        meta = {
            "mpi": f"{vendor} {'.'.join(map(str, numbers))}",
            "version": pp.__version__,
            "python": platform.python_version(),
            "torch": str(torch.__version__),
        }
        file.write_text(json.dumps({"meta": meta, "rows": rows}), encoding="utf-8")


if __name__ == "__main__":
    main()
