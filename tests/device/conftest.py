"""Tests of buffers on a device, in the ranks of an mpirun that tests/launch/test_device.py starts.

The device is that of the stand-in for the CUDA driver, tests/support/fakecuda.c.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Iterator

import pytest
from support import device
from support.ranks import (
    comm,
    pytest_configure,
    pytest_runtest_makereport,
    pytest_runtest_protocol,
    pytest_runtest_setup,
    transport,
)

import pypartial as pp

__all__ = [
    "comm",
    "pytest_configure",
    "pytest_runtest_makereport",
    "pytest_runtest_protocol",
    "pytest_runtest_setup",
    "transport",
]


@pytest.fixture
def kernels():
    if "PYPARTIAL_CUDA_KERNELS" not in os.environ:
        pytest.skip("PYPARTIAL_CUDA_KERNELS names no kernels: a C++ compiler makes them")


@pytest.fixture
def needs_ipc(kernels):
    if os.environ.get("PYPARTIAL_TRANSPORT") == "mpi":
        pytest.skip("ranks that exchange messages share no memory")


@pytest.fixture
def mpi_of_devices(kernels):
    """The MPI that takes addresses of devices, tests/support/cuda_mpi.c; their device is current.

    While MPI goes on with messages of several devices, one of them is. Copies that it waits for
    would be over when they return.
    """
    shim = ctypes.CDLL(None)
    if not hasattr(shim, "cuda_mpi_taken"):
        pytest.skip("MPI knows no devices: tests/support/cuda_mpi.c is not loaded")
    for name in ("taken", "elsewhere", "looked_elsewhere", "unprepared"):
        getattr(shim, f"cuda_mpi_{name}").restype = ctypes.c_uint64
    shim.several_devices = False
    before, looked_before = shim.cuda_mpi_elsewhere(), shim.cuda_mpi_looked_elsewhere()
    yield shim
    assert shim.cuda_mpi_elsewhere() == before
    assert shim.cuda_mpi_unprepared() == 0
    assert shim.cuda_mpi_looked_elsewhere() == looked_before or shim.several_devices


@pytest.fixture
def stand_in(comm):
    """The stand-in, which pauses by a seed of the rank's; nothing may be left afterwards."""
    driver = device.driver()
    before = driver.fake_leaks().decode()
    driver.fake_seed(1000 + comm.rank)
    yield driver
    driver.fake_seed(0)
    driver.fake_exclusive(False)
    driver.fake_free_at_once(False)
    driver.fake_let_all_go()  # what a test has held that failed
    # A thread of the library's gives back what contexts had; and ranks are late.
    limit = time.monotonic() + 20
    while driver.fake_leaks().decode() != before and time.monotonic() < limit:
        time.sleep(0.001)
    assert driver.fake_leaks().decode() == before
    assert driver.fake_misuses() == 0
    assert driver.fake_pageable_copies() == 0


@pytest.fixture
def ctx(comm, stand_in) -> Iterator[pp.Context]:
    """A context over all ranks, freed after the test, which no rank leaves by patience.

    It gives back what its handles had before the stand-in is looked at.
    """
    with pp.Context(comm, seed=7, patience=None) as context:
        yield context


@pytest.fixture
def stream(stand_in) -> Iterator[device.Stream]:
    """A stream of the application."""
    made = device.Stream()
    yield made
    made.close()


@pytest.fixture
def array(stream):
    """Return a function that makes arrays on the stream; they are freed after the test."""
    made: list[device.Array] = []

    def make(count: int, dtype: object = "f4") -> device.Array:
        made.append(device.Array(count, dtype, stream))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for one in made:
        one.close()
