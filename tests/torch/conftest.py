"""Tests with PyTorch, inside the ranks of an mpirun.

With PYPARTIAL_TEST_TORCH_DEVICE those of the optimizer and of the hook run with their models on a
device of the stand-in for the CUDA driver. PYPARTIAL_CUDA_DRIVER names it.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from support.device import driver
from support.ranks import (
    comm,
    ctx,
    in_mpi,
    pytest_runtest_makereport,
    pytest_runtest_protocol,
    pytest_runtest_setup,
)
from support.ranks import pytest_configure as configure_ranks
from support.torch_device import StandIn, models_on_device

import pypartial.torch  # noqa: F401  registers the backend
from pypartial._ipc import KERNELS

__all__ = [
    "comm",
    "ctx",
    "pytest_runtest_makereport",
    "pytest_runtest_protocol",
    "pytest_runtest_setup",
]


ON_DEVICE = bool(os.environ.get("PYPARTIAL_TEST_TORCH_DEVICE"))


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    name = collection_path.name
    if not ON_DEVICE:
        return True if name.startswith("test_device") else None
    # Most of these have no model, or a wrong one.
    others = (
        *("test_accelerator", "test_backend", "test_hook_buckets", "test_optimizer_bad_input"),
        "test_optimizer_ddp",  # takes long; test_device compares with the CPU
        "test_optimizer_gossip",  # is for models on the CPU
    )
    return True if name.startswith(others) else None


@pytest.fixture(autouse=ON_DEVICE)
def stand_in(comm, monkeypatch) -> Iterator[StandIn]:
    """The device on which all models are."""
    driver().fake_seed(1000 + comm.rank)
    with models_on_device(monkeypatch) as home:
        yield home
    driver().fake_seed(0)
    assert driver().fake_misuses() == 0
    assert driver().fake_pageable_copies() == 0


@pytest.fixture
def kernels() -> None:
    """Needed by what devices reduce."""
    if not os.environ.get(KERNELS):
        pytest.skip(f"{KERNELS} names no kernels: a C++ compiler makes them")


@pytest.fixture(params=["staged", "ipc"])
def path(request: pytest.FixtureRequest) -> str:
    """A `device_path`."""
    if request.param == "ipc":
        request.getfixturevalue("kernels")
    return str(request.param)


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
