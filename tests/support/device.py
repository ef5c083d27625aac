"""Arrays on a device of the stand-in for the CUDA driver, as CuPy's would be.

The process has it loaded already, or loads it by this module: `PYPARTIAL_CUDA_DRIVER` names it.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

NON_BLOCKING, BLOCKING = 1, 0
Pointer = ctypes.c_void_p


@functools.cache
def driver() -> ctypes.CDLL:
    """Return the stand-in, with the first device's context as this thread's current one."""
    library = ctypes.CDLL(os.environ["PYPARTIAL_CUDA_DRIVER"])
    counts = ("fake_calls", "fake_held_calls", "fake_live", "fake_misuses", "fake_pageable_copies")
    for name in counts:
        getattr(library, name).restype = ctypes.c_uint64
    for name in ("fake_leaks", "fake_failed"):
        getattr(library, name).restype = ctypes.c_char_p
    library.fake_hold.argtypes = [Pointer, ctypes.c_bool]
    library.fake_capture.argtypes = [Pointer, ctypes.c_bool]
    library.fake_hold_new.argtypes = library.fake_exclusive.argtypes = [ctypes.c_bool]
    library.fake_free_at_once.argtypes = [ctypes.c_bool]
    library.fake_seed.argtypes = library.fake_room.argtypes = [ctypes.c_uint64]
    library.fake_hold_calls.argtypes = [ctypes.c_char_p, ctypes.c_bool]
    library.fake_priority.argtypes = [Pointer]
    library.fake_newest_stream.restype = library.fake_stream_before.restype = Pointer
    library.fake_stream_before.argtypes = [Pointer]
    library.fake_fail.argtypes = [ctypes.c_char_p, ctypes.c_uint64, ctypes.c_int]
    library.cuMemcpyAsync.argtypes = [Pointer, Pointer, ctypes.c_size_t, Pointer]
    library.cuMemAlloc_v2.argtypes = [Pointer, ctypes.c_size_t]
    library.cuMemFree_v2.argtypes = [Pointer]
    for name in ("cuStreamDestroy_v2", "cuStreamSynchronize", "cuMemFreeHost"):
        getattr(library, name).argtypes = [Pointer]
    library.cuStreamCreate.argtypes = [Pointer, ctypes.c_uint]
    library.cuMemHostAlloc.argtypes = [Pointer, ctypes.c_size_t, ctypes.c_uint]
    _check(library.cuInit(0))
    devices = ctypes.c_int()
    _check(library.cuDeviceGetCount(ctypes.byref(devices)))
    # What the application makes on a device stays there, as CuPy and PyTorch keep the contexts.
    contexts = [_retained(library, number) for number in range(devices.value)]
    _check(library.cuCtxSetCurrent(contexts[0]))
    return library


def _retained(library: ctypes.CDLL, number: int) -> Pointer:
    context = Pointer()
    _check(library.cuDevicePrimaryCtxRetain(ctypes.byref(context), number))
    return context


@contextmanager
def device(number: int) -> Iterator[None]:
    """Make a device the current one of this thread."""
    before = Pointer()
    _check(driver().cuCtxGetCurrent(ctypes.byref(before)))
    _check(driver().cuCtxSetCurrent(_retained(driver(), number)))
    try:
        yield
    finally:
        _check(driver().cuCtxSetCurrent(before))
        _check(driver().cuDevicePrimaryCtxRelease_v2(number))


@contextmanager
def other_context() -> Iterator[None]:
    """Make a context beside the first device's primary one this thread's current one."""
    made = Pointer()
    _check(driver().cuCtxCreate_v2(ctypes.byref(made), 0, 0))
    try:
        yield
    finally:
        _check(driver().cuCtxDestroy_v2(made))


@contextmanager
def no_context() -> Iterator[None]:
    """Have this thread use no context."""
    before = Pointer()
    _check(driver().cuCtxGetCurrent(ctypes.byref(before)))
    _check(driver().cuCtxSetCurrent(None))
    try:
        yield
    finally:
        _check(driver().cuCtxSetCurrent(before))


def device_of(address: int) -> int:
    """Return the number of the device that has the memory."""
    number, which = ctypes.c_int(), ctypes.c_uint(9)  # CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    answers = (ctypes.c_void_p * 1)(ctypes.addressof(number))
    _check(driver().cuPointerGetAttributes(1, ctypes.byref(which), answers, Pointer(address)))
    return number.value


def _check(result: int) -> None:
    assert result == 0, f"the stand-in returned {result}"


class Stream:
    """A stream of the application; CuPy's have these attributes."""

    def __init__(self, flags: int = NON_BLOCKING) -> None:
        made = Pointer()
        _check(driver().cuStreamCreate(ctypes.byref(made), flags))
        assert made.value
        self.ptr: int = made.value

    wait_event = None  # by having it a stream of CuPy is told from other objects with `ptr`

    def hold(self, held: bool) -> None:
        """Begin no operation of the stream until it is let go."""
        driver().fake_hold(self.ptr, held)

    def capture(self, captures: bool) -> None:
        """Have the stream be captured, or no more."""
        driver().fake_capture(self.ptr, captures)

    def wait(self) -> None:
        """Wait until all that is queued on the stream is done."""
        _check(driver().cuStreamSynchronize(self.ptr))

    def close(self) -> None:
        """Destroy the stream."""
        _check(driver().cuStreamDestroy_v2(self.ptr))


def order(first: int, then: int) -> None:
    """Have what is queued on the stream `then` from now on wait for all that is on `first`."""
    event = Pointer()
    _check(driver().cuEventCreate(ctypes.byref(event), 2))  # CU_EVENT_DISABLE_TIMING
    _check(driver().cuEventRecord(event, Pointer(first)))
    _check(driver().cuStreamWaitEvent(Pointer(then), event, 0))
    _check(driver().cuEventDestroy_v2(event))


class Array:
    """An array of one dimension in the memory of the device."""

    def __init__(self, count: int, dtype: npt.DTypeLike, stream: Stream) -> None:
        self.dtype, self.count, self.stream = np.dtype(dtype), count, stream
        self.nbytes = count * self.dtype.itemsize
        made = Pointer()
        _check(driver().cuMemAlloc_v2(ctypes.byref(made), max(self.nbytes, 1)))
        self.address = made.value
        # What is queued reads this memory when its turn comes.
        self._pinned: list[int] = []

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "version": 3,
            "shape": (self.count,),
            "typestr": self.dtype.str,
            "data": (self.address, False),
            "strides": None,
            "stream": self.stream.ptr,
        }

    def _host(self) -> tuple[int, npt.NDArray[Any]]:
        made = Pointer()
        _check(driver().cuMemHostAlloc(ctypes.byref(made), max(self.nbytes, 1), 1))
        assert made.value
        self._pinned.append(made.value)
        memory = (ctypes.c_char * self.nbytes).from_address(made.value)
        return made.value, np.frombuffer(memory, self.dtype)

    def put(self, values: npt.ArrayLike, stream: Stream | None = None) -> None:
        """Queue an assignment."""
        address, host = self._host()
        host[:] = values
        queue = (stream or self.stream).ptr
        _check(driver().cuMemcpyAsync(self.address, address, self.nbytes, queue))

    def copy(self, other: Array, stream: Stream) -> None:
        """Queue an assignment of another array's elements."""
        assert other.nbytes == self.nbytes
        _check(driver().cuMemcpyAsync(self.address, other.address, self.nbytes, stream.ptr))

    def copy_from(self, address: int, stream: Stream) -> None:
        """Queue an assignment of the elements at an address."""
        _check(driver().cuMemcpyAsync(self.address, address, self.nbytes, stream.ptr))

    def get(self, stream: Stream | None = None) -> npt.NDArray[Any]:
        """Return the elements when all that is queued on a stream, the array's, is done."""
        address, host = self._host()
        queue = stream or self.stream
        _check(driver().cuMemcpyAsync(address, self.address, self.nbytes, queue.ptr))
        queue.wait()
        values = host.copy()
        self.settle()
        return values

    def settle(self) -> None:
        """Free the host's memory, when nothing on the array's stream uses it any more."""
        self.stream.wait()
        while self._pinned:
            _check(driver().cuMemFreeHost(self._pinned.pop()))

    def close(self) -> None:
        """Free the memory."""
        self.settle()
        _check(driver().cuMemFree_v2(self.address))


class Viewed(Array):
    """An array that a View shows, on a stream of the tests."""

    def __init__(self, made: Any, stream: Stream) -> None:
        self.dtype, self.stream, self._pinned = made.dtype, stream, []
        self.count, self.nbytes = made.size, made.size * made.dtype.itemsize
        self.address, self.made = made.data.ptr, made

    def close(self) -> None:
        """Let the memory go."""
        self.settle()
        self.made = None
