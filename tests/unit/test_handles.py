"""Walks over live handles while others come and go: tests/unit/c/handles_cases.c."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CSRC = ROOT / "csrc"


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    compiler = shutil.which("gcc") or shutil.which("cc")
    assert compiler, "these tests need a C compiler"
    made = tmp_path_factory.mktemp("cases") / "handles_cases"
    sources = [*sorted((CSRC / "base").glob("*.c")), CSRC / "exec" / "handles.c"]
    subprocess.run(
        [
            *(compiler, "-std=gnu11", "-g", "-O1", "-fsanitize=address,undefined"),
            *("-fno-sanitize-recover=all", f"-I{CSRC}", *map(str, sources)),
            *(str(Path(__file__).parent / "c" / "handles_cases.c"), "-o", str(made)),
        ],
        check=True,
    )
    return made


@pytest.mark.parametrize("seed", range(20))
def test_a_walk_comes_to_every_handle_once(program, seed):
    done = subprocess.run([program, str(seed)], text=True, stdout=subprocess.PIPE, timeout=60)
    assert (done.returncode, done.stdout) == (0, "")
