"""Contexts: one rank's view of a communicator, in which partial collectives are made."""

from __future__ import annotations

import functools
import inspect
import os
import sys
import traceback
import weakref
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NoReturn

import numpy as np
import numpy.typing as npt

from . import _native, tuning
from ._allreduce_init import AllreduceInit
from ._arguments import (
    INT32_MAX,
    array_bytes,
    as_argument_error,
    as_shape,
    backlog_bytes,
    c_text,
    check_communicator,
    in_range,
    node_ranks,
    patience_ns,
    positive_seconds,
    seconds,
)
from ._aside import seen
from ._calls import Away, CollectiveCalls
from ._elements import type_name
from ._gossip_init import GossipInit
from ._ipc import ipc_from
from ._launch import alone
from ._names import PROGRESS, TRANSPORT
from ._preduce_init import PreduceInit
from ._queue_init import QueueInit
from ._sight import Sight, trace_key
from .errors import ArgumentError, Error
from .status import Stats

if TYPE_CHECKING:
    from mpi4py import MPI

    from ._core import CData, Lib
    from ._handle import Request

__all__ = ["Context"]

SEED_LIMIT = 1 << 64
_TOLD_BYTES = 450  # of an exception's text: what other ranks show of it, after this rank's number

_REMEDY = (
    "To share memory, raise the limits on memory, address space, file size and open files "
    "(ulimit -v, ulimit -f, ulimit -n) or change the containers' settings; to keep messages "
    "without this warning, pass transport='mpi'"
)


class Context(AllreduceInit, GossipInit, PreduceInit, QueueInit, Sight):
    """One rank's view of a communicator, in which partial collectives are made.

    Making a context is collective and blocking: all ranks of `comm` make it, and all succeed or
    fail together. `seed`, `window` and `transport` must be the same on all ranks, which is checked;
    `progress`, `patience`, `backlog` and `stall_warning` may differ. The context duplicates the
    communicator and never communicates on `comm` itself afterwards. Several contexts, on
    overlapping communicators, may live at once. A context cannot be copied or pickled.

    Use it in a ``with`` block, or call `Free`. Leaving the block normally frees the requests that
    are alive, in the order of their making, and the context, which is collective. Leaving it by an
    exception waits for nobody: this rank gives the context up, and the exception passes on. Every
    later call of the context, and of its requests, raises an `Error` that quotes the exception; on
    other ranks `PeerFailedError`, when the rounds are complete there that are complete here. The
    next context may be made at once.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
        An intracommunicator.
    seed : int, optional
        Seed of the random draws (`Majority`, `FirstOf`), 0 to 2**64 - 1.
    progress : {"thread", "caller"}, optional
        Which thread serves the rounds of other ranks while this rank computes. ``"thread"``: a
        thread of the library. MPI must then have the level ``MPI_THREAD_MULTIPLE``, which mpi4py
        asks for by default. ``"caller"``: none; this rank serves them only inside its own calls of
        this context, so it holds the others up while it computes.
    transport : {"auto", "mpi"}, optional
        How ranks exchange data. ``"auto"``: the ranks of a node share memory. If all ranks are on
        one node, the ranks that are inside the library make each round there, also on behalf of
        absent ranks, and wake no rank that does not wait. With several nodes a round has two
        levels: on each node the ranks combine their contributions in shared memory; between nodes
        one rank of each node, another one in every round, exchanges messages, by the library's
        thread if that rank computes. All ranks exchange messages instead in four cases: every rank
        is alone on its node; the context has more than 1,024 ranks; a handle names an `algorithm`;
        ranks of a node cannot share memory, because there is too little or because they are in
        different containers. The first rank with the last problem gives a `RuntimeWarning`.
        ``"mpi"``: all ranks exchange messages, also those of one node. The environment variable
        ``PYPARTIAL_TRANSPORT``, if it is set, takes the place of ``"auto"``.
    window : int, optional
        How many rounds of one handle may be in flight at once, at least 1. It also bounds
        `max_lag`, and the rounds that ``deliver="each"`` keeps for a slow rank.
    patience : float or "auto" or None, optional
        Seconds, above 0. This rank may hold up a round that others wait for, for this long, while
        it does not call. The library's thread then says that this rank has left, and the round goes
        on without it. ``"auto"``: five times this rank's usual time between a result and its next
        Start, and at least 1 s; 2 s while that time is not known. None: never, and while this rank
        waits it asks no other one to leave; other ranks that wait ask. Only None and ``"auto"`` are
        possible with ``progress="caller"``, where no thread could say so.
    backlog : int or "auto", optional
        Bytes, at least 1, that results may take which ``deliver="each"`` queues for this rank while
        it has left by patience; but `window` results of each request in any case. Beyond that this
        rank holds the others up again, until it takes results. ``"auto"``: an eighth of the
        machine's memory, divided by the ranks of the node.
    stall_warning : float or None, optional
        Seconds, above 0. A wait that takes longer logs a warning (logger ``"pypartial"``) that
        names the handle, the round, the ranks it waits for and what each of them is doing. The
        warning is repeated whenever the time waited has doubled. None: never.
    report_every : float or None, optional
        Seconds, above 0. Rank 0 logs a line of `report` (logger ``"pypartial"``) at the first Start
        after each of them. None: never. Other ranks ignore it.

    Raises
    ------
    ArgumentError
        If an argument of this rank is wrong.
    MismatchError
        If the ranks' `seed`, `window` or `transport` differ, or another rank's arguments are wrong.
    ThreadLevelError
        If ``progress="thread"`` and MPI's thread level is too low on some rank.
    Error
        If MPI is not initialised, or is finalised already; or in a forked child (see the notes).
    ImportError
        If the library was built for another MPI than the one that mpi4py uses.

    Warns
    -----
    RuntimeWarning
        If ranks of one node cannot share memory, and ``transport="auto"``.

    Notes
    -----
    **Threads.** A context does one collective call at a time: ``*_init``, `Free`, and of its
    requests `Request.Flush`, `Request.Free` and a step of `AllreduceRequest.Drain`. All ranks make
    these calls in the same order. While a thread is inside one, a second collective call, and
    `Request.Start` of any request of the context, raise `Error` in other threads and have no
    effect. `Request.Wait`, `Request.Test`, `stats` and `alloc` work at any time. Inside `away` all
    of them but `stats` and `alloc` raise. Threads that use different contexts do not affect each
    other.

    **Forked processes.** A forked child process must not use a context: every call raises `Error`
    there. It cannot make one either if MPI was initialised before the fork: it shares MPI's state
    with its parent, whose job would hang.

    References
    ----------
    S. Li et al., "Taming Unbalanced Training Workloads in Deep Learning with Partial Collective
    Operations" (eager-SGD), PPoPP 2020, sections 4 and 5.

    Examples
    --------
    >>> with pp.Context(MPI.COMM_WORLD, seed=7) as ctx:  # doctest: +SKIP
    ...     request = ctx.Allreduce_init(gradient, out, policy=pp.Majority())
    ...     for step in range(100):
    ...         compute(gradient)
    ...         request.Start()
    ...         request.Wait()
    ...     request.Flush()
    ...     request.Free()
    """

    __slots__ = (
        "__weakref__",
        "_calls",
        "_comm",
        "_ctx",
        "_gone",
        "_native",
        "_over",
        "_progress",
        "_rank",
        "_requests",
        "_seed",
        "_size",
        "_stall_warning",
        "_told_of_path",
        "_window",
    )

    # Largest single MPI transfer in bytes; 0: the core's default. Tests lower it.
    _chunk_bytes: ClassVar[int] = 0

    def __init__(
        self,
        comm: MPI.Comm,
        *,
        seed: int = 0,
        progress: Literal["thread", "caller"] = "thread",
        transport: Literal["auto", "mpi"] = "auto",
        window: int = 4,
        patience: float | Literal["auto"] | None = "auto",
        backlog: int | Literal["auto"] = "auto",
        stall_warning: float | None = 30.0,
        report_every: float | None = None,
    ) -> None:
        self._gone: str | None = "the context was not created"
        if _shares_mpi:
            raise Error(
                "a forked child cannot make a context: it shares MPI's state with its parent, "
                "whose job would hang; start a process of its own instead (subprocess, or "
                "multiprocessing with the start method 'spawn')"
            )
        self._native = native = _native.load()
        check_communicator(native.MPI, comm)
        self._comm = seen(comm)
        self._requests: dict[int, Request] = {}
        ffi, lib = native.ffi, native.lib
        config, complaint = ffi.new("pp_ctx_config_t *"), None
        try:
            config.seed = self._seed = in_range("seed", seed, 0, SEED_LIMIT - 1)
            config.progress = PROGRESS.constant(lib, progress)
            self._progress = progress
            config.window = self._window = in_range("window", window, 1, INT32_MAX)
            config.chunk_bytes = self._chunk_bytes
            self._stall_warning = stall_warning
            self._told_of_path = False
            if stall_warning is not None:
                self._stall_warning = positive_seconds("stall_warning", stall_warning, "None")
            config.patience_ns = patience_ns(patience, progress)
            config.backlog_bytes = backlog_bytes(backlog)
            config.path = _transport(lib, transport)
            config.node_ranks = node_ranks()
            config.ipc_from = ipc_from()
            config.trace = trace_key()
            if report_every is not None:
                report_every = positive_seconds("report_every", report_every, "None")
        except Exception as error:
            complaint = as_argument_error(error)
        out = ffi.new("pp_ctx_t **")
        # The core takes the communicator as the address of its MPI_Comm.
        address = ffi.cast("const void *", native.MPI._addressof(comm))
        status = lib.pp_ctx_open(address, config, c_text(native, complaint), out)
        if complaint is not None:
            raise complaint
        native.check(status)
        # Kept while a thread may be on its way into a call: the core refuses that after Free.
        self._ctx: CData = ffi.gc(out[0], lib.pp_ctx_release)
        self._over = False  # freed, MPI has ended, or in a forked child: its block ends quietly
        self._rank: int = lib.pp_ctx_rank(self._ctx)
        self._size: int = lib.pp_ctx_size(self._ctx)
        self._calls = CollectiveCalls(native, self._ctx, self._stall_warning)
        self._gone = None
        self._trace = None
        if self._rank == 0 and report_every is not None:
            lib.pp_ctx_report_every(self._ctx, int(min(report_every, 1e9) * 1e9))
        if self._rank == 0:
            tuning.use(native, self._ctx)
        _live_contexts.add(self)
        _watch_finalize(native.MPI)
        self._warn()
        lone = alone(native.MPI.COMM_WORLD.size) if self._size == 1 else None
        if lone is not None:
            _native.warn(lone)
        if config.trace:
            self._trace_by_name()

    # ---- what it is -----------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self._size

    @property
    def rank(self) -> int:
        """This rank's number in the communicator."""
        return self._rank

    @property
    def comm(self) -> MPI.Comm:
        """The communicator that the context was made from; its collective calls step aside.

        It has the same handle as the communicator that the context was given, is equal to it, and
        of a subclass of its class. While a blocking collective call of it waits for other ranks,
        this rank has left all handles of all contexts of this process, except those with the policy
        `Full`, and queues that average every update. So rounds go on without it: put metrics,
        barriers and checkpoints of all ranks through this communicator, and no `away` is needed.
        Other threads go on with their requests.
        Communicators that it makes, as by ``Dup`` or ``Split``, are plain ones. All else is
        mpi4py's: ``Create_group``, ``Free``, nonblocking and persistent calls, those of
        neighbourhoods and from rank to rank, and functions that take a communicator. So are all
        calls of it with ``progress="caller"``, where no thread could serve the rounds.
        """
        return self._comm

    @property
    def seed(self) -> int:
        """Seed of the random draws, the same on all ranks."""
        return self._seed

    def stats(self) -> Stats:
        """Return this rank's counters: rounds, messages, memory, sleeps. Local; does not block.

        Returns
        -------
        Stats

        Raises
        ------
        Error
            If the context was freed.
        """
        self._live()
        stats = self._native.ffi.new("pp_stats_t *")
        self._native.lib.pp_ctx_stats(self._ctx, stats)
        return Stats(**{name: int(getattr(stats, name)) for name in Stats.__dataclass_fields__})

    def alloc(self, shape: int | tuple[int, ...], dtype: npt.DTypeLike = float) -> npt.NDArray[Any]:
        """Return a new array that rounds can read and write in place. Local; does not block.

        The array is zeroed. It is shared by the ranks of the node, and begins on a page, if the
        context shares any memory; else it is ordinary memory, and begins at a multiple of 64 bytes.
        A request whose send or receive buffer is such an array uses it without a copy, if the
        buffer is one array and the library reduces the element type as it is (not float16,
        bfloat16, long double, bool, nor a logical operation). Between nodes only send buffers are
        used in place.

        Such a buffer, `sendbuf` or `recvbuf`, belongs to the library from `Request.Start` until
        `Request.Wait`, or another call, has given a result: do not write to it in between. After a
        `Request.Wait` that has timed out you may write the send buffer before the next Start: so
        that Wait, and `Request.Test`, first wait for a round that just then reads the buffer. The
        array lives as long as Python refers to it, also after the context is freed; and its memory
        until a request that uses it in place is freed.

        Parameters
        ----------
        shape : int or tuple of int
            As for `numpy.zeros`.
        dtype : dtype, optional
            Element type; float64 by default.

        Returns
        -------
        numpy.ndarray
            Writable, C-contiguous, of this shape and type, filled with zeros.

        Raises
        ------
        ArgumentError
            If `shape` is not an integer or integers from 0 on, if no array can have this shape, or
            if `dtype` is not a type of numbers.
        MemoryError
            If there is not enough memory.
        Error
            If the context was freed.
        """
        self._live()
        try:
            element = np.dtype(dtype)
        except (TypeError, ValueError, SyntaxError) as error:
            raise ArgumentError(f"dtype must be a type of NumPy, not {dtype!r}: {error}") from None
        shape_ = as_shape(shape)
        _check_numbers(element)
        size_bytes = array_bytes(shape_, element)
        ffi, lib = self._native.ffi, self._native.lib
        memory, keeper = ffi.new("void **"), ffi.new("void **")
        self._native.check(lib.pp_ctx_alloc(self._ctx, max(size_bytes, 1), memory, keeper))
        kept = keeper[0]
        # The array's base is the buffer, which refers to `owner`: both end together.
        owner = ffi.gc(ffi.cast("char *", memory[0]), lambda _: lib.pp_unalloc(kept))
        buffer: Any = ffi.buffer(owner, size_bytes)
        return np.frombuffer(buffer, np.uint8).view(element).reshape(shape_)

    def away(self) -> Away:
        """Leave all handles for the time of a ``with`` block.

        Put it around blocking calls of the application's own that the library does not see, such as
        a collective write to a file; `comm` does not need it. Inside, this rank has left all
        handles of the context, so that the rounds of ranks that have not come yet go on without it.
        The block is a collective call of the context: every rank makes it, in the same order as its
        other collective calls. Entering and leaving do not block, but that entering waits until
        contributions of this rank have come off their device. An exception inside ends the block,
        and passes on.

        Calls inside are safe if all ranks of the context take part in them, and no rank comes out
        before all have begun them: ``Allreduce``, ``Allgather``, ``Barrier``. A ``Bcast``, a
        ``Reduce`` or a ``Gather`` is over early on some ranks, so end the block with a ``Barrier``.
        A rank inside counts as back as soon as the library knows that any rank has left the block.
        If it waits there for a rank that has not come yet, that one may wait for it in a round,
        until the patience of the rank inside is over; with ``patience=None`` and with `Full` for
        ever.

        Returns
        -------
        context manager

        Raises
        ------
        Error
            From entering the block: if this rank is away already, if another thread is inside a
            collective call of the context, if a collective call timed out and has not ended yet, or
            if the context was freed. From this method with ``progress="caller"``, where no thread
            would serve the others' rounds. While this rank is away, also from `Request.Start`,
            `Request.Wait` and every collective call of the context, in every thread.

        Examples
        --------
        >>> with ctx.away():  # doctest: +SKIP
        ...     file.Write_all(weights)
        """
        if self._progress == "caller":
            raise Error(
                "away() is not possible with progress='caller': no thread would serve the others' "
                "rounds meanwhile, which would wait for this rank"
            )
        return self._away()

    def _away(self) -> Away:  # where all ranks have just met, no round needs a thread
        return Away(self._live, self._calls)

    def _log_note(self) -> None:
        """Log what the core has to tell, if anything: about patience, or memory of the host."""
        note = self._native.lib.pp_ctx_log_note(self._ctx)
        text = self._native.text(note) if note else None
        if text == "":
            text = self.report().line()
        if text:
            _native.LOGGER.warning("%s", text)

    def _warn(self) -> None:
        """Give the warning that the core has for the user, if any; call it from public methods."""
        note = self._native.lib.pp_ctx_note(self._ctx)
        if note:
            text = self._native.ffi.string(note).decode(errors="replace")
            _native.warn(f"{text}. {_REMEDY}")

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            make = _persistent(name)
            if make:
                raise AttributeError(
                    f"a Context has no one-shot {name}, because all ranks must have made a "
                    "collective before one of them calls it. Make a persistent one once, on all "
                    f"ranks, and use it many times: request = ctx.{make}; then request.Start() and "
                    "request.Wait()"
                )
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    # ---- ends -----------------------------------------------------------------------------------

    def Free(self, timeout: float | None = None) -> None:
        """End the context and release what it holds.

        Collective, blocking. Free all handles before, on every rank; the end of a ``with`` block
        does that.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait at most, 0 or more. None: no limit.

        Raises
        ------
        ArgumentError
            If `timeout` is not 0 or more seconds; nothing was communicated.
        TimeoutError
            After `timeout` seconds. The same call, made again, goes on with it. Until then every
            other collective call of the context raises.
        Error
            If handles are live on any rank (all ranks raise, and the context goes on), or if the
            context was freed already.
        PeerFailedError
            If another rank has died, given up, or ended without freeing the context.
        """
        limit = None if timeout is None else seconds(timeout)
        self._live()
        begin = self._native.lib.pp_ctx_free_begin
        name = "Free of the context"
        left = self._calls.before(name, limit)
        self._calls.make(name, None, left, lambda: (begin(self._ctx), None))
        self._refuse("the context was freed")
        self._over = True
        if self._trace is not None:
            self._trace.finish()
        _live_contexts.discard(self)

    def __enter__(self) -> Context:
        """Return the context itself."""
        self._live()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Free the requests and the context; after an exception give the context up.

        If an exception that left the block of a request has abandoned it, and the program caught
        that exception and went on, this raises an `Error` that quotes it.
        """
        if self._over:
            return
        if error is not None:
            self._abandon(error, "its with block")
            return
        try:
            discarded = sum(request.Free() for _, request in sorted(self._requests.items()))
            self.Free()
        except BaseException as failure:
            self._abandon(failure, "its with block")
            raise
        if discarded:
            text = (
                f"the end of a context's with block has discarded Starts of rank {self._rank} "
                f"without a result ({discarded}): call Flush in it, or Drain with deliver='each'"
            )
            _native.warn(text)

    def _abandon(self, error: BaseException, block: str) -> None:
        """Give the context up, because an error left a with block; tell the others, at once."""
        if self._gone is None:
            what = "".join(traceback.format_exception_only(error)).strip()
            why = f"an exception left {block} ({what})"
            _live_contexts.discard(self)
            self._refuse(f"the context was abandoned, because {why}")
            told = why.replace("\0", "\\0").encode(errors="backslashreplace")[:_TOLD_BYTES]
            self._native.lib.pp_ctx_abandon(self._ctx, told.decode(errors="ignore").encode())

    def _live(self) -> None:
        if self._gone is not None:
            raise Error(self._gone)

    def _refuse(self, why: str) -> None:
        """Make every further call of the context and its requests raise `Error(why)`."""
        self._gone = why
        self._calls.give_up()
        for request in list(self._requests.values()):  # another thread may be making one
            request._refuse(why)
        self._requests.clear()

    def _forget(self, request: Request) -> None:
        """Drop a request that was freed."""
        self._requests.pop(request.id, None)

    def __reduce__(self) -> NoReturn:
        # Copy, deepcopy and pickle all call this.
        raise TypeError(
            "a pypartial.Context cannot be copied or pickled: it is this process's view of a "
            "communicator"
        )

    def __repr__(self) -> str:
        if self._gone is not None:
            return f"<pypartial.Context: {self._gone}>"
        return f"<pypartial.Context: rank {self._rank} of {self._size}>"


# ---- forked children, and the end of MPI ---------------------------------------------------------

# Whether this process was forked from one in which MPI was initialised. MPI would take it for its
# parent, which would miss the messages that it sends and receives.
_shares_mpi = False

# The core goes on serving the peers of a context until MPI_Finalize, even if the application has
# dropped the context. It touches the application's buffers only inside calls; and arrays of `alloc`
# that rounds read or write in place, which the core keeps itself.
_live_contexts: weakref.WeakSet[Context] = weakref.WeakSet()


def _refuse_all(why: str) -> None:
    """Make all contexts unusable, so that no call needs to check for the reason."""
    for context in list(_live_contexts):
        if context._gone is None:
            context._refuse(why)
        context._over = True


def _persistent(name: str) -> str | None:
    """Return the call that makes what a user of mpi4py looks for by this name, if there is one."""
    for method in dir(Context):
        kind = method.lower().removesuffix("_init")
        if method.endswith("_init") and name.lower() in (kind, f"i{kind}"):
            parameters = inspect.signature(getattr(Context, method)).parameters.values()
            needed = [p.name for p in parameters if p.default is p.empty and p.name != "self"]
            return f"{method}({', '.join(needed)})"
    return None


def _check_numbers(element: np.dtype[Any]) -> None:
    """Raise if the library does not reduce elements of this type."""
    try:
        type_name(element)
    except ArgumentError:
        raise ArgumentError(
            f"dtype {element} is not a type of numbers: use one such as float32"
        ) from None


def _forked() -> None:
    """Make all contexts unusable in a forked child."""
    global _shares_mpi
    mpi = sys.modules.get("mpi4py.MPI")
    _shares_mpi = _shares_mpi or (mpi is not None and mpi.Is_initialized())
    _refuse_all("this process was forked: only the parent may use the context")


os.register_at_fork(after_in_child=_forked)


@functools.cache
def _watch_finalize(mpi: Any) -> None:
    """Have MPI_Finalize make all contexts unusable: the core releases their memory there."""

    def ended(comm: Any, keyval: int, value: Any) -> None:
        _refuse_all("MPI is finalised already")

    # MPI_Finalize begins by deleting the attributes of COMM_SELF (MPI 4.0, section 11.2.4).
    mpi.COMM_SELF.Set_attr(mpi.Comm.Create_keyval(delete_fn=ended), None)


def _transport(lib: Lib, value: Any) -> int:
    """Return the core's constant; the environment variable takes the place of "auto"."""
    number = TRANSPORT.constant(lib, value)
    given = os.environ.get("PYPARTIAL_TRANSPORT", "")
    if value != "auto" or not given:
        return number
    return TRANSPORT.constant(lib, given, "the environment variable PYPARTIAL_TRANSPORT")
