"""The short form of `tests/stress/sanitize`: the core under ASan, UBSan and TSan, in C alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.mpirun import program, python

SANITIZE = Path(__file__).resolve().parent.parent / "stress" / "sanitize"
LIMIT_S = 600  # a minute on two cores; a busy machine takes longer

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(LIMIT_S + 60)]


# Those that are built alike together: the core is compiled once for each.
@pytest.mark.parametrize("tools", [("sim", "asan"), ("tsan",)], ids="-".join)
def test_clean(tools: tuple[str, ...]) -> None:
    chosen = [word for tool in tools for word in ("--only", tool)]
    ran = program(python(str(SANITIZE), "--short", *chosen), timeout_s=LIMIT_S)
    ran.check_counts()
