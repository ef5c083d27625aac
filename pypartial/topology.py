"""Topologies: which ranks are neighbours of each other, for gossip and for queues.

A `Topology` says how ranks are connected, and `Topology.on` gives the `RankGraph` of P ranks, with
neighbours, weights and spectral gaps. Graphs need networkx, which is loaded where one is made.

References
----------
Q. Luo et al., "Hop: Heterogeneity-Aware Decentralized Training", ASPLOS 2019, section 7. X. Lian et
al., "Asynchronous Decentralized Parallel Stochastic Gradient Descent" (AD-PSGD), ICML 2018,
section 3.
"""

from __future__ import annotations

import functools
import hashlib
import re
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ._arguments import INT32_MAX, in_range, listed
from .errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import networkx as nx

__all__ = [
    *("RankGraph", "Topology", "as_topology", "bipartite_exponential", "complete", "double_ring"),
    *("exponential", "hypercube", "machines", "of", "parse", "ring", "ring_based", "star", "torus"),
]

Ints = npt.NDArray[np.int32]
_MACHINES = r"machines:(\d{1,4}(?:,\d{1,4})*)(:\d{1,4}-\d{1,4}(?:,\d{1,4}-\d{1,4})*)?"


def _networkx() -> Any:
    try:
        import networkx
    except ImportError as error:
        raise ImportError("pypartial.topology needs networkx: pip install networkx") from error
    return networkx


# ---- topologies ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Topology:
    """How ranks are connected. The functions of this module make topologies.

    A topology is immutable, and topologies are compared by value.

    Attributes
    ----------
    text : str
        What `parse` reads; that of `of` is for messages only.
    ranks : int or None
        The number of ranks that it is for; None: any that `on` allows.
    edges : tuple of pairs of int
        Those of a topology that is for a number of ranks.
    directed : bool

    Examples
    --------
    >>> import pypartial as pp
    >>> ring = pp.topology.ring()
    >>> ring.on(8).in_neighbours[0], ring.on(3).in_neighbours[0]
    ((1, 7), (1, 2))
    """

    text: str
    ranks: int | None = None
    edges: tuple[tuple[int, int], ...] = field(default=(), repr=False)
    directed: bool = False

    def on(self, ranks: int) -> RankGraph:
        """Return the graph of so many ranks.

        One rank has no neighbours; any topology that is not for a number of ranks allows it.

        Raises
        ------
        ArgumentError
            If the topology does not allow this number of ranks.
        ImportError
            If networkx is missing.
        """
        return _graph_on(self, in_range("ranks", ranks, 1, INT32_MAX))

    def __str__(self) -> str:
        return self.text


def ring() -> Topology:
    """Connect the ranks in a circle."""
    return Topology("ring")


def ring_based() -> Topology:
    """Connect the ranks in a circle, and each with the most distant one (Hop, Figure 11).

    If P is odd, two ranks are most distant, and each rank is connected with both.
    """
    return Topology("ring-based")


def double_ring() -> Topology:
    """Connect two ring-based graphs, rank i with i + P/2 (Hop, Figure 11); P is even."""
    return Topology("double-ring")


def exponential(directed: bool = False) -> Topology:
    """Connect rank i with i + 1, i + 2, i + 4 and so on, modulo P.

    If `directed`, rank i only sends to these; else they send to it, too.
    """
    return Topology("exponential:directed" if directed else "exponential", directed=bool(directed))


def bipartite_exponential() -> Topology:
    """Connect rank i with i + 1, i + 3, i + 5, i + 9 and so on, modulo P; P is even.

    These are AD-PSGD's distances 2^j + 1, with 1 for its 2, because even distances make odd cycles.
    """
    return Topology("bipartite-exponential")


def complete() -> Topology:
    """Connect each rank with all others."""
    return Topology("complete")


def star() -> Topology:
    """Connect rank 0 with all others."""
    return Topology("star")


def hypercube() -> Topology:
    """Connect the ranks whose numbers differ in one bit; P is a power of two."""
    return Topology("hypercube")


def torus(rows: int, columns: int) -> Topology:
    """Connect the ranks of each row, and those of each column, in a circle.

    The ranks are numbered row by row.
    """
    lengths = in_range("rows", rows, 1, INT32_MAX), in_range("columns", columns, 1, INT32_MAX)
    return _fixed("torus:{}x{}".format(*lengths), _grid(*(_circle(n, [1]) for n in lengths)))


def machines(sizes: Iterable[int], bridges: Iterable[tuple[int, int]] | None = None) -> Topology:
    """Connect all ranks of a machine, and machines by bridges (Hop, Figure 21).

    Parameters
    ----------
    sizes : iterable of int
        How many ranks each machine has; they are consecutive.
    bridges : iterable of pairs of int, optional
        Ranks of different machines. None: the first ranks of the machines, in a circle.

    Examples
    --------
    >>> import pypartial as pp
    >>> print(pp.topology.machines([4, 2, 2], bridges=[(0, 4), (4, 6), (0, 6)]))
    machines:4,2,2:0-4,0-6,4-6
    """
    nx = _networkx()
    numbers = [in_range("a size", size, 1, INT32_MAX) for size in listed("sizes", sizes)]
    if not numbers:
        raise ArgumentError("sizes must have at least one machine")
    graph = nx.disjoint_union_all([nx.complete_graph(number) for number in numbers])
    text = ",".join(map(str, numbers))
    if bridges is None:
        firsts = [0, *accumulate(numbers[:-1])]
        circle = _circle(len(firsts), [1])
        graph.add_edges_from((firsts[one], firsts[other]) for one, other in circle.edges)
        return _fixed(f"machines:{text}", graph)
    ends = sorted({_bridge(bridge, graph) for bridge in listed("bridges", bridges)})
    graph.add_edges_from(ends)
    parts = ["machines", text, ",".join(f"{one}-{other}" for one, other in ends)]
    return _fixed(":".join(filter(None, parts)), graph)


def _bridge(bridge: Any, machines: nx.Graph) -> tuple[int, int]:
    last = len(machines) - 1
    ends = [in_range("a rank of a bridge", end, 0, last) for end in listed("a bridge", bridge)]
    if len(ends) != 2:
        raise ArgumentError(f"a bridge must be two ranks, not {bridge!r}")
    if ends[0] == ends[1] or machines.has_edge(*ends):
        raise ArgumentError(f"bridges: {ends[0]} and {ends[1]} are in the same machine")
    return min(ends), max(ends)


def of(graph: nx.Graph) -> Topology:
    """Use a graph of networkx, which is copied.

    Parameters
    ----------
    graph : networkx.Graph or networkx.DiGraph
        It is connected, its nodes are the ranks 0 to P - 1, and it has no self-loops: every rank
        averages with itself anyhow. A directed one is regular, because others have no doubly
        stochastic weights in general. Attributes, such as ``weight``, do not count.

    Raises
    ------
    ArgumentError
        If it is not so.
    """
    nx = _networkx()
    if not isinstance(graph, nx.Graph) or graph.is_multigraph():
        raise ArgumentError(f"graph must be a Graph or DiGraph of networkx, not {graph!r}")
    ranks = len(graph)
    if not ranks or set(graph) != set(range(ranks)):
        raise ArgumentError(
            f"graph: its {ranks} nodes must be the ranks from 0 on; see "
            "networkx.convert_node_labels_to_integers"
        )
    loops = sorted(map(int, nx.nodes_with_selfloops(graph)))
    if loops:
        raise ArgumentError(f"graph must have no self-loops: ranks {loops} have one")
    return _fixed(f"of({ranks} ranks, {graph.number_of_edges()} edges)", graph)


def parse(text: str) -> Topology:
    """Return the topology that a text names.

    Parameters
    ----------
    text : str
        The name of a function, such as ``"ring"`` or ``"ring-based"``; ``"exponential:directed"``,
        ``"torus:4x4"``, ``"machines:4,2,2"``, or with bridges ``"machines:4,2,2:0-4,4-6,0-6"``.

    Raises
    ------
    ArgumentError
        If the text names no topology.
    """
    if not isinstance(text, str):
        raise ArgumentError(f"a topology's text must be a string, not {text!r}")
    word = text.strip().lower().replace("_", "-")
    if word in _EDGES:
        return Topology(word, directed=word.endswith(":directed"))
    if found := re.fullmatch(r"torus:(\d{1,4})x(\d{1,4})", word):
        return torus(int(found[1]), int(found[2]))
    if found := re.fullmatch(_MACHINES, word):
        bridges = [(int(one), int(other)) for one, other in re.findall(r"(\d+)-(\d+)", word)]
        return machines(map(int, found[1].split(",")), bridges if found[2] else None)
    raise ArgumentError(
        f"{text!r} is not a topology: write {', '.join(_EDGES)}, torus:ROWSxCOLUMNS, "
        "machines:SIZE,SIZE,... or machines:SIZE,SIZE,...:RANK-RANK,..."
    )


def as_topology(value: Any) -> Topology:
    """Return a topology that is given as one, or as its text."""
    if isinstance(value, str):
        return parse(value)
    if not isinstance(value, Topology):
        raise ArgumentError(
            "topology must be a topology such as pypartial.topology.ring(), its text, or "
            f"pypartial.topology.of(graph) for a graph of networkx, not {value!r}"
        )
    return value


# ---- how graphs are made -------------------------------------------------------------------------


def _circle(n: int, distances: Iterable[int], directed: bool = False) -> nx.Graph:
    """Connect each of n ranks with those at the distances from 1 to n - 1, modulo n."""
    graph = _networkx().empty_graph(n, _networkx().DiGraph() if directed else None)
    steps = [distance for distance in distances if 0 < distance < n]
    graph.add_edges_from((rank, (rank + step) % n) for rank in range(n) for step in steps)
    return graph


def _numbered(graph: nx.Graph) -> nx.Graph:
    """Number nodes that are tuples, in their order."""
    return _networkx().convert_node_labels_to_integers(graph, ordering="sorted")


def _grid(rows: nx.Graph, columns: nx.Graph) -> nx.Graph:
    return _numbered(_networkx().cartesian_product(rows, columns))


_POWERS = [1 << bit for bit in range(31)]

# The topologies for any number of ranks: their graphs, and what the number must be.
_EDGES: dict[str, Callable[[int], nx.Graph]] = {
    "ring": lambda n: _circle(n, [1]),
    "ring-based": lambda n: _circle(n, [1, n // 2]),
    "double-ring": lambda n: _grid(_circle(2, [1]), _circle(n // 2, [1, n // 4])),
    "exponential": lambda n: _circle(n, _POWERS),
    "exponential:directed": lambda n: _circle(n, _POWERS, directed=True),
    "bipartite-exponential": lambda n: _circle(n, [1, *(1 + power for power in _POWERS[1:])]),
    "complete": lambda n: _networkx().complete_graph(n),
    "star": lambda n: _networkx().star_graph(n - 1),
    "hypercube": lambda n: _numbered(_networkx().hypercube_graph(n.bit_length() - 1)),
}
_MUST_BE: dict[str, tuple[str, Callable[[int], bool]]] = {
    "double-ring": ("even, or 1", lambda n: n % 2 == 0 or n == 1),
    "bipartite-exponential": ("even, or 1", lambda n: n % 2 == 0 or n == 1),
    "hypercube": ("a power of two", lambda n: n & (n - 1) == 0),
}


def _fixed(text: str, graph: nx.Graph) -> Topology:
    """Return the topology of a graph; what cannot work is refused at once."""
    directed = graph.is_directed()
    pairs = [(int(one), int(other)) for one, other in graph.edges]
    edges = sorted(pair if directed else (min(pair), max(pair)) for pair in pairs)
    topology = Topology(text, len(graph), tuple(edges), directed)
    topology.on(len(graph))
    return topology


@functools.lru_cache(maxsize=8)  # all ranks of a simulation ask for the same one
def _graph_on(topology: Topology, ranks: int) -> RankGraph:
    must_be, allowed = _MUST_BE.get(topology.text, ("", lambda _: True))
    if topology.ranks is not None:
        must_be, allowed = str(topology.ranks), lambda n: n == topology.ranks
    if not allowed(ranks):
        raise ArgumentError(
            f"topology {topology}: the number of ranks must be {must_be}, not {ranks}"
        )
    nx = _networkx()
    graph = nx.empty_graph(ranks, nx.DiGraph() if topology.directed else None)
    fixed = topology.ranks is not None
    graph.add_edges_from(topology.edges if fixed else _EDGES[topology.text](ranks).edges)
    if topology.directed and not nx.is_regular(graph):
        raise ArgumentError(
            f"topology {topology}: a directed graph must be regular: all ranks with equally many "
            "in-neighbours and out-neighbours"
        )
    # In a regular directed graph, the ranks that 0 does not reach do not reach it either.
    unreached = set(graph) - nx.descendants(graph, 0) - {0}
    if unreached:
        raise ArgumentError(
            f"topology {topology} is not connected: there is no path from rank 0 to rank "
            f"{min(unreached)}"
        )
    return RankGraph(topology, nx.freeze(graph))


# ---- the graph of so many ranks ------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class RankGraph:
    """A topology on P ranks: a connected graph without self-loops. `Topology.on` makes it.

    Attributes
    ----------
    topology : Topology
    graph : networkx.Graph or networkx.DiGraph
        Frozen, with the nodes 0 to P - 1. If it is directed, rank i sends to rank j where there is
        an edge (i, j); else neighbours send to each other.
    """

    topology: Topology
    graph: nx.Graph

    @property
    def ranks(self) -> int:
        """P, the number of ranks."""
        return len(self.graph)

    @property
    def directed(self) -> bool:
        """Whether a rank need not receive from those that it sends to."""
        return self.topology.directed

    @functools.cached_property
    def in_neighbours(self) -> tuple[tuple[int, ...], ...]:
        """For each rank those that send to it, in ascending order, without the rank itself."""
        adjacent = self.graph.pred if self.directed else self.graph.adj
        return tuple(tuple(sorted(found)) for found in adjacent.values())

    @functools.cached_property
    def out_neighbours(self) -> tuple[tuple[int, ...], ...]:
        """For each rank those that it sends to, in ascending order, without the rank itself."""
        return tuple(tuple(sorted(found)) for found in self.graph.adj.values())

    def in_edges(self) -> tuple[Ints, Ints]:
        """Return `in_neighbours` as two arrays of int32.

        Returns
        -------
        starts : array of int32, shape (P + 1,)
        neighbours : array of int32
            Those of rank i are ``neighbours[starts[i]:starts[i + 1]]``.
        """
        return _compact(self.in_neighbours)

    def out_edges(self) -> tuple[Ints, Ints]:
        """Return `out_neighbours` in the form of `in_edges`."""
        return _compact(self.out_neighbours)

    @property
    def is_regular(self) -> bool:
        """Whether all ranks have equally many neighbours; a directed graph always is regular."""
        return bool(_networkx().is_regular(self.graph))

    @functools.cached_property
    def diameter(self) -> int:
        """The largest distance between two ranks, in edges."""
        return int(_networkx().diameter(self.graph, usebounds=True))

    @functools.cached_property
    def odd_cycle(self) -> tuple[int, ...] | None:
        """The ranks of an odd cycle, in their order; None if the graph is bipartite.

        Here and in `sides` directions do not count.
        """
        nx = _networkx()
        if nx.is_bipartite(self.graph):
            return None
        cycles = nx.cycle_basis(self.graph.to_undirected(), 0)
        cycle = min((found for found in cycles if len(found) % 2), key=len)
        first = cycle.index(min(cycle))
        return (*cycle[first:], *cycle[:first])

    def sides(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the two sides of a bipartite graph, rank 0's first.

        Every edge connects the sides. The first side is AD-PSGD's active ranks.

        Raises
        ------
        ArgumentError
            If the graph is not bipartite; the text names an odd cycle.
        """
        if self.odd_cycle is not None:
            raise ArgumentError(
                f"topology {self.topology} on {self.ranks} ranks is not bipartite: it has the odd "
                f"cycle {spell_cycle(self.odd_cycle)}"
            )
        colours = _networkx().bipartite.color(self.graph)
        own = tuple(rank for rank in range(self.ranks) if colours[rank] == colours[0])
        return own, tuple(rank for rank in range(self.ranks) if colours[rank] != colours[0])

    @functools.cached_property
    def weights(self) -> npt.NDArray[np.float64]:
        """W, a doubly stochastic array of float64, shape (P, P); it cannot be written.

        ``weights[j, i]`` is what rank j's model counts in rank i's average: model i becomes the sum
        over j of ``weights[j, i]`` times model j, as in AD-PSGD and Hop. Where all ranks have d
        in-neighbours, these and the own model count 1 / (d + 1) each. Else the weights are
        Metropolis': a neighbour counts 1 / (1 + the larger degree of the two), and the own model
        what is left.
        """
        edges = _networkx().to_numpy_array(self.graph)
        degrees = edges.sum(axis=0)
        weights: npt.NDArray[np.float64] = edges / (1 + np.maximum.outer(degrees, degrees))
        weights += np.diag(1 - weights.sum(axis=0))
        weights.flags.writeable = False
        return weights

    @functools.cached_property
    def spectral_gap(self) -> float:
        """1 - the second singular value of `weights`; 1 for one rank.

        Where `weights` is symmetric, this is ``|λ1| - |λ2|``, the difference of its two
        eigenvalues of the largest absolute values.
        """
        values = np.linalg.svd(self.weights, compute_uv=False)
        return 1 - float(values[1]) if self.ranks > 1 else 1.0

    @functools.cached_property
    def hop_gap(self) -> float | None:
        """λ1 - λ2 in the convention of Hop's Figure 21; 1 for one rank, None if directed.

        The eigenvalues are signed, and the matrix is that in which only neighbours count: each
        1 / degree, and the own model nothing.
        """
        if self.directed or self.ranks == 1:
            return None if self.directed else 1.0
        edges = _networkx().to_numpy_array(self.graph)
        roots = np.sqrt(edges.sum(axis=0))
        values = np.linalg.eigvalsh(edges / np.outer(roots, roots))  # similar to that matrix
        return float(values[-1] - values[-2])

    @functools.cached_property
    def fingerprint(self) -> str:
        """A text that is equal for equal graphs: ranks can compare it."""
        digest = hashlib.sha256(f"{self.ranks} {self.directed}".encode())
        for array in self.out_edges():
            digest.update(array.astype("<i4").tobytes())
        return digest.hexdigest()[:16]


def _compact(neighbours: Sequence[Sequence[int]]) -> tuple[Ints, Ints]:
    starts = np.cumsum([0, *map(len, neighbours)], dtype=np.int32)
    return starts, np.array([rank for found in neighbours for rank in found], dtype=np.int32)


def spell_cycle(cycle: Sequence[int]) -> str:
    """Return a cycle as text, such as ``0-1-2-0``; the middle of a long one is left out."""
    words = [str(rank) for rank in (*cycle, cycle[0])]
    if len(words) > 14:
        words[6:-3] = ["..."]
    return "-".join(words)
