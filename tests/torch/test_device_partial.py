"""Partial process groups with tensors on a device, that of the stand-in for the CUDA driver."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

import pypartial as pp
import pypartial.torch

pytestmark = [pytest.mark.mpi(min_size=2), pytest.mark.sizes(3)]

STEPS = 6


def reduced(comm, path: str, dtype: torch.dtype) -> tuple[torch.Tensor, list[object]]:
    """Reduce a tensor in each step; return what came, and the paths that the group has shown."""
    group = pp.torch.new_group(policy=pp.Full(), device_path=path)
    seen, shown = [], []
    given = torch.empty(300, 7, dtype=dtype).T  # a tensor that is no vector
    for step in range(STEPS):
        random = torch.Generator().manual_seed(1000 * step + comm.rank)
        given.copy_(torch.randn(7, 300, generator=random, dtype=torch.float64))
        dist.all_reduce(given, dist.ReduceOp.AVG, group=group)
        seen.append(given.clone())
        shown.append((group.device_path, group.device_path_reason))
    dist.all_reduce(torch.ones(1, dtype=torch.int64), group=group)
    shown.append((group.device_path, group.device_path_reason))
    dist.destroy_process_group(group)
    return torch.stack(seen), shown


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_an_all_reduce_has_the_bits_of_the_cpu(comm, world, stand_in, monkeypatch, path, dtype):
    found, shown = reduced(comm, path, dtype)
    assert shown == [(None, ""), *[(path, "")] * (STEPS - 1), (None, "")]
    assert stand_in.kept == STEPS - 1
    monkeypatch.undo()
    expected, shown = reduced(comm, "auto", dtype)
    assert set(shown) == {(None, "")}
    assert torch.equal(found, expected)


def test_the_host_waits_for_no_values(comm, world, stand_in):
    """But in the first call with a tensor, which is synchronous."""
    group = pp.torch.new_group(policy=pp.Full())
    given = torch.empty(100)
    for step in range(STEPS):
        before = stand_in.host_waits
        dist.all_reduce(given.fill_(comm.rank), group=group)
        assert step == 0 or stand_in.host_waits == before
        assert given[0] == sum(range(comm.size))
    dist.destroy_process_group(group)


@pytest.mark.parametrize("path", ["staged", "ipc", "direct"])
def test_a_tensor_on_the_cpu_has_no_path(comm, world, monkeypatch, path):
    """Told by the rank that has it there, to all."""
    group = pp.torch.new_group(policy=pp.Full(), device_path=path)
    is_wrong = comm.rank == 1
    if is_wrong:
        monkeypatch.undo()
    text = f"device_path={path!r} is for tensors on a CUDA device, and here they are on the CPU"
    with pytest.raises(pp.ArgumentError if is_wrong else pp.MismatchError, match=text):
        dist.all_reduce(torch.ones(3), group=group)
    dist.destroy_process_group(group)


def test_a_tensor_of_another_place(comm, world, monkeypatch):
    group = pp.torch.new_group(policy=pp.Full())
    if comm.rank == 1:
        monkeypatch.undo()
    with pytest.raises(pp.MismatchError, match=r"on a CUDA device, and rank 1 .* on the CPU"):
        dist.all_reduce(torch.ones(3), group=group)
    dist.destroy_process_group(group)


def test_a_wrong_word(comm, world):
    is_wrong = comm.rank == 1
    error = pp.ArgumentError if is_wrong else pp.MismatchError
    with pytest.raises(error, match=r"device_path must be one of .*, not 'nvlink'"):
        pp.torch.new_group(device_path="nvlink" if is_wrong else "auto")


def test_groups_whose_paths_differ(comm, world):
    with pytest.raises(pp.MismatchError, match=r"device_path='auto', and rank 1 .*'ipc'"):
        pp.torch.new_group(device_path="ipc" if comm.rank == 1 else "auto")
