"""Planted defects of buffers on a device: the random programs find each, and a test of ci/gpu does.

They are in a build for tests only (`support.built`), and the stand-in for the driver is under it.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
from support import built, fakecuda
from support.layer import run_tests
from support.mpirun import mpirun, python
from support.once import once

TESTS = Path(__file__).resolve().parents[1]
PROGRAMS = 1000
LIMIT_S = 120

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(3 * LIMIT_S)]


@pytest.fixture(scope="module")
def env(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    env = fakecuda.environment()
    folder = once(
        tmp_path_factory,
        "planted",
        lambda folder: built.build(sys.executable, folder / "source", built.PLANTED),
    )
    paths = [
        str(folder / "source"),
        str(TESTS / "support" / "standin"),
        os.environ.get("PYTHONPATH", ""),
    ]
    return {**env, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def stress(programs: int, env: dict[str, str]):
    script = str(TESTS / "stress" / "device.py")
    command = python("-m", "mpi4py", script, "--programs", str(programs))
    return mpirun(3, command, timeout_s=LIMIT_S, env=env)


def test_without_a_defect_all_is_well(env: dict[str, str]) -> None:
    run = stress(20, env)
    run.check()
    assert "20 programs passed on 3 ranks" in run.output


@pytest.mark.parametrize("plant", built.PLANTS)
def test_random_programs_find_it(plant: str, env: dict[str, str]) -> None:
    run = stress(PROGRAMS, {**env, "PYPARTIAL_PLANT": plant})
    assert run.returncode not in (0, None), run.explain()
    assert re.search(r"program \d+ failed on rank", run.output), run.explain()


@pytest.mark.parametrize("plant", built.PLANTS)
def test_a_slow_kernel_on_a_side_stream_shows_it(plant: str, env: dict[str, str]) -> None:
    changes = {**env, "PYPARTIAL_PLANT": plant, "PYPARTIAL_TEST_GPU": "cupy"}
    with pytest.raises(AssertionError, match=r"rank \d FAILED .*side_stream"):
        run_tests(
            TESTS / "gpu" / "test_streams.py",
            2,
            test_limit_s=60,
            limit_s=LIMIT_S,
            env=changes,
            selected="side_stream and cupy and staged",
        )
