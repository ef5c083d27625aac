"""`Preduce_init`, and its arguments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

from ._arguments import in_range, real_number
from ._buffer import parse_in_place
from ._device import streams_finder
from ._device_buffer import DeviceVector, parse_in_place_on_device, uses_device_in_place
from ._elements import type_name
from ._ipc import check_path, choose_path, prepare
from ._make import AnyArguments, make
from ._names import BACKEND, DEVICE_PATH, MISSING, TYPE, WEIGHTS
from ._preduce_device import DevicePreduceRequest
from .errors import ArgumentError
from .groups import Generator
from .preduce import PreduceRequest, Settings

if TYPE_CHECKING:
    from ._buffer import Vector
    from ._core import CData
    from ._native import Native
    from .context import Context

CACHE_MOST = 4096


class PreduceInit:
    """Of `Context`: the method that makes partial all-reduces in groups."""

    __slots__ = ()

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

        def read() -> Arguments:
            return Arguments.read(context._native, buf, groups, options)

        handle, arguments = make(context, "Preduce_init", timeout, read)
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


@dataclass(frozen=True)
class Arguments(AnyArguments):
    """The arguments of ``Preduce_init``, read and found right."""

    settings: Settings
    backend: str
    cache: int

    @classmethod
    def read(cls, native: Native, buf: Any, groups: Any, options: dict[str, Any]) -> Arguments:
        """Read the arguments; `options` holds the keyword-only ones by name."""
        if not isinstance(groups, Generator):
            raise ArgumentError(
                f"groups must be a generator such as pypartial.groups.Smart(3), not {groups!r}"
            )
        vector: Vector
        if uses_device_in_place("buf", buf):
            vector = parse_in_place_on_device(native, "buf", buf)
        else:
            vector = parse_in_place("buf", buf)
        name = type_name(vector.dtype, "buf")
        if "complex" in name or not ("float" in name or name == "longdouble"):
            raise ArgumentError(
                f"buf has dtype {vector.dtype.name}, but P-Reduce averages floating numbers"
            )
        alpha = real_number(options["alpha"])
        if not 0 <= alpha < 1:
            raise ArgumentError(
                f"alpha must be a number from 0 and below 1, not {options['alpha']!r}"
            )
        settings = Settings(
            groups=groups,
            weights=options["weights"],
            alpha=alpha,
            missing=options["missing"],
            dtype=vector.dtype,
            count=vector.count,
        )
        cache = in_range("cache", options["cache"], 0, CACHE_MOST)
        path = options["device_path"]
        check_path(path, isinstance(vector, DeviceVector))
        return cls(vector, path, settings, options["backend"], cache)

    def config(self, native: Native, ctx: CData, ranks: int) -> tuple[CData, object]:
        """Return the C configuration, and the objects that must live as long as it."""
        ffi, lib = native.ffi, native.lib
        vector, settings = self.vector, self.settings
        generator = settings.groups
        weights = WEIGHTS.constant(lib, settings.weights)
        missing = MISSING.constant(lib, settings.missing)
        backend = BACKEND.constant(lib, self.backend)
        generator.check(ranks)
        pieces = self.pieces(ffi)
        config = ffi.new("pp_preduce_config_t *")
        config.pieces = pieces
        config.piece_count = len(vector.pieces)
        config.type = TYPE.constant(lib, type_name(vector.dtype))
        config.backend = backend
        path, no_path = self.device_path, native.ffi.NULL
        if isinstance(vector, DeviceVector):
            config.device = 1 + vector.device
            if self.backend in ("auto", "node"):
                size_bytes = vector.count * vector.dtype.itemsize
                path = choose_path(path, size_bytes, lib.pp_ctx_ipc_from(ctx), measured=False)
            if path == "ipc" or (path, self.backend) == ("direct", "comm"):
                no_path = prepare(native, ctx, path, vector.device)
            config.stream = streams_finder(vector.sources)() if settings.keeps_initial else 0
        config.device_path = DEVICE_PATH.constant(lib, path)
        config.no_path = no_path
        plan = config.plan
        plan.generator = lib.pp_generator_number(generator.word.encode())
        for name, value in generator.options().items():
            setattr(plan, name, value)
        plan.size = min(plan.size, ranks)  # one rank is a group
        plan.weights = missing if settings.weights == "dynamic" else weights
        plan.alpha = settings.alpha
        plan.cache = self.cache
        plan.splits = self.backend == "comm" and settings.splits
        table = generator._table(native, ctx, ranks)
        if table is not None:
            config.table = table
        text = ffi.new("char[]", repr(generator).encode(errors="backslashreplace"))
        config.generator_text = text
        return config, (pieces, table, text, no_path)
