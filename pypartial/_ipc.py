"""What the core needs for vectors in the memory of devices that the ranks of a node share."""

from __future__ import annotations

import os
from pathlib import Path

from ._native import Native
from .errors import Error

__all__ = ["KERNELS", "give_kernels"]

KERNELS = "PYPARTIAL_CUDA_KERNELS"


def give_kernels(native: Native, device: int) -> str | None:
    """Give the core the kernels for a device; return why that is not possible, or None.

    They are compiled, or come from the file that `KERNELS` names: a cubin or PTX.
    """
    try:
        image = _read_kernels(os.environ.get(KERNELS, ""))
        native.check(native.lib.pp_device_kernels(device, image, len(image)))
    except Error as error:
        return str(error)
    return None


def _read_kernels(file: str) -> bytes:
    try:
        return Path(file).read_bytes() + b"\0"  # PTX is a text
    except OSError as error:
        raise Error(f"{KERNELS}={file!r} cannot be read: {error.strerror}") from None
