"""The command line of ``pypartial sim``: options, read on rank 0 only."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from ..policy import Policy
from ..sim.arrivals import BASE_NS, MODELS_HELP
from ..sim.network import PRESETS, Network, parse_network
from ..sim.options import (
    Death,
    Deliver,
    Dump,
    ScheduleOptions,
    SkewOptions,
    parse_patience,
)
from ..units import format_duration, parse_duration, parse_size
from .options import (
    LISTED,
    PATIENCE_HELP,
    POLICY_HELP,
    REPEATABLE,
    SIZE_HELP,
    JsonOption,
    duration,
    file,
)
from .reading import files_complaint, read, read_sizes, refuse

_POLICIES = ("solo", "majority", "full")
_STEPS, _RANK_STEPS = 100, 25_600
_NETWORK = "infiniband-mvapich"
_NETWORK_HELP = (
    f"What messages cost (LogGP). A preset: {', '.join(PRESETS)}; or values: "
    "L=2us,o=500ns,g=300ns,G=0.1ns,S=64K (latency, overhead, gap between messages, time of a byte, "
    "largest message without rendezvous); or a preset followed by such values."
)

DeliverOption = Annotated[
    Deliver,
    typer.Option(
        help="What a request delivers: the latest round; the sum of all rounds that the rank "
        "was not given yet; or each round, in order.",
        case_sensitive=False,
    ),
]
PlotOption = Annotated[
    Path | None,
    file(help="Plot the time of a step and write the picture to this file (.png, .pdf or .svg)."),
]

sim = typer.Typer(
    help="Simulate many ranks in one process, in virtual time, with the library's own engine. "
    "No mpirun is needed.",
    short_help="Simulate many ranks in one process.",
    no_args_is_help=True,
)


@sim.command(epilog="\b\nArrivals:\n" + MODELS_HELP)
def skew(
    context: typer.Context,
    ranks: Annotated[
        list[int] | None,
        typer.Option(
            min=1, metavar="P", help=f"Number of simulated ranks. {REPEATABLE} Default: 64."
        ),
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            metavar="POLICY",
            help=f"{POLICY_HELP} {REPEATABLE} Default: {', '.join(_POLICIES)}.",
        ),
    ] = None,
    arrivals: Annotated[
        str,
        typer.Option(
            metavar="MODEL",
            help="How long ranks compute before each call: one of the models listed below.",
        ),
    ] = "linear:1ms",
    size: Annotated[
        list[str] | None,
        typer.Option(metavar="SIZE", help=f"{SIZE_HELP} {LISTED} Default: 64."),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=1_000_000,
            metavar="N",
            help="The simulation ends when the fastest rank has made this many steps. Default: "
            f"{_STEPS}, and above {_RANK_STEPS // _STEPS} ranks fewer, so that it takes seconds. "
            "A large run is asked for: --ranks 65536 --steps 100 takes an hour, and 3 GB.",
        ),
    ] = None,
    network: Annotated[str, typer.Option(metavar="NETWORK", help=_NETWORK_HELP)] = _NETWORK,
    seed: Annotated[
        int,
        typer.Option(
            min=0,
            metavar="N",
            help="Seed of arrival times, draws and network; the same seed gives the same results.",
        ),
    ] = 0,
    deliver: DeliverOption = Deliver.LATEST,
    max_lag: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="N",
            help="Most rounds that a rank may miss between two of its calls. Default: no bound for "
            "latest, else --window less 1.",
        ),
    ] = None,
    window: Annotated[
        int,
        typer.Option(min=1, max=1024, metavar="N", help="Rounds that may be in flight at once."),
    ] = 4,
    base: Annotated[
        str,
        duration(
            help="Mean time that every rank computes in a step of the models slow, random and "
            "rotating."
        ),
    ] = format_duration(BASE_NS).replace(" ", ""),
    barrier: Annotated[
        bool | None,
        typer.Option(
            help="Whether all ranks begin each step together, as in bench skew. "
            "Default: with linear arrivals only."
        ),
    ] = None,
    patience: Annotated[str, duration(help=PATIENCE_HELP)] = "none",
    kill: Annotated[
        str | None,
        typer.Option(
            metavar="RANK:TIME[:DETECTION]",
            help="Let a rank die at this time of the simulation. The others are told DETECTION "
            "later, or never without it: 3:20ms:1ms.",
        ),
    ] = None,
    json: JsonOption = None,
    plot: PlotOption = None,
) -> None:
    """Compare policies on many simulated ranks.

    Prints the time of a step, active ranks, staleness and traffic of each policy. The engine is the
    one that runs over MPI; time and network are simulated. Every rank computes, calls Start and
    Wait, and begins the next step. full is always simulated, as the synchronous baseline.
    """
    options = SkewOptions(
        ranks=tuple(ranks or (64,)),
        sizes=read_sizes(size, ("64",)),
        policies=tuple(read("--policy", Policy.parse, text) for text in policy or _POLICIES),
        arrivals=arrivals,
        network=_network(network),
        steps=steps or max(1, min(_STEPS, _RANK_STEPS // max(ranks or (64,)))),
        seed=_seed(seed),
        window=window,
        base_ns=read("--base", parse_duration, base),
        deliver=deliver,
        max_lag=max_lag,
        barrier=barrier,
        patience=read("--patience", parse_patience, patience),
        death=None if kill is None else read("--kill", Death.parse, kill),
        json=json,
        plot=plot,
    )
    refuse(options.complaint() or files_complaint(json, plot))
    context.obj.job = options


@sim.command()
def schedule(
    context: typer.Context,
    name: Annotated[
        str,
        typer.Argument(
            metavar="SCHEDULE",
            help="activation, or an algorithm of an allreduce such as ring (docs/algorithms.md "
            "lists them).",
        ),
    ],
    ranks: Annotated[int, typer.Option(min=1, metavar="P", help="Number of simulated ranks.")] = 64,
    size: Annotated[
        str, typer.Option(metavar="SIZE", help=f"{SIZE_HELP} An activation carries no data.")
    ] = "64",
    network: Annotated[str, typer.Option(metavar="NETWORK", help=_NETWORK_HELP)] = _NETWORK,
    seed: Annotated[
        int,
        typer.Option(
            min=0,
            metavar="N",
            help="Seed of what the network draws (jitter, noise); the same seed gives the same "
            "times.",
        ),
    ] = 0,
    segments: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=4,
            help="Pieces in which the vector goes through the schedule, one behind the other. "
            "Default: by its size, as on real ranks.",
        ),
    ] = None,
    headers: Annotated[
        bool,
        typer.Option(
            help="Whether the engine's headers count among the bytes of a message: 32 bytes of an "
            "activation, 64 and more of a message with data."
        ),
    ] = True,
    quiet: Annotated[
        bool,
        typer.Option("--quiet", help="Print only the time at which the last rank finishes, in ns."),
    ] = False,
    dump: Annotated[
        Dump | None,
        typer.Option(
            help="Print the schedule of all ranks instead of executing it: goal is text, dot is "
            "for Graphviz.",
            case_sensitive=False,
        ),
    ] = None,
    json: JsonOption = None,
) -> None:
    """Print when each rank finishes one execution of a schedule.

    Times are in nanoseconds of the simulation. Rank 0 starts the activation at time 0, and a rank
    finishes when it is activated. All ranks start an allreduce at time 0.
    """
    options = ScheduleOptions(
        schedule=read("SCHEDULE", _schedule, name),
        ranks=ranks,
        size=read("--size", parse_size, size),
        network=dataclasses.replace(_network(network), headers_free=not headers),
        seed=_seed(seed),
        segments=segments or 0,
        quiet=quiet,
        dump=dump,
        json=json,
    )
    complaint = files_complaint(json, None)
    if dump is not None and json is not None:
        complaint = "--json: with --dump nothing is executed; leave one of the two out"
    if complaint is None and dump is not None and segments is not None:
        complaint = "--segments: --dump writes a schedule of one segment"
    refuse(complaint)
    context.obj.job = options


def _schedule(text: str) -> str:
    try:
        from ..sim.schedule import parse_schedule
    except ImportError:  # of the core: the command will say why
        return text
    return parse_schedule(text)


def _network(text: str) -> Network:
    return read("--network", parse_network, text)


def _seed(seed: int) -> int:
    if seed >= 1 << 64:
        raise typer.BadParameter(f"--seed {seed} is not in 0..2**64 - 1")
    return seed
