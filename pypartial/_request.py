"""Requests: the handles of persistent partial collectives."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeVar

import numpy as np

from ._arguments import real_number
from ._native import SLICE_S, SLICE_US, Native, wait_in_slices
from .errors import ArgumentError, Error
from .policy import Full, Policy
from .status import Cause, Status
from .tuning import algorithm_name, reason_text

if TYPE_CHECKING:
    from ._buffer import Vector
    from ._core import CData
    from .context import Context

__all__ = ["Request", "Startall", "Waitall"]

Value = TypeVar("Value")

# How long a report about a wait asks the other ranks.
ASK_LONGEST_S = 0.5
ASK_SHORTEST_S = 0.05


@dataclass(frozen=True)
class Settings:
    """What a request was made with."""

    op: str
    policy: Policy
    deliver: str
    max_lag: int | None
    average: str | None
    dtype: np.dtype[Any]
    count: int

    def __str__(self) -> str:
        return f"{self.op} of {self.count} {self.dtype.name}, {self.policy!r}, '{self.deliver}'"


class Request:
    """A persistent partial allreduce: started, waited for, and started again.

    Made by `Context.Allreduce_init`; what its options mean is described there. It cannot be copied
    or pickled.

    Notes
    -----
    One thread at a time may use a request. Different requests may be started and waited for by
    different threads, but a context does one collective call at a time: while a thread is inside
    one (`Flush`, a step of `Drain`, `Free`, `Context.Allreduce_init`, `Context.Free`), `Start` of
    any request of that context, and a second collective call, raise `Error` in other threads.
    Nothing was contributed or communicated then; the call can be repeated when the other one has
    returned. `Wait` and `Test` work at any time. Requests of different contexts do not affect each
    other.
    """

    __slots__ = (
        "__weakref__",
        "_coll",
        "_context",
        "_gone",
        "_id",
        "_lib",
        "_native",
        "_owners",
        "_pp_start",
        "_pp_test",
        "_pp_wait",
        "_pp_wait_slice",
        "_receives",
        "_result",
        "_result_bytes",
        "_settings",
    )

    _pp_start: Callable[[Any], int]
    _pp_wait: Callable[[Any, int, Any], int]
    _pp_wait_slice: Callable[[Any], int]
    _pp_test: Callable[[Any, Any], int]

    def __init__(
        self, context: Context, native: Native, coll: CData, settings: Settings, vector: Vector
    ) -> None:
        self._context = context
        self._native = native
        self._coll = coll
        self._settings = settings
        self._owners = vector.owners  # the user's buffers, pinned
        self._receives = [(piece.recv, piece.count) for piece in vector.pieces]
        self._gone: str | None = None  # why the handle cannot be used any more
        self._lib = lib = native.lib
        self._id: int = lib.pp_coll_id(coll)
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
            If the previous request was not collected by `Wait` or `Test`, another thread is inside
            a collective call of the context, or the handle was freed. Nothing was contributed.
        PeerFailedError
            If rounds can no longer complete.
        """
        status = self._pp_start(self._coll)
        if status:
            raise self._native.error(status)

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
            After `timeout` seconds; the text names the ranks waited for and what each is doing. (To
            ask them takes up to half a second more.)
        Error
            If nothing was started and there is nothing to give, or the handle was freed.
        PeerFailedError
            If the round can no longer complete.
        """
        if status is None and timeout is None:  # what a loop costs: the shortest way
            code = self._pp_wait_slice(self._coll)
            if code:
                self._wait_on(code, SLICE_US, None)
            return True
        if status is not None and not isinstance(status, Status):
            raise ArgumentError(f"status must be a pypartial.Status, not {status!r}")
        if timeout is None:
            first_us = SLICE_US
        else:
            timeout = _seconds(timeout)
            first_us = SLICE_US if timeout > SLICE_S else int(timeout * 1e6)
        code = self._pp_wait(self._coll, first_us, self._result)
        if code:
            self._wait_on(code, first_us, timeout)
        if status is not None:
            status._fill(self._result_bytes[:])
        return True

    def View(
        self, status: Status | None = None, timeout: float | None = None
    ) -> np.ndarray[Any, Any]:
        """Wait until the request is complete, and return its result where it lies.

        As `Wait`, without the copy into the receive buffers, if the ranks of the node made the
        round in memory that they share; the receive buffers then keep what they had. Otherwise
        (rounds made of messages alone, half precision, buffers from `Context.alloc` that the
        round has written already) the result is copied there, and the view is one of them.

        Parameters
        ----------
        status, timeout
            As for `Wait`.

        Returns
        -------
        numpy.ndarray
            Read-only, of shape ``(count,)``: the elements of all receive buffers, one after the
            other. It shows this result until the next call of any method of the request; what it
            shows afterwards is undefined. Copy what has to stay.

        Raises
        ------
        ArgumentError, TimeoutError, Error, PeerFailedError
            As `Wait`.
        """
        if status is not None and not isinstance(status, Status):
            raise ArgumentError(f"status must be a pypartial.Status, not {status!r}")
        limit = None if timeout is None else _seconds(timeout)
        ffi = self._native.ffi
        elements, keeper = ffi.new("const void **"), ffi.new("void **")

        def wait(slice_us: int) -> int:
            return self._lib.pp_wait_view(self._coll, slice_us, self._result, elements, keeper)

        first_us = SLICE_US if limit is None or limit > SLICE_S else int(limit * 1e6)
        code = wait(first_us)
        if code:
            self._wait_on(code, first_us, limit, wait)
        if status is not None:
            status._fill(self._result_bytes[:])
        return self._view(elements[0], keeper[0])

    def _view(self, elements: CData, keeper: CData) -> np.ndarray[Any, Any]:
        """Return a read-only array of the result, in the library's memory or in ours."""
        ffi, lib, dtype = self._native.ffi, self._lib, self._settings.dtype

        def array(address: Any, count: int, end: Callable[[Any], Any]) -> np.ndarray[Any, Any]:
            # The array's base is the buffer, which refers to what `gc` returns: all end together.
            owner = ffi.gc(ffi.cast("char *", address), end)
            buffer: Any = ffi.buffer(owner, count * dtype.itemsize)
            return np.frombuffer(buffer, np.uint8).view(dtype)

        if elements != ffi.NULL:
            view = array(elements, self._settings.count, lambda _: lib.pp_unalloc(keeper))
        else:
            owners = self._owners

            def keep(_: Any) -> int:  # what the array shows, as long as it lives
                return len(owners)

            parts = [array(at, count, keep) for at, count in self._receives]
            view = parts[0] if len(parts) == 1 else np.concatenate(parts)
        view.setflags(write=False)
        return view

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
        code = self._pp_test(self._coll, self._result)
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
            code = wait_in_slices(
                wait or (lambda slice_us: self._pp_wait(self._coll, slice_us, self._result)),
                waited_us / 1e6,
                timeout,
                self._context._stall_warning,
                self._report_wait,
            )
        if code:
            raise self._native.error(code)

    # ---- collective calls -----------------------------------------------------------------------

    def Flush(self, status: Status | None = None) -> None:
        """Run a last, synchronous round with everything that is pending on any rank.

        Collective, blocking. Nothing is pending anywhere afterwards, a request still outstanding
        is complete and collected, and the receive buffers hold the flush's result: with
        ``deliver="sum"`` together with all rounds not given yet. The handle can be used again.
        While a rank is inside it serves the rounds of ranks that are still on their way.

        Parameters
        ----------
        status : Status, optional
            Filled; its `cause` is ``"flush"``.

        Raises
        ------
        ArgumentError
            If `status` is of the wrong kind. This is a local error, raised before anything is
            communicated: the other ranks wait in their Flush, and the call can be repeated.
        Error
            With ``deliver="each"``, where the remaining rounds come one by one from `Drain`; if
            another thread is inside a collective call of the context; or if the handle was freed.
        PeerFailedError
            If the round can no longer complete.
        """
        if status is not None and not isinstance(status, Status):
            raise ArgumentError(f"status must be a pypartial.Status, not {status!r}")
        self._live()
        if self._settings.deliver == "each":
            raise Error(
                f"{self._name()}: Flush is for deliver='latest' and 'sum'; with deliver='each' the "
                "remaining rounds are collected by: for status in request.Drain()"
            )
        self._native.check(self._lib.pp_flush_begin(self._coll))
        self._context._finish_call(f"Flush of {self._name()}", self)
        self._native.check(self._lib.pp_collect(self._coll, self._result))
        if status is not None:
            status._fill(self._result_bytes[:])

    def Drain(self) -> Iterator[Status]:
        """Give the remaining rounds one by one, the flush last (``deliver="each"``).

        Every step of the iterator is collective and blocking: it puts one round, oldest first, into
        the receive buffers. The last one is the flush, the synchronous round with everything that
        was pending. Iterate to the end on every rank; ranks may take different numbers of steps
        before it.

        Yields
        ------
        Status
            A new one for every round; the last one's `cause` is ``"flush"``.

        Raises
        ------
        Error
            With another `deliver` (use `Flush`), or if the handle was freed.
        PeerFailedError
            If the rounds can no longer complete.
        """
        self._live()
        if self._settings.deliver != "each":
            raise Error(
                f"{self._name()}: Drain is for deliver='each'; with "
                f"deliver={self._settings.deliver!r} use Flush"
            )
        return self._drain()

    def _drain(self) -> Iterator[Status]:
        """Drain's steps; a generator apart, so that Drain raises when it is called."""
        status = None
        while status is None or status.cause is not Cause.FLUSH:
            self._live()
            self._native.check(self._lib.pp_drain_begin(self._coll))
            self._context._finish_call(f"Drain of {self._name()}", self)
            self._native.check(self._lib.pp_collect(self._coll, self._result))
            status = Status()
            status._fill(self._result_bytes[:])
            yield status

    def Free(self) -> int:
        """End the handle and release its buffers.

        Collective, blocking. Contributions of this rank that no round has taken are discarded: call
        `Flush` (or `Drain`) before to have them reduced.

        Returns
        -------
        int
            The number of contributions (Starts) of this rank that were discarded.

        Raises
        ------
        Error
            If the handle was freed already.
        PeerFailedError
            If the ranks can no longer agree on the end.
        """
        self._live()
        discarded = self._native.ffi.new("uint64_t *")
        self._native.check(self._lib.pp_coll_free_begin(self._coll, discarded))
        try:
            self._context._finish_call(f"Free of {self._name()}", self)
        except Error:
            raise
        except BaseException:
            # The core goes on, and releases the handle at any time from now on.
            self._context._forget(self)
            self._refuse(f"{self._name()} is being freed: its Free was interrupted")
            raise
        self._context._forget(self)
        self._refuse(f"{self._name()} was freed")
        return int(discarded[0])

    # ---- what it is -----------------------------------------------------------------------------

    @property
    def context(self) -> Context:
        """The context it was made in."""
        return self._context

    @property
    def id(self) -> int:
        """The handle's number, the same on every rank; messages name it."""
        return self._id

    @property
    def op(self) -> str:
        """The operation's name: ``"SUM"``."""
        return self._settings.op

    @property
    def policy(self) -> Policy:
        """When its rounds are activated."""
        return self._settings.policy

    @property
    def deliver(self) -> str:
        """Which rounds requests are given: ``"latest"``, ``"sum"`` or ``"each"``."""
        return self._settings.deliver

    @property
    def max_lag(self) -> int | None:
        """The staleness bound in rounds; None: no bound."""
        return self._settings.max_lag

    @property
    def average(self) -> str | None:
        """What the sum is divided by: see `Context.Allreduce_init`."""
        return self._settings.average

    @property
    def dtype(self) -> np.dtype[Any]:
        """Element type of its buffers."""
        return self._settings.dtype

    @property
    def count(self) -> int:
        """Elements of all its buffers together."""
        return self._settings.count

    @property
    def algorithm(self) -> str:
        """The reduction's schedule, ``"auto"`` no more; ``"shared_memory"``: it needs none."""
        self._live()
        return algorithm_name(self._native, self._lib.pp_coll_algorithm(self._coll))

    @property
    def algorithm_reason(self) -> str:
        """Why it has this `algorithm`, in words; the same on every rank."""
        self._live()
        return reason_text(self._native, self._lib.pp_coll_reason(self._coll))

    def dump(self, format: str = "goal") -> str:
        """Return this rank's schedule of a round as text. Local.

        Parameters
        ----------
        format : {"goal", "dot"}
            Text in the manner of GOAL (Group Operation Assembly Language), or Graphviz.

        Raises
        ------
        ArgumentError
            For another format.
        Error
            If the handle was freed.
        """
        self._live()
        lib, ffi = self._lib, self._native.ffi
        formats = {"goal": lib.PP_GOAL, "dot": lib.PP_DOT}
        if not isinstance(format, str) or format not in formats:
            raise ArgumentError(f"format must be 'goal' or 'dot', not {format!r}")
        text = ffi.new("char **")
        self._native.check(lib.pp_coll_dump(self._coll, formats[format], text))
        try:
            return self._native.text(text[0])
        finally:
            lib.pp_text_free(text[0])

    def _fired(self) -> tuple[int, list[int]] | None:
        """Return (round, how often each operation fired) of the newest retired round, for tests."""
        self._live()
        lib, ffi = self._lib, self._native.ffi
        round_, count = ffi.new("uint64_t *"), ffi.new("size_t *")
        capacity = 4096
        while True:
            fired = ffi.new("uint32_t[]", capacity)
            status = lib.pp_coll_fired(self._coll, round_, fired, capacity, count)
            if status == lib.PP_PENDING:
                return None
            if count[0] <= capacity:
                self._native.check(status)
                return int(round_[0]), [int(fired[i]) for i in range(count[0])]
            capacity = int(count[0])

    def __reduce__(self) -> NoReturn:
        # Asked for by copy, deepcopy and pickle alike.
        raise TypeError(
            "a pypartial.Request cannot be copied or pickled: it stands for a handle of this "
            "process"
        )

    def __repr__(self) -> str:
        state = f", {self._gone}" if self._gone else ""
        return f"<pypartial.Request {self._id}: {self._settings}{state}>"

    # ---- ends and waits -------------------------------------------------------------------------

    def _name(self) -> str:
        return f"handle {self._id}"

    def _live(self) -> None:
        if self._gone is not None:
            raise Error(self._gone)

    def _refuse(self, why: str) -> None:
        """From now on raise `Error(why)` at every call: the C handle must not be used."""

        def refuse(*_: Any) -> int:
            raise Error(why)

        self._gone = why
        self._pp_start = self._pp_wait = self._pp_wait_slice = self._pp_test = refuse
        self._coll = self._native.ffi.NULL
        self._owners = []

    def _report_wait(self, waited_s: float) -> str:
        """Say whom a Wait waits for."""
        states = ask(self._native, self._context._ctx, self._context.size, self._id, waited_s)
        name = f"{self._name()} ({self._settings})"
        if isinstance(states, str):
            return f"Wait on {name}: {waited_s:.1f} s so far; cannot ask the ranks: {states}"
        me = self._context.rank
        if self.max_lag is None or isinstance(self.policy, Full):
            # With Full a rank "withholds" its part whenever it is not ready.
            states = [state._replace(withholding=False) for state in states]
        return report_wait(name, self._id, waited_s, states, me, self.policy)


class RankState(NamedTuple):
    """What a rank said about itself and one handle (pp_rank_state_t)."""

    rank: int
    answered: bool
    activity: str
    handle: int
    round: int
    calls: int
    completed: int
    joined: int
    ready: bool
    drawn: bool
    withholding: bool


COMPUTING, WAITING, IN_CALL = "computing", "waiting", "in a call"
LISTED = 16  # ranks named one by one in a report


def ask(
    native: Native, ctx: CData, size: int, handle: int, waited_s: float
) -> list[RankState] | str:
    """Ask every rank what it does with a handle (0: none); a text if that is not possible."""
    states = native.ffi.new("pp_rank_state_t[]", size)
    longest_s = min(max(waited_s, ASK_SHORTEST_S), ASK_LONGEST_S)
    status = native.lib.pp_ask(ctx, handle, int(longest_s * 1e6), states)
    if status < 0:
        return str(native.error(status))
    names = {
        native.lib.PP_COMPUTING: COMPUTING,
        native.lib.PP_WAITING: WAITING,
        native.lib.PP_IN_CALL: IN_CALL,
    }
    return [
        RankState(
            rank=rank,
            answered=bool(state.answered),
            activity=names.get(state.activity, COMPUTING),
            handle=state.handle,
            round=state.round,
            calls=state.calls,
            completed=state.completed,
            joined=state.joined,
            ready=bool(state.ready),
            drawn=bool(state.drawn),
            withholding=bool(state.withholding),
        )
        for rank, state in enumerate(states)
    ]


def report_wait(
    name: str, handle: int, waited_s: float, states: Sequence[RankState], me: int, policy: Policy
) -> str:
    """Say whom a rank that waits on a handle waits for, and what they are doing."""
    current = states[me].completed
    activated = any(state.answered and state.joined > current for state in states)
    silent = [state for state in states if not state.answered]
    drawn = [state for state in states if state.answered and state.drawn]
    if activated:
        why = "it is activated, but these ranks have not joined it"
        blamed = [state for state in states if not state.answered or state.joined <= current]
    elif policy.trigger(len(states)).kind == "quorum":
        ready = sum(state.ready for state in states)
        why = f"it is not activated: {ready} of {len(states)} ranks are ready; not ready"
        blamed = [state for state in states if not state.answered or not state.ready]
    else:
        why = "it is not activated; drawn to trigger it"
        blamed = drawn + silent
    if not blamed:
        why, blamed = "no rank is missing; all ranks", list(states)
    return (
        f"Wait on {name}: round {current} is not complete after {waited_s:.1f} s; "
        f"{why}: {each_does(blamed, handle)}"
    )


def report_call(
    call: str, handle: int, waited_s: float, states: Sequence[RankState], me: int
) -> str:
    """Say whom a rank inside a collective call waits for, and what they are doing."""
    calls = states[me].calls
    missing, inside = [], []
    for state in states:
        if state.answered and state.calls == calls and state.activity == IN_CALL:
            inside.append(state)
        elif not state.answered or state.calls <= calls:
            missing.append(state)
    reasons = []
    if len({state.handle for state in inside}) > 1:
        reasons.append(f"the ranks are in different collective calls: {each_is_inside(inside)}")
    if missing:
        reasons.append(f"not in it yet: {each_does(missing, handle)}")
    if not reasons:
        reasons.append(f"every rank has called it; all ranks: {each_does(states, handle)}")
    return (
        f"{call}: not complete after {waited_s:.1f} s (it is collective call number {calls + 1} of "
        f"this context); {'; '.join(reasons)}"
    )


def each_is_inside(states: Sequence[RankState]) -> str:
    """List the handles whose collective calls ranks are in, and those ranks."""
    texts = []
    for handle in sorted({state.handle for state in states}):
        ranks = [state.rank for state in states if state.handle == handle]
        names = ", ".join(map(str, ranks[:LISTED]))
        if len(ranks) > LISTED:
            names += f" and {len(ranks) - LISTED} more"
        # A handle has no number yet while it is made, and the context's calls belong to none.
        which = (
            f"a call of handle {handle}"
            if handle
            else "Allreduce_init, Free of the context, or the end of the script"
        )
        texts.append(f"{'rank' if len(ranks) == 1 else 'ranks'} {names} in {which}")
    return "; ".join(texts)


def each_does(states: Sequence[RankState], handle: int) -> str:
    """List ranks and what each is doing."""
    texts = [f"rank {state.rank} ({does(state, handle)})" for state in states[:LISTED]]
    if len(states) > LISTED:
        texts.append(f"and {len(states) - LISTED} more")
    return ", ".join(texts)


def does(state: RankState, handle: int) -> str:
    """Say what a rank is doing, as seen from `handle`."""
    if not state.answered:
        return "no answer: outside the library with progress='caller', stopped, or gone"
    calls = f"{state.calls} collective calls done"
    if state.activity == IN_CALL:
        which = f" of handle {state.handle}" if state.handle else ""
        text = f"inside a collective call{which}, {calls}"
    elif state.activity == WAITING:
        here = "this handle" if state.handle == handle else f"handle {state.handle}"
        text = f"waiting on {here} for round {state.round}, {calls}"
    else:
        text = f"computing, {calls}"
    if state.withholding:
        text += "; its max_lag keeps it from joining the round"
    return text


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
    deadline = None if timeout is None else time.monotonic() + _seconds(timeout)
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


def _seconds(timeout: Any) -> float:
    """Return a timeout as a float."""
    seconds = real_number(timeout)
    if not seconds >= 0:
        raise ArgumentError(f"timeout must be 0 or more seconds, not {timeout!r}")
    return seconds
