"""The command line of ``pypartial tune``: options, read on rank 0 only."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from ..bench.options import TuneOptions
from ..tuning import VARIABLE, location
from ..units import parse_duration
from .options import LISTED, REPEATABLE, SIZE_HELP, JsonOption, duration
from .reading import file_refusal, files_complaint, read, read_sizes, refuse

_SIZES = ("8", "1K", "4K", "16K", "32K", "64K", "128K", "256K", "512K", "1M", "4M", "16M")


def tune(
    context: typer.Context,
    size: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SIZE",
            help=f"{SIZE_HELP} {LISTED} Default: {','.join(_SIZES)}.",
        ),
    ] = None,
    ranks: Annotated[
        list[int] | None,
        typer.Option(
            min=2,
            metavar="P",
            help="Measure on the first P ranks, while the others sleep. "
            f"{REPEATABLE} Default: all ranks.",
        ),
    ] = None,
    budget: Annotated[
        str, duration(help="About how long to measure in all; a time such as 20s.")
    ] = "20s",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Measure and print, but do not change the table.")
    ] = False,
    json: JsonOption = None,
) -> None:
    """Measure the algorithms here, for algorithm="auto".

    Start it with mpirun -n P. It times the algorithms of rounds that are made of messages
    (transport="mpi") on P ranks, or on one rank of each node if there are several nodes, and
    verifies sums before and after each block. It then writes the fastest algorithm of each size and
    a fitted cost model into your tuning table, beside the entries for other numbers of ranks.
    pypartial info shows the table and its place. The exit code is 1 if a sum was wrong; nothing is
    written then.
    """
    options = TuneOptions(
        sizes=tuple(sorted(read_sizes(size, _SIZES))),
        ranks=tuple(ranks or ()),
        budget_ns=read("--budget", parse_duration, budget),
        table=None if dry_run else location(),
        json=json,
    )
    complaint = options.complaint(context.obj.ranks) or files_complaint(json, None)
    if complaint is None and not dry_run:
        complaint = _no_table(options.table)
    refuse(complaint)
    context.obj.job = options


def _no_table(path: Path | None) -> str | None:
    """Return why the table cannot be written, before anything is measured; None if it can."""
    if path is None:
        return (
            f"there is no place for a table ({VARIABLE}=off, or no home directory): set {VARIABLE} "
            "to a file"
        )
    try:
        if path.exists():
            refusal = file_refusal(path)
        else:
            _try_folder(path.absolute().parent)
            refusal = None
    except OSError as error:
        refusal = error.strerror or str(error)
    return None if refusal is None else f"{path}: cannot be written: {refusal}"


def _try_folder(folder: Path) -> None:
    """Raise if neither the folder nor a file in it can be made; leave nothing behind."""
    while not folder.exists():
        folder = folder.parent
    tempfile.TemporaryFile(dir=folder).close()
