"""Partial barriers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from ._arguments import in_range
from ._handle import Request
from ._make import AnyArguments, make

if TYPE_CHECKING:
    from ._core import CData
    from ._native import Native
    from .context import Context


class BarrierRequest(Request):
    """A partial barrier: the n-th Wait returns when k ranks have started n times."""

    __slots__ = ()

    def __init__(self, context: Context, native: Native, handle: CData, k: int) -> None:
        """Wrap a handle of the C core; `Context.Barrier_init` does this."""
        super().__init__(context, native, handle, [], f"of {k} ranks")


@dataclass(frozen=True)
class Arguments(AnyArguments):
    """The arguments of ``Barrier_init``; `settings` is k."""

    def _key(self) -> tuple[object, ...]:
        return (self.settings,)

    def config(self, native: Native, ctx: CData, size: int) -> tuple[CData, object]:
        """Return k as the core takes it."""
        k = native.ffi.new("int32_t *", in_range("k", self.settings, 1, size))
        return k, None


class BarrierInit:
    """Of `Context`: the method that makes partial barriers."""

    __slots__ = ()

    def Barrier_init(self, k: int, *, timeout: float | None = None) -> BarrierRequest:
        """Make a partial barrier of k ranks. Collective, blocking."""
        context = cast("Context", self)
        without: Any = None
        handle, _ = make(context, "Barrier_init", timeout, lambda: Arguments(without, "auto", k))
        request = BarrierRequest(context, context._native, handle, k)
        context._requests[request.id] = request
        return request
