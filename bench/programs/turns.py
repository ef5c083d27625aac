"""What it costs that processes take turns on a GPU; for docs/cuda.md.

Usage: mpirun -n P python turns.py [FILE]

Prints a table in Markdown, and saves it as JSON. It needs a GPU, or the stand-in of the tests. Each
rank queues one operation and asks for its event until it is over. Rank 0 times that while the other
ranks queue nothing; while all queue the same at once; and while they queue it one after the other,
each when the one before is over.
"""

from __future__ import annotations

import ctypes
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from driver import Driver, gpu
from mpi4py import MPI

KB, MB = 1 << 10, 1 << 20
MOST = 64 * MB
REPEATS = 31
NOT_READY = 600
HOST, DEVICE = 1, 2

comm = MPI.COMM_WORLD

Queue = Callable[[], None]


class Rows(ctypes.Structure):
    """`CUDA_MEMCPY2D`."""

    _fields_ = [
        *((name, ctypes.c_size_t) for name in ("from_x", "from_y")),
        ("from_type", ctypes.c_uint),
        *((name, ctypes.c_size_t) for name in ("from_host", "from_device", "from_array")),
        *((name, ctypes.c_size_t) for name in ("from_pitch", "to_x", "to_y")),
        ("to_type", ctypes.c_uint),
        *((name, ctypes.c_size_t) for name in ("to_host", "to_device", "to_array")),
        *((name, ctypes.c_size_t) for name in ("to_pitch", "width", "height")),
    ]


class Operations:
    """What is timed."""

    def __init__(self) -> None:
        self._driver = Driver()
        self._stream, self._event = self._driver.lasting_stream(), self._driver.event()
        self._host = self._driver.host_memory()
        self._device = [self._driver.memory(MOST) for _ in range(2)]

    def _copy(self, to: object, from_: object) -> Callable[[int], Queue]:
        return lambda size: (
            lambda: self._driver.cuMemcpyAsync(to, from_, ctypes.c_size_t(size), self._stream)
        )

    def _rows(self, size: int) -> Queue:
        half = size // 2
        rows = Rows(from_type=HOST, from_host=self._host.value, from_pitch=half, to_type=DEVICE)
        rows.to_device, rows.to_pitch = self._device[0].value, half
        rows.width, rows.height = half, 2
        return lambda: self._driver.cuMemcpy2DAsync_v2(ctypes.byref(rows), self._stream)

    def _rows_on_device(self, size: int) -> Queue:
        half = size // 2
        rows = Rows(from_type=DEVICE, from_pitch=half, to_type=DEVICE, to_pitch=half)
        rows.to_device, rows.from_device = (each.value for each in self._device)
        rows.width, rows.height = half, 2
        return lambda: self._driver.cuMemcpy2DAsync_v2(ctypes.byref(rows), self._stream)

    def _to_peer(self, size: int) -> Queue:
        """Copy as to another device, which may be made by another part of this one."""
        there, other = self._device
        context, count = self._driver._context, ctypes.c_size_t(size)
        return lambda: self._driver.cuMemcpyPeerAsync(
            there, context, other, context, count, self._stream
        )

    def all(self) -> dict[str, Queue]:
        """Return the operations by name."""
        there, other = self._device
        few, much = (4 * KB, 16 * KB, 32 * KB, 64 * KB, MB), (64 * KB, 16 * MB, MOST)
        kinds = {
            "copy to the host": (self._copy(self._host, there), few),
            "copy from the host": (self._copy(there, self._host), few),
            "the same as two rows": (self._rows, few),
            "copy on the device": (self._copy(other, there), much),
        }
        if not gpu.is_stand_in():  # which has neither
            kinds["the same as two rows, on the device"] = (self._rows_on_device, much)
            kinds["the same as to a peer"] = (self._to_peer, much)
        queues = {"nothing but the event": lambda: None}
        queues["kernel"] = lambda: self._driver.spin(there, 0, self._stream)
        for kind, (make, sizes) in kinds.items():
            for size in sizes:
                text = f"{size // MB} MB" if size >= MB else f"{size // KB} KB"
                queues[f"{kind}, {text}"] = make(size)
        return queues

    def once_us(self, queue: Queue) -> float:
        """Return the microseconds until an operation is over."""
        began = time.perf_counter_ns()
        queue()
        self._driver.cuEventRecord(self._event, self._stream)
        while (result := self._driver._library.cuEventQuery(self._event)) == NOT_READY:
            pass
        gpu.ok(result)
        return (time.perf_counter_ns() - began) / 1e3


def measured(operations: Operations, queue: Queue) -> dict[str, float]:
    """Return the median times of rank 0, in microseconds."""
    times: dict[str, list[float]] = {"alone": [], "at once": [], "in turn": []}
    for _ in range(REPEATS):
        comm.Barrier()
        if comm.rank == 0:
            times["alone"].append(operations.once_us(queue))
    for _ in range(REPEATS):
        comm.Barrier()
        times["at once"].append(operations.once_us(queue))
    for _ in range(REPEATS):
        for rank in range(comm.size):
            comm.Barrier()
            if rank == comm.rank:
                times["in turn"].append(operations.once_us(queue))
    comm.Barrier()
    return {name: statistics.median(each) for name, each in times.items() if each}


def main() -> None:
    problem = gpu.why_none()
    if problem is not None:
        raise SystemExit(f"turns.py: {problem}")
    operations, rows = Operations(), {}
    say(f"| {comm.size} ranks, us | alone | at once | in turn |\n| --- | --- | --- | --- |")
    for name, queue in operations.all().items():
        if refused(operations, queue):
            say(f"| {name} | refused | | |")
            continue
        rows[name] = measured(operations, queue)
        say(f"| {name} | " + " | ".join(f"{us:.1f}" for us in rows[name].values()) + " |")
        if comm.rank == 0 and len(sys.argv) > 1:
            Path(sys.argv[1]).write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def say(line: str) -> None:
    """Print it at once, on rank 0: a later operation may hang."""
    if comm.rank == 0:
        print(line, flush=True)


def refused(operations: Operations, queue: Queue) -> bool:
    """Make an operation once; return whether the driver of any rank does not."""
    try:
        operations.once_us(queue)
        did = True
    except AssertionError:
        did = False
    return not bool(comm.allreduce(did, MPI.LAND))


if __name__ == "__main__":
    main()
