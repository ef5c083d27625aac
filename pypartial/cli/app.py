"""The command line: commands and options, read on rank 0 only.  Commands do not run here."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from ..bench.options import (
    DType,
    SkewOptions,
    Transport,
    Work,
    parse_policy,
)
from ..units import parse_duration, parse_size
from . import InfoOptions, Job
from .reading import files_complaint, read
from .sim_app import sim

_POLICIES = ("solo", "majority", "full", "mpi")
_SIZES = ("64", "64K", "1M")

app = typer.Typer(
    name="pypartial",
    help="Partial collectives for MPI. Start several ranks with mpirun -n P pypartial ...",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
bench = typer.Typer(help="Measure how fast it is here.", no_args_is_help=True)
app.add_typer(bench, name="bench")
app.add_typer(sim, name="sim")


@dataclass
class _Invocation:
    """What a command is told, and what it leaves: the job to run."""

    ranks: int
    job: Job | None = None


def parse(arguments: Sequence[str] | None, ranks: int) -> Job | int:
    """Read the command line; messages and help are printed.

    Parameters
    ----------
    arguments : sequence of str or None
        Without the program's name; None for those of the process.
    ranks : int
        Size of MPI_COMM_WORLD.

    Returns
    -------
    Job or int
        What to run on all ranks, or the exit code if there is nothing to run.
    """
    invocation = _Invocation(ranks)
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        app(args=words, prog_name="pypartial", obj=invocation)
    except SystemExit as ending:
        if invocation.job is None:
            return ending.code if isinstance(ending.code, int) else 1
    assert invocation.job is not None
    return invocation.job


@app.command()
def info(context: typer.Context) -> None:
    """Versions, MPI library, transports; what is missing and how to get it."""
    context.obj.job = InfoOptions()


@bench.command()
def skew(
    context: typer.Context,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            metavar="POLICY",
            help="solo, majority, quorum:K, full, or mpi (MPI_Allreduce). Repeatable. "
            f"Default: {', '.join(_POLICIES)}.",
        ),
    ] = None,
    size: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SIZE",
            help="Size of a rank's buffer in bytes; K, M and G mean powers of 1024. Repeatable. "
            f"Default: {', '.join(_SIZES)}.",
        ),
    ] = None,
    skew: Annotated[
        str,
        typer.Option(
            metavar="TIME",
            help="Rank r calls r times so late: 1ms, 500us; 0 is the balanced case.",
        ),
    ] = "1ms",
    rounds: Annotated[
        int, typer.Option(min=1, help="Rounds measured for each size and policy.")
    ] = 200,
    warmup: Annotated[
        int, typer.Option(min=0, help="Rounds before them, checked but not measured.")
    ] = 10,
    work: Annotated[
        Work, typer.Option(help="What ranks do until their call.", case_sensitive=False)
    ] = Work.SLEEP,
    transport: Annotated[
        Transport,
        typer.Option(
            help="mpi: point-to-point messages between all ranks, even on one node.",
            case_sensitive=False,
        ),
    ] = Transport.AUTO,
    dtype: Annotated[
        DType, typer.Option(help="Type of the elements.", case_sensitive=False)
    ] = DType.FLOAT32,
    seed: Annotated[
        int, typer.Option(min=0, help="Of the draws that choose majority's initiators.")
    ] = 0,
    json: Annotated[
        Path | None, typer.Option(dir_okay=False, writable=True, help="Save the results here.")
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            dir_okay=False, writable=True, help="Plot latency against size here (.png, .pdf, .svg)."
        ),
    ] = None,
) -> None:
    """Latency of an allreduce to which ranks come late, against MPI_Allreduce.

    The micro-benchmark of eager-SGD, Fig. 8: a barrier, then rank r sleeps or computes r times
    --skew and calls. Every sum is verified; the exit code is 1 if one was wrong.
    """
    options = SkewOptions(
        policies=tuple(read("--policy", parse_policy, text) for text in policy or _POLICIES),
        sizes=tuple(read("--size", parse_size, text) for text in size or _SIZES),
        skew_ns=read("--skew", parse_duration, skew),
        rounds=rounds,
        warmup=warmup,
        work=work,
        transport=transport,
        dtype=dtype,
        seed=seed,
        json=json,
        plot=plot,
    )
    invocation: _Invocation = context.obj
    complaint = options.complaint(invocation.ranks) or files_complaint(json, plot)
    if complaint is not None:
        raise typer.BadParameter(complaint)
    invocation.job = options
