"""Building a copy of the source tree: nothing is left in the tree, and nothing stale is used."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("csrc", "pypartial", "_pypartial_torch.py", "ci", "pyproject.toml", "setup.py")
SOURCES += ("README.md", "LICENSE")
BUILT = ("_core*.so", "_core*.c", "__pycache__")
# The defects of a build with PLANTED, by the names that PYPARTIAL_PLANT takes.
PLANTS = ("no-event-wait", "early-link", "early-unpin", "no-result-wait")
PLANTED = "-O0 -fno-lto -DPP_PLANTS=1"


def copy_worktree(folder: Path) -> None:
    """Copy the files that git tracks, or would if they were added."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)


def build(python: str, folder: Path, flags: str = "") -> None:
    """Build the package in a folder, which is to be on PYTHONPATH then.

    Parameters
    ----------
    python : str
        The Python to build with and for.
    folder : Path
        What is in it is removed.
    flags : str
        Of the compiler; empty: those of the environment.

    Raises
    ------
    RuntimeError
        If it fails; the text has the end of the output.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name in SOURCES:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns(*BUILT))
        else:
            shutil.copy(source, folder / name)
    changes = {"CFLAGS": flags} if flags else {}
    done = subprocess.run(
        [python, "setup.py", "-q", "build_ext", "--inplace"],
        cwd=folder,
        env={**os.environ, **changes},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(f"it cannot be built:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
