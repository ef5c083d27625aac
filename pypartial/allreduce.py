"""Requests of a partial allreduce, and the arguments that they are made with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ._arguments import seconds
from ._explain import RankState, report_wait
from ._handle import Request, _check_status
from ._names import FORMAT
from ._native import SLICE_S, SLICE_US, Native
from .errors import Error
from .policy import Policy
from .status import Cause, Status
from .tuning import algorithm_name, reason_text

if TYPE_CHECKING:
    from ._buffer import Vector
    from ._core import CData
    from .context import Context

__all__ = ["AllreduceRequest"]


@dataclass(frozen=True)
class Settings:
    """The options that a request was made with."""

    op: str
    policy: Policy
    deliver: str
    max_lag: int | None
    average: str | None
    dtype: np.dtype[Any]
    count: int

    def __str__(self) -> str:
        return f"{self.op} of {self.count} {self.dtype.name}, {self.policy!r}, '{self.deliver}'"


class AllreduceRequest(Request):
    """A persistent partial allreduce: started, waited for, and started again.

    `Context.Allreduce_init` makes it and describes its options; applications do not call the
    constructor. `Request` describes the life of a request, the owner of its buffers at each time,
    and its use by several threads. A request cannot be copied or pickled.

    Besides the methods of every `Request` it has

    - `View`: a `Request.Wait` that gives the result where it lies, without a copy;
    - `More` and `Drain`, for ``deliver="each"``: the next complete round without waiting, and all
      remaining rounds up to the flush.
    """

    __slots__ = ("_receives",)

    _settings: Settings

    def __init__(
        self, context: Context, native: Native, handle: CData, settings: Settings, vector: Vector
    ) -> None:
        """Wrap a handle of the C core; `Context.Allreduce_init` does this."""
        super().__init__(context, native, handle, vector.owners, settings)
        self._receives = [(piece.recv, piece.count) for piece in vector.pieces]

    def View(
        self, status: Status | None = None, timeout: float | None = None
    ) -> np.ndarray[Any, Any]:
        """Wait until the request is complete, and return its result where it lies.

        Local and blocking, as `Request.Wait`. If the ranks of the node made the round in shared
        memory, the result is not copied: the view shows that memory, and the receive buffers keep
        what they had. In three cases the result is in the receive buffers instead, and the view
        shows these: rounds made of messages alone, half precision, and buffers from `Context.alloc`
        that the round has written already.

        Parameters
        ----------
        status : Status, optional
            Filled with what the request completed with.
        timeout : float, optional
            Seconds to wait at most, 0 or more. None: no limit.

        Returns
        -------
        numpy.ndarray
            Read-only, of shape ``(count,)`` and the element type of the receive buffers, whose
            elements it holds one buffer after the other. It shows this result until the next call
            of any method of the request, and something undefined afterwards: copy what has to stay.

        Raises
        ------
        ArgumentError, TimeoutError, Error, PeerFailedError
            As `Request.Wait`.
        """
        _check_status(status)
        limit = None if timeout is None else seconds(timeout)
        self._live()
        ffi = self._native.ffi
        elements, keeper = ffi.new("const void **"), ffi.new("void **")

        def wait(slice_us: int) -> int:
            return self._lib.pp_wait_view(self._handle, slice_us, self._result, elements, keeper)

        first_us = SLICE_US if limit is None or limit > SLICE_S else int(limit * 1e6)
        code = wait(first_us)
        if code:
            self._wait_on(code, first_us, limit, wait)
        if status is not None:
            status._fill(self._result_bytes[:])
        return self._view(elements[0], keeper[0])

    def _view(self, elements: CData, keeper: CData) -> np.ndarray[Any, Any]:
        """Return a read-only array of the result, in shared memory or in the receive buffers."""
        ffi, lib, dtype = self._native.ffi, self._lib, self._settings.dtype

        def array(address: Any, count: int, end: Callable[[Any], Any]) -> np.ndarray[Any, Any]:
            # The array keeps the buffer alive, and the buffer `owner`: all end together.
            owner = ffi.gc(ffi.cast("char *", address), end)
            buffer: Any = ffi.buffer(owner, count * dtype.itemsize)
            return np.frombuffer(buffer, np.uint8).view(dtype)

        if elements != ffi.NULL:
            view = array(elements, self._settings.count, lambda _: lib.pp_unalloc(keeper))
        else:
            owners = self._owners

            def keep(_: Any) -> int:  # refers to the buffers as long as the array lives
                return len(owners)

            parts = [array(at, count, keep) for at, count in self._receives]
            view = parts[0] if len(parts) == 1 else np.concatenate(parts)
        view.setflags(write=False)
        return view

    def More(self, status: Status | None = None) -> bool:
        """Take the next complete round that this rank was not given yet. Local; never blocks.

        For ``deliver="each"``. Call it after `Request.Wait` or `Request.Test` has collected a
        request, and before the next `Request.Start`. A slow rank catches up in this way, so that
        the others need not wait for it: no round completes while a rank has `window` rounds that it
        was not given.

        Parameters
        ----------
        status : Status, optional
            Filled if the method returns True.

        Returns
        -------
        bool
            True if there was such a round; its result is then in the receive buffers. False if
            there was none.

        Raises
        ------
        ArgumentError
            If `status` is not a `Status`.
        Error
            With another `deliver`, while a request is not collected, or if the handle was freed.
        PeerFailedError
            If another rank has failed, so that no round can complete any more.
        """
        _check_status(status)
        self._live()
        if self._settings.deliver != "each":
            raise Error(
                f"{self._name()}: More is for deliver='each'; with "
                f"deliver={self._settings.deliver!r} call Wait, which delivers everything"
            )
        code = self._lib.pp_more(self._handle, self._result)
        if code == self._lib.PP_PENDING:
            return False
        self._native.check(code)
        if status is not None:
            status._fill(self._result_bytes[:])
        return True

    def _refuse_flush(self) -> None:
        if self._settings.deliver == "each":
            raise Error(
                f"{self._name()}: Flush is for deliver='latest' and 'sum'; with deliver='each' "
                "collect the remaining rounds by: for status in request.Drain()"
            )

    def Drain(self, timeout: float | None = None) -> Iterator[Status]:
        """Deliver the remaining rounds one by one, the flush last.

        For ``deliver="each"``, in place of `Request.Flush`. Every step of the iterator is
        collective and blocking, and puts one round, the oldest first, into the receive buffers. The
        last round is the flush, the synchronous round with everything that was pending. Iterate to
        the end on every rank. Ranks may need different numbers of steps before the flush.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait at most in each step, 0 or more. None: no limit.

        Yields
        ------
        Status
            A new one for every round; the last one's `cause` is ``"flush"``.

        Raises
        ------
        ArgumentError
            If `timeout` is not 0 or more seconds; nothing was communicated.
        TimeoutError
            After `timeout` seconds in one step. Call `Drain` again: the first step of the new
            iterator goes on with it. Until then this rank counts as left, and every other
            collective call of the context raises, and `Wait`, `Test` and `More` of this request.
        Error
            With another `deliver` (call `Request.Flush`), or if the handle was freed.
        PeerFailedError
            If another rank has failed, so that the rounds cannot complete any more.

        Examples
        --------
        >>> for status in request.Drain():  # doctest: +SKIP
        ...     step(out)  # this round's result is in the receive buffer
        """
        limit = None if timeout is None else seconds(timeout)
        self._live()
        if self._settings.deliver != "each":
            raise Error(
                f"{self._name()}: Drain is for deliver='each'; with "
                f"deliver={self._settings.deliver!r} call Flush"
            )
        return self._drain(limit)

    def _drain(self, timeout: float | None) -> Iterator[Status]:
        """Yield Drain's steps; a generator of its own, so that Drain itself can raise at once."""
        status = None
        while status is None or status.cause is not Cause.FLUSH:
            self._live()
            self._collect_call(f"Drain of {self._name()}", self._lib.pp_drain_begin, timeout)
            status = Status()
            status._fill(self._result_bytes[:])
            yield status

    @property
    def op(self) -> str:
        """The operation's name, such as ``"SUM"``."""
        return self._settings.op

    @property
    def policy(self) -> Policy:
        """The policy: when rounds are activated."""
        return self._settings.policy

    @property
    def deliver(self) -> str:
        """What a request delivers: ``"latest"``, ``"sum"`` or ``"each"``."""
        return self._settings.deliver

    @property
    def max_lag(self) -> int | None:
        """The staleness bound in rounds; None: no bound."""
        return self._settings.max_lag

    @property
    def average(self) -> str | None:
        """What the sum is divided by, or None: see `Context.Allreduce_init`."""
        return self._settings.average

    @property
    def algorithm(self) -> str:
        """The algorithm in use, never ``"auto"``; ``"shared_memory"`` if rounds need none."""
        self._live()
        return algorithm_name(self._native, self._lib.pp_handle_algorithm(self._handle))

    @property
    def algorithm_reason(self) -> str:
        """Why the handle has this `algorithm`, in words; the same on every rank."""
        self._live()
        return reason_text(self._native, self._lib.pp_handle_reason(self._handle))

    def dump(self, format: str = "goal") -> str:
        """Return this rank's schedule of a round as text. Local; does not block.

        Parameters
        ----------
        format : {"goal", "dot"}
            ``"goal"``: text in the manner of GOAL (Group Operation Assembly Language). ``"dot"``:
            a graph for Graphviz.

        Returns
        -------
        str

        Raises
        ------
        ArgumentError
            If `format` is not one of the two.
        Error
            If the handle was freed.
        """
        self._live()
        lib, ffi = self._lib, self._native.ffi
        number = FORMAT.constant(lib, format)
        text = ffi.new("char **")
        self._native.check(lib.pp_handle_dump(self._handle, number, text))
        try:
            return self._native.text(text[0])
        finally:
            lib.pp_text_free(text[0])

    def _fired(self) -> tuple[int, list[int]] | None:
        """Return the newest retired round and how often each operation fired in it, for tests."""
        self._live()
        lib, ffi = self._lib, self._native.ffi
        round_, count = ffi.new("uint64_t *"), ffi.new("size_t *")
        capacity = 4096
        while True:
            fired = ffi.new("uint32_t[]", capacity)
            status = lib.pp_handle_fired(self._handle, round_, fired, capacity, count)
            if status == lib.PP_PENDING:
                return None
            if count[0] <= capacity:
                self._native.check(status)
                return int(round_[0]), [int(fired[i]) for i in range(count[0])]
            capacity = int(count[0])

    def _report_wait(self, states: list[RankState]) -> tuple[str, bool]:
        return report_wait(self._id, states, self._context.rank, self.policy)
