"""The programs of README.md and docs/*.md run as they stand there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support import blocks
from support.pytorch import need_torch

ROOT = Path(__file__).resolve().parent.parent.parent

pytestmark = pytest.mark.timeout(blocks.LIMIT_S + 60)


@pytest.mark.parametrize("program", blocks.all_programs(ROOT), ids=lambda program: program.name)
def test_a_program_of_the_docs(program, tmp_path):
    if program.needs_torch:
        need_torch()
    run = blocks.run(program, tmp_path)
    run.check()
    if program.name == "docs/tutorial.md":
        last = run.lines(0)[-1]
        error = re.search(r"error (\S+)", last)
        assert error, f"the tutorial ends at {last!r}\n{run.explain()}"
        assert float(error[1]) < 1e-2, run.explain()
