"""``pypartial groups`` and ``pypartial sim groups``: run them on rank 0, and print the results."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..sim.group_options import RANKS_MAX, AnalyseOptions, GroupsOptions, ShowOptions
from ..units import format_duration
from .core import save
from .sim import alone
from .sim_run import guarded, simulate_each

if TYPE_CHECKING:
    from mpi4py import MPI

    from ..sim.group_report import Row, Side
    from ..sim.mixing import Analysis

_PRINTED_RANKS = 8  # of E[W]


def groups(job: GroupsOptions | AnalyseOptions | ShowOptions, comm: MPI.Intracomm | None) -> int:
    """Run a command of groups on rank 0; collective.

    Returns
    -------
    int
        The exit code, the same on all ranks: 1 if a log cannot be read, if there are too few groups
        to analyse, or if a file cannot be saved.
    """
    if isinstance(job, ShowOptions):
        return alone(lambda: _show(job), comm)
    if isinstance(job, AnalyseOptions):
        return alone(lambda: guarded(lambda: _analyse(job)), comm)
    return alone(lambda: guarded(lambda: _simulate(job)), comm)


# ---- the static table ----------------------------------------------------------------------------


def _show(options: ShowOptions) -> int:
    from ..sim.groups import static_group

    group = static_group(options.nodes, options.per_node)
    for phase in range(4):
        found = {tuple(group(phase, rank)) for rank in range(options.nodes * options.per_node)}
        print(f"{phase}: {braces(sorted(found - {()}))}".rstrip())
    return 0


def braces(found: Sequence[Sequence[int]]) -> str:
    """Return groups as text: ``{0,4} {1,5}``."""
    return " ".join("{" + ",".join(map(str, members)) + "}" for members in found)


# ---- simulations ---------------------------------------------------------------------------------


def _simulate(options: GroupsOptions) -> int:
    from ..sim.group_report import groups_as_dict, measure

    return simulate_each(options, options.plans, measure, _print_rows, groups_as_dict, "Groups")


def _print_rows(options: GroupsOptions, rows: Sequence[Row]) -> None:
    from ..tables import Column, print_table

    columns = [
        *(Column("generator", numbers=False), Column("ranks", numbers=False)),
        *(Column("iteration"), Column("undisturbed", 1), Column("x"), Column("waiting", 2)),
    ]
    sections, notes = [], ["Groups by size, and requests without a group:"]
    for row in rows:
        names = [row.generator, *("" for _ in row.sides[1:])]
        sections.append([[name, *_side(side)] for name, side in zip(names, row.sides, strict=True)])
        total = sum(row.sizes.values()) or 1
        sizes = ", ".join(f"{size}: {count / total:.1%}" for size, count in row.sizes.items())
        notes.append(f"{row.generator}: {sizes or 'none'}; alone {row.alone:.1%}")
    title = (
        f"{options.ranks:,} ranks, {options.per_node} a node, {options.arrivals}, "
        f"{options.iterations:,} iterations, seed {options.seed}"
    )
    print_table(title, columns, sections, notes)


def _side(side: Side) -> list[str]:
    even = "" if side.undisturbed_ns is None else format_duration(side.undisturbed_ns)
    ratio = "" if even == "" else "-" if side.ratio is None else f"{side.ratio:.2f}"
    name = f"{side.ranks:,} {side.name}"
    time = "-" if side.iteration_ns is None else format_duration(side.iteration_ns)
    waiting = "-" if side.waiting is None else f"{side.waiting:.1%}"
    return [name, time, even, ratio, waiting]


# ---- analysis ------------------------------------------------------------------------------------


def _analyse(options: AnalyseOptions) -> int:
    from ..sim.group_report import analysis_as_dict, course_of
    from ..sim.group_run import simulate
    from ..sim.mixing import analyse
    from ..sim.report import save_json

    try:
        if options.course is not None:
            plan = options.course.plans[0]
            found = simulate(course_of(options.course, plan, options.course.arrivals)).groups
            ranks, source = options.course.ranks, plan.text
        else:
            found, ranks = _read(options)
            source = str(options.log)
        analysis = analyse(found, ranks, options.lipschitz, options.window)
    except ValueError as error:
        print(f"pypartial: {error}", file=sys.stderr)
        return 1
    _print_analysis(source, options.lipschitz, analysis)
    if options.json is None:
        return 0
    what = analysis_as_dict(source, options.course, options.lipschitz, analysis)
    return int(not save("Results", options.json, lambda path: save_json(what, path)))


def _read(options: AnalyseOptions) -> tuple[list[list[int]], int]:
    """Return the groups of the log, and the number of ranks."""
    from ..sim.group_run import read_log

    assert options.log is not None
    try:
        with options.log.open(encoding="utf-8") as file:
            found = read_log(file, str(options.log))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not a text file"
        raise ValueError(f"{options.log} cannot be read: {reason}") from None
    highest = max((max(members) for members in found), default=0)
    ranks = options.ranks or highest + 1
    if highest >= ranks:
        raise ValueError(f"{options.log} has a rank {highest}: use --ranks {highest + 1}")
    if ranks > RANKS_MAX:
        raise ValueError(f"{options.log} has {ranks:,} ranks; at most {RANKS_MAX:,} are analysed")
    return found, ranks


def _print_analysis(source: str, lipschitz: float, analysis: Analysis) -> None:
    frozen = analysis.frozen
    print(f"{source}: {analysis.groups:,} groups of {analysis.mean_size:.2f} ranks on average")
    print(f"ranks          {analysis.ranks:,}")
    print(f"rho            {analysis.rho:.4f}")
    print(f"spectral gap   {analysis.gap:.4f}")
    print(f"rho-bar        {analysis.rho_bar:.4g}")
    print(f"largest rate   {analysis.rate:.4g} (Theorem 1, L = {lipschitz:g})")
    if frozen is None:
        print(f"frozen         not looked at: fewer than {analysis.window:,} groups")
    else:
        stretches = f"{len(frozen):,}, longest {max(frozen, default=0):,} groups"
        print(f"frozen         {stretches} (of the last {analysis.window:,} groups)")
    if analysis.ranks <= _PRINTED_RANKS:
        print("E[W]")
        for line in analysis.mean:
            print("  " + " ".join(f"{value:.3f}" for value in line))
