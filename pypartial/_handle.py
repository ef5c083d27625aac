"""Requests: what the handles of all kinds of collectives have in common."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from ._arguments import seconds
from ._explain import Explainer, Question, RankState, each_does, obstacles
from ._native import SLICE_S, SLICE_US, Native, wait_in_slices
from .errors import ArgumentError, Error, TimeoutError
from .status import Status

if TYPE_CHECKING:
    from ._core import CData
    from .context import Context

__all__ = ["Request", "Startall", "Waitall"]

Value = TypeVar("Value")
AnyRequest = TypeVar("AnyRequest", bound="Request")


class Request:
    """A persistent collective: started, waited for, and started again.

    Base of the requests of all kinds, which the methods ``*_init`` of a `Context` make. It cannot
    be copied or pickled.

    Notes
    -----
    One thread at a time may use a request. Different requests may be started and waited for by
    different threads, but a context does one collective call at a time: while a thread is inside
    one (`Flush`, a step of `Drain`, `Free`, ``*_init``, `Context.Free`), `Start` of
    any request of that context, and a second collective call, raise `Error` in other threads.
    Nothing was contributed or communicated then; the call can be repeated when the other one has
    returned. `Wait` and `Test` work at any time. Requests of different contexts do not affect each
    other.
    """

    __slots__ = (
        "__weakref__",
        "_context",
        "_gone",
        "_handle",
        "_id",
        "_lib",
        "_native",
        "_owners",
        "_pp_start",
        "_pp_test",
        "_pp_wait",
        "_pp_wait_slice",
        "_result",
        "_result_bytes",
    )

    _pp_start: Callable[[Any], int]
    _pp_wait: Callable[[Any, int, Any], int]
    _pp_wait_slice: Callable[[Any], int]
    _pp_test: Callable[[Any, Any], int]

    def __init__(self, context: Context, native: Native, handle: CData, owners: list[Any]) -> None:
        self._context = context
        self._native = native
        self._handle = handle
        self._owners = owners  # the user's buffers, pinned
        self._gone: str | None = None  # why the handle cannot be used any more
        self._lib = lib = native.lib
        self._id: int = lib.pp_handle_id(handle)
        # Looked up once: Start and Wait are to cost little.
        self._pp_start = lib.pp_start
        self._pp_wait = lib.pp_wait
        self._pp_wait_slice = lib.pp_wait_slice
        self._pp_test = lib.pp_test
        self._result = native.ffi.new("pp_result_t *")
        self._result_bytes = native.ffi.buffer(self._result)

    # ---- the data path --------------------------------------------------------------------------

    def Start(self) -> None:
        """Contribute what is in the send buffers, and ask for a result.

        Local; does not wait for other ranks. Copies the send buffers (with ``MPI.IN_PLACE``: the
        receive buffers), which may be overwritten as soon as it returns. The copy enters exactly
        one round: the next that is activated, by the policy, on this rank. If a round has
        completed since the previous request did, this request is late: it completes at once with
        that round's result, and its contribution goes into the next round.

        Raises
        ------
        Error
            If the previous request was not collected by `Wait` or `Test`, nor ended its last `Wait`
            by a `TimeoutError`; if another thread is inside a collective call of the context; or if
            the handle was freed. Nothing was contributed.
        PeerFailedError
            If rounds can no longer complete.
        """
        status = self._pp_start(self._handle)
        if status:
            self._native.check(status)
            self._context._log_note()

    def Wait(self, status: Status | None = None, timeout: float | None = None) -> bool:
        """Wait until the request is complete; the result is then in the receive buffers.

        Blocks until a round completes, not until all ranks have called. Without a request it
        collects what was not given yet, if there is any. Ctrl-C interrupts it; so does `timeout`,
        and the request then stays outstanding. (Ctrl-C at the very moment of completion may leave
        it collected.) After the context's `stall_warning` seconds a warning on the logger
        ``"pypartial"`` says who is waited for.

        Parameters
        ----------
        status : Status, optional
            Filled with what the request completed with.
        timeout : float, optional
            Seconds to wait at most, 0 or more.

        Returns
        -------
        bool
            True, as in mpi4py.

        Raises
        ------
        ArgumentError
            If `status` or `timeout` is of the wrong kind; nothing was waited for.
        TimeoutError
            After `timeout` seconds; the text says what is known on this rank: what the round waits
            for, and what the other ranks answered if they were asked for a stall warning. The
            request stays as it is: it can be waited for again, and the next `Start` adds to what is
            pending.
        Error
            If nothing was started and there is nothing to give, the handle was freed, or this rank
            is inside `Context.away`.
        PeerFailedError
            If the round can no longer complete.
        """
        # What a loop costs, without and with a status: the shortest ways.
        if status is None and timeout is None:
            code = self._pp_wait_slice(self._handle)
            if code:
                self._wait_on(code, SLICE_US, None)
            return True
        if timeout is None and type(status) is Status:
            code = self._pp_wait(self._handle, SLICE_US, self._result)
            if code:
                self._wait_on(code, SLICE_US, None)
            status._data = self._result_bytes[:]
            status._values = None
            return True
        if status is not None and not isinstance(status, Status):
            raise ArgumentError(f"status must be a pypartial.Status, not {status!r}")
        if timeout is None:
            first_us = SLICE_US
        else:
            timeout = seconds(timeout)
            first_us = SLICE_US if timeout > SLICE_S else int(timeout * 1e6)
        code = self._pp_wait(self._handle, first_us, self._result)
        if code:
            self._wait_on(code, first_us, timeout)
        if status is not None:
            status._fill(self._result_bytes[:])
        return True

    def Test(self, status: Status | None = None) -> bool:
        """Collect the request if it is complete; never blocks.

        Parameters
        ----------
        status : Status, optional
            Filled if the answer is True.

        Returns
        -------
        bool
            Whether the request was complete: as after `Wait` then, else nothing has changed.

        Raises
        ------
        ArgumentError, Error, PeerFailedError
            As `Wait`.
        """
        if status is not None and not isinstance(status, Status):
            raise ArgumentError(f"status must be a pypartial.Status, not {status!r}")
        code = self._pp_test(self._handle, self._result)
        if code:
            if code == 1:  # PP_PENDING
                return False
            raise self._native.error(code)
        if status is not None:
            status._fill(self._result_bytes[:])
        return True

    def _wait_on(
        self,
        code: int,
        waited_us: int,
        timeout: float | None,
        wait: Callable[[int], int] | None = None,
    ) -> None:
        """Wait's slow path: it was pending, or failed, in the first slice."""
        if code == 1:  # PP_PENDING
            try:
                code = wait_in_slices(
                    wait or (lambda slice_us: self._pp_wait(self._handle, slice_us, self._result)),
                    waited_us / 1e6,
                    timeout,
                    self._context._stall_warning,
                    self._explainer,
                )
            except TimeoutError:
                self._native.check(self._lib.pp_timed_out(self._handle))  # Start may follow
                raise
        if code:
            raise self._native.error(code)

    # ---- collective calls -----------------------------------------------------------------------

    def Flush(self, status: Status | None = None, timeout: float | None = None) -> None:
        """Run a last, synchronous round with everything that is pending on any rank.

        Collective, blocking. Nothing is pending anywhere afterwards, a request still outstanding
        is complete and collected, and the receive buffers hold the flush's result: with
        ``deliver="sum"`` together with all rounds not given yet. The handle can be used again.
        While a rank is inside it serves the rounds of ranks that are still on their way.

        Parameters
        ----------
        status : Status, optional
            Filled; its `cause` is ``"flush"``.
        timeout : float, optional
            Seconds to wait at most, 0 or more.

        Raises
        ------
        ArgumentError
            If `status` or `timeout` is of the wrong kind. This is a local error, raised before
            anything is communicated: the other ranks wait in their Flush, and the call can be
            repeated.
        TimeoutError
            After `timeout` seconds. The same call goes on with it; until then this rank counts as
            left, and every other collective call of the context raises.
        Error
            With ``deliver="each"``, where the remaining rounds come one by one from `Drain`; if
            another thread is inside a collective call of the context; or if the handle was freed.
        PeerFailedError
            If the round can no longer complete.
        """
        _check_status(status)
        limit = None if timeout is None else seconds(timeout)
        self._live()
        self._refuse_flush()
        self._collect_call(f"Flush of {self._name()}", self._lib.pp_flush_begin, limit)
        if status is not None:
            status._fill(self._result_bytes[:])

    def _refuse_flush(self) -> None:
        """Raise `Error` if a handle of this kind, or with these options, cannot be flushed."""

    def _collect_call(
        self, name: str, begin: Callable[[CData], int], timeout: float | None
    ) -> None:
        """Make a collective call of this handle that gives a result."""
        self._context._calls.make(name, self, timeout, lambda: (begin(self._handle), None))
        self._native.check(self._lib.pp_collect(self._handle, self._result))

    def Free(self, timeout: float | None = None) -> int:
        """End the handle and release its buffers.

        Collective, blocking. Contributions of this rank that no round has taken are discarded: call
        `Flush` (or `Drain`) before to have them reduced.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait at most, 0 or more.

        Returns
        -------
        int
            The number of contributions (Starts) of this rank that were discarded.

        Raises
        ------
        ArgumentError
            If `timeout` is of the wrong kind; nothing was communicated.
        TimeoutError
            After `timeout` seconds. The same call goes on with it; until then this rank counts as
            left, and every other call of the handle, and collective call of the context, raises.
        Error
            If the handle was freed already.
        PeerFailedError
            If the ranks can no longer agree on the end.
        """
        limit = None if timeout is None else seconds(timeout)
        name = f"Free of {self._name()}"
        context = self._context
        if context._calls.begun(name) is None:
            self._live()
        try:
            discarded = context._calls.make(name, self, limit, self._begin_free)
        except TimeoutError:
            # The core goes on, and releases the handle at any time from now on.
            self._refuse(f"{self._name()} is being freed: its Free timed out; call it again")
            raise
        except Error:
            raise
        except BaseException:
            context._forget(self)
            self._refuse(f"{self._name()} is being freed: its Free was interrupted")
            raise
        context._forget(self)
        self._refuse(f"{self._name()} was freed")
        return int(discarded[0])

    def __enter__(self: AnyRequest) -> AnyRequest:
        """Return the request itself; the end of the ``with`` block frees it.

        A normal end calls `Free`, which is collective: what no round has taken is discarded, so
        call `Flush` (or `Drain`) before. An exception that leaves the block communicates nothing.
        This rank cannot free the handle without the others, so it gives up the whole context, as
        an exception that leaves the context's own block does. The exception then passes on.

        Raises
        ------
        Error
            If the handle was freed.

        Examples
        --------
        >>> with ctx.Allreduce_init(gradient, out) as request:  # doctest: +SKIP
        ...     for step in range(100):
        ...         compute(gradient)
        ...         request.Start()
        ...         request.Wait()
        ...     request.Flush()
        """
        self._live()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Free the handle; after an exception abandon the context, which communicates nothing."""
        timed_out = self._context._calls.begun(f"Free of {self._name()}") is not None
        if self._gone is not None and not timed_out:  # freed in the block, or the context has ended
            return
        if kind is not None:
            self._context._abandon(self._name())
            return
        try:
            self.Free()
        except BaseException:
            self._context._abandon(self._name())
            raise

    def _begin_free(self) -> tuple[int, CData]:
        discarded = self._native.ffi.new("uint64_t *")
        return self._lib.pp_handle_free_begin(self._handle, discarded), discarded

    # ---- what it is -----------------------------------------------------------------------------

    @property
    def context(self) -> Context:
        """The context it was made in."""
        return self._context

    @property
    def id(self) -> int:
        """The handle's number, the same on every rank; messages name it."""
        return self._id

    def _name(self) -> str:
        return f"handle {self._id}"

    def _describe(self) -> str:
        """Return what it was made with, in words."""
        return ""

    def __reduce__(self) -> NoReturn:
        # Asked for by copy, deepcopy and pickle alike.
        raise TypeError(
            "a pypartial.Request cannot be copied or pickled: it stands for a handle of this "
            "process"
        )

    def __repr__(self) -> str:
        state = f", {self._gone}" if self._gone else ""
        return f"<pypartial.{type(self).__name__} {self._id}: {self._describe()}{state}>"

    # ---- ends and waits -------------------------------------------------------------------------

    def _live(self) -> None:
        if self._gone is not None:
            raise Error(self._gone)

    def _refuse(self, why: str) -> None:
        """From now on raise `Error(why)` at every call: the C handle must not be used."""

        def refuse(*_: Any) -> int:
            raise Error(why)

        self._gone = why
        self._pp_start = self._pp_wait = self._pp_wait_slice = self._pp_test = refuse
        self._handle = self._native.ffi.NULL
        self._owners = []

    def _explainer(self) -> Explainer:
        """Return who says whom a Wait waits for."""
        native, context = self._native, self._context
        return Explainer(
            lambda: Question(native, context._ctx, context.size, self._id),
            lambda: obstacles(native, self._lib.pp_handle_obstacles, self._handle),
            self._report_wait,
            f"Wait on {self._name()} ({self._describe()})",
            self._id,
        )

    def _report_wait(self, waited_s: float, answers: list[RankState] | str) -> str:
        """Say whom a Wait waits for, from what the ranks have answered."""
        name = f"Wait on {self._name()} ({self._describe()})"
        if isinstance(answers, str):
            return f"{name}: {waited_s:.1f} s so far; cannot ask the ranks: {answers}"
        return self._report_states(name, waited_s, answers)

    def _report_states(self, name: str, waited_s: float, states: list[RankState]) -> str:
        return f"{name}: not complete after {waited_s:.1f} s; {each_does(states, self._id)}"


def Startall(requests: Iterable[Request]) -> None:
    """Start several requests, in order.

    Local. Give the requests in the same order on every rank.

    Parameters
    ----------
    requests : iterable of Request

    Raises
    ------
    ArgumentError
        If something else is among them; nothing was started.
    Error
        As `Request.Start`; the requests before the one that failed are started.
    """
    for request in _all_of(Request, "requests", requests):
        request.Start()


def Waitall(
    requests: Iterable[Request],
    statuses: Iterable[Status] | None = None,
    timeout: float | None = None,
) -> bool:
    """Wait for several requests, in order.

    Parameters
    ----------
    requests : iterable of Request
        In the order in which they were started, the same on every rank.
    statuses : iterable of Status, optional
        As many as requests; each is filled.
    timeout : float, optional
        Seconds for all of them together.

    Returns
    -------
    bool
        True.

    Raises
    ------
    ArgumentError
        If an argument is of the wrong kind, or the numbers of requests and statuses differ; nothing
        was waited for.
    TimeoutError, Error, PeerFailedError
        As `Request.Wait`; the requests before the one that failed are collected.
    """
    wait_for = _all_of(Request, "requests", requests)
    fill: Sequence[Status | None] = [None] * len(wait_for)
    if statuses is not None:
        fill = _all_of(Status, "statuses", statuses)
        if len(fill) != len(wait_for):
            raise ArgumentError(f"{len(wait_for)} requests, but {len(fill)} statuses")
    deadline = None if timeout is None else time.monotonic() + seconds(timeout)
    for request, status in zip(wait_for, fill, strict=True):
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        request.Wait(status, left)
    return True


def _all_of(kind: type[Value], name: str, values: Iterable[Value]) -> list[Value]:
    """Return the values as a list if all of them are of a kind; nothing is done with any before."""
    try:
        iterator = iter(values)
    except TypeError:
        raise ArgumentError(
            f"{name} must be a list of pypartial.{kind.__name__} objects, not {values!r}"
        ) from None
    listed = list(iterator)
    for index, value in enumerate(listed):
        if not isinstance(value, kind):
            raise ArgumentError(
                f"{name}[{index}] must be a pypartial.{kind.__name__}, not {value!r}"
            )
    return listed


def _check_status(status: Any) -> None:
    if status is not None and not isinstance(status, Status):
        raise ArgumentError(f"status must be a pypartial.Status, not {status!r}")
