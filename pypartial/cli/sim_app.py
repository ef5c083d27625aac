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
from .reading import files_complaint, read
from .sim import FuzzOptions, Plant

_POLICIES = ("solo", "majority", "full")
_NETWORK = "infiniband-mvapich"
_NETWORK_HELP = (
    f"{', '.join(PRESETS)}; or L=2us,o=500ns,g=300ns,G=0.1ns,S=64K; or a preset followed by such "
    "values."
)

sim = typer.Typer(
    help="Simulated ranks: the engine over virtual time, in one process.", no_args_is_help=True
)


@sim.command()
def fuzz(
    context: typer.Context,
    cases: Annotated[int, typer.Option(min=1, help="Cases to run.")] = 1000,
    seed: Annotated[
        int, typer.Option(min=0, help="Of the cases; the same seed gives the same cases.")
    ] = 0,
    seconds: Annotated[
        float | None, typer.Option(min=0.0, help="Begin no further case after so long.")
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(min=1, help="Processes. Default: one for each core that may be used."),
    ] = None,
    plant: Annotated[
        Plant | None,
        typer.Option(
            help="Test only: put a defect into the engine, to see that the fuzzer finds it.",
            case_sensitive=False,
        ),
    ] = None,
    replay: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Run this one scenario and print what ranks were given."),
    ] = None,
    json: Annotated[
        Path | None, typer.Option(dir_okay=False, writable=True, help="Save the report here.")
    ] = None,
) -> None:
    """Random programs on random numbers of ranks, checked against every oracle.

    Stops at the first case that fails, makes it smaller, and prints the command that replays it.
    The exit code is 1 if a case failed or, from 1000 cases on, if one of the interleavings that
    are hard to get right occurred in less than 1 % of the cases.
    """
    complaint = files_complaint(json, None)
    if replay is not None and json is not None:
        complaint = "--json: there is no report of a --replay"
    if complaint is not None:
        raise typer.BadParameter(complaint)
    context.obj.job = FuzzOptions(cases, seed, seconds, jobs, plant, replay, json)


@sim.command(epilog="\b\nArrivals:\n" + MODELS_HELP)
def skew(
    context: typer.Context,
    ranks: Annotated[
        list[int] | None,
        typer.Option(min=1, help="Number of simulated ranks. Repeatable. Default: 64."),
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            metavar="POLICY",
            help="solo, majority, first:M, quorum:K or full (synchronous), each also with "
            ",deadline=TIME and ,grace=TIME. Repeatable. "
            f"Default: {', '.join(_POLICIES)}.",
        ),
    ] = None,
    arrivals: Annotated[
        str,
        typer.Option(metavar="MODEL", help="How long ranks compute before each call; see below."),
    ] = "linear:1ms",
    bytes_: Annotated[
        list[str] | None,
        typer.Option(
            "--bytes",
            metavar="SIZE",
            help="Size of a rank's buffer; K, M, G: powers of 1024. Repeatable. Default: 64.",
        ),
    ] = None,
    steps: Annotated[
        int, typer.Option(min=1, max=1_000_000, help="Steps of the rank that is through first.")
    ] = 100,
    network: Annotated[str, typer.Option(metavar="NETWORK", help=_NETWORK_HELP)] = _NETWORK,
    seed: Annotated[
        int, typer.Option(min=0, help="Of arrivals, draws and network: the same gives the same.")
    ] = 0,
    deliver: Annotated[
        Deliver, typer.Option(help="What a request completes with.", case_sensitive=False)
    ] = Deliver.LATEST,
    max_lag: Annotated[
        int | None,
        typer.Option(min=0, help="Rounds that a rank may miss. Default: as many as possible."),
    ] = None,
    window: Annotated[int, typer.Option(min=1, max=1024, help="Rounds in flight at once.")] = 4,
    base: Annotated[
        str,
        typer.Option(metavar="TIME", help="What all compute: of slow, random and rotating."),
    ] = format_duration(BASE_NS).replace(" ", ""),
    barrier: Annotated[
        bool | None,
        typer.Option(
            help="Let all ranks begin each step together, as bench skew does. "
            "Default: with linear arrivals only."
        ),
    ] = None,
    patience: Annotated[
        str,
        typer.Option(
            metavar="TIME", help="How long a rank may hold a round up: 200ms, auto or none."
        ),
    ] = "none",
    kill: Annotated[
        str | None,
        typer.Option(
            metavar="RANK:TIME[:DETECTION]",
            help="Let a rank die; the others are told so long afterwards, or never.",
        ),
    ] = None,
    json: Annotated[
        Path | None, typer.Option(dir_okay=False, writable=True, help="Save the results here.")
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            dir_okay=False, writable=True, help="Plot the time of a step (.png, .pdf, .svg)."
        ),
    ] = None,
) -> None:
    """What policies do on many ranks: time per step, active ranks, staleness, traffic.

    The engine that runs over MPI, with virtual time instead of a network. Every rank computes,
    calls Start and Wait, and so on; full is simulated in any case, as the synchronous baseline.
    """
    options = SkewOptions(
        ranks=tuple(ranks or (64,)),
        sizes=tuple(read("--bytes", parse_size, text) for text in bytes_ or ("64",)),
        policies=tuple(read("--policy", Policy.parse, text) for text in policy or _POLICIES),
        arrivals=arrivals,
        network=_network(network),
        steps=steps,
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
    complaint = options.complaint() or files_complaint(json, plot)
    if complaint is not None:
        raise typer.BadParameter(complaint)
    context.obj.job = options


@sim.command()
def schedule(
    context: typer.Context,
    name: Annotated[
        str,
        typer.Argument(
            metavar="SCHEDULE",
            help="activation, or an algorithm of an allreduce, such as ring (docs/algorithms.md).",
        ),
    ],
    ranks: Annotated[int, typer.Option(min=1, help="Number of simulated ranks.")] = 64,
    size: Annotated[
        str,
        typer.Option(
            "--bytes",
            metavar="SIZE",
            help="Size of a rank's buffer; K, M, G: powers of 1024. Activations carry none of it.",
        ),
    ] = "64",
    network: Annotated[str, typer.Option(metavar="NETWORK", help=_NETWORK_HELP)] = _NETWORK,
    seed: Annotated[int, typer.Option(min=0, help="Of what the network draws.")] = 0,
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
            help="Count the engine's headers (an activation's 32 bytes, 64 and more of data) among "
            "the bytes of a message."
        ),
    ] = True,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print the latest time only.")] = False,
    dump: Annotated[
        Dump | None,
        typer.Option(help="Write the schedule of all ranks instead.", case_sensitive=False),
    ] = None,
    json: Annotated[
        Path | None, typer.Option(dir_okay=False, writable=True, help="Save the times here.")
    ] = None,
) -> None:
    """When each rank finishes one execution of one schedule, in nanoseconds.

    The activation is started by rank 0 at time 0 and finishes at a rank when it is activated; the
    allreduces are started by all ranks at time 0.
    """
    options = ScheduleOptions(
        schedule=read("SCHEDULE", _schedule, name),
        ranks=ranks,
        size=read("--bytes", parse_size, size),
        network=dataclasses.replace(_network(network), headers_free=not headers),
        seed=_seed(seed),
        segments=segments or 0,
        quiet=quiet,
        dump=dump,
        json=json,
    )
    complaint = files_complaint(json, None)
    if dump is not None and json is not None:
        complaint = "--json: nothing is executed with --dump"
    if complaint is None and dump is not None and segments is not None:
        complaint = "--segments: --dump writes a schedule of one segment"
    if complaint is not None:
        raise typer.BadParameter(complaint)
    context.obj.job = options


def _schedule(text: str) -> str:
    from ..sim.schedule import parse_schedule  # which loads the core

    return parse_schedule(text)


def _network(text: str) -> Network:
    return read("--network", parse_network, text)


def _seed(seed: int) -> int:
    if seed >= 1 << 64:
        raise typer.BadParameter(f"--seed {seed}: not in 0..2**64 - 1")
    return seed
