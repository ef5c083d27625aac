"""Copies of the chunks of results, with the stand-in for the driver: tests/unit/c/ahead_cases.c."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from support import fakecuda

ROOT = Path(__file__).resolve().parents[2]
CSRC = ROOT / "csrc"
SOURCE = Path(__file__).parent / "c" / "ahead_cases.c"
CORE = (
    "base/error.c",
    "base/random.c",
    "cuda/aside.c",
    "cuda/disposal.c",
    "cuda/driver.c",
    "cuda/lane.c",
)
SANITIZERS = "address,undefined"
LIMIT_S = 60
CASES = re.findall(r'\{"(\w+)", \w+\}', SOURCE.read_text())


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Return the program with the cases, and its driver."""
    folder = tmp_path_factory.mktemp("ahead")
    stand_in, cases = fakecuda.build(folder, sanitizers=SANITIZERS), folder / "ahead_cases"
    sources = [CSRC / name for name in (*CORE, "progress/ahead.c", "progress/sent.c")]
    sources += [SOURCE, stand_in]
    subprocess.run(
        [
            *(*fakecuda.compiler(), "-std=gnu11", "-g", "-O1", "-Wall", "-Wextra", "-Werror"),
            *("-pthread", f"-fsanitize={SANITIZERS}", "-fno-sanitize-recover=all", f"-I{CSRC}"),
            *(*map(str, sources), "-ldl", "-o", str(cases)),
        ],
        check=True,
    )
    return [cases, stand_in]


@pytest.mark.parametrize("case", CASES)
def test_chunks_of_results(program: list[Path], case: str) -> None:
    cases, stand_in = program
    own = {"PYPARTIAL_CUDA_DRIVER": str(stand_in), "ASAN_OPTIONS": "handle_segv=0"}
    ran = subprocess.run(
        [cases, case], env=os.environ | own, capture_output=True, text=True, timeout=LIMIT_S
    )
    assert ran.returncode == 0, f"{ran.returncode}: {ran.stderr}"
