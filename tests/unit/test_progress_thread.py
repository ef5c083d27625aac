"""How long the progress thread sleeps beside an application: tests/unit/c/thread_cases.c."""

import subprocess

from support.c_cases import compiled


def test_it_sleeps_until_the_alarm_at_most_while_the_application_is_inside(tmp_path):
    """Else what is due would be found late if the application has left meanwhile."""
    program = compiled(tmp_path, "thread_cases", ["progress/thread.c"])
    subprocess.run([program], check=True, timeout=60)
