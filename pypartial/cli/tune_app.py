"""The command line of ``pypartial tune``: options, read on rank 0 only."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from ..bench.options import TuneOptions
from ..tuning import VARIABLE, location
from ..units import parse_duration, parse_size
from .reading import file_refusal, files_complaint, read

_SIZES = ("8", "1K", "4K", "16K", "32K", "64K", "128K", "256K", "512K", "1M", "4M", "16M")


def tune(
    context: typer.Context,
    size: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SIZE",
            help="Size of a rank's buffer in bytes; K, M and G mean powers of 1024. Repeatable. "
            f"Default: {', '.join(_SIZES)}.",
        ),
    ] = None,
    ranks: Annotated[
        list[int] | None,
        typer.Option(
            min=2,
            metavar="N",
            help="Measure on the first N ranks, while the others sleep. Repeatable. Default: all.",
        ),
    ] = None,
    budget: Annotated[
        str, typer.Option(metavar="TIME", help="About so long it measures in all.")
    ] = "20s",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Measure and print, but change no table.")
    ] = False,
    json: Annotated[
        Path | None, typer.Option(dir_okay=False, writable=True, help="Save the results here.")
    ] = None,
) -> None:
    """Measure this machine, for algorithm="auto" to choose by.

    Under mpirun -n P: times the algorithms in rounds
    made of messages (transport="mpi") on P ranks, or on one rank of each node if there are several
    nodes, and verifies sums before and after each block; then writes the switch points and the
    fitted cost model into the user's table, beside what it has for other numbers of ranks.
    pypartial info shows the table. The exit code is 1 if a sum was wrong; nothing is written then.
    """
    options = TuneOptions(
        sizes=tuple(sorted(read("--size", parse_size, text) for text in size or _SIZES)),
        ranks=tuple(ranks or ()),
        budget_ns=read("--budget", parse_duration, budget),
        table=None if dry_run else location(),
        json=json,
    )
    complaint = options.complaint(context.obj.ranks) or files_complaint(json, None)
    if complaint is None and not dry_run:
        complaint = _no_table(options.table)
    if complaint is not None:
        raise typer.BadParameter(complaint)
    context.obj.job = options


def _no_table(path: Path | None) -> str | None:
    """Why the table could not be written, known before anything is measured."""
    if path is None:
        return f"there is no place for a table ({VARIABLE}=off, or no home): name one in {VARIABLE}"
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
    """Raise if no file can be made there, nor the folder itself; leaves nothing."""
    while not folder.exists():
        folder = folder.parent
    tempfile.TemporaryFile(dir=folder).close()
