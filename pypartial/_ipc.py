"""What the core needs for vectors in the memory of devices that the ranks of a node share."""

from __future__ import annotations

import os
from pathlib import Path

from . import _device_kernels
from ._native import Native
from .errors import Error

__all__ = ["KERNELS", "give_kernels", "why_no_kernels"]

KERNELS = "PYPARTIAL_CUDA_KERNELS"


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
    return None if os.environ.get(KERNELS) else _device_kernels.why_none(native, device)


def _read_kernels(file: str) -> bytes:
    try:
        return Path(file).read_bytes() + b"\0"  # PTX is a text
    except OSError as error:
        raise Error(f"{KERNELS}={file!r} cannot be read: {error.strerror}") from None
