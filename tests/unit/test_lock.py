"""The node's lock, whose owner may die: tests/unit/c/lock_cases.c."""

import subprocess

from support.c_cases import compiled


def test_every_rank_is_told_that_the_owner_of_the_lock_has_died(tmp_path):
    subprocess.run([compiled(tmp_path, "lock_cases", ["node/lock.c"])], check=True, timeout=60)
