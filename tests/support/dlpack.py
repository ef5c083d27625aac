"""Objects that export memory by DLPack, made here: what no library at hand exports."""

from __future__ import annotations

import ctypes
import sys
from typing import Any

import numpy as np
import numpy.typing as npt

from pypartial import _dlpack

BFLOAT16 = (4, 16, 1)  # code, bits, lanes

new_capsule = ctypes.PYFUNCTYPE(
    ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p
)(("PyCapsule_New", ctypes.pythonapi))


def address(buffer: Any) -> int:
    return int(np.asarray(buffer).__array_interface__["data"][0])


class Capsule:
    """A DLPack exporter whose capsules are made here, of any element type and any device.

    NumPy exports no bfloat16: this stands in for torch's tensors. `place` is what the exporter
    says without a capsule, `device` what is in its capsules; the memory is always the host's.
    """

    def __init__(
        self,
        bits: npt.NDArray[Any],
        *,
        versioned: bool = True,
        readonly: bool = False,
        dtype: tuple[int, int, int] = BFLOAT16,
        major: int = 1,
        device: tuple[int, int] = (1, 0),
        place: tuple[int, int] = (1, 0),
    ) -> None:
        self.bits, self.versioned, self.readonly, self.major = bits, versioned, readonly, major
        self.dtype, self.device, self.place = dtype, device, place
        self.copied = False
        self.kept: list[tuple[Any, bytes, Any]] = []
        self.streams: list[Any] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.place

    def __dlpack__(self, *, max_version: Any = None, **options: Any) -> Any:
        if max_version is not None and not self.versioned:
            raise TypeError("max_version")
        self.streams.append(options.get("stream"))
        bits = self.bits
        managed: Any = _dlpack.ManagedVersioned() if max_version else _dlpack.Managed()
        numbers: Any = ctypes.c_int64 * bits.ndim
        tensor = managed.tensor
        tensor.data, tensor.byte_offset = (address(bits) - 4, 4) if bits.size else (None, 0)
        (tensor.device_type, tensor.device_id), tensor.ndim = self.device, bits.ndim
        tensor.code, tensor.bits, tensor.lanes = self.dtype
        if bits.ndim:
            tensor.shape = numbers(*bits.shape)
        if bits.ndim and (not bits.flags.c_contiguous or self.versioned):
            tensor.strides = numbers(*(stride // bits.itemsize for stride in bits.strides))
        if max_version:
            managed.major, managed.flags = self.major, int(self.readonly) | self.copied << 1
        title = b"dltensor_versioned" if max_version else b"dltensor"

        capsule = new_capsule(ctypes.addressof(managed), title, None)
        self.kept.append((managed, title, capsule))
        return capsule

    def in_use(self) -> int:
        """How many of its capsules somebody holds: their destructors would free the memory."""
        return sum(sys.getrefcount(capsule) > 3 for _, _, capsule in self.kept)
