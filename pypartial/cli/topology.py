"""``pypartial topology show``: on rank 0, print what a topology is like."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..topology import RankGraph, spell_cycle
from . import TopologyOptions
from .core import save
from .sim import alone

if TYPE_CHECKING:
    from mpi4py import MPI

# Okabe and Ito's colours, which colour-blind readers tell apart; the second is the other side.
_COLOURS = ("#56B4E9", "#E69F00")


def show(job: TopologyOptions, comm: MPI.Intracomm | None) -> int:
    """Print a topology on rank 0, and save what was asked for; collective.

    Returns
    -------
    int
        The exit code, the same on all ranks: 1 if a file cannot be saved.
    """
    return alone(lambda: _show(job), comm)


def _show(job: TopologyOptions) -> int:
    from ..sim.report import save_json

    graph = job.topology.on(job.ranks)
    degrees = [len(found) for found in graph.in_neighbours]
    degree = f"{min(degrees)}" if graph.is_regular else f"{min(degrees)} to {max(degrees)}"
    hop = "-" if graph.hop_gap is None else f"{graph.hop_gap:.4f}"
    cycle = graph.odd_cycle
    bipartite = "yes" if cycle is None else f"no: odd cycle {spell_cycle(cycle)}"
    print(_title(graph))
    print(f"degree         {degree}")
    print(f"diameter       {graph.diameter}")
    print(f"bipartite      {bipartite}")
    print(f"spectral gap   {graph.spectral_gap:.4f} (1 - second singular value, with self-loops)")
    print(f"Hop's gap      {hop} (lambda_1 - lambda_2, signed, neighbours only; undirected)")
    saved = True
    if job.json is not None:
        saved &= save("Results", job.json, lambda path: save_json(_as_dict(graph), path))
    if job.plot is not None:
        saved &= save("Plot", job.plot, lambda path: _plot(graph, path))
    return int(not saved)


def _title(graph: RankGraph) -> str:
    ranks = "one rank" if graph.ranks == 1 else f"{graph.ranks} ranks"
    return f"{graph.topology} on {ranks}{', directed' if graph.directed else ''}"


def _as_dict(graph: RankGraph) -> dict[str, Any]:
    from ..provenance import header

    return {
        **header(),
        "topology": graph.topology.text,
        "ranks": graph.ranks,
        "directed": graph.directed,
        "in_neighbours": graph.in_neighbours,
        "diameter": graph.diameter,
        "odd_cycle": graph.odd_cycle,
        "spectral_gap": graph.spectral_gap,
        "hop_gap": graph.hop_gap,
        "fingerprint": graph.fingerprint,
    }


def _plot(graph: RankGraph, path: Path) -> None:
    """Draw the ranks in a circle; the sides of a bipartite graph have two colours."""
    import matplotlib
    import networkx as nx

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    own = range(graph.ranks) if graph.odd_cycle else graph.sides()[0]
    colours = [_COLOURS[rank not in own] for rank in range(graph.ranks)]
    figure, axes = plt.subplots(figsize=(6, 6), layout="constrained")
    places = nx.circular_layout(graph.graph)
    nx.draw_networkx(graph.graph, places, ax=axes, node_color=colours, edge_color="#888888")
    axes.set_title(_title(graph), loc="left", fontsize=11)
    axes.set_axis_off()
    figure.savefig(path, dpi=150)
    plt.close(figure)
