"""A source tree that is not compiled, with an installed package beside it.

After ``pip install .`` Python finds the package of the tree first, for every program in the tree.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import pypartial

PACKAGE = Path(pypartial.__file__).resolve().parent
PROGRAM = """
import sys
from mpi4py import MPI
import pypartial as pp
with pp.Context(MPI.COMM_WORLD) as ctx:
    print(ctx.size, pp.__file__)
"""
COMMAND = "from pypartial.cli import main\nmain()\n"  # as pip makes of an entry point
# An editable install, as of these tests, would find the compiled modules from everywhere.
CUSTOMIZE = """
import sys
sys.meta_path[:] = [f for f in sys.meta_path if "editable" not in getattr(f, "__module__", "")]
"""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """Return a source tree, the place of an installed package, and another folder."""
    top = tmp_path_factory.mktemp("source tree")
    tree, site, other = top / "tree", top / "site", top / "other"
    for folder, ignored in ((tree, ["*.so", "__pycache__"]), (site, ["__pycache__"])):
        shutil.copytree(PACKAGE, folder / "pypartial", ignore=shutil.ignore_patterns(*ignored))
    other.mkdir()
    (site / "sitecustomize.py").write_text(CUSTOMIZE)
    for folder in (tree, other):
        (folder / "program.py").write_text(PROGRAM)
    (other / "command.py").write_text(COMMAND)
    return tree, site, other


def run(folders: tuple[Path, Path, Path], *words: str) -> subprocess.CompletedProcess[str]:
    """Run Python in the source tree."""
    tree, site, _ = folders
    return subprocess.run(
        [sys.executable, *words],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(site), "COLUMNS": "1000"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize(
    "words",
    ["program.py", "-m mpi4py program.py", "-m pypartial info", "-m pypartial sim schedule ring"],
)
def test_in_the_tree_the_text_says_where_one_is_and_where_to_go(folders, words):
    ran = run(folders, *words.split())
    assert ran.returncode == 1
    assert f"you are inside the source tree of pypartial, {folders[0]}," in ran.stderr
    assert "Save yours in another folder" in ran.stderr
    assert f"pip install --no-build-isolation -e '{folders[0]}'" in ran.stderr
    assert "cannot import name" not in ran.stderr


def test_a_program_elsewhere_finds_the_installed_package(folders):
    _, site, other = folders
    ran = run(folders, str(other / "program.py"))
    assert (ran.returncode, ran.stdout.split(maxsplit=1)[1].strip()) == (
        0,
        str(site / "pypartial" / "__init__.py"),
    ), ran.stderr


def test_info_says_that_programs_in_this_folder_will_fail(folders):
    tree, _, other = folders
    ran = run(folders, str(other / "command.py"), "info")
    assert ran.returncode == 0, ran.stderr
    assert "Programs in this folder" in ran.stdout
    assert f"you are inside the source tree of pypartial, {tree}," in ran.stdout
