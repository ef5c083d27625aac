"""Running a program from a test: what it started does not outlive it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from support.mpirun import GRACE_S, MARK, marked, program, python


def test_what_a_program_prints_and_where_it_runs(tmp_path: Path) -> None:
    code = (
        f"import os, sys; print(os.getcwd(), os.environ['X'], len(os.environ['{MARK}'])); exit(3)"
    )
    ran = program(python("-c", code), timeout_s=60, env={"X": "y"}, cwd=tmp_path)
    assert (ran.returncode, ran.output.split()) == (3, [str(tmp_path), "y", "32"])
    assert ran.survivors == []


def test_what_a_program_started_is_ended_with_it_at_its_limit(tmp_path: Path) -> None:
    """The shell dies of the signal; the process that it waits for ignores it."""
    there = tmp_path / "there"
    stays = (
        "import pathlib, signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        f"pathlib.Path('{there}').touch(); signal.pause()"
    )
    command = ["sh", "-c", f'{sys.executable} -c "{stays}"; true']
    ran = program(command, timeout_s=60, mark="stays", over=there.exists, patience_s=1)
    assert ran.returncode is None
    (survivor,) = ran.survivors
    assert stays in survivor
    until = time.monotonic() + GRACE_S
    while marked("stays") and time.monotonic() < until:  # the kernel takes a moment
        pass
    assert marked("stays") == {}


def test_a_process_is_found_while_it_executes_another_program(tmp_path: Path) -> None:
    script = tmp_path / "again"
    script.write_text('exec sh "$0"\n')
    process = subprocess.Popen(["sh", str(script)], env={**os.environ, MARK: "executes"})
    try:
        for _ in range(300):
            assert list(marked("executes")) == [process.pid]
    finally:
        process.kill()
        process.wait()
