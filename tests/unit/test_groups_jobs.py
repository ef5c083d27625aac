"""Which ranks are woken by one that has done a group: tests/unit/c/jobs_cases.c."""

import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CSRC = ROOT / "csrc"


def test_threads_that_wait_are_woken_also_those_of_the_rank_itself(tmp_path):
    """Its progress thread may have done the last chunk, while the application went to sleep."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    assert compiler, "this test needs a C compiler"
    program = tmp_path / "jobs_cases"
    sources = [CSRC / "coll/groups/jobs.c", CSRC / "node/job.c"]
    sources.append(Path(__file__).parent / "c/jobs_cases.c")
    subprocess.run(
        [
            *(compiler, "-std=gnu11", "-g", "-O1", "-Wall", "-Wextra", "-Werror", f"-I{CSRC}"),
            *(*map(str, sources), "-o", str(program)),
        ],
        check=True,
    )
    subprocess.run([program], check=True, timeout=60)
