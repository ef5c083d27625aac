"""The conditions of a benchmark: the machine, its memory, the garbage collector."""

from __future__ import annotations

import gc
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np
from mpi4py import MPI

import pypartial as pp

from ..units import format_size

if TYPE_CHECKING:
    from .options import AllreduceOptions


class Versions(TypedDict):
    """The software that is measured."""

    mpi: str
    version: str
    python: str


class Machine(Versions):
    """The software, and what it runs on."""

    ranks: int
    nodes: int
    cores: int


class Surroundings(Machine):
    """The fields of `results.Meta` that all runs over all ranks have."""

    skew_us: float
    work: str
    transport: str
    dtype: str
    seed: int


def versions() -> Versions:
    """Return the versions of MPI, of this package and of Python."""
    vendor, numbers = MPI.get_vendor()
    return {
        "mpi": f"{vendor} {'.'.join(map(str, numbers))}",
        "version": pp.__version__,
        "python": platform.python_version(),
    }


def context_options(options: AllreduceOptions) -> dict[str, Any]:
    """Return the arguments of a benchmark's `pypartial.Context`."""
    return {
        "seed": options.seed,
        "transport": options.transport.value,
        "patience": options.patience,
    }


def machine(comm: MPI.Intracomm) -> Machine:
    """Describe what all ranks run on; cores are those of all nodes. Collective."""
    node = comm.Split_type(MPI.COMM_TYPE_SHARED)
    is_first = node.rank == 0
    node.Free()
    return {
        **versions(),
        "ranks": comm.size,
        "nodes": comm.allreduce(int(is_first)),
        "cores": comm.allreduce((os.cpu_count() or 1) if is_first else 0),
    }


def surroundings(options: AllreduceOptions, comm: MPI.Intracomm) -> Surroundings:
    """Describe a run over all ranks; collective."""
    return {
        **machine(comm),
        "skew_us": options.skew_ns / 1e3,
        "work": options.work.value,
        "transport": options.transport.value,
        "dtype": options.dtype.value,
        "seed": options.seed,
    }


def shortage(
    size: int,
    pairs: int,
    comm: MPI.Intracomm,
    option: str = "--size",
    *,
    measures: bool = True,
) -> str | None:
    """Return why a size does not fit into memory, before anything is measured; collective.

    Only the send and receive buffers count, which every policy needs. A handle needs more, and may
    fail later.

    Parameters
    ----------
    size : int
        Bytes of a buffer.
    pairs : int
        Pairs of a send and a receive buffer on each rank.
    comm : mpi4py.MPI.Intracomm
    option : str
        The option that the size was given with.
    measures : bool
        Whether this rank has buffers; the others sleep.

    Returns
    -------
    str or None
        The same on every rank; None if the buffers fit.
    """
    node = comm.Split_type(MPI.COMM_TYPE_SHARED)
    needed = 2 * pairs * size * node.allreduce(int(measures))
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    problem = None
    if measures and needed > physical:
        problem = (
            f"the send and receive buffers on a node take {format_size(needed)}, and "
            f"the node of rank {comm.rank} has {physical / 2**30:.1f} GB of memory"
        )
    elif measures:
        try:  # a process may have a lower limit; untouched memory costs nothing
            _ = [np.empty(size, np.uint8) for _ in range(2 * pairs)]
        except MemoryError:
            problem = f"rank {comm.rank} has no memory for a send and a receive buffer"
    node.Free()
    found = next((text for text in comm.allgather(problem) if text is not None), None)
    return None if found is None else f"{option} {format_size(size)}: {found}"


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Switch the cyclic garbage collector off during a measurement."""
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextmanager
def named_in_memory_errors(size: int) -> Iterator[None]:
    """Name the size in the text of a `MemoryError`."""
    try:
        yield
    except MemoryError as error:
        raise MemoryError(f"--size {format_size(size)}: {error}") from error
