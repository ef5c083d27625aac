"""Ranks end while a thread of the library waits for the device, and with work still queued on it.

    mpirun -n P python tests/gpu/ends.py cupy|torch PATH

Handles leave their memory to a thread, which waits inside the driver until the kernel is over. The
processes are to end as any other: `ci/gpu` looks at their exit codes. The stand-in never comes to
the kernel's end; a Free that waited for it would hang.
"""

from __future__ import annotations

import ctypes
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from mpi4py import MPI
from support import gpu

import pypartial as pp

COUNT = 1 << 20
KERNEL_NS = 3_500_000_000  # a Free and the context's wait a second each, at most


def main() -> None:
    kit, path, comm = gpu.Kit(sys.argv[1], 0), sys.argv[2], MPI.COMM_WORLD
    send, out = kit.new(COUNT, "float32"), kit.new(COUNT, "float32")
    other = kit.stream()
    kit.put(send, np.ones(COUNT, "f4"))
    with kit.use(kit.home):
        ctx = pp.Context(comm, seed=7)
        request = gpu.made(ctx, path, send, out, policy=pp.Full())
        request.Start()
        request.Wait()
        kit.wait()
        assert (kit.get(out, COUNT, "float32") == comm.size).all()
        comm.Barrier()
        began = time.monotonic()
        if gpu.is_stand_in():
            gpu.hold_on_stand_in(kit.number(other), True)
            # Its arrays would wait for the kernel at their end.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object((kit, send, out, other)))
        kit.spin(send, COUNT, 0, KERNEL_NS, other)
        request.Free()
        ctx.Free()
        took = time.monotonic() - began
    late = took > KERNEL_NS / 1e9 and not gpu.is_stand_in()
    assert not late, f"Free has waited for the device, {took:.1f} s"
    print(f"{path}: rank {comm.rank} ends {took:.2f} s after the kernel began", flush=True)


main()
