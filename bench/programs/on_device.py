"""Times of buffers on a CUDA device, for `bench/cuda`.

Usage: mpirun -n P python on_device.py LIBRARY WHAT FILE

LIBRARY is cupy or torch. WHAT is

    staging   rounds on the path "staged", beside MPI_Allreduce staged by hand
    copies    the same, beside the two copies by pinned memory, and the host's Full
    ipc       rounds on the path "ipc", beside those on "staged"
    crossing  the same, from small buffers to large ones
    start     the host's time inside Start, behind a kernel of 100 ms
    folds     the kernel that folds, beside a copy on the device; no ranks (bench/c/folds.c)

The ways take turns in blocks of calls; a block counts with its slowest rank, and the last sum of a
block is verified. A call ends when its result is on the device.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

import numpy as np
from mpi4py import MPI
from support import gpu

import pypartial as pp
from pypartial.bench.contenders import Contender, Pair, contender
from pypartial.bench.device_arrays import DevicePair, device_pair
from pypartial.bench.options import Rival

ROOT = Path(__file__).resolve().parents[2]
KB, MB = 1 << 10, 1 << 20
# Bytes of a buffer, and calls in a block.
SIZES = {
    "staging": {64 * KB: 50, MB: 20, 64 * MB: 3},
    "copies": {64 * MB: 3},
    "ipc": {16 * MB: 5, 64 * MB: 3},
    "crossing": {4**power * KB: max(3, 50 >> power) for power in range(1, 9)},
}
BLOCKS = 9
KERNEL_NS = 100_000_000
STARTS = 20

comm = MPI.COMM_WORLD


class Handle(Contender):
    """Start and Wait on a path, until the result is on the device."""

    def __init__(self, ctx: pp.Context, pair: DevicePair, path: str) -> None:
        self._library = pair.library
        self._request = gpu.made(ctx, path, pair.send.array, pair.receive.array, policy=pp.Full())

    def call(self) -> None:
        self._request.Start()
        self._request.Wait()
        self._library.synchronize()

    def free(self) -> None:
        self._request.Free()


class Copies(Contender):
    """A copy to pinned memory, and one back to the device: what staging cannot do without."""

    def __init__(self, pair: DevicePair) -> None:
        self._pair = pair
        self._host = pair.library.pinned(pair.send.count, pair.send.dtype)

    def call(self) -> None:
        library, pair = self._pair.library, self._pair
        library.copy_out(self._host, pair.send.array)
        library.synchronize()
        library.copy_in(pair.receive.array, self._host)
        library.synchronize()


def block_us(what: Contender, receive: Any, calls: int) -> float:
    """Return the mean time of a call on the slowest rank; collective.

    One call before does not count. Behind it the buffer is spoiled, so that timed calls which do
    not write are noticed.
    """
    what.call()
    receive.fill(-1)  # on a device it is there when this returns
    comm.Barrier()
    began = time.monotonic_ns()
    for _ in range(calls):
        what.call()
    took = (time.monotonic_ns() - began) / calls / 1e3
    return float(comm.allreduce(took, MPI.MAX))


def measured(
    ways: Mapping[str, tuple[Contender, Any, float]], calls: int
) -> dict[str, list[float]]:
    """Return the blocks of each way; `ways`: what is called, what it fills, and with what.

    The order rotates, so that each way comes first equally often.
    """
    blocks: dict[str, list[float]] = {name: [] for name in ways}
    order = list(ways.items())
    for _ in range(BLOCKS):
        for name, (what, receive, expected) in order:
            blocks[name].append(block_us(what, receive, calls))
            wrong = not (np.asarray(receive) == expected).all()
            if comm.allreduce(wrong):
                raise SystemExit(f"{name}: not verified: {np.asarray(receive)[:4]}")
        order.append(order.pop(0))
    for what, _, _ in ways.values():
        what.free()
    return blocks


def pairs(kit: gpu.Kit, count: int) -> tuple[DevicePair, Pair]:
    """Return buffers on the device and on the host; rank r contributes r + 1."""
    own = np.full(count, comm.rank + 1, "f4")
    return device_pair(kit.library, own), Pair(own, np.empty_like(own))


def compare(kit: gpu.Kit, what: str) -> list[dict[str, Any]]:
    """Return a row for each size."""
    total, rows = comm.size * (comm.size + 1) / 2, []
    for size, calls in SIZES[what].items():
        with pp.Context(comm) as ctx:
            pair, host = pairs(kit, size // 4)
            ways: dict[str, tuple[Contender, Any, float]] = {
                "staged": (Handle(ctx, pair, "staged"), pair.receive, total)
            }
            if what == "staging":
                ways["by hand"] = contender(Rival.MPI, ctx, comm, pair), pair.receive, total
            elif what == "copies":
                full = contender(pp.Full(), ctx, comm, host)
                ways["copies"] = Copies(pair), pair.receive, comm.rank + 1
                ways["host"] = full, host.receive, total
            else:
                ways["ipc"] = Handle(ctx, pair, "ipc"), pair.receive, total
            rows.append({"bytes": size, "us": measured(ways, calls)})
    return rows


def starts(kit: gpu.Kit) -> list[dict[str, Any]]:
    """Return the times inside Start on the slowest rank, and of the kernel before it."""
    count, took, kernels = MB // 4, [], []
    array, out = kit.new(count, "float32"), kit.new(count, "float32")
    with pp.Context(comm) as ctx:
        request = ctx.Allreduce_init(array, out, policy=pp.Full())
        kit.spin(array, count, 0, 0, kit.home)  # the driver loads it
        kit.wait()
        for step in range(STARTS):
            comm.Barrier()
            began = time.monotonic_ns()
            kit.spin(array, count, step + 1, KERNEL_NS, kit.home)
            before = time.monotonic_ns()
            request.Start()
            after = time.monotonic_ns()
            kit.wait()
            kernels.append(comm.allreduce((time.monotonic_ns() - began) / 1e3, MPI.MIN))
            took.append(comm.allreduce((after - before) / 1e3, MPI.MAX))
            request.Wait()
            if not (kit.get(out, count, "float32") == (step + 1) * comm.size).all():
                raise SystemExit("start: not verified")
        request.Free()
    return [{"bytes": 4 * count, "us": {"Start": took, "kernel": kernels}}]


def kernels() -> bytes:
    """Return the kernels of the library, compiled for device 0 if no file has them."""
    from pypartial import _device_kernels, _ipc
    from pypartial._native import load

    if os.environ.get(_ipc.KERNELS):
        return Path(os.environ[_ipc.KERNELS]).read_bytes()
    native = load()
    first, second = native.ffi.new("int32_t *"), native.ffi.new("int32_t *")
    native.check(native.lib.pp_devices(first, second))
    driver = first[0] // 1000, first[0] % 1000 // 10
    native.check(native.lib.pp_device_architecture(0, first, second))
    return bytes(_device_kernels.compiled((first[0], second[0]), driver, None))


def folds(image: bytes) -> list[dict[str, Any]]:
    """Compile the program in C, run it, and return what it prints."""
    csrc, compiler = ROOT / "csrc", os.environ.get("CC") or shutil.which("cc") or "gcc"
    sources = [*csrc.glob("base/*.c"), *csrc.glob("reduce/*.c"), ROOT / "bench/c/folds.c"]
    sources += [csrc / "cuda" / name for name in ("driver.c", "folds.c")]
    with tempfile.TemporaryDirectory() as folder:
        program, kernels = Path(folder, "folds"), Path(folder, "image")
        words = [*compiler.split(), "-std=gnu11", "-O2", "-pthread", f"-I{csrc}"]
        words += [*map(str, sources), "-ldl", "-lm", "-o", str(program)]
        subprocess.run([*words, '-DPP_VERSION=""'], check=True)
        kernels.write_bytes(image)
        ran = subprocess.run([program, kernels], check=True, stdout=subprocess.PIPE, text=True)
    return [{"bytes": 16 * MB, "us": json.loads(ran.stdout)}]


def main() -> None:
    library, what, file = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    if what == "folds":
        rows = folds(kernels())
    else:
        kit = gpu.Kit(library, 0)
        with kit.use(kit.home):
            rows = starts(kit) if what == "start" else compare(kit, what)
    if comm.rank == 0:
        file.write_text(json.dumps({"ranks": comm.size, "rows": rows}), encoding="utf-8")


if __name__ == "__main__":
    main()
