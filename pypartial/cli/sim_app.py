"""The command line of ``pypartial sim``: options, read on rank 0 only."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .sim import FuzzOptions, Plant

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
    from .app import _files_complaint

    complaint = _files_complaint(json, None)
    if replay is not None and json is not None:
        complaint = "--json: there is no report of a --replay"
    if complaint is not None:
        raise typer.BadParameter(complaint)
    context.obj.job = FuzzOptions(cases, seed, seconds, jobs, plant, replay, json)
