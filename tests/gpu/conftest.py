"""Tests on a CUDA device, in the ranks of an mpirun that ci/gpu starts.

Each runs with arrays of CuPy and of PyTorch, on each path that this build has. Where there is no
device, or no library, they are skipped, unless PYPARTIAL_TEST_GPU names the library.
"""

from __future__ import annotations

import functools

import pytest
from support import gpu
from support.ranks import (
    comm,
    pytest_configure,
    pytest_runtest_makereport,
    pytest_runtest_protocol,
    pytest_runtest_setup,
    transport,
)

__all__ = [
    "comm",
    "pytest_configure",
    "pytest_runtest_makereport",
    "pytest_runtest_protocol",
    "pytest_runtest_setup",
    "transport",
]


@functools.cache
def kit_of(name: str, device: int) -> gpu.Kit:
    return gpu.Kit(name, device)


@pytest.fixture(params=sorted(gpu.LIBRARIES))
def kit(request, comm):
    """Arrays and streams of a library, on the device of this rank."""
    name = request.param
    problem = gpu.why_not(name)
    if problem is not None:
        assert name not in gpu.needed(), problem
        pytest.skip(problem)
    made = kit_of(name, 0)
    with made.use(made.home):
        yield made
    made.settle()


@pytest.fixture(params=gpu.paths())
def path(request):
    """How the elements of a handle get from rank to rank."""
    return request.param


@pytest.fixture
def ctx(comm, request):
    """A context over all ranks, freed after the test, in which handles can take its path."""
    path = request.getfixturevalue("path") if "path" in request.fixturenames else None
    with gpu.context(comm, path) as context:
        yield context
