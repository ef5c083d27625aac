"""``pypartial sim gossip``: run it on rank 0, and print the results."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..sim.gossip_options import GossipOptions
from ..units import format_duration, spell_duration
from .sim import alone
from .sim_run import guarded, simulate_each

if TYPE_CHECKING:
    from mpi4py import MPI

    from ..sim.gossip_run import GossipRow

_METHOD_WIDTH = 20
_NOTE = (
    "iteration: in which ranks get one iteration ahead, on average; gradient: in which a rank "
    "computes one. They differ by the iterations skipped. x: how many times longer an iteration "
    "takes than undisturbed. speedup: over the first method, by iteration. gap: the most "
    "iterations a rank was ahead of one that it sends to. queue: the most updates, or averages, "
    "that waited at a rank. stale: the most iterations that an update was too old, or averages in "
    "a model since its gradient's. dropped: share of the updates. apart: how far models are from "
    "their mean, in gradients of noise."
)


def gossip(options: GossipOptions, comm: MPI.Intracomm | None) -> int:
    """Simulate methods on rank 0; collective.

    Returns
    -------
    int
        The exit code, the same on all ranks: 1 if a file cannot be saved.
    """
    return alone(lambda: guarded(lambda: _simulate(options)), comm)


def _simulate(options: GossipOptions) -> int:
    from ..sim.gossip_run import gossip_as_dict, measure_gossip

    return simulate_each(
        options, options.methods, measure_gossip, _print_rows, gossip_as_dict, "Log"
    )


def _print_rows(options: GossipOptions, rows: Sequence[GossipRow]) -> None:
    from ..tables import Column, print_table

    columns = [
        *(Column("method", numbers=False), Column("iteration"), Column("gradient"), Column("x")),
        *(Column("speedup"), Column("gap"), Column("queue", 1), Column("stale", 2)),
        *(Column("apart", 3), Column("dropped", 4), Column("skipped", 5)),
        Column("undisturbed", 6),
    ]
    sections = [_section(row, rows[0]) for row in rows]
    links = "".join(
        f", {'link' if ends[1:] else 'links of rank'} {'-'.join(map(str, ends))}: {factor:g}x"
        for ends, factor in options.links
    )
    title = (
        f"{options.ranks:,} ranks, {options.topology}, {options.graph.value} graph, "
        f"{options.arrivals}, messages {spell_duration(options.message_ns)}{links}, "
        f"{options.iterations:,} iterations, seed {options.seed}"
    )
    print_table(title, columns, sections, [_NOTE])


def _section(row: GossipRow, first: GossipRow) -> list[list[str]]:
    name, *more = textwrap.wrap(row.method.replace(",", ", "), _METHOD_WIDTH)
    even, took = row.undisturbed_ns, row.iteration_ns
    cells = [
        *(name, format_duration(took), format_duration(row.gradient_ns)),
        f"{took / even:.2f}" if even else "",
        f"{first.iteration_ns / took:.2f}" if took else "",
        *(str(row.gap), str(row.queue), str(row.staleness), f"{row.apart:.2f}"),
        f"{row.dropped / max(row.received + row.dropped, 1):.1%}",
        f"{row.skipped:,}",
        format_duration(even) if even is not None else "",
    ]
    return [cells, *([name] + [""] * (len(cells) - 1) for name in more)]
