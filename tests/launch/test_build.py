"""Building the package in ways that people build packages."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.mpirun import end_with_parent

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 300
# A wrapper that calls itself ends soon instead of taking all processes of the machine. The first
# file that is compiled is enough: then the build may end.
GUARD = """\
#!/bin/sh
PP_DEPTH=$((${PP_DEPTH:-0} + 1))
export PP_DEPTH
[ $PP_DEPTH -le 3 ] || { echo "mpicc calls itself" >&2; exit 1; }
case "$*" in
*" csrc/"*) [ $PP_DEPTH -eq 1 ] && REAL "$@" && touch COMPILED; exit 1 ;;
*) exec REAL "$@" ;;
esac
"""

pytestmark = pytest.mark.timeout(LIMIT_S + 60)


def build(folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Build the modules below a folder, quickly."""
    places = ["--build-lib", str(folder / "lib"), "--build-temp", str(folder / "temp")]
    return subprocess.run(
        [sys.executable, "setup.py", "--quiet", "build_ext", *places],
        cwd=ROOT,
        env={**os.environ, "CFLAGS": "-fno-lto", **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        preexec_fn=end_with_parent,
    )


def test_a_wrapper_as_compiler_does_not_call_itself(tmp_path):
    """``CC=mpicc pip install .`` is a common idiom; it was a fork bomb."""
    real = shutil.which("mpicc", path=os.path.dirname(sys.executable)) or shutil.which("mpicc")
    assert real is not None
    guarded, compiled = tmp_path / "mpicc", tmp_path / "compiled"
    guarded.write_text(GUARD.replace("REAL", real).replace("COMPILED", str(compiled)))
    guarded.chmod(0o755)
    run = build(tmp_path, MPICC=str(guarded), CC=str(guarded))
    assert "calls itself" not in run.stderr
    assert compiled.exists(), run.stderr
