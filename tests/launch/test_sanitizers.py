"""The short form of `tests/stress/sanitize`: the core under ASan, UBSan and TSan, in C alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.mpirun import program, python

SANITIZE = Path(__file__).resolve().parent.parent / "stress" / "sanitize"
LIMIT_S = 600  # a minute on two cores; a busy machine takes longer

pytestmark = pytest.mark.timeout(LIMIT_S + 60)


@pytest.mark.parametrize("tool", ["sim", "asan", "tsan"])
def test_clean(tool: str) -> None:
    ran = program(python(str(SANITIZE), "--short", "--only", tool), timeout_s=LIMIT_S)
    ran.check_counts()
