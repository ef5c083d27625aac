"""The node's lock, whose owner may die: tests/unit/c/lock_cases.c."""

import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CSRC = ROOT / "csrc"


def test_every_rank_is_told_that_the_owner_of_the_lock_has_died(tmp_path):
    compiler = shutil.which("gcc") or shutil.which("cc")
    assert compiler, "this test needs a C compiler"
    program = tmp_path / "lock_cases"
    subprocess.run(
        [
            *(compiler, "-std=gnu11", "-g", "-O1", "-Wall", "-Wextra", "-Werror", f"-I{CSRC}"),
            *(str(CSRC / "node" / "lock.c"), str(Path(__file__).parent / "c" / "lock_cases.c")),
            *("-pthread", "-o", str(program)),
        ],
        check=True,
    )
    subprocess.run([program], check=True, timeout=60)
