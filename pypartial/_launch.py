"""What the launcher (mpirun, srun) tells the processes that it starts."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping

# Open MPI and PRRTE; MPICH, Intel MPI and others with a PMI launcher; MVAPICH; Slurm's srun.
_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS")
_RANKS = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK", "SLURM_PROCID")


def launched_size(environ: Mapping[str, str] = os.environ) -> int | None:
    """Return how many processes the launcher says it started; None without a known launcher.

    The batch script of a Slurm job is no step, whatever SLURM_NTASKS says: its tasks are None.
    """
    return _first_number(_SIZES, environ)


def alone(size: int, environ: Mapping[str, str] = os.environ) -> str | None:
    """Return why each process is alone in its MPI_COMM_WORLD, of this size, and what to do.

    None if it is not, or if no launcher has started several.
    """
    started = launched_size(environ) or 1
    if size > 1 or started == 1:
        return None
    found = f"started {started} processes, but each is alone in its MPI_COMM_WORLD"
    if _first_number(_SIZES[:-1], environ) is None:
        return f"srun {found}: start them with srun --mpi=pmix, or with mpirun"
    return (
        f"the launcher {found}: launcher and mpi4py belong to different MPI libraries. pypartial "
        "info shows mpi4py's; use its launcher"
    )


def launched_rank(environ: Mapping[str, str] = os.environ) -> int | None:
    """Return this process's number among those that the launcher started; None if unknown."""
    return _first_number(_RANKS, environ)


def seconds_since_launch() -> float | None:
    """Return the age of the parent process, which is the launcher, in seconds; None without one.

    Linux only: the kernel keeps the start of a process in clock ticks since boot.
    """
    if launched_size() is None:
        return None
    try:
        with open(f"/proc/{os.getppid()}/stat", encoding="utf-8", errors="replace") as file:
            status = file.read()
    except OSError:
        return None
    ticks = int(status.rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


def stderr_is_terminal() -> bool:
    """Return whether stderr ends on a terminal.

    Open MPI's mpirun gives the ranks a pipe, and copies it to its own stderr. The function looks at
    that one, too (Linux, on the node of the launcher).
    """
    if sys.stderr.isatty():
        return True
    try:
        target = os.readlink(f"/proc/{os.getppid()}/fd/2")
    except OSError:
        return False
    return launched_size() is not None and target.startswith(("/dev/pts/", "/dev/tty"))


def terminal_width() -> int | None:
    """Return how many characters fit into a line of standard output; None: any number.

    COLUMNS says so, if it is set, or else the terminal. A file or a pipe takes lines of any length.
    Under a launcher the terminal is the one that `stderr_is_terminal` finds for stderr.
    """
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal():
        return int(columns) or None
    try:
        if launched_size() is None:
            return os.get_terminal_size(sys.stdout.fileno()).columns or None
        with open(f"/proc/{os.getppid()}/fd/1", "rb", buffering=0) as out:
            return os.get_terminal_size(out.fileno()).columns or None
    except (OSError, ValueError):  # not a terminal; no file at all
        return None


def _first_number(names: tuple[str, ...], environ: Mapping[str, str]) -> int | None:
    for name in names:
        text = environ.get(name, "")
        if text.isdecimal():
            return int(text)
    return None
