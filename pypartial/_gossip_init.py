"""`Gossip_init`, and its arguments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast, overload
from zlib import crc32

from ._buffer import is_specification, layout_of, parse_in_place, shape_of, split, understand
from ._elements import type_name
from ._make import AnyArguments, make
from ._names import INITIATORS, MODE, TYPE
from ._queue_init import Arguments as QueueArguments
from .errors import ArgumentError
from .gossip import GossipRequest, Settings, SyncGossipRequest
from .topology import as_topology

if TYPE_CHECKING:
    from ._core import CData
    from ._native import Native
    from .context import Context
    from .topology import Topology


class GossipInit:
    """Of `Context`: the method that makes gossip."""

    __slots__ = ()

    @overload
    def Gossip_init(
        self,
        buf: Any,
        topology: Topology | str,
        mode: Literal["async"] = "async",
        initiators: Literal["all", "active"] = "all",
        continuous: bool = False,
        *,
        timeout: float | None = None,
    ) -> GossipRequest: ...

    @overload
    def Gossip_init(
        self,
        buf: Any,
        topology: Topology | str,
        mode: Literal["sync"],
        *,
        timeout: float | None = None,
    ) -> SyncGossipRequest: ...

    def Gossip_init(
        self,
        buf: Any,
        topology: Topology | str,
        mode: Literal["async", "sync"] = "async",
        initiators: Literal["all", "active"] = "all",
        continuous: bool = False,
        *,
        timeout: float | None = None,
    ) -> GossipRequest | SyncGossipRequest:
        """Make a persistent average with one neighbour (gossip): decentralized training.

        Collective, blocking. The library takes a copy of `buf` as this rank's model. Each
        `GossipRequest.Start` adds to the model, and asks for one average with a neighbour, which
        may compute meanwhile: both models become their average. Each `GossipRequest.Wait` writes
        the model to `buf` as of that average. On any connected graph averages never deadlock, and
        two averages with a common rank never run at once.

        Parameters
        ----------
        buf : buffer, or list of buffers
            The model; as `recvbuf` of `Allreduce_init`, in the memory of the host. Elements are
            float16, bfloat16 (of ml_dtypes), float32, float64 or long double; half precision is
            averaged in float32. `GossipRequest` says when the library reads and writes it. Four
            times its size is taken, of the memory that the ranks share if all do, and for the time
            of the call once more of the process's own.
        topology : Topology or str
            Which ranks are neighbours: of `pypartial.topology`, or a text that
            `topology.parse` reads. In a directed graph a rank draws among those that it sends to.
        mode : {"async", "sync"}, optional
            ``"async"``: AD-PSGD, as above. ``"sync"``: D-PSGD, by a `SyncGossipRequest`. There the
            model is in `buf`, and `Wait` averages it with those of all in-neighbours, by the
            weights of the topology (`RankGraph.weights`); it waits for each of them.
        initiators : {"all", "active"}, optional
            Which ranks ask for averages. ``"active"``: one side of the graph, that of rank 0, which
            must be bipartite (AD-PSGD, section 3.3.1). A request of a *passive* rank, of the other
            side, is complete at once with its model as it is.
        continuous : bool, optional
            True: averages go on by themselves, one after the other (AD-PSGD, Appendix A): `Start`
            only adds, and `Wait` gives the model as it is. The progress thread asks for them and
            rests between two, so that three quarters of the time are left to the application; with
            ``progress="caller"`` they go on inside calls.
        timeout : float, optional
            Seconds to wait at most for the other ranks, 0 or more. None: no limit.

        Returns
        -------
        GossipRequest or SyncGossipRequest
            Free it by `Request.Free` before the context.

        Raises
        ------
        ArgumentError
            If an argument of this rank is wrong: a topology that does not allow the number of
            ranks, or that has an odd cycle with ``initiators="active"``; integers. The other ranks
            raise `MismatchError`, so no rank hangs.
        MismatchError
            If the ranks differ in shapes, memory order, type or graph, or if the arguments of
            another rank are wrong. Every rank raises.
        TimeoutError
            After `timeout` seconds. The same call, made again with the same arguments, goes on with
            it. Until then every other collective call of the context raises.
        MemoryError
            If this rank has no memory for its model. The other ranks raise `MismatchError`.
        Error
            If the context was freed, inside `GossipRequest.locked`, or if another thread is inside
            a collective call of the context.
        PeerFailedError
            If another rank has died, given up, or ended without freeing the context.

        References
        ----------
        X. Lian et al., "Asynchronous Decentralized Parallel Stochastic Gradient Descent" (AD-PSGD),
        ICML 2018, section 3. X. Lian et al., "Can Decentralized Algorithms Outperform Centralized
        Algorithms?" (D-PSGD), NeurIPS 2017, Algorithm 1.

        Examples
        --------
        >>> request = ctx.Gossip_init(weights, pp.topology.ring())  # doctest: +SKIP
        >>> for step in range(100):  # doctest: +SKIP
        ...     request.Start(add=-lr * gradient(weights))
        ...     request.Wait()
        >>> request.Flush()  # doctest: +SKIP
        """
        context = cast("Context", self)

        def read() -> Arguments:
            return Arguments.read(buf, topology, mode, initiators, continuous)

        def read_sync() -> QueueArguments:
            read()
            return QueueArguments.read(context.rank, context.size, buf, topology, SYNC)

        if mode == "sync":
            handle, found = make(context, "Queue_init", timeout, read_sync)
            native, like = context._native, read().settings
            sync = SyncGossipRequest(context, native, handle, found, like)
            context._requests[sync.id] = sync
            return sync
        handle, arguments = make(context, "Gossip_init", timeout, read)
        request = GossipRequest(context, context._native, handle, arguments)
        context._requests[request.id] = request
        return request


# D-PSGD as queues: every neighbour is waited for, and no tokens are needed.
SYNC = {"max_ig": 1, "protocol": "none", "weights": "topology"}


@dataclass(frozen=True)
class Arguments(AnyArguments):
    """The arguments of ``Gossip_init``, read and found right."""

    settings: Settings

    @classmethod
    def read(
        cls, buf: Any, topology: Any, mode: Any, initiators: Any, continuous: Any
    ) -> Arguments:
        """Read the arguments."""
        found = as_topology(topology)
        MODE.check(mode)
        INITIATORS.check(initiators)
        if not isinstance(continuous, bool):
            raise ArgumentError(f"continuous must be True or False, not {continuous!r}")
        if mode == "sync" and (initiators != "all" or continuous):
            wrong = "continuous=True" if continuous else f"initiators={initiators!r}"
            raise ArgumentError(
                f"{wrong} goes with mode='async': with 'sync' all ranks average in step"
            )
        vector = parse_in_place("buf", buf)
        memories = [understand(*named, writable=True) for named in split("buf", buf)]
        name = type_name(vector.dtype, "buf")
        if "complex" in name or not ("float" in name or name == "longdouble"):
            raise ArgumentError(
                f"buf has dtype {vector.dtype.name}, but gossip averages floating numbers"
            )
        settings = Settings(
            topology=found,
            mode=mode,
            initiators=initiators,
            continuous=continuous,
            dtype=vector.dtype,
            shapes=tuple(map(shape_of, memories)),
            orders=tuple(memory.orders for memory in memories),
            layout=layout_of(memories),
            is_list=isinstance(buf, (list, tuple)) and not is_specification(buf),
        )
        return cls(vector, "auto", settings)

    def config(self, native: Native, ctx: CData, size: int) -> tuple[CData, object]:
        """Return the C configuration, and the objects that must live as long as it."""
        ffi, settings = native.ffi, self.settings
        graph = settings.topology.on(size)
        neighbours = graph.out_neighbours
        if settings.initiators == "active":
            active, _ = graph.sides()
            neighbours = tuple(own if rank in active else () for rank, own in enumerate(neighbours))
        starts = [0]
        for own in neighbours:
            starts.append(starts[-1] + len(own))
        edges = ffi.new("int32_t[]", [*starts, *(rank for own in neighbours for rank in own)])
        pieces = self.pieces(ffi)
        text = f"shapes {settings.layout}, graph {settings.topology}"
        text += f", initiators={settings.initiators}"
        text += ", continuous" * settings.continuous
        config = ffi.new("pp_gossip_config_t *")
        config.pieces = pieces
        config.piece_count = len(self.vector.pieces)
        config.type = TYPE.constant(native.lib, type_name(self.vector.dtype))
        config.edges = edges
        told = ffi.new("char[]", text.encode(errors="backslashreplace"))
        config.topology_text = told
        config.layout = crc32(settings.layout.encode())
        config.continuous = settings.continuous
        return config, (pieces, edges, told)
