"""The command line: commands and options, read on rank 0 only.  Commands do not run here."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

import typer

from ..provenance import note_command
from . import InfoOptions, Job
from .bench_app import bench
from .sim_app import sim
from .tune_app import tune

app = typer.Typer(
    name="pypartial",
    help="Partial collectives for MPI. Start several ranks with mpirun -n P pypartial ...",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(bench, name="bench")
app.add_typer(sim, name="sim")
app.command()(tune)


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
    note_command(words)
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
