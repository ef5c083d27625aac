"""Which ranks are woken by one that has done a group: tests/unit/c/jobs_cases.c."""

import subprocess

from support.c_cases import compiled


def test_threads_that_wait_are_woken_also_those_of_the_rank_itself(tmp_path):
    """Its progress thread may have done the last chunk, while the application went to sleep."""
    program = compiled(tmp_path, "jobs_cases", ["coll/preduce/jobs.c", "node/job.c"])
    subprocess.run([program], check=True, timeout=60)
