"""`Allreduce_init`, and its arguments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

from ._allreduce_device import DeviceAllreduceRequest
from ._arguments import whole_number
from ._buffer import parse_allreduce
from ._device_buffer import DeviceVector, parse_on_device, uses_device
from ._elements import type_name
from ._ipc import check_path, choose_path, prepare
from ._make import AnyArguments, make
from ._names import AVERAGE, DELIVER, DEVICE_PATH, OP, TYPE, algorithm_options, describe_policy
from .allreduce import AllreduceRequest, Settings
from .errors import ArgumentError
from .policy import Majority, Policy, as_policy

if TYPE_CHECKING:
    from mpi4py import MPI

    from ._buffer import Vector
    from ._core import CData
    from ._native import Native
    from .context import Context

_DEFAULT_POLICY = Majority()
_OTHER_OPS = ("MAXLOC", "MINLOC", "REPLACE", "NO_OP", "OP_NULL")


class AllreduceInit:
    """Of `Context`: the method that makes partial allreduces."""

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
        native = context._native
        options = {
            "policy": policy,
            "deliver": deliver,
            "max_lag": max_lag,
            "average": average,
            "algorithm": algorithm,
            "device_path": device_path,
        }

        def read() -> Arguments:
            return Arguments.read(native, context._window, sendbuf, recvbuf, op, options)

        handle, arguments = make(context, "Allreduce_init", timeout, read)
        settings, vector = arguments.settings, arguments.vector
        request: AllreduceRequest
        if isinstance(vector, DeviceVector):
            request = DeviceAllreduceRequest(context, native, handle, settings, vector)
        else:
            request = AllreduceRequest(context, native, handle, settings, vector)
        context._requests[request.id] = request
        context._warn()
        if isinstance(request, DeviceAllreduceRequest):
            request._made(device_path)
        return request


@dataclass(frozen=True)
class Arguments(AnyArguments):
    """The arguments of ``Allreduce_init``, read and found right."""

    settings: Settings
    algorithm: str

    @classmethod
    def read(
        cls,
        native: Native,
        window: int,
        sendbuf: Any,
        recvbuf: Any,
        op: Any,
        options: dict[str, Any],
    ) -> Arguments:
        """Read the arguments; `options` holds the keyword-only ones by name."""
        vector: Vector
        if uses_device(sendbuf, recvbuf):
            vector = parse_on_device(native, sendbuf, recvbuf)
        else:
            vector = parse_allreduce(sendbuf, recvbuf)
        settings = Settings(
            op=_op_name(native.MPI, op),
            policy=as_policy(options["policy"]),
            deliver=options["deliver"],
            max_lag=_resolve_lag(native, window, options["deliver"], options["max_lag"]),
            average=options["average"],
            dtype=vector.dtype,
            count=vector.count,
        )
        path = options["device_path"]
        check_path(path, isinstance(vector, DeviceVector))
        return cls(vector, path, settings, options["algorithm"])

    def config(self, native: Native, ctx: CData, size: int) -> tuple[CData, object]:
        """Return the C configuration, and the objects that must live as long as it."""
        ffi, lib = native.ffi, native.lib
        vector, settings = self.vector, self.settings
        name = type_name(vector.dtype)
        type_, op = TYPE.constant(lib, name), OP.constant(lib, settings.op)
        if not lib.pp_op_supports(op, type_):
            raise ArgumentError(f"op {settings.op} is not defined for {vector.dtype.name} elements")
        average = AVERAGE.constant(lib, settings.average)
        if settings.average is not None and (
            settings.op != "SUM" or not ("float" in name or vector.dtype.kind in "fc")
        ):
            raise ArgumentError(
                f"average={settings.average!r} is for SUM of floating or complex types, not for "
                f"{settings.op} of {vector.dtype.name}; pass average=None"
            )
        pieces = self.pieces(ffi)
        config = ffi.new("pp_allreduce_config_t *")
        config.pieces = pieces
        config.piece_count = len(vector.pieces)
        device, path = self.device, self.device_path
        if device is not None:
            size_bytes = vector.count * vector.dtype.itemsize
            path = choose_path(path, size_bytes, lib.pp_ctx_ipc_from(ctx), measured=True)
        config.device = 0 if device is None else 1 + device
        config.device_path = DEVICE_PATH.constant(lib, path)
        no_path = prepare(native, ctx, path, device)
        config.no_path = no_path
        config.type = type_
        config.op = op
        policy_text = describe_policy(ffi, lib, settings.policy, size, config)
        config.deliver = DELIVER.constant(lib, settings.deliver)
        config.max_lag = -1 if settings.max_lag is None else settings.max_lag
        config.average = average
        config.algorithm = algorithm_options(ffi, lib).constant(lib, self.algorithm)
        return config, (pieces, policy_text, no_path)


def _resolve_lag(native: Native, window: int, deliver: str, max_lag: int | str) -> int | None:
    """Return the bound in rounds; None if there is no bound."""
    DELIVER.constant(native.lib, deliver)
    if isinstance(max_lag, str) and max_lag == "auto":
        return None if deliver == "latest" else window - 1
    if isinstance(max_lag, str) or max_lag is None:
        raise ArgumentError(f"max_lag must be 'auto' or an integer, not {max_lag!r}")
    lag = whole_number("max_lag", max_lag)
    if not 0 <= lag < window:
        raise ArgumentError(
            f"max_lag must be in 0..{window - 1} (below the context's window, {window}), not "
            f"{lag}: for a larger one make the context with a larger window"
        )
    return lag


def _op_name(mpi: Any, op: Any) -> str:
    """Return the name of an operation; raise if the library does not have it."""
    if op is None:
        return "SUM"
    if not isinstance(op, mpi.Op):
        raise ArgumentError(f"op must be an mpi4py operation such as MPI.SUM, not {op!r}")
    for name in OP:
        if op == getattr(mpi, name):
            return name
    name = next(
        (name for name in _OTHER_OPS if op == getattr(mpi, name)), "a user-defined operation"
    )
    raise ArgumentError(f"op {name} is not supported: use one of {', '.join(OP)}")
