"""Vectors cut out of blocks of huge pages: tests/unit/c/block_cases.c."""

import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CSRC = ROOT / "csrc"


def test_vectors_share_blocks_which_go_with_the_last_of_them(tmp_path):
    compiler = shutil.which("gcc") or shutil.which("cc")
    assert compiler, "this test needs a C compiler"
    program = tmp_path / "block_cases"
    subprocess.run(
        [
            *(compiler, "-std=gnu11", "-g", "-O1", "-fsanitize=address,undefined"),
            *("-fno-sanitize-recover=all", f"-I{CSRC}"),
            *map(str, sorted((CSRC / "base").glob("*.c"))),
            *(str(Path(__file__).parent / "c" / "block_cases.c"), "-o", str(program)),
        ],
        check=True,
    )
    subprocess.run([program], check=True, timeout=60)
