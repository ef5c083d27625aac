"""Checks of arguments: each returns the plain value that was given, or raises `ArgumentError`."""

from __future__ import annotations

import math
import operator
import os
from typing import TYPE_CHECKING, Any

import numpy as np

from .errors import ArgumentError, Error

if TYPE_CHECKING:
    from ._native import Native

INT32_MAX = (1 << 31) - 1
INT64_MAX = (1 << 63) - 1


def real_number(value: Any) -> float:
    """Return `value` as a float; NaN if it is not a real number, as text and bool are not."""
    if isinstance(value, (str, bytes, bytearray, bool)):
        return math.nan
    try:
        return float(value)
    except Exception:  # a conversion may raise anything
        return math.nan


def whole_number(name: str, value: Any) -> int:
    """Return `value` as an int; raise unless it is an integer (NumPy's are, bool is not)."""
    if not isinstance(value, bool):
        try:
            return operator.index(value)
        except TypeError:
            pass
        except Exception as error:  # a conversion may raise anything
            raise ArgumentError(
                f"{name} must be an integer, but converting this {type(value).__name__} raised "
                f"{type(error).__name__}: {error}"
            ) from error
    raise ArgumentError(f"{name} must be an integer, not {value!r}")


def in_range(name: str, value: Any, low: int, high: int) -> int:
    """Return `value` as an int; raise unless it is an integer in ``low..high``."""
    number = whole_number(name, value)
    if not low <= number <= high:
        raise ArgumentError(f"{name} must be in {low}..{high}, not {number}")
    return number


def listed(name: str, values: Any) -> list[Any]:
    """Return values as a list; text is not one."""
    try:
        if not isinstance(values, (str, bytes, bytearray)):
            return list(values)
    except TypeError:
        pass
    raise ArgumentError(f"{name} must be a list, not {values!r}")


def seconds(timeout: Any) -> float:
    """Return a timeout as a float; raise unless it is 0 or more."""
    number = real_number(timeout)
    if not number >= 0:
        raise ArgumentError(f"timeout must be 0 or more seconds, not {timeout!r}")
    return number


def positive_seconds(name: str, value: Any, otherwise: str) -> float:
    """Return a time above 0 as a float; an error names `otherwise` as the alternative."""
    number = real_number(value)
    if not number > 0:
        raise ArgumentError(
            f"{name} must be a number of seconds above 0, or {otherwise}, not {value!r}"
        )
    return number


def as_argument_error(error: Exception) -> Error:
    """Return what an argument raised as an error of this library."""
    if isinstance(error, Error):
        return error
    try:
        text = str(error)
    except Exception:  # the text of an argument's own exception may fail, too
        text = "(its text cannot be shown)"
    wrapped = ArgumentError(f"{type(error).__name__}: {text}")
    wrapped.__cause__ = error
    return wrapped


def c_text(native: Native, complaint: Error | None) -> Any:
    """Return the text of a complaint as a C string; NULL without a complaint.

    The text quotes the wrong value, which may contain anything. This function never fails: that
    would leave the other ranks alone in the collective call.
    """
    if complaint is None:
        return native.ffi.NULL
    text = str(complaint).replace("\0", "\\0")
    return native.ffi.new("char[]", text.encode(errors="backslashreplace"))


def as_shape(shape: Any) -> tuple[int, ...]:
    """Return a shape as a tuple of lengths; raise unless it is an integer or integers."""
    given: tuple[Any, ...] = (shape,)
    try:
        operator.index(shape)
    except TypeError:
        try:
            given = tuple(shape)
        except TypeError:
            raise ArgumentError(
                f"shape must be an integer or a tuple of integers, not {shape!r}"
            ) from None
    except Exception:  # whole_number() reports it
        pass
    lengths = tuple(whole_number("a length in shape", length) for length in given)
    if any(length < 0 for length in lengths):
        raise ArgumentError(f"shape must not have a negative length: {shape!r}")
    return lengths


def array_bytes(shape: tuple[int, ...], element: np.dtype[Any]) -> int:
    """Return the size of an array in bytes; raise if NumPy cannot make it."""
    if element.hasobject or not element.itemsize:
        raise ArgumentError(f"dtype {element} is not a type of numbers: use one such as float32")
    size_bytes = math.prod(shape) * element.itemsize
    if size_bytes > np.iinfo(np.intp).max:
        raise MemoryError(f"no memory for an array of {size_bytes} bytes")
    try:
        np.broadcast_to(np.zeros((), element), shape)
    except ValueError as error:
        raise ArgumentError(f"NumPy cannot make an array of shape {shape}: {error}") from None
    return size_bytes


# ---- of a context --------------------------------------------------------------------------------


def check_communicator(mpi: Any, comm: Any) -> None:
    """Raise if no communication is possible, so that the ranks cannot agree on an error."""
    if not isinstance(comm, mpi.Comm):
        raise ArgumentError(
            f"comm must be an mpi4py communicator such as MPI.COMM_WORLD, not {comm!r}"
        )
    if not mpi.Is_initialized():
        raise Error("MPI is not initialised: call MPI.Init_thread() first (mpi4py.rc.initialize)")
    if mpi.Is_finalized():
        raise Error("MPI is finalised already")
    if comm == mpi.COMM_NULL:
        raise ArgumentError("comm is MPI.COMM_NULL: this rank has no communicator to use")
    if comm.Is_inter():
        raise ArgumentError("comm is an intercommunicator; pass an intracommunicator")


def backlog_bytes(value: Any) -> int:
    """Return a backlog in bytes, as the core takes it: 0 is automatic."""
    if isinstance(value, str) and value == "auto":
        return 0
    return in_range("backlog", value, 1, INT64_MAX)


def patience_ns(value: Any, progress: str) -> int:
    """Return a patience in nanoseconds, as the core takes it."""
    if value is None:
        return INT64_MAX
    if isinstance(value, str) and value == "auto":
        return -1
    patience = positive_seconds("patience", value, "'auto', or None")
    if progress == "caller":
        raise ArgumentError(
            f"patience={value!r} is not possible with progress='caller': the library has no thread "
            "there that could say that this rank has left; pass None or 'auto'"
        )
    return min(max(1, round(min(patience, 1e9) * 1e9)), INT64_MAX - 1)


def node_ranks() -> int:
    """Return how many ranks of a node count as a node of their own; 0: all of them."""
    given = os.environ.get("PYPARTIAL_NODE_RANKS", "")
    if not given:
        return 0
    if not given.isdecimal() or not 1 <= int(given) <= INT32_MAX:
        raise ArgumentError(
            f"the environment variable PYPARTIAL_NODE_RANKS={given!r} is not a positive integer: "
            "set it to a number of ranks, or unset it"
        )
    return int(given)
