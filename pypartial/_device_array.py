"""Arrays of CuPy that show memory which the library has, and streams of others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ._arguments import array_bytes
from ._device_kernels import wheels_for
from .errors import Error

if TYPE_CHECKING:
    from ._native import Native

__all__ = ["array_at", "load_cupy", "stream_at"]


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
