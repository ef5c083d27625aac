"""The backend of torch.distributed: its registration, and the making of its process groups."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch.distributed import register_rendezvous_handler

from ..errors import MismatchError
from .leaving import blocking
from .process_group import ProcessGroup
from .rendezvous import SCHEME, rendezvous

if TYPE_CHECKING:
    from mpi4py import MPI

__all__ = ["NAME", "SUPPORTED", "new_group"]

NAME = "pypartial"
_TAGS = 1 << 15  # MPI has at least so many


def register() -> None:
    """Make the backend and its rendezvous known to torch; once in a process."""
    dist.Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu"])
    register_rendezvous_handler(SCHEME, rendezvous)


def _create(options: Any, partial: Any) -> ProcessGroup:
    """Make a process group; torch calls this on its members.

    Parameters
    ----------
    options : torch.distributed's backend options
    partial : Partial or None
        The ``pg_options`` of the application.
    """
    ranks = list(options.global_ranks_in_group) or list(range(options.group_size))
    members = frozenset(ranks)
    if not isinstance(_default_group(), ProcessGroup):
        _check_world(options, ranks)
    with blocking(members):
        comm = _communicator(ranks, options.group_id)
    return ProcessGroup(comm, members)


def _default_group() -> Any:
    return dist.group.WORLD if dist.is_initialized() else None


def _check_world(options: Any, ranks: list[int]) -> None:
    """Raise, on all members, if a member's rank in torch's world is not its rank in MPI's."""
    from mpi4py import MPI

    world, store = MPI.COMM_WORLD, options.store
    size = dist.get_world_size() if dist.is_initialized() else options.group_size
    store.set(f"mpi/{options.group_rank}", f"{world.rank} of {world.size}")
    for number, rank in enumerate(ranks):
        told = store.get(f"mpi/{number}").decode()
        if told != f"{rank} of {size}":
            raise MismatchError(
                f"rank {rank} of {size} of torch.distributed is rank {told} of MPI; the backend "
                f"pypartial needs the same ranks: pass init_method='{SCHEME}://', without rank and "
                "world_size"
            )


def _communicator(ranks: list[int], name: str) -> MPI.Comm:
    """Return a new communicator of these ranks; they alone call this."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    if ranks == list(range(world.size)):
        return world.Dup()
    group = world.Get_group()
    members = group.Incl(ranks)
    try:
        return world.Create_group(members, zlib.crc32(name.encode()) % _TAGS)
    finally:
        members.Free()
        group.Free()


def new_group() -> None:
    """Stub."""


register()
