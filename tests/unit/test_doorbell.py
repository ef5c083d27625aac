"""The doorbell between the ranks of a node, without ranks: tests/unit/c/bell_cases.c."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CSRC = ROOT / "csrc"


@pytest.fixture(scope="module", params=["address,undefined", "thread"])
def cases(request, tmp_path_factory):
    compiler = shutil.which("gcc") or shutil.which("cc")
    assert compiler, "these tests need a C compiler"
    program = tmp_path_factory.mktemp("cases") / "bell_cases"
    sources = [*sorted((CSRC / "base").glob("*.c")), CSRC / "transport" / "doorbell.c"]
    subprocess.run(
        [
            *(compiler, "-std=gnu11", "-g", "-O1", "-pthread", f"-fsanitize={request.param}"),
            *("-fno-sanitize-recover=all", f"-I{CSRC}", *map(str, sources)),
            *(str(Path(__file__).parent / "c" / "bell_cases.c"), "-o", str(program)),
        ],
        check=True,
    )

    def run(what):
        return subprocess.run(
            [program, what], check=True, text=True, stdout=subprocess.PIPE, timeout=60
        ).stdout

    return run


def test_who_needs_no_wake_up(cases):
    cases("answers")


def test_no_wake_up_is_lost(cases):
    assert cases("wakes") == "0\n"
