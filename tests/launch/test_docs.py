"""The programs of README.md and docs/*.md run as they stand there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support import blocks
from support.mpirun import mpirun, python

ROOT = Path(__file__).resolve().parent.parent.parent

pytestmark = pytest.mark.timeout(blocks.LIMIT_S + 60)


@pytest.mark.parametrize("program", blocks.all_programs(ROOT), ids=lambda program: program.name)
def test_a_program_of_the_docs(program, tmp_path):
    run = blocks.run(program, tmp_path)
    run.check()
    if program.name == "docs/tutorial.md":
        last = run.lines(0)[-1]
        error = re.search(r"error (\S+)", last)
        assert error, f"the tutorial ends at {last!r}\n{run.explain()}"
        assert float(error[1]) < 1e-2, run.explain()


def test_the_table_of_memory_is_made_by_its_script():
    script = python(
        "-m", "mpi4py", str(ROOT / "bench" / "memory.py"), "--size", "1M", "--steps", "5"
    )
    run = mpirun(2, script, timeout_s=blocks.LIMIT_S)
    run.check()
    rows = [line.split("|")[1:-1] for line in run.lines(0) if line.startswith("|")]
    assert [len(row) for row in rows] == [6] * 8, run.explain()
