"""The persistent collectives that a context makes: the methods ``*_init``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, cast

from . import allreduce, preduce
from ._arguments import as_argument_error, c_text, seconds
from ._device_buffer import DeviceVector
from .allreduce import AllreduceRequest
from .device import DeviceAllreduceRequest, DevicePreduceRequest
from .errors import ArgumentError, Error, TimeoutError
from .groups import Generator
from .policy import Majority, Policy
from .preduce import PreduceRequest

if TYPE_CHECKING:
    from mpi4py import MPI

    from ._core import CData
    from .context import Context

__all__ = ["Collectives"]

_DEFAULT_POLICY = Majority()


class Collectives:
    """What every `Context` can make."""

    __slots__ = ()

    def Allreduce_init(
        self,
        sendbuf: Any,
        recvbuf: Any,
        op: MPI.Op | None = None,
        *,
        policy: Policy | str = _DEFAULT_POLICY,
        deliver: Literal["latest", "sum", "each"] = "sum",
        max_lag: int | Literal["auto"] = "auto",
        average: Literal["size", "contributors", "contributions"] | None = None,
        algorithm: str = "auto",
        device_path: Literal["auto", "staged", "ipc", "direct"] = "auto",
        timeout: float | None = None,
    ) -> AllreduceRequest:
        """Make a persistent partial allreduce.

        Collective, blocking; no data moves yet. Each `Request.Start` contributes what is in
        `sendbuf`. Each `Request.Wait` delivers the result of a *round*: the reduction of what the
        ready ranks contributed when `policy` was satisfied, and of what late ranks had pending from
        earlier Starts. Every contribution enters exactly one round. The result is identical on
        every rank, bit for bit.

        Parameters
        ----------
        sendbuf, recvbuf : buffer, or list of buffers
            What a rank contributes, and where its results go; both hold the same number of elements
            of one type. A buffer is a contiguous object of any shape with the buffer protocol, or a
            DLPack exporter in host memory, or an array in the memory of a CUDA device, as all other
            buffers of the handle then (`DeviceAllreduceRequest`); or ``[buf, count]``,
            ``[buf, type]``, ``[buf, count, type]``, with `count` in elements and `type` an MPI
            datatype. `sendbuf` may be ``MPI.IN_PLACE`` or None: each Start then reads `recvbuf`.
            Two lists of equal length, for example ``([g1, g2], [o1, o2])``, are reduced in one
            round with one set of contributors. The element type is an integer, float16, bfloat16
            (of ml_dtypes), float32, float64, long double, complex or bool. A receive buffer must
            not overlap another buffer.

            The request keeps the buffers alive until it is freed. The library reads `sendbuf`
            inside `Request.Start` only, and writes `recvbuf` inside `Wait`, `Test`, `Flush`,
            `View`, `More` and a step of `Drain` only; at all other times they are the
            application's. (A `Wait` that ends by a timeout or Ctrl-C may have written part of
            `recvbuf`; the next `Wait` writes all of it.) For arrays of `alloc` see there. Of
            buffers on a device that holds for work which is queued on the stream of the call;
            other streams have to wait for that one (`DeviceAllreduceRequest`).
        op : mpi4py.MPI.Op, optional
            ``MPI.SUM`` (the default), PROD, MIN, MAX, LAND, LOR, LXOR, BAND, BOR or BXOR, as MPI
            defines them for the element type. float16 and bfloat16 travel and accumulate as
            float32, and are rounded once, when a result is copied to `recvbuf`.
        policy : Policy or str, optional
            When a round is activated: `Solo`, `Majority` (the default), `FirstOf`, `Quorum` or
            `Full`; or the text of one, such as ``"quorum:4,deadline=5ms"`` (`Policy.parse`).
        deliver : {"latest", "sum", "each"}, optional
            What a request delivers. ``"latest"``: the newest complete round, as eager-SGD does; a
            rank never sees the results of rounds that it missed. ``"sum"`` (the default): all
            rounds that this rank was not given yet, combined by `op`. ``"each"``: one round for
            each request, in order. With ``"sum"`` and ``"each"`` all ranks' results add up to the
            same in the end.
        max_lag : int or "auto", optional
            Staleness bound in rounds, 0 to window - 1: at most this many rounds complete between
            the completion of one request of this rank and its next Start; other ranks wait if
            necessary. ``"auto"``: no bound for ``"latest"``, else window - 1.
        average : {"size", "contributors", "contributions"}, optional
            Divide the sum by the number of ranks, of the round's contributors, or of its
            contributions. For SUM of floating or complex types.
        algorithm : str, optional
            The algorithm of rounds that are made of messages, by its name in docs/algorithms.md,
            such as ``"ring"``. ``"auto"``: the fastest one for such a vector on so many ranks, as
            ``pypartial tune`` measured it on this machine, or else by a cost model. Rank 0 chooses
            for all ranks, and only its tuning table is read. Where all ranks share memory,
            ``"auto"`` needs no algorithm; any other name forces messages between all ranks, also on
            one node. See `AllreduceRequest.algorithm` and `AllreduceRequest.algorithm_reason`.
        device_path : {"auto", "staged", "ipc", "direct"}, optional
            How the elements of buffers on devices get from rank to rank. ``"staged"``: by memory of
            the host. Then some ranks may have their buffers there. ``"ipc"``: by memory of devices
            that the ranks share, where a device reduces them; it needs all ranks on one node,
            rounds in memory that they share, and CuPy. ``"direct"``: as messages of elements in
            memory of devices, for an MPI that takes addresses of devices; it needs rounds that are
            made of messages (``transport="mpi"``, an `algorithm` that is named, or every rank alone
            on its node), and CuPy. Whether MPI takes them, a process that the
            first rank of each node starts tries once, on its device; up to 60 seconds. If a path is
            not possible, the handle is as with ``"staged"``: rank 0 warns, and
            `DeviceAllreduceRequest.device_path_reason` says why. ``"auto"``: ``"staged"``; from 16
            MB on, or the number of bytes that the environment variable ``PYPARTIAL_IPC_FROM``
            names, ``"ipc"``, where that is possible, without a warning.
        timeout : float, optional
            Seconds to wait at most for the other ranks, 0 or more. None: no limit. What
            ``device_path="direct"`` tries first is not counted.

        Returns
        -------
        AllreduceRequest
            A `DeviceAllreduceRequest` if the buffers are in the memory of a device.
            Free it by `Request.Free` before the context.

        Raises
        ------
        ArgumentError
            If an argument of this rank is wrong. The other ranks raise `MismatchError`, so no rank
            hangs.
        MismatchError
            If the ranks differ in count, type, operation, policy or options, or if another rank's
            arguments are wrong. Every rank raises.
        TimeoutError
            After `timeout` seconds. The same call, made again with the same arguments, goes on with
            it. Until then this rank counts as left, and every other collective call of the context
            raises.
        MemoryError
            If this rank has no memory for the handle. The other ranks raise `MismatchError`.
        Error
            If the context was freed, or if another thread is inside a collective call of it; or if
            the driver of this rank's device has failed; the other ranks raise `MismatchError` then.
        PeerFailedError
            If another rank has died, given up, or ended without freeing the context.

        Warns
        -----
        RuntimeWarning
            If ``transport="auto"`` and the memory that the ranks of a node share has no room for
            the handle, whose rounds are then made of messages. On rank 0, the first time that
            a `device_path` is not possible.

        Notes
        -----
        **Memory**, besides the application's buffers. A vector of n bytes means all buffers of one
        rank together; half-precision elements count 4 bytes. The library takes memory when it first
        needs it, and keeps it until `Request.Free`. It takes the address space of all shared
        vectors at once, which matters under a limit (``ulimit -v``).

        *In shared memory*: up to 8 vectors of contributions for each rank of a node, and for the
        whole node up to ``window + 3 + min(r, 8)`` results, r being its ranks. `Stats.buffer_bytes`
        does not count these. Results that this rank was not given yet may take vectors of its own
        memory: 1 for ``"latest"`` and ``"sum"``, up to `window` for ``"each"``, and more while the
        rank is inside a collective call. Measured in all with vectors of 4 MB: 1 to 1.5 vectors a
        rank with `Full`, 3.5 to 5 with `Majority`, 7 to 9.4 with `Solo`, where ranks run ahead of
        each other.

        *By messages*, for each rank: 1 pending contribution; up to `window` vectors for rounds in
        flight and the result; above 16 KiB scratch for each round in flight, of n bytes (recursive
        doubling), n / 2 (Rabenseifner) or n / P (ring); results not given yet, as above. Buffers of
        more than 16 KiB are cut out of blocks of huge pages of 2 MiB, which the handles of a
        context share. `Stats.buffer_bytes` counts the vectors and the scratch. docs/engine.md,
        "Memory", says more.

        References
        ----------
        eager-SGD (Li et al., PPoPP 2020): sections 4 (solo and majority allreduce), 5 (late
        gradients) and 6.1 (active ranks); Lemma 5.1 for the expectation of `Majority`.
        """
        context = cast("Context", self)
        options = {
            "policy": policy,
            "deliver": deliver,
            "max_lag": max_lag,
            "average": average,
            "algorithm": algorithm,
            "device_path": device_path,
        }

        def read() -> tuple[allreduce.Arguments, tuple[CData, object]]:
            native, window = context._native, context._window
            read = allreduce.Arguments.read(native, window, sendbuf, recvbuf, op, options)
            return read, read.config(native, context._ctx, context._size)

        name = "Allreduce_init"
        handle, arguments = _make(context, name, "pp_allreduce_init_begin", timeout, read)
        native, settings = context._native, arguments.settings
        request: AllreduceRequest
        if isinstance(arguments.vector, DeviceVector):
            request = DeviceAllreduceRequest(context, native, handle, settings, arguments.vector)
        else:
            request = AllreduceRequest(context, native, handle, settings, arguments.vector)
        context._requests[request.id] = request
        context._warn()
        if isinstance(request, DeviceAllreduceRequest):
            request._made(device_path)
        return request

    def Preduce_init(
        self,
        buf: Any,
        groups: Generator,
        *,
        weights: Literal["constant", "dynamic"] = "constant",
        alpha: float = 0.5,
        missing: Literal["closest", "initial"] = "closest",
        backend: Literal["auto", "node", "schedule", "comm"] = "auto",
        cache: int = 64,
        device_path: Literal["auto", "staged", "ipc", "direct"] = "auto",
        timeout: float | None = None,
    ) -> PreduceRequest:
        """Make a persistent partial all-reduce in groups (P-Reduce): model averaging.

        Collective, blocking; no data moves yet. Each `PreduceRequest.Start` gives what is in `buf`
        and asks for a group. Each `PreduceRequest.Wait` writes to `buf` the average over the group.
        `groups` decides which ranks are in it. A group begins when all its members have started,
        never in a rank's computation. Each rank runs its groups one after the other, in one order
        that is the same everywhere; groups without a common rank run at once. All members get the
        same average, bit for bit.

        Parameters
        ----------
        buf : buffer, or list of buffers
            The model; as `recvbuf` of `Allreduce_init`, also in the memory of a CUDA device
            (`DevicePreduceRequest`). Elements are float16, bfloat16 (of
            ml_dtypes), float32, float64 or long double; half precision is averaged in float32.

            The request keeps the buffers alive until it is freed. The library reads `buf` inside
            `PreduceRequest.Start` and `PreduceRequest.Flush` only, and writes it inside `Wait`,
            `Test` and `Flush` only; at all other times it is the application's. For arrays of
            `alloc` see there. Of buffers on a device that holds for work which is queued on the
            stream of the call (`DevicePreduceRequest`).
        groups : Generator
            Which ranks average with each other: `groups.Static`, `groups.Random`, `groups.Smart`,
            `groups.Controller`, `groups.Given` or `groups.Table`.
        weights : {"constant", "dynamic"}, optional
            ``"constant"``: all models of a group count the same. ``"dynamic"``: newer ones count
            more (Partial Reduce, section 3.3, Eq. 9), by the iterations that Start names; members
            take over the newest iteration.
        alpha : float, optional
            Of Eq. 9, from 0 and below 1: how much less an older version counts. Above 0.5 a stale
            model can weigh more than a newer one, because the shares of missing versions go to it.
        missing : {"closest", "initial"}, optional
            Of dynamic weights: what the share of an iteration goes to that no member has.
            ``"closest"``: the closest iteration in the group, of two the newer. ``"initial"``: the
            initial model, which is what `buf` holds during this call, and of which every rank keeps
            a copy.
        backend : {"auto", "node", "schedule", "comm"}, optional
            How members add up their models. ``"node"``: in the memory that the ranks of a node
            share. ``"schedule"``: by messages. ``"auto"``: the first of these that is possible.
            ``"comm"``: the papers' way, as a reference: an MPI_Allreduce on a communicator of the
            group; see `PreduceRequest` for what it does not do.
        cache : int, optional
            Of ``backend="comm"``: how many groups keep their communicators, 0 to 4,096; others make
            and free them each time (Ripples, section 6.1). The communicators of `groups.Static` do
            not count, but those of its groups that have shrunk do.
        device_path : {"auto", "staged", "ipc", "direct"}, optional
            How models on devices get from rank to rank, as in `Allreduce_init`. ``"ipc"`` also
            needs groups in memory that the ranks share (``backend="node"``, or ``"auto"``).
            ``"auto"`` is ``"ipc"`` there from the bytes on that ``PYPARTIAL_IPC_FROM`` names, and
            else ``"staged"``. ``"direct"`` needs ``backend="comm"``,
            whatever the transport is.
        timeout : float, optional
            Seconds to wait at most for the other ranks, 0 or more. None: no limit. What
            ``device_path="direct"`` tries first is not counted.

        Returns
        -------
        PreduceRequest
            A `DevicePreduceRequest` if the buffers are in the memory of a device.
            Free it by `PreduceRequest.Free` before the context.

        Raises
        ------
        ArgumentError
            If an argument of this rank is wrong: groups of more ranks than there are, or a table of
            another number of ranks; ``backend="node"`` where ranks share no memory. The other ranks
            raise `MismatchError`, so no rank hangs.
        MismatchError
            If the ranks differ in count, type, generator or options, or if another rank's arguments
            are wrong. Every rank raises.
        TimeoutError
            After `timeout` seconds. The same call, made again with the same arguments, goes on with
            it. Until then this rank counts as left, and every other collective call of the context
            raises.
        MemoryError
            If this rank has no memory for the handle. The other ranks raise `MismatchError`.
        Error
            If the context was freed, or if another thread is inside a collective call of it; or if
            the driver of this rank's device has failed; the other ranks raise `MismatchError` then.
        PeerFailedError
            If another rank has died, given up, or ended without freeing the context.

        Warns
        -----
        RuntimeWarning
            If ``transport="auto"`` and the memory that the ranks of a node share has no room for
            the handle, whose groups then exchange messages. On rank 0, the first time that
            ``device_path="ipc"`` or ``"direct"`` is not possible.

        References
        ----------
        Ripples (Luo et al., ASPLOS 2020), sections 3 to 6. Partial Reduce (Miao et al., SIGMOD
        2021), section 3 and Algorithm 2.

        Examples
        --------
        >>> request = ctx.Preduce_init(model, pp.groups.Smart(3))  # doctest: +SKIP
        >>> for step in range(100):  # doctest: +SKIP
        ...     train(model)
        ...     request.Start()
        ...     request.Wait()  # the average over the group is in `model`
        >>> request.Flush()  # the average over all ranks  # doctest: +SKIP
        """
        context = cast("Context", self)
        options = {
            "weights": weights,
            "alpha": alpha,
            "missing": missing,
            "backend": backend,
            "cache": cache,
            "device_path": device_path,
        }

        def read() -> tuple[preduce.Arguments, tuple[CData, object]]:
            native = context._native
            read = preduce.Arguments.read(native, buf, groups, options)
            return read, read.config(native, context._ctx, context._size)

        handle, arguments = _make(context, "Preduce_init", "pp_preduce_init_begin", timeout, read)
        on_device = isinstance(arguments.vector, DeviceVector)
        kind = DevicePreduceRequest if on_device else PreduceRequest
        request = kind(context, context._native, handle, arguments)
        context._requests[request.id] = request
        if arguments.backend == "comm":
            request._use_communicators(arguments.vector)
        context._warn()
        if isinstance(request, DevicePreduceRequest):
            request._made(device_path)
        return request


class _Arguments(Protocol):
    """The arguments of a method ``*_init``, read and found right."""

    @property
    def settings(self) -> object: ...
    def same_as(self, other: Any) -> bool: ...


AnyArguments = TypeVar("AnyArguments", bound=_Arguments)


def _make(
    context: Context,
    name: str,
    begin_name: str,
    timeout: float | None,
    read: Callable[[], tuple[AnyArguments, tuple[CData, object]]],
) -> tuple[CData, AnyArguments]:
    """Make a handle, or go on with the call that timed out; collective.

    A wrong argument is an error on every rank, so this rank takes part in the agreement in any
    case.

    Parameters
    ----------
    context : Context
    name, begin_name : str
        The method, and the core's function that begins it.
    timeout : float or None
    read : callable
        Returns the arguments, their C configuration, and what must live as long as that; raises if
        they are wrong.

    Returns
    -------
    handle : CData
    arguments
        Those that the call began with.
    """
    context._live()
    native = context._native
    arguments: AnyArguments | None = None
    complaint: Error | None = None
    config: tuple[CData, object] = native.ffi.NULL, None
    limit = None
    try:
        limit = None if timeout is None else seconds(timeout)
        arguments, config = read()
    except Exception as error:
        complaint = as_argument_error(error)
    begun = context._calls.begun(name)
    if begun is not None:
        _check_same(name, arguments, begun[1])

    def begin() -> tuple[int, Any]:
        out = native.ffi.new("pp_handle_t **")
        text = c_text(native, complaint)
        status = getattr(native.lib, begin_name)(context._ctx, config[0], text, out)
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


def _check_same(name: str, arguments: _Arguments | None, before: _Arguments | None) -> None:
    """Raise if a call has other arguments than the one that timed out and that it goes on with."""
    if before is not None and (arguments is None or not arguments.same_as(before)):
        raise ArgumentError(
            f"{name} goes on with the call that timed out, which had other arguments: "
            f"{before.settings}; pass the same arguments and buffers"
        )
