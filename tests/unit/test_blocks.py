"""Vectors cut out of blocks of huge pages: tests/unit/c/block_cases.c."""

import subprocess

from support.c_cases import SANITIZED, compiled


def test_vectors_share_blocks_which_go_with_the_last_of_them(tmp_path):
    program = compiled(tmp_path, "block_cases", ["base/*.c"], *SANITIZED)
    subprocess.run([program], check=True, timeout=60)
