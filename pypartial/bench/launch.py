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

    If the launcher belongs to another MPI library than mpi4py, every process is alone in its
    MPI_COMM_WORLD; comparing sizes with this number shows it.
    """
    return _first_number(_SIZES, environ)


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


def _first_number(names: tuple[str, ...], environ: Mapping[str, str]) -> int | None:
    for name in names:
        text = environ.get(name, "")
        if text.isdecimal():
            return int(text)
    return None
