"""The backend of torch.distributed: its registration, and the making of its process groups."""

from __future__ import annotations

import time
import zlib
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

import torch.distributed as dist

from _pypartial_torch import NAME, SCHEME, register

from .._aside import aside
from ..errors import MismatchError, TimeoutError
from ..policy import Majority, Policy
from .agreement import agree, same
from .partial_group import Partial
from .process_group import ProcessGroup

if TYPE_CHECKING:
    from mpi4py import MPI

__all__ = ["NAME", "create", "new_group"]

_distributed: Any = dist  # its types do not name all that is there

_TAGS = 1 << 15  # MPI has at least so many
_POLL_S, _POLL_MOST_S = 0.001, 0.05


def new_group(
    ranks: Sequence[int] | None = None,
    policy: Policy | str | None = None,
    deliver: Literal["latest", "sum"] = "sum",
    *,
    max_lag: int | Literal["auto"] = "auto",
    timeout: timedelta | None = None,
    device_path: Literal["auto", "staged", "ipc", "direct"] = "auto",
    **context: Any,
) -> Any:
    """Make a process group whose all_reduce is partial: it does not wait for the slowest rank.

    Collective over all ranks of torch.distributed, as ``dist.new_group`` is, which it calls.
    Partial are `all_reduce` by SUM and AVG of floating tensors, each tensor in rounds of its own;
    everything else in the group is synchronous. The sum, or average, is over all ranks of the
    group. A rank that was absent from a round has its contribution in a later one.

    Each tensor needs the same memory in every step, as the buckets of DDP have. The first call with
    a tensor is synchronous: all ranks make it, and the first calls with several tensors in the same
    order. Ranks may make different numbers of calls afterwards. In the end all ranks call
    ``dist.destroy_process_group``; what is still pending is discarded then.

    Parameters
    ----------
    ranks : sequence of int, optional
        As for ``dist.new_group``: all if None.
    policy : Policy or str, optional
        When a round goes on without the ranks that are not there, or the text of that
        (`Policy.parse`); `Majority` if None.
    deliver : {"sum", "latest"}, optional
        What a rank is given that has missed rounds: their sum, or the newest.
    max_lag : int or "auto", optional
        As for `Context.Allreduce_init`.
    timeout : datetime.timedelta, optional
        As for ``dist.new_group``.
    device_path : {"auto", "staged", "ipc", "direct"}, optional
        For tensors on a device: how they get from rank to rank in a partial `all_reduce`, as in
        `Context.Allreduce_init`. Tensors on the CPU have ``"auto"`` only.
    **context
        Options of `Context`: ``seed``, ``progress``, ``transport``, ``window``, ``patience``,
        ``stall_warning``.

    Returns
    -------
    ProcessGroup
        Its `status` is the `Status` of the last all_reduce, or None if that was not partial. Its
        `device_path` and `device_path_reason` are as a `DeviceAllreduceRequest`'s, for a partial
        one of a tensor on a device, else None and ``""``. On ranks that are not in the group:
        ``dist.GroupMember.NON_GROUP_MEMBER``.

    Raises
    ------
    ArgumentError
        If an argument of this rank is wrong; the other members raise `MismatchError`.
    """
    rule = Majority() if policy is None else policy
    rounds: Any = {"policy": rule, "deliver": deliver, "max_lag": max_lag}
    partial = Partial(**rounds, device_path=device_path, **context)
    return dist.new_group(
        None if ranks is None else list(ranks),
        timeout=timeout,
        backend=NAME,
        pg_options=partial,
    )


def create(options: Any, partial: Any) -> ProcessGroup:
    """Make a process group; torch calls this on its members.

    Parameters
    ----------
    options : torch.distributed's backend options
    partial : Partial or None
        The ``pg_options`` of the application.
    """
    # torch's flight recorder, from 2.15 on, cannot be attached to a group that is made in Python.
    recorders: set[str] = set()
    getattr(_distributed.distributed_c10d, "_FR_SELF_RECORDING_BACKENDS", recorders).add(NAME)
    ranks = list(options.global_ranks_in_group) or list(range(options.group_size))
    with aside():
        _await_all(options, ranks)
        if not isinstance(_default_group(), ProcessGroup):
            _check_world(options, ranks)
        comm = _communicator(ranks, options.group_id)
        try:
            _check_options(comm, partial)
            timeout = options.timeout
            group = ProcessGroup(comm, timeout) if partial is None else partial.group(comm, timeout)
        except Exception:
            comm.Free()
            raise
    group.open()
    return group


def _await_all(options: Any, ranks: list[int]) -> None:
    """Wait until all members are here: MPI's calls cannot be left if one does not come."""
    store, keys = options.store, [f"here/{number}" for number in range(len(ranks))]
    store.set(keys[options.group_rank], "")
    limit = options.timeout.total_seconds()
    until, pause = time.monotonic() + limit, _POLL_S
    while not (are_here := store.check(keys)) and time.monotonic() < until:
        time.sleep(pause)
        pause = min(2 * pause, _POLL_MOST_S)
    if _decide(store, are_here):
        return
    late = [rank for rank, key in zip(ranks, keys, strict=True) if not store.check([key])]
    raise TimeoutError(
        f"ranks {late or 'that are here now'} have not come to make a process group within its "
        f"timeout of {limit:g} s; all members call new_group(), in the same order"
    )


def _decide(store: Any, goes_on: bool) -> bool:
    """Return what the first rank has said that says something: whether all go on."""
    if store.add("said", 1) == 1:
        store.set("goes on", str(goes_on))
    decided: bytes = store.get("goes on")
    return decided == b"True"


def _check_options(comm: MPI.Comm, partial: Any) -> None:
    """Raise, on all members, if one has wrong options or others than rank 0."""
    complaint = None
    if isinstance(partial, Partial):
        complaint = partial.complaint()
    elif partial is not None:
        complaint = f"pg_options of the backend pypartial must be a Partial, not {partial!r}"
    agree(comm.allgather(complaint), comm.rank)
    kind = partial.rule() if partial else "no policy"
    same("the options of the process group", comm.allgather(kind))


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


register()  # `import torch` does so, too, but not from a checkout that is not installed
