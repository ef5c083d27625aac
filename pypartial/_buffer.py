"""Buffers: from what mpi4py users pass to pointers, counts and one element type.

This module needs neither MPI nor the C core. It recognises objects of MPI (`MPI.IN_PLACE`,
datatypes) and masked arrays through `sys.modules`: where their module is not loaded, the caller
cannot have made one.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any
from zlib import crc32

import numpy as np
import numpy.typing as npt

from . import _dlpack
from ._device import check_resolved, check_shared, device_place, dlpack_type, failed_export
from ._elements import (
    DType,
    check_aligned,
    check_native,
    check_writable,
    describe,
    is_long_double,
    kind_of,
    type_name,
)
from .errors import ArgumentError

__all__ = ["Piece", "Vector", "parse_allreduce", "parse_in_place"]

_QUAD = 112  # bits of the fraction of a number of 16 bytes, as IEEE 754 has it


@dataclass(frozen=True)
class Piece:
    """A piece of the user's memory: addresses to read and to write, and a number of elements."""

    send: int | None  # None: in place, `recv` is read
    recv: int
    count: int


@dataclass
class Vector:
    """The pieces of one handle, which form one vector of one element type.

    `owners` keeps the memory alive, and NumPy from resizing it, for as long as this object lives.
    """

    pieces: list[Piece]
    dtype: DType
    owners: list[Any] = field(repr=False)

    @property
    def count(self) -> int:
        """Number of elements of all pieces together."""
        return sum(piece.count for piece in self.pieces)


@dataclass
class Memory:
    """What one buffer argument stands for."""

    name: str  # "sendbuf", "recvbuf[2]": for errors
    address: int
    dtype: DType
    count: int
    readonly: bool
    shape: tuple[int, ...]
    orders: str  # "C", "F" or "CF": the memory order of several dimensions
    owner: Any

    @property
    def end(self) -> int:
        return self.address + self.count * self.dtype.itemsize


def parse_allreduce(sendbuf: Any, recvbuf: Any) -> Vector:
    """Read the buffers of an allreduce.

    Parameters
    ----------
    sendbuf, recvbuf : buffer specification, or list of them
        See `Context.Allreduce_init`. `sendbuf` may be None or `MPI.IN_PLACE`.

    Returns
    -------
    Vector
        At least one piece.

    Raises
    ------
    ArgumentError
        If an argument is wrong; the text names it and its value.
    """
    receives = [understand(*named, writable=True) for named in split("recvbuf", recvbuf)]
    sends: list[Memory | None]
    if is_in_place(sendbuf):
        sends = [None] * len(receives)
    else:
        sends = [
            None if is_in_place(spec) else understand(name, spec, writable=False)
            for name, spec in split("sendbuf", sendbuf)
        ]
    if len(sends) != len(receives):
        raise ArgumentError(
            f"sendbuf is a list of {len(sends)} buffers and recvbuf one of {len(receives)}: "
            "pass two lists of equal length"
        )
    for send, receive in zip(sends, receives, strict=True):
        check_pair(send, receive)
    check_one_type(receives)
    check_overlaps(sends, receives)
    return Vector(
        [
            Piece(None if send is None else send.address, receive.address, receive.count)
            for send, receive in zip(sends, receives, strict=True)
        ],
        receives[0].dtype,
        [memory.owner for memory in [*sends, *receives] if memory is not None],
    )


def parse_in_place(name: str, buffers: Any) -> Vector:
    """Read the buffers of a collective that replaces what is in them; `name` is the argument's.

    Raises
    ------
    ArgumentError
        If the argument is wrong; the text names it and its value.
    """
    memories = [understand(*named, writable=True) for named in split(name, buffers)]
    check_one_type(memories)
    check_overlaps([], memories)
    return Vector(
        [Piece(None, memory.address, memory.count) for memory in memories],
        memories[0].dtype,
        [memory.owner for memory in memories],
    )


# ---- what an argument is ------------------------------------------------------------------------


def is_in_place(spec: Any) -> bool:
    """Whether `spec` is None or `MPI.IN_PLACE`."""
    mpi = sys.modules.get("mpi4py.MPI")
    return spec is None or (mpi is not None and spec is mpi.IN_PLACE)


def is_datatype(value: Any) -> bool:
    """Whether `value` is an MPI datatype."""
    mpi = sys.modules.get("mpi4py.MPI")
    return mpi is not None and isinstance(value, mpi.Datatype)


def split(name: str, argument: Any) -> Iterator[tuple[str, Any]]:
    """Yield (name, buffer specification) for one specification or a list of them.

    ``[buf, X]`` and ``[buf, X, Y]`` are one specification, as in mpi4py, if X is a count, a
    datatype, a typecode or None; a list of things that are buffers themselves is a list of buffers.
    """
    if not isinstance(argument, (list, tuple)) or is_specification(argument):
        yield name, argument
        return
    if not argument:
        raise ArgumentError(f"{name} is an empty list: pass at least one buffer")
    for index, spec in enumerate(argument):
        yield f"{name}[{index}]", spec


def is_specification(argument: Sequence[Any]) -> bool:
    """Whether a list or tuple is ``[buf, count]``, ``[buf, type]`` or ``[buf, count, type]``."""
    if len(argument) < 2 or isinstance(argument[0], (list, tuple)):
        return False
    if is_in_place(argument[0]):
        return False
    return all(
        item is None or is_count(item) or isinstance(item, str) or is_datatype(item)
        for item in argument[1:]
    )


def is_count(value: Any) -> bool:
    """Whether `value` is an integer, or a tuple of them as mpi4py's (count, displacement)."""
    if isinstance(value, tuple):
        return bool(value) and all(map(is_count, value))
    return isinstance(value, Integral) and not isinstance(value, (bool, np.bool_))


def understand(name: str, spec: Any, *, writable: bool) -> Memory:
    """Return the address, the element type and the count of one buffer specification."""
    buffer, count, datatype = unpack(name, spec)
    if is_in_place(buffer):
        raise ArgumentError(
            f"{name} is {buffer!r}: pass a buffer; MPI.IN_PLACE and None are for the sendbuf of an "
            "allreduce"
        )
    array, readonly, typed, owner = view(name, buffer)
    check_writable(name, writable and readonly)
    orders = ("C" if array.flags.c_contiguous else "") + ("F" if array.flags.f_contiguous else "")
    if not orders:
        raise ArgumentError(
            f"{name} is not contiguous (shape {array.shape}, strides {array.strides} bytes): "
            "pass a contiguous array, or a copy"
        )
    check_native(name, array.dtype)
    dtype, available = array.dtype, array.size
    if datatype is not None:
        dtype = element_type(name, datatype)
        if typed and dtype != array.dtype:
            raise ArgumentError(
                f"{name} holds {array.dtype.name} elements but is passed as {spell(datatype)}, "
                f"which is {dtype.name}"
            )
        available = array.nbytes // dtype.itemsize
        if count is None and array.nbytes % dtype.itemsize:
            raise ArgumentError(
                f"{name} has {array.nbytes} bytes, not a multiple of the {dtype.itemsize} bytes of "
                f"{spell(datatype)}"
            )
    type_name(dtype, name)
    if count is None:
        count = available
    elif not 0 <= count <= available:
        raise ArgumentError(
            f"{name}: the count is {count}, but the buffer has {available} elements"
        )
    address = int(array.__array_interface__["data"][0])
    if count:
        check_aligned(name, address, dtype)
    return Memory(name, address, dtype, count, readonly, array.shape, orders, owner)


def shape_of(memory: Memory) -> tuple[int, ...]:
    """Return the shape of a buffer's elements: flat, if they are some of an array's."""
    return memory.shape if math.prod(memory.shape) == memory.count else (memory.count,)


def layout_of(memories: Iterable[Memory]) -> str:
    """Return which element of buffers is where: ranks average element by element."""
    text = ", ".join(
        f"{shape_of(memory)}{'' if 'C' in memory.orders else ' in Fortran order'}"
        for memory in memories
    )
    return text if len(text) < 70 else f"{text[:50]}... ({crc32(text.encode()):08x})"


def unpack(name: str, spec: Any) -> tuple[Any, int | None, Any]:
    """Return (buffer, count or None, datatype or None) of a buffer specification."""
    if not isinstance(spec, (list, tuple)):
        return spec, None, None
    if not 1 <= len(spec) <= 3:
        raise ArgumentError(
            f"{name} is a {type(spec).__name__} of {len(spec)} items: a buffer is written buf, "
            "[buf, count], [buf, type] or [buf, count, type]"
        )
    buffer, rest = spec[0], list(spec[1:])
    datatype = rest.pop() if rest and (is_datatype(rest[-1]) or isinstance(rest[-1], str)) else None
    count = rest.pop() if rest else None
    if rest or not (count is None or is_count(count)) or isinstance(count, tuple):
        wrong = rest[0] if rest else count
        raise ArgumentError(
            f"{name}: {describe(wrong)} is not a count: pass one integer (displacements and "
            "several counts are not supported)"
        )
    return buffer, None if count is None else int(count), datatype


# ---- memory -------------------------------------------------------------------------------------


def view(name: str, buffer: Any) -> tuple[npt.NDArray[Any], bool, bool, Any]:
    """Return an array over the same memory, and what is known of it.

    Returns
    -------
    array : numpy.ndarray
    readonly : bool
    typed : bool
        Whether the buffer has an element type of its own; plain bytes have none.
    owner : object
        What to keep alive.
    """
    # `np.ma` would import numpy.ma, which costs milliseconds on each of many ranks.
    masked = getattr(sys.modules.get("numpy.ma"), "MaskedArray", ())
    if isinstance(buffer, masked):
        raise ArgumentError(
            f"{name} is a masked array, whose mask would be ignored: pass its data (array.data) "
            "or a filled copy (array.filled(value))"
        )
    if isinstance(buffer, np.ndarray):
        return buffer, not buffer.flags.writeable, True, buffer
    refuse_device_memory(name, buffer)
    try:
        memory = memoryview(buffer)
    except (TypeError, ValueError, BufferError) as error:
        if hasattr(buffer, "__dlpack__"):
            array, readonly = from_dlpack(name, buffer)
            return array, readonly, True, (buffer, array)
        raise ArgumentError(
            f"{name} is {describe(buffer)}: expected an object with the buffer protocol or DLPack, "
            "such as a NumPy array"
        ) from error
    try:
        array = np.asarray(memory)
    except (ValueError, NotImplementedError) as error:
        raise ArgumentError(
            f"{name} has elements of format {memory.format!r}, which NumPy does not know: pass a "
            "NumPy array of numbers"
        ) from error
    # Plain bytes may be given any type: [bytearray, MPI.DOUBLE].
    return array, memory.readonly, memory.format != "B", (buffer, array)


def refuse_device_memory(name: str, buffer: Any) -> None:
    """Raise if the memory is not the host's; pinned memory is the host's."""
    place = device_place(name, buffer)
    if place is not None:
        raise ArgumentError(
            f"{name} is {kind_of(buffer)} in device memory ({place}): this call takes "
            "buffers in host memory; copy it there first"
        )


class _Exported:
    """The memory of a capsule, as NumPy takes it; the array that it makes keeps this object alive.

    The capsule keeps its name, so its own destructor gives the memory back to the exporter.
    """

    def __init__(self, capsule: object, interface: dict[str, Any]) -> None:
        self.capsule = capsule
        self.__array_interface__ = interface


def from_dlpack(name: str, buffer: Any) -> tuple[npt.NDArray[Any], bool]:
    """Return an array over a DLPack exporter's memory, and whether that is read-only.

    Not by `numpy.from_dlpack`: its arrays are read-only where an exporter does not say whether the
    memory is, in all versions before 2.1, and it does not know bfloat16.
    """
    check_resolved(name, buffer)
    try:
        capsule = _dlpack.export(buffer)
    except Exception as error:  # an exporter may raise anything
        raise failed_export(name, buffer, error) from error
    export = _dlpack.read(capsule)
    if export is None:
        raise failed_export(name, buffer, "it is not a capsule of a known version")
    if export.device_type not in _dlpack.HOST:
        raise failed_export(
            name, buffer, f"its capsule is of memory of DLPack device type {export.device_type}"
        )
    check_shared(name, buffer, export)
    dtype = dlpack_type(name, buffer, export.element)
    if is_long_double(dtype):
        raise failed_export(
            name, buffer, f"elements of {export.element[1]} bits may be long doubles or others"
        )
    if 0 in export.shape:
        return np.empty(export.shape, dtype), export.readonly
    if not export.address:
        raise failed_export(name, buffer, "it has elements, but its address is 0")
    strides = None
    if export.strides is not None:
        strides = tuple(stride * dtype.itemsize for stride in export.strides)
    # NumPy has no type string for bfloat16.
    bits = np.dtype(np.uint16) if dtype.kind == "V" else dtype
    interface = {
        "version": 3,
        "shape": export.shape,
        "typestr": bits.str,
        "data": (export.address, export.readonly),
        "strides": strides,
    }
    try:
        array = np.asarray(_Exported(capsule, interface))
    except (TypeError, ValueError) as error:  # such as more dimensions than NumPy has
        raise failed_export(name, buffer, error) from error
    return array.view(dtype), export.readonly


# ---- what must fit together ----------------------------------------------------------------------


def check_pair(send: Memory | None, receive: Memory) -> None:
    """Check that a send and a receive buffer fit each other."""
    if send is None:
        return
    if send.dtype != receive.dtype:
        raise ArgumentError(
            f"{send.name} has dtype {send.dtype.name} and {receive.name} {receive.dtype.name}: "
            "they must be equal"
        )
    if send.count != receive.count:
        raise ArgumentError(
            f"{send.name} has {send.count} elements and {receive.name} {receive.count}: "
            "they must be equal"
        )
    if not set(send.orders) & set(receive.orders):
        raise ArgumentError(
            f"{send.name} and {receive.name} are arrays of opposite memory order (one C, one "
            "Fortran), so their elements would be mixed up: pass arrays of one order"
        )


def check_one_type(receives: Sequence[Memory]) -> None:
    """Check that all pieces of a handle have one element type."""
    first = receives[0]
    for other in receives[1:]:
        if other.dtype != first.dtype:
            raise ArgumentError(
                f"{first.name} has dtype {first.dtype.name} and {other.name} {other.dtype.name}: "
                "the buffers of one handle must have one dtype; make one handle for each dtype"
            )


def check_overlaps(sends: Sequence[Memory | None], receives: Sequence[Memory]) -> None:
    """Check that no receive buffer shares memory with any other buffer."""
    memories = [(m.address, m.end, m, False) for m in sends if m is not None and m.count]
    memories += [(m.address, m.end, m, True) for m in receives if m.count]
    # Of the send (False) and the receive buffers (True) so far, the one that reaches furthest.
    last: dict[bool, Memory | None] = {False: None, True: None}
    for start, end, memory, is_receive in sorted(memories, key=lambda entry: entry[0]):
        for kind in (True, False) if is_receive else (True,):
            other = last[kind]
            if other is not None and start < other.end:
                same = other.address == start and other.end == end and is_receive != kind
                hint = "; for the same memory pass MPI.IN_PLACE as sendbuf" if same else ""
                raise ArgumentError(f"{other.name} and {memory.name} overlap{hint}")
        reaching = last[is_receive]
        if reaching is None or end > reaching.end:
            last[is_receive] = memory


# ---- element types ------------------------------------------------------------------------------


def element_type(name: str, datatype: Any) -> DType:
    """Return the NumPy dtype for an MPI datatype or a typecode."""
    if isinstance(datatype, str):
        try:
            dtype = np.dtype(datatype)
        except (TypeError, ValueError, SyntaxError) as error:
            raise ArgumentError(
                f"{name}: {datatype!r} is not a typecode; write one such as 'f' or 'float32'"
            ) from error
        check_native(name, dtype)
        type_name(dtype, name)  # so it has a size
        return dtype
    mpi = sys.modules["mpi4py.MPI"]
    spelled = spell(datatype)
    if datatype == mpi.DATATYPE_NULL:
        raise ArgumentError(
            f"{name}: the datatype is MPI_DATATYPE_NULL, because this MPI does not have the type: "
            "leave it out, and pass an array of the NumPy dtype (ml_dtypes.bfloat16 for bfloat16)"
        )
    if not datatype.is_predefined:
        raise ArgumentError(
            f"{name}: {spelled} is a derived datatype, and only predefined ones can be reduced: "
            "pass a contiguous array"
        )
    if datatype == getattr(mpi, "BFLOAT16_T", mpi.DATATYPE_NULL):
        try:
            return np.dtype("bfloat16")  # known once ml_dtypes is imported
        except TypeError as error:
            raise ArgumentError(
                f"{name}: {spelled} elements need the package ml_dtypes: import it first"
            ) from error
    kind = datatype.typestr[:1]
    # Numbers of 16 bytes of Fortran: mostly a long double has fewer bits.
    quad = spelled in ("MPI_REAL16", "MPI_COMPLEX32") and np.finfo(np.longdouble).nmant != _QUAD
    if kind not in "biufc" or "LOGICAL" in spelled or quad:
        raise ArgumentError(
            f"{name}: {spelled} elements cannot be reduced: use integers, floats, complex numbers "
            "or bool"
        )
    return np.dtype(str(datatype.typestr))


def spell(datatype: Any) -> str:
    """Return a datatype's name."""
    return repr(datatype) if isinstance(datatype, str) else datatype.Get_name() or "a datatype"
