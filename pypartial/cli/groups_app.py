"""The command lines of ``pypartial groups`` and ``pypartial sim groups``; read on rank 0 only."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Annotated

import typer

from ..sim.arrivals import BASE_NS, MODELS_HELP
from ..sim.generators import GENERATORS_HELP, Plan, names_generator, parse_generator
from ..sim.group_options import RANKS_MAX, AnalyseOptions, GroupsOptions, ShowOptions, Weights
from ..units import format_duration, parse_duration
from .options import REPEATABLE, JsonOption, count, duration, file
from .reading import file_refusal, files_complaint, read, refuse
from .sim_app import sim

GENERATORS = ("random:3", "smart:3", "controller:3", "static")
_EVEN = "slow:0:1x"
_RANKS = 16
_ITERATIONS = 200

RanksOption = Annotated[
    int, typer.Option(min=2, max=RANKS_MAX, metavar="P", help="Number of simulated ranks.")
]
ArrivalsOption = Annotated[
    str,
    typer.Option(
        metavar="MODEL",
        help="How long ranks compute before each request: an arrival model, as in sim skew.",
    ),
]
IterationsOption = Annotated[
    int,
    typer.Option(
        min=1,
        max=1_000_000,
        metavar="N",
        help="The simulation ends when the fastest rank has made this many iterations.",
    ),
]
SeedOption = Annotated[
    int,
    typer.Option(
        min=0,
        max=(1 << 64) - 1,
        metavar="N",
        help="Seed of arrivals and draws; the same seed gives the same results.",
    ),
]
BaseOption = Annotated[
    str, duration(help="Mean time that a rank computes in the models slow, random and rotating.")
]
BASE = format_duration(BASE_NS).replace(" ", "")
PerNodeOption = Annotated[int, count(help="Consecutive ranks of a node.")]

groups = typer.Typer(
    help="Which ranks average with each other: show the static table, and analyse how well groups "
    "mix the models of all ranks. pypartial sim groups simulates generators of groups.",
    short_help="Show and analyse groups.",
    no_args_is_help=True,
)


@groups.command(epilog="\b\nExample:\n  pypartial groups show static --nodes 4 --per-node 4")
def show(
    context: typer.Context,
    what: Annotated[str, typer.Argument(metavar="GENERATOR", help="static.")],
    nodes: Annotated[int, count(help="Number of nodes.")] = 4,
    per_node: PerNodeOption = 4,
) -> None:
    """Print the groups of the static table.

    A line is a phase, and each group is in braces; ranks in no braces are idle in that phase. The
    k-th request of a rank is phase k mod 4.
    """
    if what != "static":
        others = "for the others: pypartial groups analyse smart:3"
        raise typer.BadParameter(f"{what!r}: groups show knows only static; {others}")
    if nodes * per_node > RANKS_MAX:
        raise typer.BadParameter(f"{nodes} nodes of {per_node} are more than {RANKS_MAX} ranks")
    context.obj.job = ShowOptions(nodes, per_node)


@groups.command(
    epilog="\b\nGenerators:\n" + GENERATORS_HELP + "\n\n\b\nExamples:\n"
    "  pypartial sim groups --generator smart:3 --log groups.jsonl\n"
    "  pypartial groups analyse groups.jsonl --lipschitz 10\n"
    "  pypartial groups analyse controller:2 --ranks 8"
)
def analyse(
    context: typer.Context,
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="A log of sim groups, or a generator, whose groups are simulated. For a log with "
            "the name of a generator, write ./static.",
        ),
    ],
    ranks: Annotated[
        int | None,
        typer.Option(
            min=2,
            max=RANKS_MAX,
            metavar="P",
            help=f"Number of ranks. Default: as many as the log has; simulated: {_RANKS}.",
        ),
    ] = None,
    lipschitz: Annotated[
        float,
        typer.Option(
            metavar="L", help="Lipschitz constant of the gradient, for the rate of Theorem 1."
        ),
    ] = 1.0,
    history: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="T",
            help="Groups of the sync-graph, as the history of a controller. Default: "
            "4 ceil((P - 1) / (SIZE - 1)), with the mean size of the groups.",
        ),
    ] = None,
    arrivals: ArrivalsOption = _EVEN,
    iterations: IterationsOption = _ITERATIONS,
    seed: SeedOption = 0,
    per_node: PerNodeOption = 4,
    json: JsonOption = None,
) -> None:
    """Print how well groups mix the models of all ranks.

    It prints the spectral gap of the mean matrix E[W], and where the groups leave ranks apart. rho
    is the larger of |lambda_2| and |lambda_N| of E[W]; rho-bar and the largest learning rate are
    those of Theorem 1 of Partial Reduce. A stretch is frozen while the last T groups do not connect
    all ranks.
    """
    plan = _plan(source)
    course = None
    if plan is not None:
        course = GroupsOptions(
            plans=(plan,),
            ranks=ranks or _RANKS,
            iterations=iterations,
            arrivals=arrivals,
            seed=seed,
            per_node=per_node,
        )
    else:
        for name in ("arrivals", "iterations", "seed", "per_node"):
            given = context.get_parameter_source(name)
            if given is not None and given.name != "DEFAULT":
                raise typer.BadParameter(f"--{name.replace('_', '-')}: a log is not simulated")
    log = Path(source) if plan is None else None
    options = AnalyseOptions(log, course, ranks, lipschitz, history, json)
    refuse(options.complaint() or files_complaint(json, None))
    context.obj.job = options


def _plan(source: str) -> Plan | None:
    """Return the generator that a text names; None if it names none."""
    return read("SOURCE", parse_generator, source) if names_generator(source) else None


@sim.command(
    name="groups",
    epilog="\b\nGenerators:\n" + GENERATORS_HELP + "\n\n\b\nArrivals:\n" + MODELS_HELP,
)
def sim_groups(
    context: typer.Context,
    ranks: RanksOption = _RANKS,
    generator: Annotated[
        list[str] | None,
        typer.Option(
            metavar="GENERATOR",
            help=f"Which groups: one of the generators listed below. {REPEATABLE} Default: "
            f"{', '.join(GENERATORS)}.",
        ),
    ] = None,
    arrivals: ArrivalsOption = "slow:0:6x",
    iterations: IterationsOption = _ITERATIONS,
    seed: SeedOption = 0,
    base: BaseOption = BASE,
    per_node: PerNodeOption = 4,
    group: Annotated[
        str, typer.Option("--group-time", metavar="TIME", help="How long a group takes.")
    ] = "0",
    weights: Annotated[
        Weights,
        typer.Option(
            help="What the models of a group count for: equal shares; or by iteration, where "
            "missing versions count for the closest one or for the initial model.",
            case_sensitive=False,
        ),
    ] = Weights.CONSTANT,
    alpha: Annotated[
        float, typer.Option(metavar="A", help="Decay of weights by iteration, in [0, 1).")
    ] = 0.5,
    log: Annotated[
        Path | None, file(help="Write the groups to this file: two lines of JSON for each.")
    ] = None,
    json: JsonOption = None,
) -> None:
    """Show what a slow rank costs the others, by generator of groups.

    Only the protocol is simulated: messages take no time. Every rank computes, asks for a group,
    and computes again when its request is complete. With a slow rank, each generator also runs
    with that rank at normal speed, and x is how many times longer an iteration takes.
    """
    plans = [read("--generator", parse_generator, text) for text in generator or GENERATORS]
    options = GroupsOptions(
        plans=tuple(plans),
        ranks=ranks,
        iterations=iterations,
        arrivals=arrivals,
        seed=seed,
        base_ns=read("--base", parse_duration, base),
        per_node=per_node,
        group_ns=read("--group-time", parse_duration, group),
        weights=weights,
        alpha=alpha,
        log=log,
        json=json,
    )
    refuse(options.complaint() or files_complaint(json, None) or log_complaint(log, json))
    context.obj.job = dataclasses.replace(options, arrivals=arrivals.strip())


def log_complaint(log: Path | None, json: Path | None) -> str | None:
    """Return why groups cannot be written, before they are simulated; None if they can."""
    if log is None:
        return None
    if not log.absolute().parent.is_dir():
        return f"--log {log}: there is no folder {log.parent}"
    if json is not None and os.path.realpath(log) == os.path.realpath(json):
        return "--log and --json name the same file"
    refusal = file_refusal(log)
    return None if refusal is None else f"--log {log}: cannot be written: {refusal}"
