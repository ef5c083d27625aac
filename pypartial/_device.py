"""Buffers in the memory of a CUDA device: how an array of another library is understood.

This module loads no CuPy, no torch and no CUDA driver: it asks the object. Objects of CuPy and of
torch are recognised through `sys.modules`: where their library is not loaded, the caller cannot
have made one. Written for CuPy 13 and 14 and for torch 2.7 to 2.13; for versions 2 and 3 of
`__cuda_array_interface__`, and for DLPack 0.6 to 1.

What only the driver knows is left to it: the device of an object that does not say it, managed
memory behind `__cuda_array_interface__`, and whether a stream exists.
"""

from __future__ import annotations

import math
import operator
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from . import _dlpack
from ._arguments import INT32_MAX
from ._elements import (
    DType,
    bfloat16,
    check_aligned,
    check_native,
    check_writable,
    is_long_double,
    kind_of,
    type_name,
)
from .errors import ArgumentError

__all__ = [
    "LEGACY_STREAM",
    "PER_THREAD_STREAM",
    "DeviceMemory",
    "as_stream",
    "check_one_device",
    "check_resolved",
    "check_shared",
    "current_stream",
    "device_place",
    "dlpack_type",
    "failed_export",
    "is_row_major",
    "library_stream",
    "stream_finder",
    "streams_finder",
    "understand_device",
]

# Streams without an address of their own, by the numbers of CUDA, which are those of
# `__cuda_array_interface__` and of DLPack.
LEGACY_STREAM = 1
PER_THREAD_STREAM = 2

_VERSIONS = (2, 3)
_ADDRESS_MAX = (1 << 64) - 1
_BYTES_MAX = 1 << 56  # of a buffer: sums of some in the core fit into 64 bits
_TYPE_STRING = re.compile(r"[<>|=]([a-zA-Z])([0-9]+)")
_KINDS = {0: "i", 1: "u", 2: "f", 5: "c", 6: "b"}  # of DLPack's type codes


@dataclass(frozen=True)
class DeviceMemory:
    """A contiguous buffer in the memory of a CUDA device.

    `owner` is what the caller passed. It keeps the memory alive, together with `capsule` if the
    memory was found by DLPack.
    """

    name: str  # "sendbuf", "recvbuf[2]": for errors
    address: int  # may be 0 without elements
    dtype: DType
    count: int
    device: int | None  # None: only the driver knows
    readonly: bool
    stream: int  # what is queued here from now on sees the data, see `current_stream`
    owner: Any = field(repr=False, compare=False)
    capsule: Any = field(default=None, repr=False, compare=False)


class _Found(NamedTuple):
    """What an object says of its memory, before it is checked."""

    address: int
    dtype: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None  # in bytes; None: row-major
    device: int | None
    readonly: bool = False
    capsule: Any = None


# ---- which memory -------------------------------------------------------------------------------


def device_place(name: str, buffer: Any) -> str | None:
    """Return by what `buffer` says that it is in device memory; None if it is the host's.

    Managed memory counts as a device's: the host must not read it while a device may write it.

    Raises
    ------
    ArgumentError
        If the object fails when it is asked.
    """
    if not _is_tensor(buffer) and _interface(name, buffer) is not None:
        return "__cuda_array_interface__"
    place = _dlpack_device(name, buffer)
    if place is None or place[0] in _dlpack.HOST:
        return None
    return f"DLPack device type {place[0]}, number {place[1]}"


def understand_device(name: str, buffer: Any, *, writable: bool) -> DeviceMemory:
    """Describe a buffer in device memory; `writable` if a result is to be written to it.

    Raises
    ------
    ArgumentError
        If the buffer is not in the memory of a CUDA device, or cannot be used; the text names it.
    """
    place = _dlpack_device(name, buffer)
    if place is not None:
        _check_cuda(name, buffer, *place)
    number = None if place is None else place[1]
    if _is_tensor(buffer):
        found = _from_tensor(name, buffer, number)
    elif (interface := _interface(name, buffer)) is not None:
        found = _from_interface(name, buffer, interface, number)
    elif place is not None:
        found = _from_dlpack(name, buffer)
    else:
        raise ArgumentError(
            f"{name} is {kind_of(buffer)}, which is not in device memory: expected a CuPy array, "
            "a CUDA tensor of torch, or an object with __cuda_array_interface__ or DLPack"
        )
    _check(name, found, writable=writable)
    return DeviceMemory(
        name=name,
        address=found.address,
        dtype=found.dtype,
        count=math.prod(found.shape),
        device=found.device,
        readonly=found.readonly,
        stream=LEGACY_STREAM if found.capsule is not None else current_stream(buffer, name),
        owner=buffer,
        capsule=found.capsule,
    )


def check_one_device(places: Sequence[tuple[str, DeviceMemory | None]]) -> None:
    """Check that the buffers of one handle are on one device, or all in host memory.

    `places` has the name of each buffer, with None for one in host memory. A device that only the
    driver knows is not compared.
    """
    on_device = [memory for _, memory in places if memory is not None]
    on_host = [name for name, memory in places if memory is None]
    if on_device and on_host:
        raise ArgumentError(
            f"{on_device[0].name} is in device memory and {on_host[0]} in host memory: pass "
            "buffers of one device, or all in host memory"
        )
    known = [memory for memory in on_device if memory.device is not None]
    for other in known[1:]:
        if other.device != known[0].device:
            raise ArgumentError(
                f"{known[0].name} is on device {known[0].device} and {other.name} on device "
                f"{other.device}: the buffers of one handle must be on one device; make one handle "
                "for each device"
            )


def _is_tensor(buffer: Any) -> bool:
    """Whether this is a tensor of torch, in host memory or on any device."""
    return isinstance(buffer, getattr(sys.modules.get("torch"), "Tensor", ()))


def _is_cupy(buffer: Any) -> bool:
    """Whether this is an array of CuPy."""
    return isinstance(buffer, getattr(sys.modules.get("cupy"), "ndarray", ()))


def _interface(name: str, buffer: Any) -> Any:
    """Return an object's `__cuda_array_interface__`; None if it has none."""
    try:
        return buffer.__cuda_array_interface__
    except AttributeError:
        return None
    except Exception as error:  # a property may raise anything
        raise ArgumentError(
            f"{name} is {kind_of(buffer)}, whose __cuda_array_interface__ failed: {error}"
        ) from error


def _dlpack_device(name: str, buffer: Any) -> tuple[int, int] | None:
    """Return DLPack's device type and number of an object; None if it does not know DLPack."""
    try:
        ask = getattr(buffer, "__dlpack_device__", None)
        if ask is None:
            return None
        kind, number = ask()
        return int(kind), int(number)
    except Exception as error:  # an exporter may raise anything
        raise ArgumentError(
            f"{name} is {kind_of(buffer)}, whose __dlpack_device__ failed: {error}"
        ) from error


def _check_cuda(name: str, buffer: Any, kind: int, number: int) -> None:
    """Raise unless DLPack's device type is that of a CUDA device's own memory."""
    if kind == _dlpack.MANAGED:
        raise ArgumentError(
            f"{name} is {kind_of(buffer)} in managed memory (DLPack device type {kind}): pass an "
            "array in the memory of one device"
        )
    if kind != _dlpack.CUDA:
        raise ArgumentError(
            f"{name} is {kind_of(buffer)} of DLPack device type {kind}, number {number}, which is "
            f"not in device memory of CUDA (type {_dlpack.CUDA})"
        )


# ---- what an object says ------------------------------------------------------------------------


def _from_tensor(name: str, tensor: Any, device: int | None) -> _Found:
    """Ask a tensor by its attributes: its interface knows neither gradients nor bfloat16."""
    if str(tensor.layout) != "torch.strided":
        raise ArgumentError(
            f"{name} is a tensor of layout {tensor.layout}: pass a dense one (tensor.to_dense())"
        )
    if tensor.requires_grad:
        raise ArgumentError(f"{name} is a tensor that requires a gradient: pass tensor.detach()")
    check_resolved(name, tensor)
    dtype = _tensor_type(name, tensor)
    try:
        address = tensor.data_ptr()
    except Exception as error:  # tensors without memory, such as fake ones
        raise ArgumentError(
            f"{name} is {kind_of(tensor)}, which tells no address: {error}"
        ) from error
    strides = tuple(stride * dtype.itemsize for stride in tensor.stride())
    return _Found(int(address), dtype, tuple(tensor.shape), strides, device)


def check_resolved(name: str, buffer: Any) -> None:
    """Raise if a tensor of torch has something to be done to the elements that are in its memory.

    Its DLPack export does not say so.
    """
    if _is_tensor(buffer) and (buffer.is_conj() or buffer.is_neg()):
        raise ArgumentError(
            f"{name} is a tensor whose conjugation or negation is still to be done: pass "
            "tensor.resolve_conj().resolve_neg()"
        )


def _tensor_type(name: str, tensor: Any) -> DType:
    spelled = str(tensor.dtype).removeprefix("torch.")
    if spelled == "bfloat16":
        return bfloat16(name, tensor)
    try:
        return np.dtype(spelled)
    except TypeError as error:
        raise _unsupported(name, str(tensor.dtype)) from error


def _from_interface(name: str, buffer: Any, interface: Any, device: int | None) -> _Found:
    if not isinstance(interface, Mapping):
        raise ArgumentError(
            f"{name}: its __cuda_array_interface__ is {interface!r}, not a dictionary"
        )
    version = interface.get("version")
    if type(version) is not int or version not in _VERSIONS:
        raise ArgumentError(
            f"{name}: its __cuda_array_interface__ has version {version!r}; versions 2 and 3 are "
            "understood"
        )
    if interface.get("mask") is not None:
        raise ArgumentError(f"{name} is a masked array, whose mask would be ignored: pass its data")
    shape = _integers(interface.get("shape"))
    if shape is None or any(length < 0 for length in shape):
        raise _malformed(name, interface, "shape")
    strides = None
    if interface.get("strides") is not None:
        strides = _integers(interface["strides"])
        if strides is None or len(strides) != len(shape):
            raise _malformed(name, interface, "strides")
    address, readonly = _data(name, interface)
    dtype = _interface_type(name, buffer, interface)
    return _Found(address, dtype, shape, strides, device, readonly)


def _data(name: str, interface: Mapping[str, Any]) -> tuple[int, bool]:
    """Return the address, and whether the memory is read-only."""
    data = interface.get("data")
    if isinstance(data, tuple) and len(data) == 2:
        address = _integer(data[0])
        readonly = isinstance(data[1], (bool, np.bool_, int))
        if address is not None and 0 <= address <= _ADDRESS_MAX and readonly:
            return address, bool(data[1])
    raise _malformed(name, interface, "data")


def _interface_type(name: str, buffer: Any, interface: Mapping[str, Any]) -> DType:
    spelled = interface.get("typestr")
    if not isinstance(spelled, str):
        raise _malformed(name, interface, "typestr")
    # NumPy has no type string for bfloat16: CuPy, with ml_dtypes, writes this.
    if spelled == "<V2" and str(getattr(buffer, "dtype", "")) == "bfloat16":
        return bfloat16(name, buffer)
    return type_of_string(name, spelled)


def type_of_string(name: str, spelled: str) -> DType:
    """Return the dtype of a type string of NumPy's array interface, such as ``"<f4"``."""
    found = _TYPE_STRING.fullmatch(spelled)
    if found is None or found[1] not in "biufc":
        raise _unsupported(name, spelled)
    try:
        return np.dtype(spelled)
    except (TypeError, ValueError, OverflowError) as error:  # of a size that does not exist
        raise _unsupported(name, spelled) from error


def _from_dlpack(name: str, buffer: Any) -> _Found:
    try:
        # The exporter makes this stream wait for what it has queued elsewhere.
        capsule = _dlpack.export(buffer, stream=LEGACY_STREAM)
    except Exception as error:  # an exporter may raise anything
        raise failed_export(name, buffer, error) from error
    export = _dlpack.read(capsule)
    if export is None:
        raise failed_export(name, buffer, "it is not a capsule of a known version")
    _check_cuda(name, buffer, export.device_type, export.device)
    check_shared(name, buffer, export)
    dtype = dlpack_type(name, buffer, export.element)
    strides = None
    if export.strides is not None:
        strides = tuple(stride * dtype.itemsize for stride in export.strides)
    return _Found(
        export.address, dtype, export.shape, strides, export.device, export.readonly, capsule
    )


def check_shared(name: str, buffer: Any, export: _dlpack.Export) -> None:
    """Raise if an export is a copy: what one side writes the other one would never see."""
    if export.copied:
        raise ArgumentError(
            f"{name} is {kind_of(buffer)}, which exports only a copy by DLPack: pass an array that "
            "is shared"
        )


def dlpack_type(name: str, buffer: Any, element: tuple[int, int, int]) -> DType:
    """Return the dtype of an export's elements: code, bits and lanes."""
    if element == _dlpack.BFLOAT16:
        return bfloat16(name, buffer)
    code, bits, lanes = element
    if code not in _KINDS or bits % 8 or lanes != 1:
        raise _unsupported(name, f"DLPack type (code {code}, {bits} bits, {lanes} lanes)")
    return type_of_string(name, f"={_KINDS[code]}{bits // 8}")


def _integers(values: Any) -> tuple[int, ...] | None:
    """Return a tuple of integers as one of Python's; None if it is something else."""
    if not isinstance(values, tuple):
        return None
    numbers = [number for number in map(_integer, values) if number is not None]
    return tuple(numbers) if len(numbers) == len(values) else None


def _integer(value: Any) -> int | None:
    """Return an integer as one of Python's; None if it is something else, as bool is."""
    if isinstance(value, (bool, np.bool_)):
        return None
    try:
        return operator.index(value)
    except Exception:  # a conversion may raise anything
        return None


def _malformed(name: str, interface: Mapping[str, Any], key: str) -> ArgumentError:
    return ArgumentError(
        f"{name}: its __cuda_array_interface__ has {key!r}: {interface.get(key)!r}, which is not "
        "what the specification says"
    )


def failed_export(name: str, buffer: Any, why: object) -> ArgumentError:
    """Return the error of an object that cannot be had by DLPack."""
    return ArgumentError(f"{name} is {kind_of(buffer)}, whose DLPack export failed: {why}")


def _unsupported(name: str, spelled: str) -> ArgumentError:
    return ArgumentError(
        f"{name} has elements of type {spelled}, which cannot be reduced: use integers, floats "
        "(bfloat16 too), complex numbers or bool"
    )


# ---- checks -------------------------------------------------------------------------------------


def _check(name: str, found: _Found, *, writable: bool) -> None:
    dtype = found.dtype
    check_native(name, dtype)
    if is_long_double(dtype):
        raise ArgumentError(
            f"{name} has elements of long double ({dtype.name}), which devices do not have: use "
            "float64 or complex128"
        )
    type_name(dtype, name)
    if found.device is not None and not 0 <= found.device < INT32_MAX:
        raise ArgumentError(f"{name} says that it is on device {found.device}, which is none")
    if any(length < 0 for length in found.shape):
        raise ArgumentError(f"{name} has shape {found.shape}: no length can be negative")
    if math.prod(found.shape) * dtype.itemsize > _BYTES_MAX:
        raise ArgumentError(
            f"{name} has shape {found.shape}, of elements of {dtype.itemsize} bytes: no memory has "
            "so many"
        )
    check_writable(name, writable and found.readonly)
    if not is_row_major(found.shape, found.strides, dtype.itemsize):
        raise ArgumentError(
            f"{name} is not contiguous in row-major order (shape {found.shape}, strides "
            f"{found.strides} bytes): pass a contiguous array, or a copy"
        )
    if 0 in found.shape:
        return
    if not found.address:
        raise ArgumentError(f"{name} has elements, but its address is 0")
    check_aligned(name, found.address, dtype)


def is_row_major(shape: Sequence[int], strides: Sequence[int] | None, itemsize: int) -> bool:
    """Whether an array is contiguous in row-major order; strides are in bytes, None says so.

    Dimensions of length 1, and arrays without elements, may have any strides.
    """
    if strides is None or 0 in shape:
        return True
    expected = itemsize
    for length, stride in zip(reversed(shape), reversed(strides), strict=True):
        if length != 1 and stride != expected:
            return False
        expected *= length
    return True


# ---- streams ------------------------------------------------------------------------------------


def current_stream(owner: Any, name: str = "the buffer") -> int:
    """Return the stream that ``stream=None`` means for a buffer, at the time of this call.

    For arrays of CuPy and tensors of torch it is the current stream of their library on the
    buffer's device. Else it is the `stream` of the object's interface, which is read anew. An
    object that has only DLPack is asked to make the legacy default stream wait for what it has
    queued. Where nothing is said, it is the legacy default stream, too.

    Raises
    ------
    ArgumentError
        If the object fails when it is asked, or its interface says a stream that cannot be.
    """
    return stream_finder(name, owner)()


def stream_finder(name: str, owner: Any) -> Callable[[], int]:
    """Return a function that does what `current_stream` does with this buffer, at each call.

    The library that a buffer is from is looked up once, because `Start` and `Wait` must cost
    little.
    """
    if _is_tensor(owner):
        cuda, device = sys.modules["torch"].cuda, owner.device
        return lambda: cuda.current_stream(device).cuda_stream or LEGACY_STREAM
    if _is_cupy(owner):
        cuda, number = sys.modules["cupy"].cuda, owner.device.id
        return lambda: cuda.get_current_stream(number).ptr or LEGACY_STREAM
    return partial(_said_stream, name, owner)


def streams_finder(buffers: Sequence[tuple[str, Any]]) -> Callable[[], int]:
    """Return a function that finds the stream that ``stream=None`` means for several buffers.

    It raises `ArgumentError` if their streams differ: none of them is behind the work of all.

    Parameters
    ----------
    buffers : sequence of (str, object)
        The name of each, and what the application passed; at least one.
    """
    finders: dict[object, tuple[str, Callable[[], int]]] = {}
    for name, owner in buffers:
        library = "torch" if _is_tensor(owner) else "cupy" if _is_cupy(owner) else id(owner)
        if library not in finders:
            finders[library] = name, stream_finder(name, owner)
    (first, find), *others = finders.values()

    def find_all() -> int:
        stream = find()
        for name, find_other in others:
            if (other := find_other()) != stream:
                raise ArgumentError(
                    f"the current stream of {first} is {stream:#x}, and that of {name} is "
                    f"{other:#x}: pass stream=, and let it wait for the work of both"
                )
        return stream

    return find_all if others else find


def _said_stream(name: str, owner: Any) -> int:
    """Return the stream that an object of no known library says by its interface or export."""
    interface = _interface(name, owner)
    if isinstance(interface, Mapping):
        stream = interface.get("stream")
        return LEGACY_STREAM if stream is None else _checked(stream, f"{name}: its stream")
    if hasattr(owner, "__dlpack__"):
        try:
            _dlpack.export(owner, stream=LEGACY_STREAM)
        except Exception as error:  # an exporter may raise anything
            raise failed_export(name, owner, error) from error
    return LEGACY_STREAM


def library_stream(owner: Any) -> Any:
    """Return the stream that is current in a buffer's library, on its device; None: it has none."""
    if _is_tensor(owner):
        return sys.modules["torch"].cuda.current_stream(owner.device)
    if _is_cupy(owner):
        return sys.modules["cupy"].cuda.get_current_stream(owner.device.id)
    return None


def as_stream(value: Any, device: int) -> int:
    """Return an explicit ``stream=`` as the number that CUDA's driver takes.

    Parameters
    ----------
    value : int or stream
        The address of a stream, 1 for the legacy default stream, 2 for the per-thread default
        stream, or a stream of CuPy, of torch, or with `__cuda_stream__`. An object whose address
        is 0 is its library's default stream, which is the legacy one for CuPy and torch.
    device : int
        Where the buffers are. The driver sees whether a stream is of another device, but not of a
        default stream: each device has one, and they have the same number.

    Raises
    ------
    ArgumentError
        If it is something else, or another device's default stream; the text has the value.
    """
    if type(value) is int and 0 < value <= _ADDRESS_MAX:  # the usual case of a loop costs little
        return value
    try:
        number = _of_object(value)
        if number is not None and number <= PER_THREAD_STREAM:
            _check_device(value, device)
    except ArgumentError:
        raise
    except Exception as error:  # a property may raise anything
        raise ArgumentError(
            f"stream is {kind_of(value)}, which does not say its address: {error}"
        ) from error
    if number is not None:
        return number
    if _integer(value) is None:
        raise ArgumentError(
            "stream must be an integer, a stream of CuPy or torch, or an object with "
            f"__cuda_stream__, not {value!r}"
        )
    return _checked(value, "stream")


def _of_object(value: Any) -> int | None:
    """Return the number of a stream object; None: it is none."""
    if hasattr(value, "__cuda_stream__"):
        return _address(_from_protocol(value))
    if hasattr(value, "cuda_stream"):  # torch
        return _address(value.cuda_stream)
    # CuPy. Its events and its pointers to memory have `ptr`, too, but wait for nothing.
    if hasattr(value, "ptr") and hasattr(value, "wait_event"):
        return _address(value.ptr)
    return None


def _check_device(value: Any, device: int) -> None:
    """Raise if a default stream says that it is of another device than the buffers."""
    for name in ("device_index", "device_id"):  # torch's and CuPy's, where -1 is the current one
        of = _integer(getattr(value, name, None))
        if of is not None and of not in (-1, device):
            raise ArgumentError(
                f"stream is a default stream of device {of}, and the buffers are on device "
                f"{device}: pass a stream of that device"
            )


def _from_protocol(value: Any) -> Any:
    """Return the address that `__cuda_stream__` gives."""
    try:
        version, address = value.__cuda_stream__()
    except Exception as error:  # the object may raise anything
        raise ArgumentError(
            f"stream is {kind_of(value)}, whose __cuda_stream__ failed: {error}"
        ) from error
    if version != 0:
        raise ArgumentError(
            f"stream is {kind_of(value)}, whose __cuda_stream__ has version {version!r}; version 0 "
            "is understood"
        )
    return address


def _address(value: Any) -> int:
    """Return the address that a stream object tells; 0 is its library's default stream."""
    return LEGACY_STREAM if _integer(value) == 0 else _checked(value, "the address in stream")


def _checked(value: Any, what: str) -> int:
    """Return the number of a stream; raise if no stream can have it."""
    stream = _integer(value)
    if stream is None or not 0 <= stream <= _ADDRESS_MAX:
        raise ArgumentError(f"{what} must be a positive integer, not {value!r}")
    if stream == 0:
        raise ArgumentError(
            f"{what} is 0, which may mean two default streams: pass {LEGACY_STREAM} for the legacy "
            f"default stream, {PER_THREAD_STREAM} for the per-thread default stream"
        )
    return stream
