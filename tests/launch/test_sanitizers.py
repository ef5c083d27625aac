"""The short form of `tests/stress/sanitize`: the core under ASan, UBSan and TSan, in C alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SANITIZE = Path(__file__).resolve().parent.parent / "stress" / "sanitize"
LIMIT_S = 600  # a minute on two cores; a busy machine takes longer

pytestmark = pytest.mark.timeout(LIMIT_S + 60)


@pytest.mark.parametrize("tool", ["sim", "asan", "tsan"])
def test_clean(tool: str) -> None:
    run = subprocess.run(
        [sys.executable, str(SANITIZE), "--short", "--only", tool],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=LIMIT_S,
    )
    passed, _, failed, _ = run.stdout.splitlines()[-1].replace(",", "").split()
    assert (run.returncode, int(failed)) == (0, 0) and int(passed) > 0, run.stdout
