"""Collective calls: a context does one at a time; a call that timed out goes on when repeated."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ._explain import Explainer, Question, obstacles, report_call
from ._native import CORE_ERRORS, LOGGER, SLICE_S, SLICE_US, Native, wait_in_slices
from ._sight import Span
from .errors import Error, TimeoutError

if TYPE_CHECKING:
    from ._core import CData
    from ._handle import Request
    from ._sight import Trace


_BEFORE = "what was queued before on the streams of Start and Wait"


@dataclass(frozen=True)
class _Call:
    """A collective call that has begun and timed out.

    Attributes
    ----------
    name : str
        Such as "Flush of handle 2".
    made_with : object
        The arguments of the call, and the objects that the core writes its results to.
    """

    name: str
    made_with: Any


def _try(name: str) -> tuple[threading.Thread, str]:
    """Return what tells the tries of a call in this thread; numbers of threads are used again."""
    return threading.current_thread(), name


class Away:
    """A ``with`` block in which this rank has left all handles; made by `Context.away`.

    Parameters
    ----------
    live : callable
        Raises if the context cannot be used.
    calls : CollectiveCalls
        The collective calls of the context.
    """

    def __init__(self, live: Callable[[], None], calls: CollectiveCalls) -> None:
        self._live, self._calls = live, calls

    def __enter__(self) -> None:
        """Leave all handles; waits for nothing but this rank's contributions, off their device."""
        self._live()
        self._calls.go_away()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Come back, also after an exception; does not block."""
        try:
            self._live()
            self._calls.come_back()
        except CORE_ERRORS:
            if kind is None:  # must not hide the exception that left the block
                raise


class CollectiveCalls:
    """The collective calls of a context.

    Parameters
    ----------
    native : Native
    ctx : CData
        The context.
    stall_warning : float or None
        Seconds after which a call logs which ranks are missing.
    """

    def __init__(self, native: Native, ctx: CData, stall_warning: float | None) -> None:
        self._native, self._ctx, self._stall_warning = native, ctx, stall_warning
        self.trace: Trace | None = None
        self._begun: _Call | None = None
        # Of calls that have not begun: which contributions of other threads they wait for, see
        # pp_land_all().
        self._awaited: dict[tuple[threading.Thread, str], CData] = {}

    def begun(self, name: str) -> Any:
        """Return what the call of this name that timed out was made with; None if none did."""
        return self._begun.made_with if self._begun is not None and self.in_progress(name) else None

    def in_progress(self, name: str) -> bool:
        """Return whether the call of this name has begun and timed out."""
        return self._begun is not None and self._begun.name == name

    def give_up(self) -> None:
        """Forget the call that timed out: the context makes no more calls."""
        self._begun = None

    def go_away(self) -> None:
        """Begin the call that is a ``with`` block of the application."""
        self.refuse_while_begun()
        self.before("away", None)
        self._awaited.pop(_try("away"), None)
        self._native.check(self._native.lib.pp_away_begin(self._ctx))
        self._awaited.clear()
        self._away = Span(self.trace, "away", "CALL")
        self._away.__enter__()

    def come_back(self) -> None:
        """End that call."""
        self._native.check(self._native.lib.pp_away_end(self._ctx))
        self._away.__exit__(None, None, None)

    def refuse_while_begun(self, name: str = "") -> None:
        """Raise if a call of another name has timed out and is still in progress."""
        begun = self._begun
        if begun is not None and begun.name != name:
            raise Error(f"{begun.name} timed out, and is still in progress: call it again first")

    def make(
        self,
        name: str,
        request: Request | None,
        timeout: float | None,
        begin: Callable[[], tuple[int, Any]],
    ) -> Any:
        """Make a collective call, or go on with the one that timed out; raise if it failed.

        Ctrl-C interrupts the call, which then stays in progress: the application can leave the
        context by an exception only.

        Parameters
        ----------
        name : str
            Identifies the call among those of the context, and names it in errors.
        request : Request or None
            The request that the call belongs to; None for a call of the context.
        timeout : float or None
        begin : callable
            Begins the call in the core; returns its status and what the call was made with.

        Returns
        -------
        object
            What the call was made with.
        """
        self.refuse_while_begun(name)
        call, self._begun = self._begun, None
        if call is None:
            self._awaited.pop(_try(name), None)
            status, made_with = begin()
            self._native.check(status)
            self._awaited.clear()  # what comes next repeats no other thread's try, either
            call = _Call(name, made_with)
        try:
            with Span(self.trace, name, "CALL"):
                self._finish(name, request, timeout)
        except TimeoutError:
            self._begun = call
            raise
        return call.made_with

    def prepare(self, name: str) -> CData:
        """Fix which contributions of other threads a call waits for: those that have begun.

        It might never begin if it waited for later ones, too: there may be some on their way at any
        time. So a call that has timed out before it began, and that its thread repeats, goes on
        with those of its first try; until another call of the context begins.
        """
        self.refuse_while_begun(name)
        until = self._awaited.get(_try(name))
        if until is None:
            until = self._awaited[_try(name)] = self._native.ffi.new("uint64_t *")
            self._native.lib.pp_land_all(self._ctx, until, 0)
        return until

    def before(self, name: str, timeout: float | None) -> float | None:
        """Prepare a call, unless it has begun; return how much of its timeout is left.

        Waits until this rank's contributions are off their devices: inside the call it counts as
        left, and rounds would go on without them.
        """
        self.refuse_while_begun(name)
        if self._begun is not None:
            return timeout
        land, until = self._native.lib.pp_land_all, self.prepare(name)
        if land(self._ctx, until, 0) == 0:
            return timeout
        return self.await_device(
            name,
            "this rank's contributions",
            timeout,
            lambda slice_us: land(self._ctx, until, slice_us),
        )

    def await_device(
        self, name: str, what: str, timeout: float | None, wait: Callable[[int], int]
    ) -> float | None:
        """Wait for a device before a call begins, and return how much of the timeout is left.

        Parameters
        ----------
        name : str
            The call.
        what : str
            Which of this rank's copies it waits for, and on which device if that is known.
        timeout : float or None
        wait : callable
            Waits in the core for so many microseconds at most, and returns a status.
        """
        try:
            return self._await_device(f"{name}: {what}", timeout, wait)
        except TimeoutError:
            raise
        except BaseException:
            self.forget(name)
            raise

    def forget(self, name: str) -> None:
        """Take the next call of this thread for a new one: the last try will not be repeated."""
        self._awaited.pop(_try(name), None)

    def _await_device(
        self, text: str, timeout: float | None, wait: Callable[[int], int]
    ) -> float | None:
        began = time.monotonic()
        limit = float("inf") if timeout is None else timeout
        warning = self._stall_warning
        while True:
            waited = time.monotonic() - began
            slice_us = SLICE_US if limit - waited > SLICE_S else max(0, int((limit - waited) * 1e6))
            code = wait(slice_us)
            if code != self._native.lib.PP_PENDING:
                self._native.check(code)
                return None if timeout is None else max(0.0, began + timeout - time.monotonic())
            if waited >= limit:
                raise TimeoutError(
                    f"{text} have not come to or from their device after {waited:.1f} s: they wait "
                    f"for {_BEFORE}"
                )
            if warning is not None and waited >= warning:
                LOGGER.warning(
                    "%s have not come to or from their device after %.1f s: they wait for %s",
                    *(text, waited, _BEFORE),
                )
                warning *= 2

    def _finish(self, name: str, request: Request | None, timeout: float | None) -> None:
        """Wait until the call in progress is complete; raise if it failed."""
        native = self._native
        wait, ctx = native.lib.pp_call_wait, self._ctx
        first_us = SLICE_US
        if timeout is not None and timeout < SLICE_S:
            first_us = int(timeout * 1e6)
        status = wait(ctx, first_us)
        if status == native.lib.PP_PENDING:
            status = wait_in_slices(
                lambda slice_us: wait(ctx, slice_us),
                first_us / 1e6,
                timeout,
                self._stall_warning,
                lambda: self._explainer(name, request),
            )
        native.check(status)

    def _explainer(self, name: str, request: Request | None) -> Explainer:
        """Return the object that says which ranks a collective call waits for."""
        native, handle = self._native, request.id if request else 0
        rank, size = native.lib.pp_ctx_rank(self._ctx), native.lib.pp_ctx_size(self._ctx)

        return Explainer(
            lambda: Question(native, self._ctx, size, handle),
            lambda: obstacles(native, native.lib.pp_ctx_obstacles, self._ctx),
            lambda states: report_call(handle, states, rank),
            name,
        )
