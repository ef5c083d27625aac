"""Requests: what the handles of all kinds of collectives share."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from ._arguments import seconds
from ._explain import Explainer, Question, RankState, obstacles, report_group
from ._native import CORE_ERRORS, SLICE_S, SLICE_US, Native, wait_in_slices
from .errors import ArgumentError, Error, TimeoutError
from .status import Status

if TYPE_CHECKING:
    import numpy as np

    from ._core import CData
    from .context import Context

__all__ = ["Request", "Startall", "Waitall"]

Value = TypeVar("Value")
AnyRequest = TypeVar("AnyRequest", bound="Request")


class Request:
    """A persistent collective: started, waited for, and started again.

    `Context.Allreduce_init` makes an `AllreduceRequest`, which has all of this and `View`, `More`
    and `Drain`. The classes of other kinds of requests say where they differ from the rounds that
    are described here. Applications do not call the constructor. A request cannot be copied or
    pickled.

    One pass of a loop is `Start`, then `Wait`, or `Test` until it returns True:

    - `Start` is local. It contributes a copy of the send buffers, and never waits for another rank.
    - `Wait` blocks until a round is complete; `Test` does not block. Both *collect* the request:
      its result is then in the receive buffers.
    - `Flush` and `Free` are collective and blocking: every rank calls them, in the same order.

    Ranks may start a request different numbers of times. Every Start's contribution enters exactly
    one round.

    Notes
    -----
    **Buffers.** The library reads the send buffers inside `Start` only, and writes the receive
    buffers inside `Wait`, `Test`, `Flush` and the calls of `AllreduceRequest` only. At all other
    times they belong to the application. Buffers from `Context.alloc` are the exception: they
    belong to the library from `Start` until a call has given a result. Of buffers on a device all
    that holds for work which is queued on the streams of these calls. The request keeps all buffers
    alive until it is freed. Do not resize a tensor of PyTorch that it has (``resize_()``): its
    elements would be elsewhere.

    **Threads.** One thread at a time may use a request. Different threads may start and wait for
    different requests. A context does one collective call at a time: while a thread is inside one
    (`Flush`, a step of `AllreduceRequest.Drain`, `Free`, ``*_init``, `Context.Free`), `Start` of
    any request of that context, and a second collective call, raise `Error` in other threads. Such
    a call has contributed and communicated nothing; repeat it when the other call has returned.
    `Wait` and `Test` work at any time. Requests of different contexts do not affect each other.

    References
    ----------
    S. Li et al., "Taming Unbalanced Training Workloads in Deep Learning with Partial Collective
    Operations" (eager-SGD), PPoPP 2020, sections 4 and 5.

    Examples
    --------
    >>> request = ctx.Allreduce_init(gradient, total)  # doctest: +SKIP
    >>> status = pp.Status()  # doctest: +SKIP
    >>> for step in range(100):  # doctest: +SKIP
    ...     compute(gradient)
    ...     request.Start()  # contributes; `gradient` may be overwritten at once
    ...     request.Wait(status)  # the sum of a round is in `total`
    >>> request.Flush(status)  # what was still pending  # doctest: +SKIP
    >>> request.Free()  # doctest: +SKIP
    0
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
        "_settings",
    )

    _pp_start: Callable[[Any], int]
    _pp_wait: Callable[[Any, int, Any], int]
    _pp_wait_slice: Callable[[Any], int]
    _pp_test: Callable[[Any, Any], int]

    def __init__(
        self, context: Context, native: Native, handle: CData, owners: list[Any], settings: Any
    ) -> None:
        """Wrap a handle of the C core; the ``*_init`` methods of a context do this."""
        self._context = context
        self._native = native
        self._handle = handle
        self._owners = owners  # keep the user's buffers alive
        self._settings = settings  # what it was made with; it says so in words
        self._gone: str | None = None  # why the handle cannot be used any more
        self._lib = lib = native.lib
        self._id: int = lib.pp_handle_id(handle)
        # Looked up once, because Start and Wait must cost little.
        self._pp_start = lib.pp_start
        self._pp_wait = lib.pp_wait
        self._pp_wait_slice = lib.pp_wait_slice
        self._pp_test = lib.pp_test
        self._result = native.ffi.new("pp_result_t *")
        self._result_bytes = native.ffi.buffer(self._result)

    # ---- the data path --------------------------------------------------------------------------

    def Start(self) -> None:
        """Contribute what is in the send buffers, and ask for a result.

        Local; never waits for another rank. It copies the send buffers (with ``MPI.IN_PLACE``: the
        receive buffers), and the application may overwrite them as soon as it returns. The copy
        enters exactly one round, the next one that is activated on this rank.

        The request is *late* if a round has completed since the previous request did. It is then
        complete at once with that round's result, and its contribution goes into the next round.

        Raises
        ------
        Error
            If the previous request was not collected by `Wait` or `Test` (unless its last `Wait`
            raised `TimeoutError`: this Start then adds to what is pending); if another thread is
            inside a collective call of the context; or if the handle was freed. Nothing was
            contributed.
        PeerFailedError
            If another rank has failed, so that no round can complete any more.
        """
        status = self._pp_start(self._handle)
        if status:
            self._native.check(status)
            self._context._log_note()

    def Wait(self, status: Status | None = None, timeout: float | None = None) -> bool:
        """Wait until the request is complete; the result is then in the receive buffers.

        Local and blocking: it returns when a round is complete, whether or not all ranks have
        called. What it delivers is the ``deliver=`` of `Context.Allreduce_init`. If nothing was
        started since the last result, it delivers rounds that this rank was not given yet, if there
        are any.

        Ctrl-C interrupts it, within 50 ms. If the request completes within that time, it is
        collected, and `status` is not filled: with rounds shorter than that, this is the rule. Else
        it stays outstanding, as after `TimeoutError`. A further call tells which: it raises
        `Error`, or gives a later round, if the request was collected. The same holds for each
        handler of a signal that raises. A wait longer than the context's `stall_warning` seconds
        logs a warning (logger ``"pypartial"``) that names the ranks it waits for.

        Parameters
        ----------
        status : Status, optional
            Filled with what the request completed with.
        timeout : float, optional
            Seconds to wait at most, 0 or more. None: no limit.

        Returns
        -------
        bool
            True, as in mpi4py.

        Raises
        ------
        ArgumentError
            If `status` is not a `Status`, or `timeout` is not 0 or more seconds. The call has not
            waited.
        TimeoutError
            After `timeout` seconds. The text says what the round waits for, as far as this rank
            knows. The request stays outstanding: wait for it again, or call `Start`, which adds to
            what is pending. Parts of a result may be in the receive buffers already, so with
            ``MPI.IN_PLACE`` fill them anew before that `Start`.
        Error
            If nothing was started and there is no round to deliver, if the handle was freed, or if
            this rank is inside `Context.away`.
        PeerFailedError
            If another rank has failed, so that the round cannot complete any more.
        """
        # The two cases of a loop, with and without a status, take the shortest ways.
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
        self._wait(None if timeout is None else seconds(timeout))
        if status is not None:
            self._fill(status)
        return True

    def _wait(self, timeout: float | None, wait: Callable[[int], int] | None = None) -> None:
        """Wait until the request is complete, for at most this many seconds."""
        first_us = SLICE_US
        if timeout is not None and timeout <= SLICE_S:
            first_us = int(timeout * 1e6)
        wait = wait or (lambda slice_us: self._pp_wait(self._handle, slice_us, self._result))
        code = wait(first_us)
        if code:
            self._wait_on(code, first_us, timeout, wait)

    def _await(self, timeout: float | None) -> None:
        """Wait until the request is complete, and do not collect it."""
        self._live()
        self._wait(timeout, lambda slice_us: self._lib.pp_await(self._handle, slice_us))

    def _timed_out(self) -> None:  # allows a Start
        self._native.check(self._lib.pp_timed_out(self._handle))

    def _is_outstanding(self) -> bool:
        """Return whether a request was started, and not collected.

        The core knows, also where an exception such as Ctrl-C has ended a `Start` or a `Wait`.
        """
        return self._gone is None and self._lib.pp_is_outstanding(self._handle) == 1  # PP_PENDING

    def _unties(self) -> None:
        """Keep no rank in step: it is started only where ranks have left all other requests."""
        self._native.check(self._lib.pp_handle_unties(self._handle))

    def _collected(self) -> bytes:
        """Return what tells the result that was collected last from all others.

        A caller of `Wait` that was interrupted learns by it whether the request is outstanding.
        """
        data: bytes = self._result_bytes[:]
        return data

    def _fill(self, status: Status) -> None:
        """Fill a status with what was collected last."""
        status._fill(self._result_bytes[:])

    def Test(self, status: Status | None = None) -> bool:
        """Collect the request if it is complete. Local; never blocks.

        Parameters
        ----------
        status : Status, optional
            Filled if the method returns True.

        Returns
        -------
        bool
            True if the request was complete: everything is then as after `Wait`. False if it was
            not: nothing has changed.

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
            self._fill(status)
        return True

    def _wait_on(
        self,
        code: int,
        waited_us: int,
        timeout: float | None,
        wait: Callable[[int], int] | None = None,
    ) -> None:
        """Go on with a Wait that was pending, or failed, in its first slice."""
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
                self._timed_out()
                raise
        if code:
            raise self._native.error(code)

    # ---- collective calls -----------------------------------------------------------------------

    def Flush(self, status: Status | None = None, timeout: float | None = None) -> None:
        """Run one more, synchronous round with everything that is pending on any rank.

        Collective, blocking. It returns when all ranks have called it. Nothing is pending anywhere
        then. The receive buffers hold the result of this round; with ``deliver="sum"`` it is
        combined with all rounds that this rank was not given yet. If nothing was pending on any
        rank, that is the identity of the operation: 0 for SUM, minus infinity for MAX. A request
        that was outstanding is complete and collected. The handle can be used again.

        A rank inside this call has left the handle, and serves the rounds of ranks that have not
        come yet.

        Parameters
        ----------
        status : Status, optional
            Filled; its `cause` is ``"flush"``.
        timeout : float, optional
            Seconds to wait at most, 0 or more. None: no limit.

        Raises
        ------
        ArgumentError
            If `status` is not a `Status`, or `timeout` is not 0 or more seconds. The error is local
            and nothing was communicated: the other ranks wait in their Flush. Repeat the call.
        TimeoutError
            After `timeout` seconds. The same call, made again, goes on with it. Until then this
            rank counts as left, and every other collective call of the context raises, and `Wait`
            and `Test` of this request.
        Error
            With ``deliver="each"``: there `AllreduceRequest.Drain` gives the remaining rounds one
            by one. Also if another thread is inside a collective call of the context, or if the
            handle was freed.
        PeerFailedError
            If another rank has failed, so that the round cannot complete any more.
        """
        _check_status(status)
        limit = None if timeout is None else seconds(timeout)
        self._live()
        self._refuse_flush()
        self._collect_call(f"Flush of {self._name()}", self._lib.pp_flush_begin, limit)
        if status is not None:
            self._fill(status)

    def _refuse_flush(self) -> None:
        """Raise `Error` if a handle of this kind, or with these options, cannot be flushed."""

    def _collect_call(
        self, name: str, begin: Callable[[CData], int], timeout: float | None
    ) -> None:
        """Make a collective call of this handle that delivers a result."""
        calls = self._context._calls
        left = calls.before(name, timeout)
        calls.make(name, self, left, lambda: (begin(self._handle), None))
        self._native.check(self._lib.pp_collect(self._handle, self._result))

    def Free(self, timeout: float | None = None) -> int:
        """End the handle and release its memory.

        Collective, blocking. Contributions of this rank that no round has taken are discarded; call
        `Flush` (or `AllreduceRequest.Drain`) before to have them reduced. The application's buffers
        are no longer kept alive.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait at most, 0 or more. None: no limit.

        Returns
        -------
        int
            How many contributions (Starts) of this rank were discarded.

        Raises
        ------
        ArgumentError
            If `timeout` is not 0 or more seconds; nothing was communicated.
        TimeoutError
            After `timeout` seconds. The same call, made again, goes on with it. Until then this
            rank counts as left, and every other call of the handle, and every other collective call
            of the context, raises.
        Error
            If the handle was freed already.
        PeerFailedError
            If another rank has failed, so that the ranks cannot agree on the end any more.
        """
        limit = None if timeout is None else seconds(timeout)
        name = f"Free of {self._name()}"
        context = self._context
        if not context._calls.in_progress(name):
            self._live()
        limit = context._calls.before(name, limit)
        try:
            discarded = context._calls.make(name, self, limit, self._begin_free)
        except TimeoutError:
            # The core goes on with the call, and may release the handle at any time from now on.
            self._refuse(f"{self._name()} is being freed: its Free timed out; call Free again")
            raise
        except CORE_ERRORS:
            raise
        except BaseException:
            context._forget(self)
            self._refuse(f"{self._name()} is being freed: its Free was interrupted")
            raise
        context._forget(self)
        self._refuse(f"{self._name()} was freed")
        self._drop()
        return int(discarded[0])

    def __enter__(self: AnyRequest) -> AnyRequest:
        """Return the request itself; the end of the ``with`` block frees it.

        A normal end calls `Free`, which is collective: what no round has taken is discarded, so
        call `Flush` (or `Drain`) before. If `Free` raises an error of the library, the error passes
        on, and the request and the context are as after any `Free` that raised. For example, a
        `Flush` that timed out in the block has to end first: call it again, then `Free`. The other
        ranks wait meanwhile. An interrupted `Free` (Ctrl-C) cannot be repeated, and no other
        collective call of the context can follow it: this rank then gives up the whole context.

        An exception that leaves the block waits for nobody. This rank cannot free the handle
        without the others, so it gives up the whole context, as an exception that leaves the
        context's own block does. The exception then passes on. A program that catches it cannot go
        on with the context: every later call, and the normal end of the context's block, raises an
        `Error` that quotes the exception.

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
        """Free the handle; after an exception give the context up.

        An error of Free leaves the context as it is, an interrupted Free abandons it.
        """
        timed_out = self._context._calls.in_progress(f"Free of {self._name()}")
        if self._gone is not None and not timed_out:  # freed in the block, or the context has ended
            return
        block = f"the with block of {self._name()}"
        if error is not None:
            self._context._abandon(error, block)
            return
        try:
            self.Free()
        except CORE_ERRORS:  # Free can be repeated, or the context has failed and says why
            raise
        except BaseException as interrupt:
            self._context._abandon(interrupt, block)
            raise

    def _begin_free(self) -> tuple[int, CData]:
        discarded = self._native.ffi.new("uint64_t *")
        return self._lib.pp_handle_free_begin(self._handle, discarded), discarded

    # ---- what it is -----------------------------------------------------------------------------

    @property
    def context(self) -> Context:
        """The context that the request was made in."""
        return self._context

    @property
    def id(self) -> int:
        """The handle's number, the same on every rank; errors and warnings name it."""
        return self._id

    @property
    def dtype(self) -> np.dtype[Any]:
        """Element type of the buffers."""
        dtype: np.dtype[Any] = self._settings.dtype
        return dtype

    @property
    def count(self) -> int:
        """Number of elements of all (receive) buffers together."""
        return int(self._settings.count)

    def _name(self) -> str:
        return f"handle {self._id}"

    def __reduce__(self) -> NoReturn:
        # Copy, deepcopy and pickle all call this.
        raise TypeError(
            "a pypartial.Request cannot be copied or pickled: it stands for a handle of this "
            "process"
        )

    def __repr__(self) -> str:
        state = f", {self._gone}" if self._gone else ""
        return f"<pypartial.{type(self).__name__} {self._id}: {self._settings}{state}>"

    # ---- ends and waits -------------------------------------------------------------------------

    def _live(self) -> None:
        if self._gone is not None:
            raise Error(self._gone)

    def _refuse(self, why: str) -> None:
        """Make every further call raise `Error(why)`: the C handle must not be used any more.

        The buffers stay: another thread may be inside a call that reads or writes them.
        """

        def refuse(*_: Any) -> int:
            raise Error(why)

        self._gone = why
        self._pp_start = self._pp_wait = self._pp_wait_slice = self._pp_test = refuse
        self._handle = self._native.ffi.NULL

    def _drop(self) -> None:
        """Keep nothing alive any more: the handle was freed, and no thread uses it."""
        self._owners = []

    def _explainer(self) -> Explainer:
        """Return the object that says which ranks a Wait waits for."""
        native, context = self._native, self._context
        return Explainer(
            lambda: Question(native, context._ctx, context.size, self._id),
            lambda: obstacles(native, self._lib.pp_handle_obstacles, self._handle),
            self._report_wait,
            f"Wait on {self._name()} ({self._settings})",
        )

    def _report_wait(self, states: list[RankState]) -> tuple[str, bool]:
        """Say which ranks a Wait waits for, from their answers, and whether that is all."""
        return report_group(self._id, states, self._context.rank)


def Startall(requests: Iterable[Request]) -> None:
    """Call `Request.Start` of several requests, in order.

    Local; never waits for another rank. Pass the requests in the same order on every rank.

    Parameters
    ----------
    requests : iterable of Request

    Raises
    ------
    ArgumentError
        If an item is not a `Request`; nothing was started.
    Error, PeerFailedError
        As `Request.Start`. The requests before the one that failed are started.
    """
    for request in _all_of(Request, "requests", requests):
        request.Start()


def Waitall(
    requests: Iterable[Request],
    statuses: Iterable[Status] | None = None,
    timeout: float | None = None,
) -> bool:
    """Wait until several requests are complete, and then collect all of them. Local, blocking.

    No request is collected before all are complete. So a call that raises `TimeoutError`, or that
    Ctrl-C interrupts while it waits, leaves each request as it was: repeat it with the same list.

    Parameters
    ----------
    requests : iterable of Request
        In the order in which they were started, the same on every rank.
    statuses : iterable of Status, optional
        As many as there are requests; each is filled.
    timeout : float, optional
        Seconds to wait at most for all requests together, 0 or more. None: no limit.

    Returns
    -------
    bool
        True.

    Raises
    ------
    ArgumentError
        If an argument is of the wrong kind, or if there are not as many statuses as requests. The
        call has not waited.
    TimeoutError
        After `timeout` seconds. `Request.Start` is allowed for all of them, as for a request whose
        `Request.Wait` has timed out.
    Error, PeerFailedError
        As `Request.Wait`.
    """
    wait_for = _all_of(Request, "requests", requests)
    fill: Sequence[Status | None] = [None] * len(wait_for)
    if statuses is not None:
        fill = _all_of(Status, "statuses", statuses)
        if len(fill) != len(wait_for):
            raise ArgumentError(
                f"there are {len(wait_for)} requests, but {len(fill)} statuses: pass one status "
                "for each request"
            )
    deadline = None if timeout is None else time.monotonic() + seconds(timeout)
    try:
        for request in wait_for:
            request._await(None if deadline is None else max(0.0, deadline - time.monotonic()))
    except TimeoutError:
        for request in wait_for:
            request._timed_out()
        raise
    for request, status in zip(wait_for, fill, strict=True):
        request.Wait(status)
    return True


def _all_of(kind: type[Value], name: str, values: Iterable[Value]) -> list[Value]:
    """Return the values as a list; raise unless all of them are of a kind."""
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
