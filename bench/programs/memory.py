"""Measures by how much the ranks of a node grow through a handle of each policy.

Usage: mpirun -n P python memory.py BYTES auto|mpi numpy|library POLICY... FILE
"""

import json
import platform
import re
import sys
import time
from pathlib import Path

import numpy as np
from mpi4py import MPI

import pypartial as pp

ROUNDS = 30
SKEW_S = 0.001


def held(comm: MPI.Intracomm) -> int:
    """Return the bytes that all ranks hold; pages that they share count once."""
    comm.Barrier()
    text = Path("/proc/self/smaps_rollup").read_text(encoding="ascii")
    mine = 1024 * int(re.search(r"^Pss:\s*(\d+) kB", text, re.MULTILINE)[1])
    total = comm.allreduce(mine)
    comm.Barrier()
    return total


def measure(comm: MPI.Intracomm, policy: str, size: int, transport: str, buffers: str) -> int:
    with pp.Context(comm, transport=transport, patience=None) as ctx:
        make = ctx.alloc if buffers == "library" else np.empty
        send, recv = (make(size // 4, np.float32) for _ in range(2))
        send[:] = recv[:] = 1
        before = held(comm)
        request = ctx.Allreduce_init(send, recv, policy=pp.Policy.parse(policy))
        for _ in range(ROUNDS):
            time.sleep(comm.rank * SKEW_S)
            request.Start()
            request.Wait()
        with ctx.away():  # or a drawn rank's barrier would hold up the others' rounds
            grown = held(comm) - before
        request.Flush()
        request.Free()
    return grown


def main() -> None:
    size, transport, buffers = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    policies, file = sys.argv[4:-1], Path(sys.argv[-1])
    comm = MPI.COMM_WORLD
    rows = [
        {"policy": policy, "bytes": measure(comm, policy, size, transport, buffers)}
        for policy in policies
    ]
    if comm.rank == 0:
        vendor, numbers = MPI.get_vendor()
        meta = {
            "mpi": f"{vendor} {'.'.join(map(str, numbers))}",
            "version": pp.__version__,
            "python": platform.python_version(),
        }
        file.write_text(json.dumps({"meta": meta, "rows": rows}), encoding="utf-8")


if __name__ == "__main__":
    main()
