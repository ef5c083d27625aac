"""Walks over live handles while others come and go: tests/unit/c/handles_cases.c."""

import subprocess

import pytest
from support.c_cases import SANITIZED, compiled


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    parts = ["base/*.c", "exec/handles.c"]
    return compiled(tmp_path_factory.mktemp("cases"), "handles_cases", parts, *SANITIZED)


@pytest.mark.parametrize("seed", range(20))
def test_a_walk_comes_to_every_handle_once(program, seed):
    done = subprocess.run([program, str(seed)], text=True, stdout=subprocess.PIPE, timeout=60)
    assert (done.returncode, done.stdout) == (0, "")
