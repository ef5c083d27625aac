"""Each rank uses a handle, then sleeps: how much CPU time its process takes meanwhile.

Usage: mpirun -n P python idle.py SECONDS FILE
"""

import json
import platform
import sys
import time
from pathlib import Path

import numpy as np
from mpi4py import MPI

import pypartial as pp

comm = MPI.COMM_WORLD
seconds, file = float(sys.argv[1]), Path(sys.argv[2])
with pp.Context(comm) as ctx:
    send, recv = np.ones(1024, np.float32), np.empty(1024, np.float32)
    request = ctx.Allreduce_init(send, recv, policy=pp.Full())
    for _ in range(100):
        request.Start()
        request.Wait()
    time.sleep(0.5)  # until all of them have settled
    began, used = time.monotonic(), time.process_time()
    time.sleep(seconds)
    share = (time.process_time() - used) / (time.monotonic() - began)
    request.Flush()
    request.Free()
shares = comm.gather(share)
if shares is not None:
    vendor, numbers = MPI.get_vendor()
    meta = {
        "mpi": f"{vendor} {'.'.join(map(str, numbers))}",
        "version": pp.__version__,
        "python": platform.python_version(),
    }
    rows = [{"rank": rank, "share": share} for rank, share in enumerate(shares)]
    file.write_text(json.dumps({"meta": meta, "rows": rows}), encoding="utf-8")
