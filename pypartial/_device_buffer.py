"""The buffers of a handle in the memory of a CUDA device: what is checked of them together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ._buffer import (
    Memory,
    Piece,
    Vector,
    check_one_type,
    check_overlaps,
    check_pair,
    element_type,
    is_in_place,
    spell,
    split,
    understand,
    unpack,
)
from ._device import DeviceMemory, check_one_device, device_place, understand_device
from ._elements import check_writable
from ._native import Native
from .errors import ArgumentError

__all__ = [
    "DeviceVector",
    "parse_in_place_on_device",
    "parse_on_device",
    "uses_device",
    "uses_device_in_place",
]


@dataclass
class DeviceVector(Vector):
    """The pieces of a handle in the memory of one device.

    `sources` and `targets` are the names and the objects whose libraries say which stream
    ``stream=None`` means: of what a Start reads, and of what a result is written to.
    """

    device: int = 0
    sources: list[tuple[str, Any]] = field(default_factory=list, repr=False, compare=False)
    targets: list[tuple[str, Any]] = field(default_factory=list, repr=False, compare=False)


def uses_device(sendbuf: Any, recvbuf: Any) -> bool:
    """Whether a buffer is in the memory of a device; wrong buffers are not."""
    return any(_on_device(name, spec) for name, spec in _both(sendbuf, recvbuf))


def parse_on_device(native: Native, sendbuf: Any, recvbuf: Any) -> DeviceVector:
    """Read the buffers of an allreduce of which at least one is in the memory of a device.

    Raises
    ------
    ArgumentError
        If an argument is wrong, or the driver knows its memory otherwise; the text names it.
    Error
        If there is no driver, or no device.
    """
    given = [] if is_in_place(sendbuf) else _read(split("sendbuf", sendbuf))
    taken = _read(split("recvbuf", recvbuf))
    _check_places([*given, *taken])
    receives = [one.writable() for one in taken]
    sends: list[DeviceMemory | None] = [None] * len(receives)
    if not is_in_place(sendbuf):
        sends = [None if one.is_in_place else one.known() for one in given]
    if len(sends) != len(receives):
        raise ArgumentError(
            f"sendbuf is a list of {len(sends)} buffers and recvbuf one of {len(receives)}: "
            "pass two lists of equal length"
        )
    return _vector(native, sends, receives)


def uses_device_in_place(name: str, buffers: Any) -> bool:
    """Whether one of the buffers that a collective replaces is in the memory of a device."""
    return any(_on_device(*named) for named in split(name, buffers))


def parse_in_place_on_device(native: Native, name: str, buffers: Any) -> DeviceVector:
    """Read the buffers of a collective that replaces what is in them; one is on a device.

    `name` is the argument's. Raises as `parse_on_device`.
    """
    taken = _read(split(name, buffers))
    _check_places(taken)
    memories = [one.writable() for one in taken]
    return _vector(native, [None] * len(memories), memories)


@dataclass
class _Read:
    """One buffer specification, and its memory if it is in that of a device.

    An object is asked once for its memory: by DLPack it makes a capsule each time.
    """

    name: str
    spec: Any
    memory: DeviceMemory | None

    @property
    def is_in_place(self) -> bool:
        return is_in_place(self.spec)

    def known(self) -> DeviceMemory:
        """Return the memory; raise if it is not a device's."""
        return self.memory or _understand(self.name, self.spec)

    def writable(self) -> DeviceMemory:
        """Return the memory; raise if it is not a device's, or takes no result."""
        memory = self.known()
        check_writable(self.name, memory.readonly)
        return memory


def _read(named: Iterator[tuple[str, Any]]) -> list[_Read]:
    """Read buffer specifications, some of which may be in place, or in memory of the host."""
    read = []
    for name, spec in named:
        memory = None
        if _on_device(name, spec):
            memory = _understand(name, spec)
        elif not is_in_place(spec):
            understand(name, spec, writable=False)  # raises if it is no buffer of the host, either
        read.append(_Read(name, spec, memory))
    return read


def _check_places(read: list[_Read]) -> None:
    """Check that all buffers are in the memory of one device, as far as they say it."""
    check_one_device([(one.name, one.memory) for one in read if not one.is_in_place])


def _vector(
    native: Native, sends: list[DeviceMemory | None], receives: list[DeviceMemory]
) -> DeviceVector:
    """Check buffers together, and describe them as one vector."""
    memories = [_as_host(memory) for memory in receives]
    read = [None if memory is None else _as_host(memory) for memory in sends]
    for send, receive in zip(read, memories, strict=True):
        check_pair(send, receive)
    check_one_type(memories)
    check_overlaps(read, memories)
    found = [memory for memory in (*sends, *receives) if memory is not None]
    read_from = [send or receive for send, receive in zip(sends, receives, strict=True)]
    return DeviceVector(
        [
            Piece(None if send is None else send.address, receive.address, receive.count)
            for send, receive in zip(sends, receives, strict=True)
        ],
        receives[0].dtype,
        [(memory.owner, memory.capsule) for memory in found],
        _one_device(native, found),
        _named(read_from),
        _named(receives),
    )


def _named(memories: list[DeviceMemory]) -> list[tuple[str, Any]]:
    """Return the names and objects of those whose streams count: of all, if none has elements."""
    filled = [memory for memory in memories if memory.count]
    return [(memory.name, memory.owner) for memory in filled or memories]


def _both(sendbuf: Any, recvbuf: Any) -> Iterator[tuple[str, Any]]:
    if not is_in_place(sendbuf):
        yield from split("sendbuf", sendbuf)
    yield from split("recvbuf", recvbuf)


def _on_device(name: str, spec: Any) -> bool:
    buffer = unpack(name, spec)[0]
    if isinstance(buffer, np.ndarray) or is_in_place(buffer):
        return False
    return device_place(name, buffer) is not None


def _understand(name: str, spec: Any) -> DeviceMemory:
    """Describe one buffer specification; its count and its type may be smaller, or the same."""
    buffer, count, datatype = unpack(name, spec)
    if is_in_place(buffer):
        raise ArgumentError(
            f"{name} is {buffer!r}: pass a buffer; MPI.IN_PLACE and None are for the sendbuf of an "
            "allreduce"
        )
    memory = understand_device(name, buffer, writable=False)
    if datatype is not None and element_type(name, datatype) != memory.dtype:
        raise ArgumentError(
            f"{name} holds {memory.dtype.name} elements but is passed as {spell(datatype)}, "
            f"which is {element_type(name, datatype).name}"
        )
    if count is None:
        return memory
    if not 0 <= count <= memory.count:
        raise ArgumentError(
            f"{name}: the count is {count}, but the buffer has {memory.count} elements"
        )
    return replace(memory, count=count)


def _as_host(memory: DeviceMemory) -> Memory:
    """Return what the checks of several buffers look at; the order of dimensions was checked."""
    return Memory(
        memory.name,
        memory.address,
        memory.dtype,
        memory.count,
        memory.readonly,
        (memory.count,),
        "CF",
        memory.owner,
    )


def _one_device(native: Native, memories: list[DeviceMemory]) -> int:
    """Return the device that the driver knows the memory to be of."""
    number = native.ffi.new("int32_t *")
    known: list[tuple[str, DeviceMemory]] = []
    for memory in memories:
        if memory.count:
            address = native.ffi.cast("void *", memory.address)
            status = native.lib.pp_device_of(address, memory.count * memory.dtype.itemsize, number)
            if status == native.lib.PP_ERR_ARGUMENT:
                raise ArgumentError(f"{memory.name}: {native.error(status)}")
            native.check(status)
            if memory.device is not None and memory.device != number[0]:
                raise ArgumentError(
                    f"{memory.name} says that it is on device {memory.device}, and the driver that "
                    f"it is on device {number[0]}"
                )
            memory = replace(memory, device=int(number[0]))
        known.append((memory.name, memory))
    check_one_device(known)
    return next((memory.device for _, memory in known if memory.device is not None), 0)
