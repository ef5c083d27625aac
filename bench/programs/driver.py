"""What a CUDA driver waits for, and whether it lets other threads in meanwhile; for docs/cuda.md.

Usage: python driver.py [FILE]

Prints a table in Markdown, and saves it as JSON. It needs a GPU, or the stand-in of the tests; no
MPI, no CuPy. Each call is timed with nothing queued, and while a kernel of 200 ms runs that has
nothing to do with it. Meanwhile another thread makes the calls that rounds need: it asks for an
event, records one, queues a copy and a kernel, on a stream of its own. Its longest call is told.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import mmap
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from support import gpu

Pointer = ctypes.c_void_p
MB = 1 << 20
BYTES = 64 * MB
SMALL = 64 << 10
KERNEL_NS = 200_000_000
ALONE, BEHIND = 5, 3
ROOM_NS = 600_000_000
MOST = 5000  # operations that are queued to find how many a stream has room for
NON_BLOCKING, NO_TIMING, PORTABLE = 1, 2, 1


class Driver:
    """The driver's functions by name; each call is checked, and releases Python's lock."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(gpu.driver()._name)  # without argument types
        self._context = Pointer()
        self.lasting: list[Pointer] = []
        self.cuInit(0)
        self.cuDevicePrimaryCtxRetain(ctypes.byref(self._context), 0)
        self.enter()

    def __getattr__(self, name: str) -> Callable[..., None]:
        function = getattr(self._library, name)
        return lambda *arguments: gpu.ok(function(*arguments))

    def enter(self) -> None:
        """Make device 0 current in the calling thread."""
        self.cuCtxPushCurrent_v2(self._context)

    def settle(self) -> None:
        """Wait until all is done that was queued on the lasting streams."""
        for stream in self.lasting:
            self.cuStreamSynchronize(stream)

    def waits_not(self, event: Pointer) -> None:
        """Ask for an event, which may not be over."""
        assert self._library.cuEventQuery(event) in (0, 600)

    def stream(self) -> Pointer:
        made = Pointer()
        self.cuStreamCreateWithPriority(ctypes.byref(made), NON_BLOCKING, 0)
        return made

    def lasting_stream(self) -> Pointer:
        """Return a stream that `settle` waits for."""
        self.lasting.append(self.stream())
        return self.lasting[-1]

    def event(self) -> Pointer:
        made = Pointer()
        self.cuEventCreate(ctypes.byref(made), NO_TIMING)
        return made

    def memory(self, nbytes: int = BYTES) -> ctypes.c_uint64:
        made = ctypes.c_uint64()
        self.cuMemAlloc_v2(ctypes.byref(made), ctypes.c_size_t(nbytes))
        return made

    def host_memory(self) -> Pointer:
        made = Pointer()
        self.cuMemHostAlloc(ctypes.byref(made), ctypes.c_size_t(BYTES), PORTABLE)
        return made

    def module(self) -> Pointer:
        made = Pointer()
        self.cuModuleLoadData(ctypes.byref(made), gpu.SPIN)
        return made

    def spin(self, out: ctypes.c_uint64, ns: int, stream: Pointer) -> None:
        """Queue a kernel that takes some time, and writes a word."""
        words = [ctypes.c_uint64(it) for it in (out.value, 1, 0, ns)]
        pointers = (Pointer * len(words))(*[ctypes.addressof(each) for each in words])
        self.cuLaunchKernel(gpu._spin_write(), 1, 1, 1, 32, 1, 1, 0, stream, pointers, None)


class Peer:
    """Another process, with memory of the device that this one may open."""

    def __init__(self) -> None:
        words = [sys.executable, __file__, "--peer"]
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        self.handle = bytes.fromhex(self._process.stdout.readline().decode())
        if not self.handle:  # it has said why
            raise SystemExit("driver.py: the process that shares memory of the device has failed")

    def end(self) -> None:
        self._process.communicate()


class Handle(ctypes.Structure):
    """What `cuIpcOpenMemHandle` takes by value."""

    _fields_ = [("reserved", ctypes.c_char * 64)]


def peer() -> None:
    driver, handle = Driver(), (ctypes.c_char * 64)()
    memory = driver.memory()
    driver.cuIpcGetMemHandle(handle, memory)
    print(handle.raw.hex(), flush=True)
    sys.stdin.read()
    driver.cuMemFree_v2(memory)


@dataclass
class Call:
    """A call to time.

    Attributes
    ----------
    name : str
    prepare : callable
        Returns what the call is given.
    make : callable
        The call; returns what it has made, if anything.
    undo : callable
        Is given what was prepared and what was made.
    """

    name: str
    prepare: Callable[[], Any]
    make: Callable[[Any], Any]
    undo: Callable[[Any, Any], None]


def nothing(*_: Any) -> None:
    """Prepare or undo nothing."""


def calls(driver: Driver, other: Peer, busy: Pointer) -> list[Call]:
    """Return what is timed."""

    def mapped() -> mmap.mmap:
        memory = mmap.mmap(-1, BYTES)
        for page in range(0, BYTES, mmap.PAGESIZE):
            memory[page] = 1
        return memory

    def address(memory: mmap.mmap) -> Pointer:
        return Pointer(ctypes.addressof(ctypes.c_char.from_buffer(memory)))

    def register(memory: mmap.mmap) -> None:
        driver.cuMemHostRegister_v2(address(memory), ctypes.c_size_t(BYTES), PORTABLE)

    def registered() -> mmap.mmap:
        memory = mapped()
        register(memory)
        return memory

    def unregister(memory: mmap.mmap, _: Any = None) -> None:
        driver.cuMemHostUnregister(address(memory))

    def opened(_: Any = None) -> ctypes.c_uint64:
        made = ctypes.c_uint64()
        driver.cuIpcOpenMemHandle_v2(ctypes.byref(made), Handle.from_buffer_copy(other.handle), 1)
        return made

    def pageable(_: Any = None) -> tuple[ctypes.c_uint64, Any]:
        return driver.memory(SMALL), ctypes.create_string_buffer(SMALL)

    def handle(memory: ctypes.c_uint64) -> None:
        driver.cuIpcGetMemHandle((ctypes.c_char * 64)(), memory)

    idle = driver.lasting_stream()
    small = ctypes.c_size_t(SMALL)
    return [
        Call(
            "cuMemAlloc, 64 MB", nothing, lambda _: driver.memory(), lambda _, m: freed(driver, m)
        ),
        Call("cuMemFree, 64 MB", driver.memory, lambda m: freed(driver, m), nothing),
        *(
            Call(
                f"cuMemFree, {name}",
                partial(driver.memory, nbytes),
                partial(freed, driver),
                nothing,
            )
            for name, nbytes in (("1 MB", MB), ("4 KB", 4 << 10))  # parts of a larger block
        ),
        Call(
            "cuMemHostAlloc, 64 MB",
            nothing,
            lambda _: driver.host_memory(),
            lambda _, m: driver.cuMemFreeHost(m),
        ),
        Call(
            "cuMemFreeHost, 64 MB", driver.host_memory, lambda m: driver.cuMemFreeHost(m), nothing
        ),
        Call("cuMemHostRegister, 64 MB", mapped, register, lambda m, _: unregister(m)),
        Call("cuMemHostUnregister, 64 MB", registered, unregister, nothing),
        Call("cuIpcGetMemHandle", driver.memory, handle, lambda m, _: freed(driver, m)),
        Call(
            "cuIpcOpenMemHandle, 64 MB", nothing, opened, lambda _, m: driver.cuIpcCloseMemHandle(m)
        ),
        Call(
            "cuIpcCloseMemHandle, 64 MB", opened, lambda m: driver.cuIpcCloseMemHandle(m), nothing
        ),
        Call(
            "cuStreamCreate",
            nothing,
            lambda _: driver.stream(),
            lambda _, s: driver.cuStreamDestroy_v2(s),
        ),
        Call("cuStreamDestroy", driver.stream, lambda s: driver.cuStreamDestroy_v2(s), nothing),
        Call(
            "cuEventCreate",
            nothing,
            lambda _: driver.event(),
            lambda _, e: driver.cuEventDestroy_v2(e),
        ),
        Call("cuEventDestroy", driver.event, lambda e: driver.cuEventDestroy_v2(e), nothing),
        Call(
            "cuModuleLoadData",
            nothing,
            lambda _: driver.module(),
            lambda _, m: driver.cuModuleUnload(m),
        ),
        Call("cuModuleUnload", driver.module, lambda m: driver.cuModuleUnload(m), nothing),
        Call(
            "cuMemcpyAsync, 64 KB from pageable memory on an idle stream",
            pageable,
            lambda p: driver.cuMemcpyAsync(p[0], Pointer(ctypes.addressof(p[1])), small, idle),
            lambda p, _: freed(driver, p[0]),
        ),
        Call(
            "cuMemcpyAsync, 64 KB to pageable memory on an idle stream",
            pageable,
            lambda p: driver.cuMemcpyAsync(Pointer(ctypes.addressof(p[1])), p[0], small, idle),
            lambda p, _: freed(driver, p[0]),
        ),
        Call(
            "cuMemcpyAsync, 64 KB to pageable memory on the kernel's stream",
            pageable,
            lambda p: driver.cuMemcpyAsync(Pointer(ctypes.addressof(p[1])), p[0], small, busy),
            lambda p, _: freed(driver, p[0]),
        ),
        Call(
            "cuStreamSynchronize, an idle stream",
            nothing,
            lambda _: driver.cuStreamSynchronize(idle),
            nothing,
        ),
        Call(
            "cuStreamSynchronize, the kernel's stream",
            nothing,
            lambda _: driver.cuStreamSynchronize(busy),
            nothing,
        ),
    ]


def freed(driver: Driver, memory: ctypes.c_uint64) -> None:
    driver.cuMemFree_v2(memory)


class Watch:
    """Another thread, which makes the calls that rounds need while one is timed."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._stream, self._event = driver.lasting_stream(), driver.event()
        self._memory = driver.memory(2 * SMALL)
        self._over = threading.Event()
        self._failure: Exception | None = None
        self.longest: dict[str, float] = {}
        for make in self._calls().values():  # what the first one does is not of interest
            make()
        driver.cuStreamSynchronize(self._stream)

    def _calls(self) -> dict[str, Callable[[], None]]:
        driver, half = self._driver, ctypes.c_uint64(self._memory.value + SMALL)
        small = ctypes.c_size_t(SMALL)
        return {
            "asking": lambda: driver.waits_not(self._event),
            "a copy": lambda: driver.cuMemcpyAsync(self._memory, half, small, self._stream),
            "a kernel": lambda: driver.spin(self._memory, 0, self._stream),
            "recording": lambda: driver.cuEventRecord(self._event, self._stream),
        }

    def _try_to_look(self) -> None:
        try:
            self._look()
        except Exception as failure:  # of a call of the driver: for the thread that waits
            self._failure = failure

    def _look(self) -> None:
        self._driver.enter()
        each = self._calls()
        while True:
            for name, make in each.items():
                began = time.monotonic()
                make()
                took = time.monotonic() - began
                self.longest[name] = max(took, self.longest.get(name, 0.0))
            if self._over.is_set():
                return
            time.sleep(1e-3)  # the stream must not fill up

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        self.longest = {}
        self._over.clear()
        thread = threading.Thread(target=self._try_to_look)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()
        if self._failure is not None:
            raise self._failure

    def end(self) -> None:
        self._driver.cuStreamSynchronize(self._stream)


@dataclass
class Row:
    """Milliseconds of a call, and of the longest one that another thread made meanwhile."""

    name: str
    alone: float
    behind: float
    other: float
    which: str

    def line(self) -> str:
        waits = f"{self.other:.2f} ({self.which})" if self.behind > 5 else ""
        return f"| {self.name} | {self.alone:.3f} | {self.behind:.3f} | {waits} |"


def timed(make: Callable[[], Any]) -> tuple[float, Any]:
    """Return the milliseconds of a call, and what it returns."""
    began = time.monotonic()
    made = make()
    return (time.monotonic() - began) * 1e3, made


def measured(driver: Driver, call: Call, busy: Pointer, watch: Watch) -> Row:
    word, alone, behind, others = driver.memory(8), [], [], []
    for _ in range(ALONE):
        given = call.prepare()
        driver.settle()
        took, made = timed(lambda given=given: call.make(given))
        driver.settle()
        call.undo(given, made)
        alone.append(took)
    for _ in range(BEHIND):
        given = call.prepare()
        driver.settle()
        with watch.watching():
            driver.spin(word, KERNEL_NS, busy)
            took, made = timed(lambda given=given: call.make(given))
        driver.settle()
        call.undo(given, made)
        behind.append(took)
        others.append(max((took, name) for name, took in watch.longest.items()))
    driver.cuMemFree_v2(word)
    other, which = max(others)
    return Row(call.name, statistics.median(alone), statistics.median(behind), other * 1e3, which)


def room(driver: Driver, what: str, busy: Pointer, watch: Watch) -> Row:
    """Queue operations behind a kernel, until a call waits."""
    word, event = driver.memory(2 * SMALL), driver.event()
    half = ctypes.c_uint64(word.value + SMALL)
    queue = {
        "kernels": lambda: driver.spin(word, 0, busy),
        "copies": lambda: driver.cuMemcpyAsync(word, half, ctypes.c_size_t(SMALL), busy),
        "events": lambda: driver.cuEventRecord(event, busy),
    }[what]
    driver.settle()
    longest, count, at = 0.0, 0, 0
    with watch.watching():
        driver.spin(word, ROOM_NS, busy)
        began = time.monotonic()
        while count < MOST and time.monotonic() - began < ROOM_NS / 1e9:
            took, _ = timed(queue)
            count += 1
            if took > longest:
                longest, at = took, count
    driver.settle()
    driver.cuEventDestroy_v2(event)
    driver.cuMemFree_v2(word)
    which, other = max(watch.longest.items(), key=lambda each: each[1])
    name = f"the {at}th of {count} {what} behind a kernel of {ROOM_NS // 1_000_000} ms"
    return Row(name, 0.0, longest, other * 1e3, which)


def main() -> None:
    if "--peer" in sys.argv:
        peer()
        return
    problem = gpu.why_none()
    if problem is not None:
        raise SystemExit(f"driver.py: {problem}")
    driver, other = Driver(), Peer()
    busy, watch = driver.lasting_stream(), Watch(driver)
    rows: list[Row] = []

    def keep(row: Row) -> None:
        """Print and save it at once: a later call may hang."""
        rows.append(row)
        print(row.line(), flush=True)
        if len(sys.argv) > 1:
            text = json.dumps([vars(row) for row in rows], indent=1)
            Path(sys.argv[1]).write_text(text + "\n", encoding="utf-8")

    print(
        "| call | alone, ms | behind a kernel of 200 ms, ms | another thread's longest call, ms |"
    )
    print("| --- | --- | --- | --- |")
    for call in calls(driver, other, busy):
        keep(measured(driver, call, busy, watch))
    for what in ("kernels", "copies", "events"):
        keep(room(driver, what, busy, watch))
    other.end()
    watch.end()


if __name__ == "__main__":
    main()
