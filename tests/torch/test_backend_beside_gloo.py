"""Groups of the backend where the default process group is one of gloo."""

from __future__ import annotations

import tempfile

import pytest
import torch
import torch.distributed as dist

import pypartial as pp
import pypartial.torch as ppt

pytestmark = pytest.mark.mpi


def test_other_ranks_than_those_of_mpi_are_refused_on_all_ranks(comm):
    with tempfile.TemporaryDirectory(prefix="pp-gloo-") as folder:
        store = comm.bcast(f"file://{folder}/store")
        rank = (comm.rank + 1) % comm.size
        dist.init_process_group("gloo", init_method=store, rank=rank, world_size=comm.size)
        with pytest.raises(pp.MismatchError, match=r"rank \d of \d of torch.distributed is rank"):
            dist.new_group(backend="pypartial")
        dist.destroy_process_group()
        comm.Barrier()  # the folder is rank 0's


def test_gloo_may_use_the_rendezvous(comm):
    dist.init_process_group("gloo", init_method="mpi://")
    assert (dist.get_rank(), dist.get_world_size()) == (comm.rank, comm.size)
    known = torch.ones(2)
    dist.all_reduce(known)
    assert known.tolist() == [comm.size] * 2
    dist.destroy_process_group()


def test_a_group_and_a_partial_group_beside_gloo(gloo, comm):
    """The last test: the others make default groups of their own."""
    group, partial = dist.new_group(backend="pypartial"), ppt.new_group()
    known = torch.empty(2)
    for made in (gloo, group, partial):
        dist.all_reduce(known.fill_(1), group=made)
        assert known.tolist() == [comm.size] * 2
        assert made is gloo or dist.get_backend(made) == "pypartial"
    dist.destroy_process_group(group)
    dist.destroy_process_group(partial)
