"""Tests that take long: ci/test leaves them out by a variable, and nothing else does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SHORT = "PYPARTIAL_TEST_SHORT"
PROGRAM = """
import pytest

@pytest.mark.parametrize("n", [1, pytest.param(2, marks=pytest.mark.long)])
def test_some(n):
    pass

@pytest.mark.thorough
def test_more():
    pass

@pytest.mark.long
class TestAll:
    def test_one(self):
        pass
"""


@pytest.mark.parametrize(
    ("short", "left"),
    [
        ("quick", ["test_some[1]"]),
        ("1", ["test_more", "test_some[1]"]),
        ("", ["test_more", "test_one", "test_some[1]", "test_some[2]"]),
    ],
)
def test_what_is_left(short: str, left: list[str], tmp_path: Path) -> None:
    """By the rules of tests/conftest.py."""
    (tmp_path / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text())
    (tmp_path / "support").symlink_to(ROOT / "tests" / "support")
    (tmp_path / "test_it.py").write_text(PROGRAM)
    words = [
        "-c",
        str(ROOT / "pyproject.toml"),
        "--rootdir",
        str(tmp_path),
        "-p",
        "no:cacheprovider",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--collect-only", *words, str(tmp_path)],
        env={**os.environ, SHORT: short},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    found = [line.rpartition("::")[2] for line in done.stdout.splitlines() if "::" in line]
    assert sorted(found) == left, done.stdout + done.stderr
    assert (f"{4 - len(left)} deselected" in done.stdout) == bool(short)


def test_ci_test_sets_it() -> None:
    """Before it looks for --all and --long."""
    lines = (ROOT / "ci" / "test").read_text().splitlines()
    sets = [line.split()[:2] for line in lines if f"{SHORT}=" in line]
    assert sets[:3] == [
        ["export", f"{SHORT}=quick"],
        ["--all*)", f"{SHORT}=1"],
        ["--long*)", f"{SHORT}=''"],
    ]
