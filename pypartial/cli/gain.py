"""``pypartial sim gain``: run it on rank 0, and print the results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..sim.gain_options import GainOptions
from ..units import format_duration
from .core import save
from .sim import alone
from .sim_run import guarded, simulate_each, simulate_rounds

if TYPE_CHECKING:
    from mpi4py import MPI

    from ..sim.gain import Way

_NOTE = (
    "full is the synchronous program, as recorded. step: mean over ranks and steps; a round or a "
    "group costs what the program's own collective did. x: how many times faster than full. "
    "waiting: share of the time. active: ranks whose newest data is in a round, or ranks of a "
    "group. staleness: how many rounds late a rank's data comes, or how many iterations a model "
    "is older than the newest of its group; both are means. What stale data and fewer active "
    "ranks cost in accuracy is not simulated."
)


def gain(options: GainOptions, comm: MPI.Intracomm | None) -> int:
    """Predict on rank 0; collective.

    Returns
    -------
    int
        The exit code, the same on all ranks: 1 if the simulation is too large, or if a file cannot
        be saved.
    """
    return alone(lambda: guarded(lambda: _predict(options)), comm)


def _predict(options: GainOptions) -> int:
    from ..sim.gain import gain_as_dict, ways_of
    from ..sim.group_report import measure

    report = simulate_rounds(options.rounds)
    ways: list[Way] = []

    def show(_: Any, groups: list[Any]) -> None:
        ways.extend(ways_of(report.rows, groups))
        _print(options, ways)

    def as_dict(_: Any, groups: list[Any]) -> dict[str, Any]:
        return gain_as_dict(options, ways)

    groups = options.groups
    code = simulate_each(groups, groups.plans, measure, show, as_dict, "Groups")
    if options.rounds.plot is None:
        return code
    from ..sim.plot import save_plot

    more = [
        (way.name, 1e6 * way.step_s, None, way.speedup_vs_synchronous)
        for way in ways[len(report.rows) :]
    ]
    saved = save("Plot", options.rounds.plot, lambda path: save_plot(report, path, more))
    return code or int(not saved)


def _print(options: GainOptions, ways: Sequence[Way]) -> None:
    from ..tables import Column, print_table

    headings = ("step", "x", "waiting", "active", "staleness")
    columns = [Column("", numbers=False), *map(Column, headings)]
    rounds, groups = options.rounds, options.groups
    policies = len(rounds.policies)
    sections = [list(map(_cells, part)) for part in (ways[:policies], ways[policies:])]
    ranks = "1 rank" if groups.ranks == 1 else f"{groups.ranks:,} ranks"
    title = (
        f"{options.file}: {ranks}, {rounds.steps:,} of {options.recorded:,} steps; "
        f"deliver {rounds.deliver.value}, {groups.per_node} ranks a node, seed {rounds.seed}"
    )
    print_table(title, columns, sections, [_NOTE])


def _cells(way: Way) -> list[str]:
    return [
        way.name,
        format_duration(1e9 * way.step_s),
        f"{way.speedup_vs_synchronous:.2f}",
        f"{way.waiting:.1%}",
        f"{way.active:.2f}",
        f"{way.staleness:.2f}",
    ]
