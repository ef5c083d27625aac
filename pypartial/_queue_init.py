"""`Queue_init`, and its arguments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

from . import _native
from ._buffer import layout_of, parse_in_place, split, understand
from ._device_buffer import uses_device_in_place
from ._elements import type_name
from ._make import AnyArguments, make
from ._names import TYPE
from ._queue_options import fill, read_mode
from .errors import ArgumentError
from .queue import QueueRequest, Settings
from .topology import as_topology

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ._core import CData
    from ._native import Native
    from .context import Context
    from .topology import RankGraph, Topology


class QueueInit:
    """Of `Context`: the method that makes averages with neighbours (Hop)."""

    __slots__ = ()

    def Queue_init(
        self,
        buf: Any,
        topology: Topology | str,
        *,
        max_ig: int | None = None,
        backup: int | Sequence[int] = 0,
        staleness: int | None = None,
        skip: int | None = None,
        skip_trigger: int = 2,
        protocol: Literal["tokens", "notify-ack", "none"] = "tokens",
        weights: Literal["uniform", "topology"] = "uniform",
        timeout: float | None = None,
    ) -> QueueRequest:
        """Make a persistent average with the neighbours in a graph (Hop).

        Collective, blocking; no data moves yet. Each `QueueRequest.Start` sends what is in `buf` as
        this rank's update of its iteration. Each `QueueRequest.Wait` writes to `buf` the average of
        it with updates of the in-neighbours, and enters the next iteration.

        Parameters
        ----------
        buf : buffer, or list of buffers
            The model, as `recvbuf` of `Allreduce_init`, in the memory of the host. Elements are
            float16, bfloat16 (of ml_dtypes), float32, float64 or long double; half precision is
            averaged in float32. The request keeps the buffers alive until it is freed. Where all
            ranks share the memory of a node, `max_ig` + `staleness` + 3 models of each rank are
            there at most; else a rank keeps its own, and the updates that have come.
        topology : Topology or str
            Which ranks are neighbours: one of `pypartial.topology`, or its text, as ``"ring"``.
        max_ig : int, optional
            With ``protocol="tokens"``: how many iterations a rank may be ahead of each of its
            out-neighbours, 1 or more. None: 4, or `staleness` + 1 if that is more.
        backup : int or sequence of int, optional
            How many in-neighbours' updates a rank does not wait for (backup workers, section 4.3):
            below the number of its in-neighbours; one number, or one a rank.
        staleness : int, optional
            Updates that are this much older still count (section 4.4): of each in-neighbour its
            newest one is averaged, once, and newer ones count more. None: updates of the very
            iteration.
        skip : int, optional
            A rank that is behind enters an iteration this much higher at most, and not beyond its
            slowest out-neighbour: 2 or more; needs `backup` or `staleness` (section 5). No rank
            does while the process has another request, but for those of `Gossip_init`: these need
            all steps. None: the next one.
        skip_trigger : int, optional
            A rank is behind if it is more than so many iterations behind all its out-neighbours;
            below `max_ig`.
        protocol : {"tokens", "notify-ack", "none"}, optional
            What bounds how far ranks are apart. ``"notify-ack"``: a rank sends its update when
            each neighbour has averaged the one before. ``"none"``: nothing but the updates that it
            waits for (Theorem 1).
        weights : {"uniform", "topology"}, optional
            ``"uniform"``: all models of an average count the same, but for `staleness`.
            ``"topology"``: as `RankGraph.weights` says; without `backup` and `staleness`. The
            weight of an update that was omitted goes to the own model.
        timeout : float, optional
            Seconds to wait at most for the other ranks, 0 or more. None: no limit.

        Returns
        -------
        QueueRequest
            Free it by `Request.Free` before the context.

        Raises
        ------
        ArgumentError
            If an argument of this rank is wrong, or options do not go together: the text says
            which. Where it is wrong on some ranks only, the others raise `MismatchError`, so no
            rank hangs.
        MismatchError
            If the ranks differ in count, type, topology or options. Every rank raises.
        TimeoutError
            After `timeout` seconds. The same call, made again with the same arguments, goes on with
            it. Until then this rank counts as left, and every other collective call of the context
            raises.
        MemoryError
            If this rank has no memory for the handle. The other ranks raise `PeerFailedError`.
        Error
            If the context was freed, or if another thread is inside a collective call of it.
        PeerFailedError
            If another rank has died, given up, or ended without freeing the context.

        Warns
        -----
        RuntimeWarning
            If `staleness` is `max_ig` or more on a graph that is not directed: tokens bind first.

        References
        ----------
        Q. Luo et al., "Hop: Heterogeneity-Aware Decentralized Training", ASPLOS 2019.

        Examples
        --------
        >>> request = ctx.Queue_init(model, pp.topology.ring())  # doctest: +SKIP
        >>> for step in range(100):  # doctest: +SKIP
        ...     train(model)
        ...     request.Start()
        ...     request.Wait()  # the average with the neighbours is in `model`
        """
        context = cast("Context", self)
        options = {
            "max_ig": max_ig,
            "backup": backup,
            "staleness": staleness,
            "skip": skip,
            "skip_trigger": skip_trigger,
            "protocol": protocol,
            "weights": weights,
        }
        rank, size = context.rank, context.size
        handle, arguments = make(
            context,
            "Queue_init",
            timeout,
            lambda: Arguments.read(rank, size, buf, topology, options),
        )
        settings = arguments.settings
        request = QueueRequest(context, context._native, handle, arguments.vector, settings)
        context._requests[request.id] = request
        mode = settings.mode
        tokens = mode.protocol == "tokens" and not settings.topology.directed
        if tokens and (mode.staleness or 0) >= mode.max_ig:
            _native.warn(
                f"staleness={mode.staleness} is not below max_ig={mode.max_ig}: on a graph that is "
                "not directed tokens keep neighbours closer than that",
            )
        return request


def way_back(graph: RankGraph) -> int:
    """Return the longest of the shortest paths from a rank to one of its in-neighbours."""
    if not graph.directed:
        return 1
    import networkx as nx

    lengths = dict(nx.all_pairs_shortest_path_length(graph.graph))
    return max((lengths[to][start] for start, to in graph.graph.edges), default=1)


@dataclass(frozen=True)
class Arguments(AnyArguments):
    """The arguments of ``Queue_init``, read and found right."""

    settings: Settings
    rank: int

    @classmethod
    def read(
        cls, rank: int, ranks: int, buf: Any, topology: Any, options: dict[str, Any]
    ) -> Arguments:
        """Read the arguments; `options` holds the keyword-only ones by name."""
        found = as_topology(topology)
        graph = found.on(ranks)
        if uses_device_in_place("buf", buf):
            raise ArgumentError("buf is in the memory of a device, and queues average on the host")
        vector = parse_in_place("buf", buf)
        name = type_name(vector.dtype, "buf")
        if "complex" in name or not ("float" in name or name == "longdouble"):
            raise ArgumentError(
                f"buf has dtype {vector.dtype.name}, but queues average floating numbers"
            )
        mode = read_mode(**options)
        settings = Settings(
            topology=found,
            mode=mode,
            backups=mode.backups(graph),
            dtype=vector.dtype,
            count=vector.count,
            layout=layout_of(understand(*named, writable=True) for named in split("buf", buf)),
        )
        return cls(vector, "auto", settings, rank)

    def config(self, native: Native, ctx: CData, ranks: int) -> tuple[CData, object]:
        """Return the C configuration, and the objects that must live as long as it."""
        ffi, lib, settings = native.ffi, native.lib, self.settings
        graph = settings.topology.on(ranks)
        pieces = self.pieces(ffi)
        config = ffi.new("pp_queues_config_t *")
        config.pieces = pieces
        config.piece_count = len(self.vector.pieces)
        config.type = TYPE.constant(lib, type_name(settings.dtype))
        ins, outs = graph.in_neighbours[self.rank], graph.out_neighbours[self.rank]
        text = f"shapes {settings.layout}, topology {settings.topology}"
        if any(settings.backups):
            text += f", backup of at most {max(settings.backups)}"
        kept = [
            pieces,
            ffi.new("int32_t[]", list(ins)),
            ffi.new("int32_t[]", list(outs)),
            ffi.new("double[]", [float(graph.weights[i, self.rank]) for i in ins]),
            ffi.new("char[]", text.encode(errors="backslashreplace")),
        ]
        _, config.ins, config.outs, config.weights, config.topology_text = kept
        config.fingerprint = _fingerprint(graph, settings.backups, settings.layout)
        backup = settings.backups[self.rank]
        fill(lib, config.plan, settings.mode, backup, len(ins), len(outs), way_back(graph))
        return config, kept


def _fingerprint(graph: RankGraph, backup: tuple[int, ...], layout: str) -> int:
    """Return a number that is equal on ranks whose graphs, backups and arrays are alike."""
    import hashlib

    text = f"{graph.fingerprint} {graph.weights.tobytes().hex()} {backup} {layout}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")
