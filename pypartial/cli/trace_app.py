"""The command line of ``pypartial trace``; read on rank 0 only."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import TraceOptions
from .options import file
from .reading import file_refusal, files_complaint, refuse

trace = typer.Typer(
    help="What happened: read the traces that the ranks of a program have written.",
    short_help="Read what ranks have traced.",
    no_args_is_help=True,
)
_PROFILER = "Traces of torch.profiler of the same run, one or more; also compressed ones (.gz)."
FolderArgument = Annotated[
    Path,
    typer.Argument(metavar="DIR", exists=True, file_okay=False, help="The folder of the traces."),
]


@trace.command(
    epilog="\b\nExample:\n  pypartial trace merge DIR -o a.json --with-profiler *.pt.json"
)
def merge(
    context: typer.Context,
    folder: FolderArgument,
    output: Annotated[Path, file("--output", "-o", help="The file to write.")],
    profiler: Annotated[list[Path] | None, file("--with-profiler", help=_PROFILER)] = None,
    more: Annotated[list[Path] | None, typer.Argument(metavar="FILE", hidden=True)] = None,
) -> None:
    """Write one timeline of all ranks, which Perfetto opens.

    So does chrome://tracing. A process for each rank, arrows from the Start that triggered a round
    to the ranks that it activated, and counters of active ranks and staleness. Times are on rank
    0's clock.
    """
    profiles = (*(profiler or ()), *(more or ()))
    refuse(f"{more[0]} is given without --with-profiler" if more and not profiler else None)
    why = "it is read" if output.resolve() in map(Path.resolve, profiles) else file_refusal(output)
    refuse(why and f"--output {output}: cannot be written: {why}")
    context.obj.job = TraceOptions(folder, output, profiles)


@trace.command(epilog="\b\nExample:\n  pypartial trace report traces --plot traces.png")
def report(
    context: typer.Context,
    folder: FolderArgument,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    plot: Annotated[
        Path | None,
        file(help="Plot arrivals, and who waited for whom, to this file (.png, .pdf or .svg)."),
    ] = None,
    rank: Annotated[int | None, typer.Option(min=0, metavar="R", help="Only this rank.")] = None,
) -> None:
    """Say who is slow, and who waited for whom.

    From the whole of the traces, whereas a running program reports its last cycles.
    """
    refuse(files_complaint(None, plot))
    context.obj.job = TraceOptions(folder, json=json, plot=plot, rank=rank)
