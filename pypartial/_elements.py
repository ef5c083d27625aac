"""Element types, and what is checked of every buffer, of the host and of a device."""

from __future__ import annotations

from typing import Any

import numpy as np

from .errors import ArgumentError

__all__ = [
    "DType",
    "bfloat16",
    "check_aligned",
    "check_native",
    "check_writable",
    "describe",
    "is_long_double",
    "kind_of",
    "type_name",
]

DType = np.dtype[Any]

_NAMES = {"i": "int", "u": "uint", "f": "float", "c": "complex"}  # of kinds of numbers


def type_name(dtype: DType, name: str = "the buffer") -> str:
    """Return the library's name of a dtype, such as ``"float32"``; NumPy's may differ.

    Raises
    ------
    ArgumentError
        If the library does not reduce elements of this type.
    """
    if dtype.name == "bfloat16":  # of ml_dtypes, which need not be installed
        return "bfloat16"
    # By class: types that others register in NumPy may have a kind or a character of NumPy's own.
    if dtype.type is np.bool_:
        return "bool"
    if issubclass(dtype.type, np.number) and dtype.kind in _NAMES:
        if is_long_double(dtype):
            return "longdouble" if dtype.kind == "f" else "clongdouble"
        return f"{_NAMES[dtype.kind]}{8 * dtype.itemsize}"
    raise ArgumentError(
        f"{name} has dtype {dtype}, which cannot be reduced: use integers, floats (bfloat16 too), "
        "complex numbers or bool"
    )


def is_long_double(dtype: DType) -> bool:
    """Whether elements are long doubles, or complex numbers of two."""
    return issubclass(dtype.type, (np.longdouble, np.clongdouble))


def bfloat16(name: str, buffer: Any) -> DType:
    """Return NumPy's dtype of bfloat16 for a buffer that has such elements."""
    try:
        import ml_dtypes
    except ImportError as error:
        raise ArgumentError(
            f"{name} is {kind_of(buffer)} of bfloat16 elements, which need ml_dtypes: "
            "pip install ml_dtypes"
        ) from error
    dtype: DType = np.dtype(ml_dtypes.bfloat16)
    return dtype


def check_writable(name: str, readonly: bool) -> None:
    """Raise unless a result can be written to a buffer."""
    if readonly:
        raise ArgumentError(
            f"{name} is read-only, so the result cannot be written to it: pass a writable array"
        )


def check_native(name: str, dtype: DType) -> None:
    """Raise unless elements are in the byte order of this machine."""
    if not dtype.isnative:
        raise ArgumentError(
            f"{name} has dtype {dtype.str!r}, which is not in native byte order: pass a copy "
            "made by array.astype(array.dtype.newbyteorder('='))"
        )


def check_aligned(name: str, address: int, dtype: DType) -> None:
    """Raise unless elements can begin at an address."""
    if address % dtype.alignment:
        raise ArgumentError(
            f"{name} is not aligned: its address {address:#x} is not a multiple of "
            f"{dtype.alignment} bytes; pass a copy"
        )


def kind_of(value: Any) -> str:
    """Return an article and the type of a value; unlike its text, that needs no copy of it."""
    return f"a {_type_text(value)}"


def describe(value: Any) -> str:
    """Return a short description of a value of the wrong kind."""
    text = repr(value)
    short = len(text) <= 40 and "\n" not in text
    return f"{text} ({_type_text(value)})" if short else kind_of(value)


def _type_text(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
