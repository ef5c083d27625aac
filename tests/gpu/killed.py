"""A rank is killed amid its copies: the others are told, or are ended with the job.

    mpirun -n P python tests/gpu/killed.py cupy|torch PATH

Ranks that are told print so. `ci/gpu` looks what is left on the device afterwards.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from mpi4py import MPI
from support import gpu

import pypartial as pp

COUNT = 1 << 20
STEPS = 200
KILLED_AT = 20
SPIN_NS = 1_000_000


def main() -> None:
    kit, path = gpu.Kit(sys.argv[1], 0), sys.argv[2]
    comm = MPI.COMM_WORLD
    send, out = kit.new(COUNT, "float32"), kit.new(COUNT, "float32")
    kit.put(send, np.ones(COUNT, "f4"))
    with pp.Context(comm, seed=7) as ctx, kit.use(kit.home):
        request = gpu.made(ctx, path, send, out, policy=pp.Full())
        for step in range(STEPS):
            kit.spin(send, COUNT, step, SPIN_NS, kit.home)
            request.Start()
            if step == KILLED_AT and comm.rank == comm.size - 1:
                print("this rank is killed", flush=True)
                os.kill(os.getpid(), signal.SIGKILL)
            request.Wait(timeout=20)
    raise SystemExit("nobody noticed that a rank is gone")


try:
    main()
except pp.PeerFailedError:
    print("told of the death", flush=True)
    os._exit(1)  # the job ends
