"""DLPack exports, read with ctypes: NumPy reads no bfloat16 from them, and no device memory."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

__all__ = ["CUDA", "HOST", "MANAGED", "Export", "export", "read"]

# Device types.
CUDA = 2
MANAGED = 13  # of CUDA: host and device share it
HOST = (1, 3, 11)  # CPU; pinned for CUDA and for ROCm

BFLOAT16 = (4, 16, 1)  # kDLBfloat, bits, lanes

_READ_ONLY, _COPIED = 1, 2  # DLPACK_FLAG_BITMASK_READ_ONLY, DLPACK_FLAG_BITMASK_IS_COPIED


class Tensor(ctypes.Structure):
    """`DLTensor`."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),  # in elements; NULL: C order
        ("byte_offset", ctypes.c_uint64),
    )


class Managed(ctypes.Structure):
    """The structure of a capsule named "dltensor"."""

    _fields_ = (
        ("tensor", Tensor),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    )


class ManagedVersioned(ctypes.Structure):
    """The structure of a capsule named "dltensor_versioned": DLPack 1."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", Tensor),
    )


@dataclass(frozen=True)
class Export:
    """What a capsule says of the memory that it keeps."""

    address: int
    device_type: int
    device: int
    element: tuple[int, int, int]  # code, bits, lanes
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None  # in elements; None: C order
    readonly: bool
    copied: bool  # the exporter never sees what is written here, nor this what it writes


def export(buffer: Any, **options: Any) -> Any:
    """Return a capsule, of DLPack 1 if the exporter knows that; it may raise anything."""
    try:
        return buffer.__dlpack__(max_version=(1, 0), **options)
    except TypeError:  # an exporter of the first DLPack versions
        return buffer.__dlpack__(**options)


# Functions of our own: others give types of theirs to those that `ctypes.pythonapi` keeps.
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_IsValid", ctypes.pythonapi)
)
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def read(capsule: object) -> Export | None:
    """Return what a capsule says; None if it is none, or one of an unknown version.

    The capsule keeps its name, so its own destructor gives the memory back to the exporter.
    """
    if _is_valid(capsule, b"dltensor_versioned"):
        versioned = ManagedVersioned.from_address(_pointer(capsule, b"dltensor_versioned"))
        return _contents(versioned.tensor, versioned.flags) if versioned.major == 1 else None
    if _is_valid(capsule, b"dltensor"):
        managed = Managed.from_address(_pointer(capsule, b"dltensor"))
        return _contents(managed.tensor, 0)  # by custom writable
    return None


def _contents(tensor: Any, flags: int) -> Export:
    return Export(
        address=(tensor.data or 0) + tensor.byte_offset,
        device_type=tensor.device_type,
        device=tensor.device_id,
        element=(tensor.code, tensor.bits, tensor.lanes),
        shape=tuple(tensor.shape[: tensor.ndim]),
        strides=tuple(tensor.strides[: tensor.ndim]) if tensor.strides else None,
        readonly=bool(flags & _READ_ONLY),
        copied=bool(flags & _COPIED),
    )
