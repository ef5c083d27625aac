"""The simulated network by itself, under the sanitizers."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
WORLDS = 200


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    compiler = shutil.which("gcc") or shutil.which("cc")
    assert compiler, "these tests need a C compiler"
    program = tmp_path_factory.mktemp("cases") / "net_cases"
    core = ROOT / "csrc"
    sources = [*sorted((core / "base").glob("*.c")), *sorted((core / "transport").glob("sim*.c"))]
    subprocess.run(
        [
            *(compiler, "-std=gnu11", "-g", "-O1", "-fsanitize=address,undefined"),
            *("-fno-sanitize-recover=all", f"-I{core}", *map(str, sources)),
            *(str(ROOT / "tests" / "unit" / "c" / "net_cases.c"), "-o", str(program)),
        ],
        check=True,
    )
    return program


def test_messages_of_a_pair_arrive_in_order_whatever_they_cost(cases):
    """Random networks of 32 kinds; nothing is lost, nothing comes twice or too early."""
    command = [cases, str(WORLDS)]
    ran = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
    kinds = dict(line.rsplit(":", 1) for line in ran.stdout.splitlines())
    assert len(kinds) == 32
    assert {kind: int(count) for kind, count in kinds.items() if int(count)} == {}
