"""The ways to make models more alike that ``bench gossip`` compares."""

from __future__ import annotations

import itertools
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from mpi4py import MPI

import pypartial as pp

from .contenders import Contender, Partial
from .gossip_options import GossipWay
from .group_options import Backend, GroupGenerator
from .group_ways import CACHED, Cast, GroupWay, full, generator, group_way, preduce
from .options import Buffers, Transport

if TYPE_CHECKING:
    from ..topology import RankGraph
    from .group_ways import Array

SENDRECV, NEIGHBOURS = "mpi-sendrecv", "mpi-neighbor"
RIVALS = (CACHED, SENDRECV, NEIGHBOURS)


class Mixer:
    """A way, and the model that it changes.

    Attributes
    ----------
    contender : Contender
    model : array
    weights : array or None
        An iteration makes model i the sum over j of ``weights[j, i]`` times model j. None:
        neighbours are drawn, and only the mean over the ranks is known.
    """

    def __init__(self, contender: Contender, model: Array, weights: Array | None) -> None:
        self.contender, self.model, self.weights = contender, model, weights

    def begin(self, values: Array) -> None:
        """Put values into the model."""
        self.model[:] = values

    def result(self) -> Array:
        """Return the model."""
        return self.model

    def apart(self) -> AbstractContextManager[Any]:
        """Return a context in which this rank makes no calls, and holds nobody up."""
        return nullcontext()

    def free(self) -> None:
        """Release what was made; collective."""
        self.contender.free()


class _Gossip(Mixer):
    """The library has the model, and neighbours may change it outside calls."""

    def __init__(
        self, ctx: pp.Context, model: Array, topology: str, initiators: Literal["all", "active"]
    ) -> None:
        self._request = ctx.Gossip_init(model, topology, initiators=initiators)
        super().__init__(Partial(ctx, self._request), model, None)

    def begin(self, values: Array) -> None:
        with self._request.locked() as x:
            x[:] = values

    def result(self) -> Array:
        self._request.Read(self.model)
        return self.model


class _Preduce(Mixer):
    """On a context of its own, which ranks leave between blocks: groups are of those present."""

    def __init__(self, comm: MPI.Intracomm, model: Array, transport: Transport) -> None:
        self._ctx = pp.Context(comm, transport=transport.value, patience=None)
        cast = Cast(2, 1, comm.rank)
        groups = generator(GroupGenerator.RANDOM, cast)
        super().__init__(preduce(self._ctx, model, groups, Backend.AUTO, cast), model, None)

    def apart(self) -> AbstractContextManager[Any]:
        return self._ctx.away()

    def free(self) -> None:
        super().free()
        self._ctx.Free()


class _Sendrecv(Mixer, Contender):
    """MPI_Sendrecv with one neighbour, always the same, and an addition in NumPy.

    The sum replaces what was received, and is not halved. A rank that is left over does nothing.
    """

    def __init__(self, comm: MPI.Intracomm, model: Array, graph: RankGraph) -> None:
        import networkx as nx

        weights, self._partner = np.eye(comm.size), comm.rank
        for pair in nx.max_weight_matching(graph.graph.to_undirected(), maxcardinality=True):
            weights[np.ix_(pair, pair)] = 0.5
            if comm.rank in pair:
                self._partner = sum(pair) - comm.rank
        self._comm, self._sum = comm, np.empty_like(model)
        super().__init__(self, model, weights)

    def begin(self, values: Array) -> None:
        super().begin(values)
        self._sum[:] = 2 * values

    def result(self) -> Array:
        return self._sum / 2

    def repeat(self, calls: int) -> None:
        exchange, add, partner = self._comm.Sendrecv, np.add, self._partner
        for _ in itertools.repeat(None, calls if partner != self._comm.rank else 0):
            exchange(self.model, partner, 0, self._sum, partner, 0)
            add(self.model, self._sum, out=self._sum)

    def free(self) -> None:
        """Nothing was made."""


class _Neighbours(Contender):
    """MPI_Neighbor_allgather on the topology, and the average in NumPy; all count the same."""

    def __init__(self, comm: MPI.Intracomm, model: Array, graph: RankGraph) -> None:
        sources = graph.in_neighbours[comm.rank]
        self._comm = comm.Create_dist_graph_adjacent(sources, graph.out_neighbours[comm.rank])
        self._model = model
        self._received = np.empty((len(sources), model.size), model.dtype)

    def repeat(self, calls: int) -> None:
        gather, add, multiply = self._comm.Neighbor_allgather, np.add, np.multiply
        model, received = self._model, self._received
        share = model.dtype.type(1 / (1 + len(received)))
        for _ in itertools.repeat(None, calls):
            gather(model, received)
            for other in received:
                add(model, other, out=model)
            multiply(model, share, out=model)

    def free(self) -> None:
        self._comm.Free()


def mixer(
    way: str,
    ctx: pp.Context,
    baseline: MPI.Intracomm,
    model: Array,
    graph: RankGraph,
    transport: Transport,
) -> Mixer:
    """Make a way, the value of a `GossipWay` or one of `RIVALS`; collective."""
    topology, size = str(graph.topology), ctx.size
    alike = np.eye(size)  # a rank and its in-neighbours count the same
    for rank, sources in enumerate(graph.in_neighbours):
        alike[[rank, *sources], rank] = 1 / (1 + len(sources))
    everybody = np.full((size, size), 1 / size)
    if way in (GossipWay.AD_PSGD, GossipWay.ACTIVE):
        return _Gossip(ctx, model, topology, "all" if way == GossipWay.AD_PSGD else "active")
    if way == GossipWay.PREDUCE:
        return _Preduce(baseline, model, transport)
    if way == GossipWay.D_PSGD:
        sync = ctx.Gossip_init(model, topology, mode="sync")
        return Mixer(Partial(ctx, sync), model, graph.weights)
    if way == GossipWay.HOP:
        return Mixer(Partial(ctx, ctx.Queue_init(model, topology)), model, alike)
    if way == GossipWay.FULL:
        return Mixer(full(ctx, model), model, everybody)
    if way == SENDRECV:
        return _Sendrecv(baseline, model, graph)
    if way == NEIGHBOURS:
        return Mixer(_Neighbours(baseline, model, graph), model, alike)
    cached, cast = GroupWay(CACHED, None, Buffers.NUMPY), Cast(size, 1, ctx.rank)
    return Mixer(group_way(cached, ctx, baseline, model, cast, transport), model, everybody)
