"""`bench latency` and `bench skew` with buffers on a device, on two ranks and the stand-in.

CuPy is `tests/support/standin`, so all of the benchmarks' code runs but for CuPy itself.
"""

from __future__ import annotations

import json
import os
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from support import fakecuda
from support.mpirun import Run, mpirun, python

jsonschema = pytest.importorskip("jsonschema", reason="needs jsonschema: pip install jsonschema")

SCHEMA = resources.files("pypartial.bench").joinpath("results.schema.json")
STANDIN = Path(__file__).resolve().parents[1] / "support" / "standin"
LIMIT_S = 120

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def env() -> dict[str, str]:
    driver = fakecuda.environment(devices=2)
    paths = os.pathsep.join(filter(None, [str(STANDIN), os.environ.get("PYTHONPATH")]))
    return {**driver, "PYTHONPATH": paths}


def bench(words: str, env: dict[str, str], path: Path) -> tuple[Run, dict[str, Any]]:
    """Run a benchmark, and return the report that it saves."""
    words = f"bench {words} --json {path}"
    run = mpirun(2, python("-m", "pypartial", *words.split()), timeout_s=LIMIT_S, env=env)
    run.check()
    report = json.loads(path.read_text())
    jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text())).validate(report)
    return run, report


def test_latency(env: dict[str, str], tmp_path: Path) -> None:
    words = "latency --buffers cupy --policy solo --policy full --size 8 --size 64K --blocks 2"
    run, report = bench(f"{words} --budget 5ms", env, tmp_path / "latency.json")
    rows = report["rows"]
    ways = [(row["policy"], row["buffers"]) for row in rows if row["bytes"] == 8]
    ours = [("solo", "cupy"), ("full", "cupy")]
    assert ways == [*ours, ("mpi", "cuda-staged-by-hand"), ("memcpy", "cupy")]
    assert all(row["verified"] and row["ratio_to_mpi"] > 0 for row in rows)
    device = report["meta"]["device"]
    assert device["name"] == "stand-in 0, stand-in 1"  # a rank each
    assert (device["cuda"], list(device["libraries"])) == ("12.8", ["cupy"])
    assert (device["device_path"], device["device_path_reason"]) == ("auto", "")
    assert {(row["policy"], row["device_path"]) for row in rows} == {
        ("solo", "staged"),
        ("full", "staged"),
        ("mpi", None),
        ("memcpy", None),
    }
    assert "Device: stand-in 0" in run.output
    assert "Path of elements on a device: staged." in run.output


@pytest.mark.parametrize("command", ["latency --blocks 2 --calls 3", "skew --rounds 3 --warmup 1"])
def test_a_path(env: dict[str, str], tmp_path: Path, command: str) -> None:
    if fakecuda.cpp_compiler() is None:
        pytest.skip("a C++ compiler makes the kernels, and there is none")
    words = f"{command} --buffers cupy --buffers numpy --policy full --size 4K --device-path ipc"
    run, report = bench(words, env, tmp_path / "path.json")
    rows = report["rows"]
    ours = {row["buffers"]: row["device_path"] for row in rows if row["policy"] == "full"}
    assert ours == {"cupy": "ipc", "numpy": None}
    assert all(row["verified"] for row in rows)
    device = report["meta"]["device"]
    assert (device["device_path"], device["device_path_reason"]) == ("ipc", "")
    assert "Path of elements on a device: ipc." in run.output


def test_a_path_that_is_not_possible(env: dict[str, str], tmp_path: Path) -> None:
    env = {**env, "PYPARTIAL_CUDA_KERNELS": "/nowhere"}
    words = "latency --buffers cupy --policy full --size 8 --blocks 1 --calls 3 --device-path ipc"
    run, report = bench(words, env, tmp_path / "path.json")
    why = "rank 0: PYPARTIAL_CUDA_KERNELS='/nowhere' cannot be read"
    assert report["rows"][0]["device_path"] == "staged"
    assert report["meta"]["device"]["device_path"] == "ipc"
    assert report["meta"]["device"]["device_path_reason"].startswith(why)
    told = "Path of elements on a device: staged, because another one is not possible: rank 0:"
    assert told in " ".join(run.output.split())


def test_skew_beside_the_hosts(env: dict[str, str], tmp_path: Path) -> None:
    words = "skew --buffers numpy --buffers cupy --device 1 --policy solo --policy mpi --size 4K"
    words += " --rounds 10 --warmup 1 --work compute"
    picture = tmp_path / "skew.png"
    run, report = bench(f"{words} --plot {picture}", env, tmp_path / "skew.json")
    rows = {(row["policy"], row["buffers"]): row for row in report["rows"]}
    assert set(rows) == {
        ("solo", "numpy"),
        ("solo", "cupy"),
        ("mpi", "numpy"),
        ("mpi", "cuda-staged-by-hand"),
    }
    assert all(row["verified"] and row["speedup_vs_mpi"] > 0 for row in rows.values())
    assert rows["mpi", "cuda-staged-by-hand"]["speedup_vs_mpi"] == 1
    assert report["meta"]["device"]["name"] == "stand-in 1"
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "cuda-staged-by-hand" in run.output


WRONG = """
import sys, pypartial.cli
from mpi4py import MPI
from pypartial.bench import contenders

if MPI.COMM_WORLD.rank == 1:
    made = contenders._PartialOnDevice.__init__

    def make(self, ctx, policy, pair, *rest):
        made(self, ctx, policy, pair, *rest)
        self._synchronize = lambda: pair.receive.fill(3)

    contenders._PartialOnDevice.__init__ = make
sys.exit(pypartial.cli.main(sys.argv[1:]))
"""


def test_a_wrong_result_is_noticed(env: dict[str, str]) -> None:
    words = "bench latency --buffers cupy --policy full --size 4K --blocks 2 --calls 5"
    run = mpirun(2, python("-c", WRONG, *words.split()), timeout_s=LIMIT_S, env=env)
    assert run.returncode == 1, run.explain()
    assert "not verified: full, 1024 x float32, rank 1" in run.output
    assert "not verified: mpi" not in run.output
