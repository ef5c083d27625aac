"""The command line: commands and options, read on rank 0 only. No command runs here."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import typer

from .. import __version__
from ..provenance import note_command
from . import InfoOptions, Job
from .bench_app import bench
from .gain_app import sim
from .groups_app import groups
from .topology_app import topology
from .trace_app import trace
from .tune_app import tune

app = typer.Typer(
    name="pypartial",
    help="Partial collectives for MPI: an allreduce that does not wait for the slowest rank. "
    "To run a command on P ranks, write mpirun -n P pypartial COMMAND.",
    epilog="pypartial COMMAND --help explains the options of a command.",
    context_settings={"help_option_names": ["-h", "--help"]},  # of all commands below, too
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(bench, name="bench")
app.add_typer(sim, name="sim")
app.add_typer(groups, name="groups")
app.add_typer(topology, name="topology")
app.add_typer(trace, name="trace")
app.command()(tune)


@dataclass
class _Invocation:
    """What a command is told, and where it puts the job to run."""

    ranks: int
    job: Job | None = None


def parse(arguments: Sequence[str] | None, ranks: int) -> Job | int:
    """Read the command line; print help and usage errors.

    Parameters
    ----------
    arguments : sequence of str or None
        The words after the program's name; None for those of this process.
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


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"pypartial {__version__}")
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Read the options in front of a command."""


@app.command()
def info(context: typer.Context) -> None:
    """Show versions, MPI, nodes and transports, and what is missing.

    Under mpirun -n P it also shows which of the P ranks share a node and how they exchange data.
    The exit code is 1 if the library cannot be used here; the reason is then printed.
    """
    context.obj.job = InfoOptions()
