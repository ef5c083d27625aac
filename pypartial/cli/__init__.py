"""The command ``pypartial``, alone or under mpirun.

Under a launcher only rank 0 reads the command line. It broadcasts a `Job`, or the exit code if
there is nothing to run (usage errors, help), so that messages appear once and all ranks end alike.
The other ranks load neither typer nor rich, and sleep meanwhile: with more ranks than cores they
would slow rank 0 down.

The environment variables of a launcher show that there is one; `pypartial._launch` lists them.
Without a launcher, MPI is not initialised before the command line has been read. An unknown
launcher does no harm: every rank then reads the command line.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .._launch import alone, launched_rank, launched_size
from .._sight import TRACE_VARIABLE
from ..bench.gossip_options import BenchGossipOptions
from ..bench.group_options import BenchGroupsOptions
from ..bench.options import LatencyOptions, OverheadOptions, SkewOptions, TuneOptions
from ..bench.torch_options import BenchTorchOptions
from ..sim.gain_options import GainOptions
from ..sim.gossip_options import GossipOptions
from ..sim.group_options import AnalyseOptions, GroupsOptions, ShowOptions
from ..sim.options import ScheduleOptions
from ..sim.options import SkewOptions as SimSkewOptions
from ..topology import Topology
from .sim import INTERRUPTED

if TYPE_CHECKING:
    from mpi4py import MPI

_POLL_S = 2e-3
# Errors of standard output, whose OSError names no file. `core.save` reports those of a named file.
_WHEN_WRITING = (errno.ENOSPC, errno.EPIPE, errno.EIO, errno.EFBIG, errno.EDQUOT)


@dataclass(frozen=True)
class InfoOptions:
    """``pypartial info``, which has no options."""


@dataclass(frozen=True)
class TopologyOptions:
    """Options of one run of ``pypartial topology show``."""

    topology: Topology
    ranks: int
    json: Path | None = None
    plot: Path | None = None


@dataclass(frozen=True)
class TraceOptions:
    """Options of one run of ``pypartial trace merge``, which has an output, or of ``report``."""

    folder: Path
    output: Path | None = None
    profiles: tuple[Path, ...] = ()
    json: bool = False
    plot: Path | None = None
    rank: int | None = None


AllreduceBench = SkewOptions | LatencyOptions | OverheadOptions
BenchOptions = (
    AllreduceBench | BenchGroupsOptions | BenchGossipOptions | BenchTorchOptions | TuneOptions
)
GroupsJob = GroupsOptions | AnalyseOptions | ShowOptions
SimJob = SimSkewOptions | ScheduleOptions | GroupsJob | GossipOptions | GainOptions
Job = BenchOptions | InfoOptions | SimJob | TopologyOptions | TraceOptions


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command and exit with its code; the entry point.

    Parameters
    ----------
    arguments : sequence of str, optional
        Without the program's name; those of the process by default.

    Raises
    ------
    SystemExit
        With the same code on every rank. An exception on one rank ends all of them: its traceback
        is printed and MPI is aborted, as ``python -m mpi4py`` does. A lack of memory, which is not
        a defect and often strikes many ranks at once, gives one line only; so do an output that
        cannot be written, and Ctrl-C in a process that has no other ranks.
    """
    if sys.stdout is None:  # the caller has closed it
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    try:
        job = read(arguments)
        code = job if isinstance(job, int) else run(job)
        sys.stdout.flush()
    except OSError as error:
        if error.filename is not None or error.errno not in _WHEN_WRITING:
            _abort_others(None)
            raise
        _give_up_output()
        text = f"the output cannot be written: {error.strerror}"
        _abort_others(text)
        sys.exit(f"pypartial: {text}")
    except MemoryError as error:
        text = f"out of memory: {error}"
        _abort_others(text)
        sys.exit(f"pypartial: {text}")
    except KeyboardInterrupt:
        _abort_others(None)
        print("pypartial: interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)
    except BaseException:
        _abort_others(None)
        raise
    sys.exit(code)


def read(arguments: Sequence[str] | None) -> Job | int:
    """Read the command line; collective under a launcher.

    Returns
    -------
    Job or int
        What to run, or the exit code if there is nothing to run; the same on every rank.
    """
    started = launched_size() or 1
    comm = world() if started > 1 else None
    if comm is None or comm.size == 1:
        return _read_alone(arguments, started)
    job: Job | int | None = None
    if comm.rank == 0:
        from .app import parse

        job = parse(arguments, comm.size)
    arrived = comm.Ibarrier()
    while not arrived.Test():
        time.sleep(_POLL_S)
    job = comm.bcast(job)
    assert job is not None
    return job


def run(job: Job) -> int:
    """Run a job on every rank; return the exit code, the same on all."""
    if isinstance(job, InfoOptions):
        from .info import info

        os.environ.pop(TRACE_VARIABLE, None)  # its context is not the program's
        return info(world())
    if isinstance(job, TopologyOptions):
        from .topology import show

        return show(job, world() if (launched_size() or 1) > 1 else None)
    if isinstance(job, TraceOptions):
        from .trace import trace

        return trace(job, world() if (launched_size() or 1) > 1 else None)
    if isinstance(job, SimJob):
        return _run_simulation(job, world() if (launched_size() or 1) > 1 else None)
    return _run_benchmark(job)


def _run_benchmark(job: BenchOptions) -> int:
    from mpi4py import MPI

    trace = MPI.COMM_WORLD.bcast(os.environ.get(TRACE_VARIABLE))
    if trace:
        os.environ[TRACE_VARIABLE] = trace
    if isinstance(job, TuneOptions):
        from .tune import tune

        return tune(job, MPI.COMM_WORLD)
    from .bench import gossip, groups, latency, overhead, skew, torch

    if isinstance(job, OverheadOptions):
        return overhead(job, MPI.COMM_WORLD)
    if isinstance(job, BenchGroupsOptions):
        return groups(job, MPI.COMM_WORLD)
    if isinstance(job, BenchGossipOptions):
        return gossip(job, MPI.COMM_WORLD)
    if isinstance(job, BenchTorchOptions):
        return torch(job, MPI.COMM_WORLD)
    if isinstance(job, LatencyOptions):
        return latency(job, MPI.COMM_WORLD)
    return skew(job, MPI.COMM_WORLD)


def _run_simulation(job: SimJob, comm: MPI.Intracomm | None) -> int:
    if isinstance(job, GroupsJob):
        from .groups import groups

        return groups(job, comm)
    if isinstance(job, GossipOptions):
        from .gossip import gossip

        return gossip(job, comm)
    if isinstance(job, GainOptions):
        from .gain import gain

        return gain(job, comm)
    from .sim_run import schedule, skew

    return schedule(job, comm) if isinstance(job, ScheduleOptions) else skew(job, comm)


def world() -> MPI.Intracomm | None:
    """Return all ranks; None if mpi4py finds no MPI library (``pypartial info`` says why)."""
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError):
        return None
    return MPI.COMM_WORLD


def _read_alone(arguments: Sequence[str] | None, started: int) -> Job | int:
    """Read the command line in a process whose MPI_COMM_WORLD has one rank."""
    from .app import parse

    if started > 1 and launched_rank() != 0:
        return 1  # the first process says why
    job = parse(arguments, started)
    if started > 1 and isinstance(job, BenchOptions):
        print(f"pypartial: {alone(1)}", file=sys.stderr)
        return 1
    return job


def _give_up_output() -> None:
    """Drop unwritten output: Python would try to write it again at its end, and complain."""
    with contextlib.suppress(OSError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def _abort_others(text: str | None) -> None:
    """End all ranks because of the exception being handled; return if there are no others.

    Parameters
    ----------
    text : str or None
        The text to print; None: the traceback of the exception.
    """
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is None or not mpi.Is_initialized() or mpi.Is_finalized() or mpi.COMM_WORLD.size == 1:
        return
    if text is None:
        traceback.print_exc()
    else:
        print(f"pypartial: rank {mpi.COMM_WORLD.rank}: {text}", file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    mpi.COMM_WORLD.Abort(1)
