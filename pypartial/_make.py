"""What the methods ``*_init`` share; that of a kind of collective is in a file of the kind."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, TypeVar

from ._arguments import as_argument_error, c_text, seconds
from ._device_buffer import DeviceVector
from .errors import ArgumentError, Error, TimeoutError

if TYPE_CHECKING:
    from ._buffer import Vector
    from ._core import FFI, CData
    from ._native import Native
    from .context import Context


@dataclass(frozen=True)
class AnyArguments(ABC):
    """The arguments of a method ``*_init``, read and found right.

    Attributes
    ----------
    vector : Vector
    device_path : str
    settings
        The options that a request shows, of a class of the kind.
    """

    vector: Vector
    device_path: str
    settings: Any

    @property
    def device(self) -> int | None:
        """The device that has the buffers; None: they are in host memory."""
        return self.vector.device if isinstance(self.vector, DeviceVector) else None

    def same_as(self, other: AnyArguments) -> bool:
        """Whether another call has the same arguments, the addresses of buffers included."""
        return self._key() == other._key()

    def _key(self) -> tuple[object, ...]:
        options = [getattr(self, field.name) for field in fields(self) if field.name != "vector"]
        return options, self.device, self.vector.pieces

    def pieces(self, ffi: FFI) -> CData:
        """Return the buffers as the core takes them."""
        pieces = ffi.new("pp_piece_t[]", len(self.vector.pieces))
        for target, piece in zip(pieces, self.vector.pieces, strict=True):
            target.send = ffi.NULL if piece.send is None else ffi.cast("void *", piece.send)
            target.recv = ffi.cast("void *", piece.recv)
            target.count = piece.count
        return pieces

    @abstractmethod
    def config(self, native: Native, ctx: CData, size: int) -> tuple[CData, object]:
        """Return the C configuration, and the objects that must live as long as it."""


Read = TypeVar("Read", bound=AnyArguments)


def make(
    context: Context, name: str, timeout: float | None, read: Callable[[], Read]
) -> tuple[CData, Read]:
    """Make a handle, or go on with the call that timed out; collective.

    A wrong argument is an error on every rank, so this rank takes part in the agreement in any
    case.

    Parameters
    ----------
    context : Context
    name : str
        The method, after which the core's function is named that begins it.
    timeout : float or None
    read : callable
        Returns the arguments; raises if they are wrong.

    Returns
    -------
    handle : CData
    arguments
        Those that the call began with.
    """
    context._live()
    native = context._native
    arguments: Read | None = None
    complaint: Error | None = None
    config: tuple[CData, object] = native.ffi.NULL, None
    limit = None
    try:
        limit = None if timeout is None else seconds(timeout)
        found = read()
        config = found.config(native, context._ctx, context._size)
        arguments = found
    except Exception as error:
        complaint = as_argument_error(error)
    begun = context._calls.begun(name)
    if begun is not None:
        _check_same(name, arguments, begun[1])

    def begin() -> tuple[int, Any]:
        out = native.ffi.new("pp_handle_t **")
        text = c_text(native, complaint)
        begins = getattr(native.lib, f"pp_{name.lower()}_begin")
        status = begins(context._ctx, config[0], text, out)
        return status, (out, arguments, complaint)

    try:
        out, made_with = None, None
        try:
            left = context._calls.before(name, limit)
            out, made_with, complaint = context._calls.make(name, None, left, begin)
        except TimeoutError:
            raise
        except Error:
            if complaint is None:
                raise
        # Not inside the clause: what is raised there refers to the error before, and that to this.
        if out is None or made_with is None:
            raise complaint or Error("internal error: a wrong argument was accepted")
        return out[0], made_with
    finally:
        # Its traceback has this frame: the two, and the buffers, would end with garbage collection.
        complaint = None


def _check_same(name: str, arguments: AnyArguments | None, before: AnyArguments | None) -> None:
    """Raise if a call has other arguments than the one that timed out and that it goes on with."""
    if before is not None and (arguments is None or not arguments.same_as(before)):
        raise ArgumentError(
            f"{name} goes on with the call that timed out, which had other arguments: "
            f"{before.settings}; pass the same arguments and buffers"
        )
