"""The command line of ``pypartial bench``: options, read on rank 0 only."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..bench.options import (
    Buffers,
    DType,
    LatencyOptions,
    OverheadOptions,
    SkewOptions,
    Transport,
    Work,
    parse_way,
)
from ..policy import Policy
from ..units import parse_duration, parse_size
from .reading import files_complaint, read

_SKEW_POLICIES = ("solo", "majority", "full", "mpi")
_SKEW_SIZES = ("64", "64K", "1M")
_LATENCY_POLICIES = ("full", "solo")
_LATENCY_SIZES = ("8", "64", "512", "4K", "16K", "64K", "256K", "1M", "4M", "16M", "64M")

bench = typer.Typer(help="Measure how fast it is here.", no_args_is_help=True)

# ---- options that several commands have ----------------------------------------------------------


_SIZE_HELP = "Size of a rank's buffer in bytes; K, M and G mean powers of 1024."
_WorkOption = Annotated[
    Work, typer.Option(help="What ranks do until their call.", case_sensitive=False)
]
_TransportOption = Annotated[
    Transport,
    typer.Option(
        help="mpi: point-to-point messages between all ranks, even on one node.",
        case_sensitive=False,
    ),
]
_DTypeOption = Annotated[DType, typer.Option(help="Type of the elements.", case_sensitive=False)]
_SeedOption = Annotated[
    int, typer.Option(min=0, help="Of the draws that choose majority's initiators.")
]
_BuffersOption = Annotated[
    list[Buffers] | None,
    typer.Option(
        metavar="library|numpy",
        help="Of the library's calls: library is Context.alloc, numpy is numpy.empty. "
        "Repeatable. Default: both.",
        case_sensitive=False,
    ),
]
_JsonOption = Annotated[
    Path | None, typer.Option(dir_okay=False, writable=True, help="Save the results here.")
]
_PlotOption = Annotated[
    Path | None,
    typer.Option(
        dir_okay=False, writable=True, help="Plot latency against size here (.png, .pdf, .svg)."
    ),
]

# ---- commands ------------------------------------------------------------------------------------


@bench.command()
def skew(
    context: typer.Context,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            metavar="POLICY",
            help="solo, majority, first:M, quorum:K or full, each also with ,deadline=TIME and "
            ",grace=TIME; or mpi (MPI_Allreduce). Repeatable. "
            f"Default: {', '.join(_SKEW_POLICIES)}.",
        ),
    ] = None,
    size: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SIZE",
            help=f"{_SIZE_HELP} Repeatable. Default: {', '.join(_SKEW_SIZES)}.",
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
    work: _WorkOption = Work.SLEEP,
    transport: _TransportOption = Transport.AUTO,
    dtype: _DTypeOption = DType.FLOAT32,
    seed: _SeedOption = 0,
    json: _JsonOption = None,
    plot: _PlotOption = None,
) -> None:
    """Latency of an allreduce to which ranks come late, against MPI_Allreduce.

    The micro-benchmark of eager-SGD, Fig. 8: a barrier, then rank r sleeps or computes r times
    --skew and calls. Every sum is verified; the exit code is 1 if one was wrong.
    """
    options = SkewOptions(
        policies=tuple(read("--policy", parse_way, text) for text in policy or _SKEW_POLICIES),
        sizes=tuple(read("--size", parse_size, text) for text in size or _SKEW_SIZES),
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
    _refuse(options.complaint(context.obj.ranks) or files_complaint(json, plot))
    context.obj.job = options


@bench.command()
def latency(
    context: typer.Context,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            metavar="POLICY",
            help="solo, majority, first:M, quorum:K or full, each also with ,deadline=TIME and "
            ",grace=TIME. Repeatable. "
            f"Default: {', '.join(_LATENCY_POLICIES)}.",
        ),
    ] = None,
    buffers: _BuffersOption = None,
    size: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SIZE",
            help=f"{_SIZE_HELP} Repeatable. Default: {', '.join(_LATENCY_SIZES)}.",
        ),
    ] = None,
    skew: Annotated[
        str,
        typer.Option(
            metavar="TIME",
            help="Rank r calls r times so late: 1ms, 500us; 0 is the balanced case, in which "
            "calls follow each other without a barrier.",
        ),
    ] = "0",
    budget: Annotated[
        str,
        typer.Option(
            metavar="TIME",
            help="About so long the blocks of each way to sum take at each size, in which the "
            "number of calls is chosen.",
        ),
    ] = "250ms",
    blocks: Annotated[
        int | None,
        typer.Option(min=1, help="Blocks of each way to sum. Default: 5 to 9, by the budget."),
    ] = None,
    calls: Annotated[
        int | None,
        typer.Option(min=1, help="Calls in a block. Default: as the budget allows."),
    ] = None,
    work: _WorkOption = Work.SLEEP,
    transport: _TransportOption = Transport.AUTO,
    dtype: _DTypeOption = DType.FLOAT32,
    seed: _SeedOption = 0,
    json: _JsonOption = None,
    plot: _PlotOption = None,
) -> None:
    """Time of an allreduce, balanced or skewed, against MPI's own and the copy of a buffer.

    At each size the policies, with both kinds of buffers, MPI_Allreduce, MPI_Iallreduce with
    MPI_Wait, MPI's persistent allreduce, and the copy of a buffer by all ranks at once take turns
    in blocks of calls. A block counts with the mean of its slowest rank; results are medians over
    the blocks. Before that each way is called a few times with every sum verified; of a balanced
    block the last sum and the flush after it are, and with --skew every sum. The exit code is 1 if
    one was wrong.
    """
    options = LatencyOptions(
        policies=tuple(
            read("--policy", parse_way, text) for text in policy or _LATENCY_POLICIES
        ),
        sizes=tuple(read("--size", parse_size, text) for text in size or _LATENCY_SIZES),
        buffers=tuple(buffers or Buffers),
        skew_ns=read("--skew", parse_duration, skew),
        budget_ns=read("--budget", parse_duration, budget),
        blocks=blocks,
        calls=calls,
        work=work,
        transport=transport,
        dtype=dtype,
        seed=seed,
        json=json,
        plot=plot,
    )
    _refuse(options.complaint(context.obj.ranks) or files_complaint(json, plot))
    context.obj.job = options


@bench.command()
def overhead(
    context: typer.Context,
    policy: Annotated[
        str,
        typer.Option(
            metavar="POLICY", help="solo, majority, first:1, quorum:1 or full: one rank each."
        ),
    ] = "full",
    buffers: _BuffersOption = None,
    size: Annotated[str, typer.Option(metavar="SIZE", help=_SIZE_HELP)] = "8",
    loops: Annotated[int, typer.Option(min=1, help="Loops of each kind of call.")] = 101,
    calls: Annotated[int, typer.Option(min=1, help="Calls in a loop.")] = 200,
    json: _JsonOption = None,
) -> None:
    """What Start, Wait and Test cost from Python, against mpi4py's Allreduce on MPI_COMM_SELF.

    One rank; no mpirun is needed, and under one rank 0 measures while the others sleep. Short
    loops of every kind of call take turns, results are medians over the loops. Start+Wait and
    Allreduce are timed loop by loop. For Start, Wait and Test alone the clock is read before,
    between and after the two calls of a pair (Start and Wait, Start and Test), and the time from
    one reading to the next, measured in the same run with nothing between them, is subtracted. The
    last sum of every loop is verified; the exit code is 1 if one was wrong.
    """
    options = OverheadOptions(
        policy=read("--policy", Policy.parse, policy),
        buffers=tuple(buffers or Buffers),
        size=read("--size", parse_size, size),
        loops=loops,
        calls=calls,
        json=json,
    )
    _refuse(options.complaint() or files_complaint(json, None))
    context.obj.job = options


def _refuse(complaint: str | None) -> None:
    if complaint is not None:
        raise typer.BadParameter(complaint)
