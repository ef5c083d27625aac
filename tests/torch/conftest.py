"""Tests with PyTorch, inside the ranks of an mpirun."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import nullcontext

import pytest
import torch
import torch.distributed as dist
from support.ranks import (
    comm,
    ctx,
    in_mpi,
    pytest_runtest_makereport,
    pytest_runtest_protocol,
    pytest_runtest_setup,
)
from support.ranks import pytest_configure as configure_ranks

import pypartial.torch  # noqa: F401  registers the backend

__all__ = [
    "comm",
    "ctx",
    "pytest_runtest_makereport",
    "pytest_runtest_protocol",
    "pytest_runtest_setup",
]


def pytest_configure(config: pytest.Config) -> None:
    configure_ranks(config)
    if in_mpi(config):
        torch.set_num_threads(1)  # ranks share the cores


@pytest.fixture(scope="module")
def world(comm) -> Iterator[dist.ProcessGroup]:
    """The default process group of torch.distributed, over all ranks, of this package."""
    dist.init_process_group("pypartial", init_method="mpi://")
    assert dist.group.WORLD is not None
    yield dist.group.WORLD
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def gloo(comm) -> Iterator[dist.ProcessGroup]:
    """The default process group of torch.distributed, over all ranks, of gloo."""
    own = tempfile.TemporaryDirectory(prefix="pp-gloo-") if comm.rank == 0 else nullcontext()
    with own as folder:
        store = comm.bcast(f"file://{folder}/store")
        dist.init_process_group("gloo", init_method=store, rank=comm.rank, world_size=comm.size)
        yield dist.group.WORLD
        dist.destroy_process_group()
        comm.Barrier()  # the others may read the store until here
