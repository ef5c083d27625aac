"""Blocking calls that the library sees, for whose time this rank leaves all its handles."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from . import _native

if TYPE_CHECKING:
    from mpi4py import MPI

__all__ = ["aside", "seen"]

# Blocking collective calls of mpi4py's communicators; each class has some of them.
_BLOCKING = (
    "Accept Agree Allgather Allgatherv Allreduce Alltoall Alltoallv Alltoallw Barrier Bcast Clone "
    "Connect Create Create_cart Create_dist_graph Create_dist_graph_adjacent Create_graph "
    "Create_intercomm Dup Dup_with_info Exscan Gather Gatherv Reduce Reduce_scatter "
    "Reduce_scatter_block Scan Scatter Scatterv Shrink Spawn Spawn_multiple Split Split_type Sub "
    "allgather allreduce alltoall barrier bcast exscan gather reduce scan scatter"
)
# Those whose result is of the communicator's own class; some with a request.
_ALIKE = "Clone Dup Dup_with_info Idup Idup_with_info Ishrink Shrink"


@contextmanager
def aside() -> Iterator[None]:
    """Leave all handles of this process for a blocking call of the application.

    It is as if this rank's patience had run out on each of them, until the block ends: not on those
    that wait as MPI does. Local: no other rank need do the same. Other threads go on with their
    requests. It decorates a function as well.
    """
    lib = _native.load().lib
    try:
        lib.pp_aside_begin()
        yield
    finally:
        lib.pp_aside_end()


def seen(comm: MPI.Comm) -> MPI.Comm:
    """Return the communicator as an object whose blocking collective calls step aside.

    It has the same handle, and is of a subclass of the communicator's class.
    """
    base: Any = type(comm)
    if issubclass(base, _Seen):
        return comm
    made = _as(_class_of(base), comm)
    if hasattr(comm, "__dict__"):  # of a class of the application's own
        made.__dict__ = comm.__dict__
    return made


def _as(kind: Any, comm: MPI.Comm) -> MPI.Comm:
    """Return an object of a class of communicators, with the handle of another one."""
    mpi: Any = next(one for one in kind.__mro__ if one.__module__ == "mpi4py.MPI")
    made: MPI.Comm = mpi.__new__(kind, comm)
    return made


class _Seen:
    """What tells the communicators that `seen` returns."""


@functools.cache
def _class_of(base: Any) -> Any:
    """Return the subclass of a class of communicators."""

    def reduce(comm: Any) -> Any:
        return seen, (_as(base, comm),)

    calls: dict[str, Any] = {"__reduce__": reduce}
    for name in _BLOCKING.split():
        if hasattr(base, name):
            calls[name] = aside()(getattr(base, name))
    for name in _ALIKE.split():
        if hasattr(base, name):
            calls[name] = _plain(base, calls.get(name, getattr(base, name)))
    return type(base.__name__, (_Seen, base), calls)


def _plain(base: Any, call: Callable[..., Any]) -> Callable[..., Any]:
    """Make the result of a call one of the communicator's own class again."""

    @functools.wraps(call)
    def makes_plain(*args: Any, **kwargs: Any) -> Any:
        made = call(*args, **kwargs)
        if isinstance(made, tuple):  # and a request
            return (_as(base, made[0]), *made[1:])
        return _as(base, made)

    return makes_plain
