"""Arrays of CuPy that show memory which the library has, and streams of others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ._arguments import array_bytes
from ._device_kernels import wheels_for
from .errors import ArgumentError, Error

if TYPE_CHECKING:
    from ._native import Native

__all__ = ["alloc", "array_at", "load_cupy", "stream_at"]

_TYPES = "?bhilqpBHILQPefdFD"  # those that CuPy and devices have, as NumPy's characters


def array_at(
    cupy: Any,
    device: int,
    address: int,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    owner: object,
) -> Any:
    """Return an array of CuPy on a device, in memory that it can access.

    Nothing that is queued uses the memory. The array keeps `owner` alive.
    """
    # Not by __cuda_array_interface__: the array would be on the device that has the memory, which
    # may be another rank's.
    size_bytes = array_bytes(shape, dtype)
    memory = cupy.cuda.UnownedMemory(address, size_bytes, owner, device)
    with cupy.cuda.Device(device):
        return cupy.ndarray(shape, dtype, memptr=cupy.cuda.MemoryPointer(memory, 0))


class _Numbered:
    """A stream for CuPy, by the protocol that libraries have for it."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._number


def stream_at(cupy: Any, device: int, number: int) -> Any:
    """Return a stream of CuPy for one that somebody else has made on a device, and keeps."""
    if hasattr(cupy.cuda.Stream, "from_external"):
        return cupy.cuda.Stream.from_external(_Numbered(number))
    return cupy.cuda.ExternalStream(number, device)  # deprecated by CuPy 14


def alloc(native: Native, shape: tuple[int, ...], dtype: np.dtype[Any], device: int) -> Any:
    """Return a new, zeroed array of CuPy, whose memory the ranks of a node may share.

    Raises
    ------
    ArgumentError
        If there is no such array or no such device.
    MemoryError
        If the device has not enough memory.
    Error
        If there is no driver, no device, or no CuPy.
    """
    size_bytes = array_bytes(shape, dtype)
    if dtype not in map(np.dtype, _TYPES):  # in this machine's byte order
        raise ArgumentError(f"dtype {dtype} is not a type of CuPy: use one such as float32")
    ffi, lib = native.ffi, native.lib
    memory, keeper = ffi.new("void **"), ffi.new("void **")
    native.check(lib.pp_device_alloc(device, size_bytes, memory, keeper))
    # The array refers to `owner`: both end together.
    owner = ffi.gc(keeper[0], lib.pp_device_unalloc)
    cupy = load_cupy(native, device, "alloc with a device")
    address = int(ffi.cast("uintptr_t", memory[0]))
    array = array_at(cupy, device, address, shape, dtype, owner)
    if size_bytes:
        with cupy.cuda.Device(device):
            array.data.memset_async(0, size_bytes)
    return array


def load_cupy(native: Native, device: int, what: str) -> Any:
    """Return the module `cupy`, which can use the device.

    Raises
    ------
    Error
        If it cannot, or there is none. The text says that `what` gives arrays of it.
    """
    try:
        cupy: Any = __import__("cupy")
        with cupy.cuda.Device(device):  # CuPy asks its runtime for the first time
            return cupy
    except ModuleNotFoundError as error:
        major = _driver(native)
        if error.name == "cupy":
            raise Error(
                f"{what} gives an array of CuPy, which is not installed: "
                f"`pip install 'pypartial-mpi[cuda{major}]'`"
            ) from None
        raise Error(
            f"{what} gives an array of CuPy, which cannot be used: {_mend(major)}. Python says: "
            f"{error}"
        ) from error
    except Exception as error:  # two builds of it, or one for a newer CUDA than the driver
        raise Error(
            f"{what} gives an array of CuPy, which cannot be used: {_mend(_driver(native))}. It "
            f"says: {str(error).strip()}"
        ) from error


def _driver(native: Native) -> int:
    """Return the major version of CUDA for which to install wheels."""
    version, count = native.ffi.new("int32_t *"), native.ffi.new("int32_t *")
    native.check(native.lib.pp_devices(version, count))
    return wheels_for(version[0] // 1000)


def _mend(major: int) -> str:
    command = f"`pip install --force-reinstall cupy-cuda{major}x`"
    return f"{command}, without another build of CuPy beside it"
