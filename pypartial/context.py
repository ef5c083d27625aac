"""Contexts: one rank's view of a communicator, in which partial collectives are made."""

from __future__ import annotations

import functools
import os
import sys
import warnings
import weakref
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NoReturn

import numpy as np
import numpy.typing as npt

from . import _native, tuning
from ._arguments import (
    array_bytes,
    as_argument_error,
    as_shape,
    c_text,
    in_range,
    positive_seconds,
    seconds,
)
from ._calls import Away, CollectiveCalls
from ._handle import Request
from ._names import PROGRESS, TRANSPORT
from .allreduce import AllreduceRequest, Arguments
from .errors import ArgumentError, Error, TimeoutError
from .policy import Majority, Policy
from .status import Stats

if TYPE_CHECKING:
    from mpi4py import MPI

    from ._core import CData, Lib

__all__ = ["Context"]

SEED_LIMIT = 1 << 64
INT32_MAX = (1 << 31) - 1
INT64_MAX = (1 << 63) - 1

_DEFAULT_POLICY = Majority()
_REMEDY = (
    "If that is not meant, look at the limits on memory and on the sizes of address space and "
    "files (ulimit -v, ulimit -f), and at the containers' settings; transport='mpi' asks for "
    "messages, and silences this"
)


class Context:
    """One rank's view of a communicator, in which partial collectives are made.

    Making one is collective and blocking: all ranks of `comm` make it, and all succeed or fail
    together. `seed`, `window` and `transport` must be the same on all ranks, which is checked;
    `progress`, `patience` and `stall_warning` may differ. The communicator is duplicated; the
    library never communicates on the user's own. Several contexts, on overlapping communicators,
    may live at once. A context cannot be copied or pickled.

    Use it in a ``with`` block, or call `Free`. Leaving the block normally frees the context
    (collective); leaving it by an exception communicates nothing: the library's thread stops, the
    handles become unusable, and the exception passes on.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
        An intracommunicator.
    seed : int, optional
        Seed of the random draws (`Majority`), 0 to 2**64 - 1.
    progress : {"thread", "caller"}, optional
        ``"thread"``: a thread of the library serves the rounds of other ranks at any time; MPI
        must have been initialised with ``MPI_THREAD_MULTIPLE``, which is mpi4py's default.
        ``"caller"``: they are served only inside this library's calls, so a rank that computes
        holds the others up.
    transport : {"auto", "mpi"}, optional
        ``"auto"``: if all ranks are on one node, rounds are made in memory that they share, by
        those who are there, and nobody is woken who is not waiting; between nodes by messages.
        Ranks of one node that cannot share memory, because there is too little or because they are
        in different containers, use messages, too; the first of them gives a `RuntimeWarning`.
        ``"mpi"`` forces point-to-point MPI between all ranks. The environment variable
        ``PYPARTIAL_TRANSPORT``, if it is set, stands for ``"auto"``.
    window : int, optional
        Rounds of one handle that may be in flight at once, at least 1.
    patience : float or "auto" or None, optional
        Seconds, above 0, for which this rank may hold up rounds that others wait for while it does
        not call: then the library says for it that it has left, and the rounds go on without it.
        ``"auto"``: five times the usual time between its calls, and at least 1 s. None: never. Not
        with ``progress="caller"``, where nobody could say it.
    stall_warning : float or None, optional
        Seconds after which a wait logs a warning (logger ``"pypartial"``) that names the handle,
        the round, the ranks waited for and what each is doing; repeated whenever the time waited
        has doubled. None: never.

    Raises
    ------
    ArgumentError
        If an argument of this rank is wrong.
    MismatchError
        If the ranks' `seed`, `window` or `transport` differ, or another rank's arguments are wrong.
    ThreadLevelError
        If ``progress="thread"`` and MPI's thread level is too low on some rank.
    Error
        If MPI is not initialised, or finalised already; or in a forked child (see below).
    ImportError
        If the library was built for another MPI than the one mpi4py uses.

    Notes
    -----
    Threads: a context does one collective call at a time (`Allreduce_init`, `Free`, and `Flush`,
    a step of `Drain` and `Free` of its requests), and all ranks do them in the same order. While a
    thread is inside one, a second one, and `Request.Start` of any request of the context, raise
    `Error` in other threads, without having any effect; `Request.Wait`, `Request.Test`, `stats` and
    `alloc` work. Inside `away` all of them but `stats` and `alloc` raise. Threads that use
    different contexts do not affect each other.

    A forked child process must not use a context: every call raises `Error` there. Nor can it make
    one if MPI was initialised before the fork: it shares MPI's state with its parent, whose job
    would hang.

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
        "_rank",
        "_requests",
        "_size",
        "_stall_warning",
        "_window",
    )

    # Largest single MPI transfer in bytes; 0: the core's default. Lowered by tests.
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
        stall_warning: float | None = 30.0,
    ) -> None:
        self._gone: str | None = "the context was not created"
        if _shares_mpi:
            raise Error(
                "a forked child cannot make a context: it shares MPI's state with its parent, "
                "whose job would hang; start a process of its own instead (subprocess, or "
                "multiprocessing with the start method 'spawn')"
            )
        self._native = native = _native.load()
        _check_communicator(native.MPI, comm)
        self._comm = comm
        self._requests: dict[int, Request] = {}
        ffi, lib = native.ffi, native.lib
        config, complaint = ffi.new("pp_ctx_config_t *"), None
        try:
            config.seed = in_range("seed", seed, 0, SEED_LIMIT - 1)
            config.progress = PROGRESS.constant(lib, progress)
            config.window = self._window = in_range("window", window, 1, INT32_MAX)
            config.chunk_bytes = self._chunk_bytes
            self._stall_warning = stall_warning
            if stall_warning is not None:
                self._stall_warning = positive_seconds("stall_warning", stall_warning, "None")
            config.patience_ns = _patience_ns(patience, progress)
            config.path = _transport(lib, transport)
            config.node_ranks = _node_ranks()
        except Exception as error:
            complaint = as_argument_error(error)
        out = ffi.new("pp_ctx_t **")
        # The communicator enters as the address of its MPI_Comm.
        address = ffi.cast("const void *", native.MPI._addressof(comm))
        status = lib.pp_ctx_open(address, config, c_text(native, complaint), out)
        if complaint is not None:
            raise complaint
        native.check(status)
        self._ctx: CData = out[0]
        self._rank: int = lib.pp_ctx_rank(self._ctx)
        self._size: int = lib.pp_ctx_size(self._ctx)
        self._calls = CollectiveCalls(native, self._ctx, self._stall_warning)
        self._gone = None
        if self._rank == 0:
            tuning.use(native, self._ctx)
        _live_contexts.add(self)
        _watch_finalize(native.MPI)
        self._warn()

    # ---- what it is -----------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self._size

    @property
    def rank(self) -> int:
        """This rank's number."""
        return self._rank

    @property
    def comm(self) -> MPI.Comm:
        """The communicator that the context was made from."""
        return self._comm

    def stats(self) -> Stats:
        """Return counters of this rank. Local, does not block.

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
        """Return a new array for use as a buffer. Local.

        Its zeroed memory is shared by the ranks of a node if they share any, and begins on a page.
        A request whose buffers lie in it reads and writes them where they are, without a copy, if
        each is one array and the element type is reduced as it is (not float16, bfloat16, long
        double, bool or a logical operation). Such buffers, `sendbuf` and `recvbuf`, belong to the
        library from `Start` until its `Wait` (or `Test`) has returned true: write to them only
        then.
        The array lives as long as Python refers to it, also after the context is freed.

        Parameters
        ----------
        shape : int or tuple of int
            As for `numpy.zeros`.
        dtype : dtype, optional
            Element type, float64 if not given.

        Raises
        ------
        ArgumentError
            If `shape` is neither an integer nor integers, or not one that an array can have, or
            if elements of `dtype` are Python objects, or have no bytes.
        MemoryError
            If there is not so much memory.
        Error
            If the context was freed.
        """
        self._live()
        element = np.dtype(dtype)
        shape_ = as_shape(shape)
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

        A collective call whose inside belongs to the application: entering and leaving wait for
        nobody. Inside, this rank has left all handles of the context, so that the others' rounds
        go on without it while it is in a blocking call of its own: an allreduce of a metric, a
        barrier, a checkpoint. An exception inside ends it, and passes on.

        A rank counts as back when any rank is known to have left the block. So calls inside are
        safe in which all ranks of the context take part. If only some of them meet there, rounds of
        ranks that have not come yet may wait for those, until their patience is over.

        Returns
        -------
        context manager

        Raises
        ------
        Error
            From entering: if this rank is away already, another thread is inside a collective call
            of the context, a call timed out and has not ended yet, or the context was freed. From
            `Request.Start`, `Request.Wait` and every collective call of the context, in every
            thread, while it is away.

        Examples
        --------
        >>> with ctx.away():  # doctest: +SKIP
        ...     loss = comm.allreduce(loss)
        """
        return Away(self._live, self._calls)

    def _log_note(self) -> None:
        """Pass on to the log what the core has to say of this rank's patience."""
        note = self._native.lib.pp_ctx_patience_note(self._ctx)
        if note:
            _native.LOGGER.warning("%s", self._native.text(note))

    # ---- partial collectives --------------------------------------------------------------------

    def Allreduce_init(
        self,
        sendbuf: Any,
        recvbuf: Any,
        op: MPI.Op | None = None,
        *,
        policy: Policy = _DEFAULT_POLICY,
        deliver: Literal["latest", "sum", "each"] = "sum",
        max_lag: int | Literal["auto"] = "auto",
        average: Literal["size", "contributors", "contributions"] | None = None,
        algorithm: str = "auto",
        timeout: float | None = None,
    ) -> AllreduceRequest:
        """Make a persistent partial allreduce.

        Collective, blocking; no data moves yet. Each `Request.Start` contributes what is in
        `sendbuf`; each `Request.Wait` gives the result of a *round*, which reduces the
        contributions of those ranks that were there when `policy` was satisfied, and what others
        had pending. Every contribution enters exactly one round, sooner or later. The result is
        identical on every rank, bit for bit.

        Parameters
        ----------
        sendbuf, recvbuf : buffer, or list of buffers
            A buffer is any contiguous object with the buffer protocol, or a DLPack exporter in host
            memory, of any shape; or ``[buf, count]``, ``[buf, type]``, ``[buf, count, type]``, with
            `count` in elements and `type` an MPI datatype. `sendbuf` may be ``MPI.IN_PLACE`` or
            None: each Start then reads `recvbuf`. Given two lists of equal length, for example
            ``([g1, g2], [o1, o2])``, they are reduced in one round with one set of contributors.
            All must have one element type: integers, float16, bfloat16 (of ml_dtypes), float32,
            float64, long double, complex, or bool. A send and a receive buffer must not overlap.
            The objects are kept alive until the request is freed. `sendbuf` is read inside `Start`
            only, `recvbuf` is written inside `Wait`, `Test`, `Flush` and `Drain` only; at other
            times they are the application's. (A `Wait` that ends by a timeout or Ctrl-C may have
            written to part of `recvbuf`, and writes all of it when it is called again.)
        op : mpi4py.MPI.Op, optional
            ``MPI.SUM`` (the default), PROD, MIN, MAX, LAND, LOR, LXOR, BAND, BOR or BXOR, as MPI
            defines them for the element type. Half-precision types travel and accumulate in
            float32, and are rounded once, in `Wait`.
        policy : Policy, optional
            When a round is activated: `Solo`, `Majority` (the default), `FirstOf`, `Quorum` or
            `Full`.
        deliver : {"latest", "sum", "each"}, optional
            What a request is given: the newest round (eager-SGD); all rounds not given yet,
            combined by `op` (the default); or one round per request, in order. What ranks add up
            is the same in the end with ``"sum"`` and ``"each"``; with ``"latest"`` a rank that
            misses rounds never sees their results.
        max_lag : int or "auto", optional
            Staleness bound: at most that many rounds complete between the completion of one request
            of this rank and its next Start. ``"auto"``: no bound for ``"latest"``, else window - 1.
            Not more than window - 1.
        average : {"size", "contributors", "contributions"}, optional
            Divide the sum by the number of ranks, of contributors, or of contributions of the
            round. For SUM of floating or complex types.
        algorithm : str, optional
            The reduction's schedule, one of those of docs/algorithms.md: ``"ring"``, for example.
            ``"auto"``: what is fastest for such a vector on so many
            ranks, by what ``pypartial tune`` measured on this machine, or else by a cost model;
            rank 0 decides for all, and only its tuning table is read. Where all ranks share memory,
            rounds need no schedule. See `AllreduceRequest.algorithm` and
            `AllreduceRequest.algorithm_reason`.
        timeout : float, optional
            Seconds to wait at most for the other ranks, 0 or more.

        Returns
        -------
        AllreduceRequest
            To be freed by its `Request.Free` before the context.

        Raises
        ------
        ArgumentError
            If an argument of this rank is wrong; the other ranks raise `MismatchError`, so nobody
            hangs.
        MismatchError
            If the ranks differ in count, type, operation, policy or options, or another rank's
            arguments are wrong.
        TimeoutError
            After `timeout` seconds. The same call, with the same arguments, goes on with it; until
            then this rank counts as left, and every other collective call of the context raises.
        Error
            If the context was freed, or another thread is inside a collective call of it.

        Notes
        -----
        Memory per handle and rank, beside the user's buffers: at most window + 1 buffers of the
        vector's size (the pending contribution, rounds in flight, results not given yet) and one
        scratch buffer for each round in flight. Buffers are allocated when first needed and kept
        until `Request.Free`; ``deliver="each"`` allocates more while the rank is inside a
        collective call and results queue up. Half-precision types take 4 bytes an element in them,
        and buffers of 512 KiB or more are made of pages of 2 MiB. `stats` reports the sum of the
        vectors as ``buffer_bytes``.

        References
        ----------
        eager-SGD (Li et al., PPoPP 2020): sections 4 (solo and majority allreduce), 5 (late
        gradients) and 6.1 (active ranks); Lemma 5.1 for the expectation of `Majority`.
        """
        self._live()
        native = self._native
        arguments, complaint, limit = None, None, None
        try:
            limit = None if timeout is None else seconds(timeout)
            options = {
                "policy": policy,
                "deliver": deliver,
                "max_lag": max_lag,
                "average": average,
                "algorithm": algorithm,
            }
            arguments = Arguments.read(native, self._window, sendbuf, recvbuf, op, options)
            config = arguments.config(native, self._size)
        except Exception as error:
            complaint, config = as_argument_error(error), (native.ffi.NULL, None)
        name = "Allreduce_init"
        begun = self._calls.begun(name)
        if begun is not None:
            _check_same(arguments, begun[1])

        def begin() -> tuple[int, Any]:
            out = native.ffi.new("pp_handle_t **")
            text = c_text(native, complaint)
            status = native.lib.pp_allreduce_init_begin(self._ctx, config[0], text, out)
            return status, (out, arguments, complaint)

        made_with = None
        try:
            made_with = self._calls.make(name, None, limit, begin)
        except TimeoutError:
            raise
        except Error:
            if complaint is not None:
                raise complaint from None
            raise
        out, arguments, complaint = made_with
        if arguments is None:
            raise complaint or Error("internal error: a wrong argument was accepted")
        request = AllreduceRequest(self, native, out[0], arguments.settings, arguments.vector)
        self._requests[request.id] = request
        self._warn()
        return request

    def _warn(self) -> None:
        """Pass on what the core has to tell the user; called by what the user calls."""
        note = self._native.lib.pp_ctx_note(self._ctx)
        if note:
            text = self._native.ffi.string(note).decode(errors="replace")
            warnings.warn(f"{text}. {_REMEDY}", RuntimeWarning, stacklevel=3)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name in ("Allreduce", "Iallreduce", "allreduce"):
                raise AttributeError(
                    f"a Context has no one-shot {name}: the other ranks must hold the schedule "
                    "before one of them calls. Make the persistent collective once, on all ranks, "
                    "and use it many times: request = ctx.Allreduce_init(sendbuf, recvbuf); then "
                    "request.Start() and request.Wait()"
                )
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    # ---- ends -----------------------------------------------------------------------------------

    def Free(self, timeout: float | None = None) -> None:
        """End the context and release what it holds.

        Collective, blocking. All handles must have been freed before, on every rank.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait at most, 0 or more.

        Raises
        ------
        ArgumentError
            If `timeout` is of the wrong kind; nothing was communicated.
        TimeoutError
            After `timeout` seconds. The same call goes on with it; until then every other
            collective call of the context raises.
        Error
            If handles are live, or the context was freed already.
        MismatchError
            If another rank has live handles.
        """
        limit = None if timeout is None else seconds(timeout)
        self._live()
        begin = self._native.lib.pp_ctx_free_begin
        self._calls.make("Free of the context", None, limit, lambda: (begin(self._ctx), None))
        self._refuse("the context was freed")
        ctx, self._ctx = self._ctx, self._native.ffi.NULL
        self._native.lib.pp_ctx_release(ctx)
        _live_contexts.discard(self)

    def __enter__(self) -> Context:
        """Return the context itself."""
        self._live()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Free the context; after an exception abandon it, which communicates nothing."""
        if self._ctx == self._native.ffi.NULL:
            return
        if kind is not None:
            self._abandon()
            return
        try:
            self.Free()
        except BaseException:
            self._abandon()
            raise

    def _abandon(self, whose: str = "") -> None:
        """Stop without a word to the other ranks; `whose` block was left, if not the context's."""
        if self._gone is None:
            block = f"the with block of {whose}" if whose else "its with block"
            _live_contexts.discard(self)
            self._refuse(f"the context was abandoned: {block} was left by an exception")
            self._native.lib.pp_ctx_abandon(self._ctx)

    def _live(self) -> None:
        if self._gone is not None:
            raise Error(self._gone)

    def _refuse(self, why: str) -> None:
        """From now on raise `Error(why)` at every call of the context and its requests."""
        self._gone = why
        for request in self._requests.values():
            request._refuse(why)
        self._requests.clear()

    def _forget(self, request: Request) -> None:
        """Let go of a request that was freed."""
        self._requests.pop(request.id, None)

    def __reduce__(self) -> NoReturn:
        # Asked for by copy, deepcopy and pickle alike.
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
# parent, and what it sends and receives would be missing there.
_shares_mpi = False

# A context that nobody refers to any more goes on serving its peers until MPI_Finalize, in the
# core, which touches the application's buffers only in calls.
_live_contexts: weakref.WeakSet[Context] = weakref.WeakSet()


def _refuse_all(why: str) -> None:
    """Make all contexts unusable, so that no call has to look whether it is too late."""
    for context in list(_live_contexts):
        if context._gone is None:
            context._refuse(why)
        context._ctx = context._native.ffi.NULL


def _forked() -> None:
    """End what a forked child cannot use."""
    global _shares_mpi
    mpi = sys.modules.get("mpi4py.MPI")
    _shares_mpi = _shares_mpi or (mpi is not None and mpi.Is_initialized())
    _refuse_all("this process was forked: only the parent may use the context")


os.register_at_fork(after_in_child=_forked)


@functools.cache
def _watch_finalize(mpi: Any) -> None:
    """Have MPI_Finalize, where the core releases what was not freed, end the contexts here too."""

    def ended(comm: Any, keyval: int, value: Any) -> None:
        _refuse_all("MPI is finalised already")

    # MPI_Finalize deletes the attributes of COMM_SELF first of all (MPI 4.0, section 11.2.4).
    mpi.COMM_SELF.Set_attr(mpi.Comm.Create_keyval(delete_fn=ended), None)


# ---- arguments ----------------------------------------------------------------------------------


def _check_communicator(mpi: Any, comm: Any) -> None:
    """Raise for what makes communication impossible, so that there is nobody to agree with."""
    if not isinstance(comm, mpi.Comm):
        raise ArgumentError(f"comm must be an mpi4py communicator, not {comm!r}")
    if not mpi.Is_initialized():
        raise Error("MPI is not initialised: call MPI.Init_thread() first (mpi4py.rc.initialize)")
    if mpi.Is_finalized():
        raise Error("MPI is finalised already")
    if comm == mpi.COMM_NULL:
        raise ArgumentError("comm is MPI.COMM_NULL")
    if comm.Is_inter():
        raise ArgumentError("comm is an intercommunicator; pass an intracommunicator")


def _check_same(arguments: Arguments | None, before: Arguments | None) -> None:
    """Raise if a call cannot go on with the one that timed out: it has other arguments."""
    if before is not None and (arguments is None or not arguments.same_as(before)):
        raise ArgumentError(
            "Allreduce_init goes on with the call that timed out, which had other arguments: "
            f"{before.settings}"
        )


def _transport(lib: Lib, value: Any) -> int:
    """Return the core's number; the environment stands for "auto"."""
    number = TRANSPORT.constant(lib, value)
    given = os.environ.get("PYPARTIAL_TRANSPORT", "")
    if value != "auto" or not given:
        return number
    return TRANSPORT.constant(lib, given, "the environment variable PYPARTIAL_TRANSPORT")


def _patience_ns(value: Any, progress: str) -> int:
    """Return a patience as the core has it."""
    if value is None:
        return INT64_MAX
    if isinstance(value, str) and value == "auto":
        return -1
    patience = positive_seconds("patience", value, "'auto', or None")
    if progress == "caller":
        raise ArgumentError(
            f"patience={value!r}: with progress='caller' this rank's engine runs inside its own "
            "calls only, so nobody could say for it that it has left; use ctx.away()"
        )
    return min(max(1, round(min(patience, 1e9) * 1e9)), INT64_MAX - 1)


def _node_ranks() -> int:
    """Return how many ranks of a node are to be taken for one; 0: all of them."""
    given = os.environ.get("PYPARTIAL_NODE_RANKS", "")
    if not given:
        return 0
    if not given.isdecimal() or not 1 <= int(given) <= INT32_MAX:
        raise ArgumentError(
            f"the environment variable PYPARTIAL_NODE_RANKS={given!r} is no number of ranks"
        )
    return int(given)
