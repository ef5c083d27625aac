"""How long the progress thread sleeps beside an application: tests/unit/c/thread_cases.c."""

import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CSRC = ROOT / "csrc"


def test_it_sleeps_until_the_alarm_at_most_while_the_application_is_inside(tmp_path):
    """Else what is due would be found late if the application has left meanwhile."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    assert compiler, "this test needs a C compiler"
    program = tmp_path / "thread_cases"
    subprocess.run(
        [
            *(compiler, "-std=gnu11", "-g", "-O1", "-Wall", "-Wextra", "-Werror", f"-I{CSRC}"),
            *(str(CSRC / "progress/thread.c"), str(Path(__file__).parent / "c/thread_cases.c")),
            *("-pthread", "-o", str(program)),
        ],
        check=True,
    )
    subprocess.run([program], check=True, timeout=60)
