"""Tests that run inside the ranks of an mpirun, which `tests/launch/test_mpi_layer.py` starts."""

from support.ranks import (
    comm,
    ctx,
    gate,
    pytest_configure,
    pytest_runtest_makereport,
    pytest_runtest_protocol,
    pytest_runtest_setup,
    transport,
)

__all__ = [
    "comm",
    "ctx",
    "gate",
    "pytest_configure",
    "pytest_runtest_makereport",
    "pytest_runtest_protocol",
    "pytest_runtest_setup",
    "transport",
]
