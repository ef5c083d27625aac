"""As much of CuPy as the benchmarks and the tests use, over the stand-in for the CUDA driver.

Where this folder is on PYTHONPATH, and PYPARTIAL_CUDA_DRIVER names the stand-in, it is CuPy: so all
that is written for CuPy is tried without a GPU. `support.device` has the arrays themselves.
"""

from __future__ import annotations

import ctypes
import math
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
from support import device as stand_in

__version__ = "14.0.0+standin"

_current = threading.local()


class Stream(stand_in.Stream):
    """Streams, which end with their objects; `null` is the legacy default one."""

    def __init__(self, null: bool = False, non_blocking: bool = False) -> None:
        self._owns = not null
        if null:
            self.ptr = 0
        else:
            super().__init__()

    @classmethod
    def from_external(cls, other: Any) -> Stream:
        """Return a stream that somebody else has made, and keeps."""
        made = cls(null=True)
        _, made.ptr = other.__cuda_stream__()
        made._owns = False
        return made

    def __del__(self) -> None:
        if self._owns:
            self.close()

    def use(self) -> Stream:
        _current.stream = self
        return self

    def __enter__(self) -> Stream:
        self._before = get_current_stream()
        return self.use()

    def __exit__(self, *_: object) -> None:
        self._before.use()

    def synchronize(self) -> None:
        self.wait()

    def wait_event(self, event: object) -> None:
        raise NotImplementedError


def get_current_stream(_device: int = 0) -> Stream:
    return getattr(_current, "stream", None) or Stream(null=True)


class Device:
    """A device; `use` makes it this thread's current one for good."""

    def __init__(self, number: int) -> None:
        self.id = number

    def use(self) -> Device:
        context = stand_in.Pointer()
        driver = stand_in.driver()
        assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), self.id) == 0
        assert driver.cuCtxSetCurrent(context) == 0
        _current.device = self.id
        return self

    def __enter__(self) -> Device:
        self._before, self._scope = getattr(_current, "device", 0), stand_in.device(self.id)
        self._scope.__enter__()
        _current.device = self.id
        return self

    def __exit__(self, *_: object) -> None:
        self._scope.__exit__(None, None, None)
        _current.device = self._before


class _Pointer:
    def __init__(self, address: int) -> None:
        self.ptr = address

    def copy_from_host_async(self, host: ctypes.c_void_p, size: int, stream: Stream) -> None:
        _copy(self.ptr, host, size, stream)

    def copy_to_host_async(self, host: ctypes.c_void_p, size: int, stream: Stream) -> None:
        _copy(host, self.ptr, size, stream)

    def copy_from_device_async(self, source: _Pointer, size: int, stream: Stream) -> None:
        _copy(self.ptr, source.ptr, size, stream)


def _copy(target: Any, source: Any, size: int, stream: Stream) -> None:
    assert stand_in.driver().cuMemcpyAsync(target, source, size, stream.ptr) == 0


class UnownedMemory:
    """Memory that another object has; where no device is named, it is on the one that has it."""

    def __init__(self, address: int, size: int, owner: object, device_id: int = -1) -> None:
        self.ptr, self.size, self.owner = address, size, owner
        self.device_id = stand_in.device_of(address) if device_id < 0 else device_id


class MemoryPointer(_Pointer):
    def __init__(self, memory: UnownedMemory, offset: int) -> None:
        super().__init__(memory.ptr + offset)
        self.mem = memory


class ndarray:
    """Arrays; their memory is freed with them, unless `memptr` says where it is."""

    def __init__(
        self, shape: int | tuple[int, ...], dtype: Any, memptr: MemoryPointer | None = None
    ) -> None:
        self.shape = (shape,) if isinstance(shape, int) else shape
        self.dtype, self.size = np.dtype(dtype), math.prod(self.shape)
        self.nbytes = self.size * self.dtype.itemsize
        self._owns = memptr is None
        self.data: _Pointer = memptr or self._allocate()
        self.device = Device(memptr.mem.device_id if memptr else getattr(_current, "device", 0))

    def _allocate(self) -> _Pointer:
        made = stand_in.Pointer()
        assert stand_in.driver().cuMemAlloc_v2(ctypes.byref(made), max(self.nbytes, 1)) == 0
        return _Pointer(int(made.value or 0))

    def __del__(self) -> None:
        if self._owns:
            stand_in.driver().cuMemFree_v2(self.data.ptr)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "version": 3,
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.data.ptr, False),
            "strides": None,
            "stream": get_current_stream().ptr or 1,
        }


def concatenate(parts: list[ndarray]) -> ndarray:
    """Queue the copies on the current stream."""
    made, at = ndarray(sum(part.size for part in parts), parts[0].dtype), 0
    for part in parts:
        _copy(made.data.ptr + at, part.data.ptr, part.nbytes, get_current_stream())
        at += part.nbytes
    return made


def empty(count: int, dtype: Any) -> ndarray:
    return ndarray(count, dtype)


class _Pinned:
    """Pinned memory that numpy.frombuffer reads; it is freed with its last view."""

    def __new__(cls, nbytes: int) -> Any:
        made = stand_in.Pointer()
        assert stand_in.driver().cuMemHostAlloc(ctypes.byref(made), max(nbytes, 1), 1) == 0
        memory = _Bytes(nbytes).from_address(int(made.value or 0))
        memory.owner = _Owner(made)  # type: ignore[attr-defined]
        return memory


class _Owner:
    def __init__(self, memory: Any) -> None:
        self.memory = memory

    def __del__(self) -> None:
        stand_in.driver().cuMemFreeHost(self.memory)


def _Bytes(count: int) -> Any:
    return ctypes.c_char * max(count, 1)


cuda = SimpleNamespace(
    Device=Device,
    Stream=Stream,
    UnownedMemory=UnownedMemory,
    MemoryPointer=MemoryPointer,
    alloc_pinned_memory=_Pinned,
    get_current_stream=get_current_stream,
    runtime=SimpleNamespace(runtimeGetVersion=lambda: 12080),
)
