"""What the core needs for vectors in the memory of devices."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from . import _device_kernels, _direct
from ._names import DEVICE_PATH
from ._native import Native
from .errors import ArgumentError, Error

if TYPE_CHECKING:
    from ._core import CData

__all__ = [
    "IPC_FROM",
    "KERNELS",
    "NOT_SET",
    "check_path",
    "choose_path",
    "give_kernels",
    "ipc_from",
    "prepare",
    "why_no_kernels",
]

KERNELS = "PYPARTIAL_CUDA_KERNELS"
IPC_FROM = "PYPARTIAL_IPC_FROM"
NOT_SET = (1 << 64) - 1  # bytes, which no vector has
_DIGITS_MAX = 1000  # Python reads no more than some thousands
# device_path="auto" of an allreduce is "ipc" for vectors of so many bytes or more: there it was
# faster on 2, 4 and 8 ranks of one H100 (docs/cuda.md).
_IPC_FROM_BYTES = 16 << 20

_ON_DEVICES = ("ipc", "direct")  # where kernels reduce the elements


def choose_path(path: str, size_bytes: int, from_bytes: int, *, measured: bool) -> str:
    """Return what `device_path` is for a vector on a device; the ranks then compare it.

    `from_bytes` is what `ipc_from` returned on rank 0. `measured`: a GPU has shown from which size
    on "ipc" is faster for such handles. For others "auto" is "ipc" only as the environment variable
    says.
    """
    if path != "auto":
        return path
    if from_bytes == NOT_SET and measured:
        from_bytes = _IPC_FROM_BYTES
    return "ipc" if from_bytes <= size_bytes else "auto"


def ipc_from() -> int:
    """Return from how many bytes on device_path="auto" is "ipc", by the environment, or `NOT_SET`.

    Raises
    ------
    ArgumentError
        If the environment variable `IPC_FROM` is set, and is no number of bytes.
    """
    given = os.environ.get(IPC_FROM, "")
    if not given:
        return NOT_SET
    if not given.isdecimal() or len(given) > _DIGITS_MAX or int(given) >= NOT_SET:
        raise ArgumentError(
            f"the environment variable {IPC_FROM}={given!r} is not a number of bytes: set it to "
            "one, or unset it"
        )
    return int(given)


def check_path(path: str, on_device: bool) -> None:
    """Raise if this is no `device_path`, or not one for such buffers."""
    DEVICE_PATH.check(path)
    if path in _ON_DEVICES and not on_device:
        raise ArgumentError(
            f"device_path={path!r} is for buffers in the memory of a CUDA device, and these are in "
            "the host's: leave it out"
        )


def prepare(native: Native, ctx: CData, path: str, device: int | None) -> CData:
    """Give the core the kernels that the path needs; return why that is not possible, or NULL.

    For ``"direct"`` it is also found out whether MPI can take addresses of the device. `device` is
    None for buffers of the host.
    """
    why = None
    if path in _ON_DEVICES and device is not None:
        why = give_kernels(native, device)
    if why is None and path == "direct" and device is not None:
        first = native.ffi.new("int32_t *")
        native.check(native.lib.pp_first_of_node(ctx, first))
        why = _direct.why_not(native, device, bool(first[0]))
    return native.ffi.NULL if why is None else native.ffi.new("char[]", why.encode())


def give_kernels(native: Native, device: int) -> str | None:
    """Give the core the kernels for a device; return why that is not possible, or None.

    They are compiled, unless `KERNELS` names a file that has them: a cubin or PTX.
    """
    try:
        if file := os.environ.get(KERNELS):
            image = _read_kernels(file)
            data = native.ffi.from_buffer("char[]", image)
            native.check(native.lib.pp_device_kernels(device, data, len(image)))
        else:
            _device_kernels.give_kernels(native, device)
    except Error as error:
        return str(error)
    return None


def why_no_kernels(native: Native, device: int) -> str | None:
    """Return why `give_kernels` would fail, as far as that shows without compiling; or None."""
    file = os.environ.get(KERNELS)
    if not file:
        return _device_kernels.why_none(native, device)
    try:
        _read_kernels(file)
    except Error as error:
        return str(error)
    return None


def _read_kernels(file: str) -> bytes:
    try:
        return Path(file).read_bytes() + b"\0"  # PTX is a text
    except OSError as error:
        raise Error(f"{KERNELS}={file!r} cannot be read: {error.strerror}") from None
