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

# Compiles for another MPI if FOLDER has an mpi.h, and notes which sources and links.
WRAPPER = """\
#!/bin/sh
case "$*" in
*" csrc/"* | *-shared*) echo "$*" >>FOLDER/log ;;
esac
exec REAL -IFOLDER "$@"
"""
# Notes how sources would be compiled.
REFUSING = """\
#!/bin/sh
case "$*" in
*" csrc/"*) echo "$*" >>LOG; exit 1 ;;
*) exec REAL "$@" ;;
esac
"""
# Somebody saves files while the compiler, which has read the old ones, still runs: once.
SAVING = """\
#!/bin/sh
MPICC "$@" || exit
case "$*" in
*" csrc/base/random.c "*) [ ! -e SAVED/random.c ] || mv SAVED/random.c csrc/base ;;
*" csrc/base/text.c "*) [ ! -e SAVED/mark.h ] || mv SAVED/mark.h csrc/base ;;
esac
"""
QUICKLY = "-O0"
ANOTHER = '#include_next <mpi.h>\n#undef I_MPI_VERSION\n#define I_MPI_VERSION "99.9.9"\n'
SAY = """
import mpi4py
mpi4py.rc.initialize = False
from pypartial import _native
print(_native.load().built_for, _native.__file__)
"""

MARK = """
#ifndef PP_MARK
#define PP_MARK
__attribute__((used)) static const char mark[] = "WORD";
#endif
"""

pytestmark = pytest.mark.timeout(LIMIT_S + 60)


def build(folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Build the modules below a folder."""
    places = ["--build-lib", str(folder / "lib"), "--build-temp", str(folder / "temp")]
    return subprocess.run(
        [sys.executable, "setup.py", "--quiet", "build_ext", *places],
        cwd=ROOT,
        env={**os.environ, "CFLAGS": QUICKLY, **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        preexec_fn=end_with_parent,
    )


def real_wrapper() -> str:
    found = shutil.which("mpicc", path=os.path.dirname(sys.executable)) or shutil.which("mpicc")
    assert found is not None
    return found


def wrapper(folder: Path, header: str = "") -> Path:
    """Make a wrapper around this environment's, perhaps with another mpi.h."""
    folder.mkdir()
    if header:
        (folder / "mpi.h").write_text(header)
    (folder / "log").touch()
    program = folder / "mpicc"
    program.write_text(WRAPPER.replace("REAL", real_wrapper()).replace("FOLDER", str(folder)))
    program.chmod(0o755)
    return program


def checkout(folder: Path) -> Path:
    """Copy what the build needs, and nothing that was built."""
    built = shutil.ignore_patterns("_core*.so", "__pycache__")
    for name in ("csrc", "pypartial"):
        shutil.copytree(ROOT / name, folder / name, ignore=built)
    for name in ("setup.py", "_pypartial_torch.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / name)
    return folder


def python(tree: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a checkout, whose package it finds."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=tree,
        env={**os.environ, "CFLAGS": QUICKLY, "PYTHONPATH": str(tree), **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        preexec_fn=end_with_parent,
    )


def build_in_place(tree: Path, mpicc: Path) -> list[str]:
    """Build a checkout in place; return what was compiled and linked."""
    log = mpicc.parent / "log"
    log.write_text("")
    run = python(tree, "setup.py", "--quiet", "build_ext", "--inplace", PYPARTIAL_MPICC=str(mpicc))
    assert run.returncode == 0, run.stderr
    return log.read_text().splitlines()


def modules_with(tree: Path, text: str) -> int:
    """Return in how many of the two modules a text is."""
    modules = list((tree / "pypartial").glob("_core*.so"))
    assert len(modules) == 2
    return sum(text.encode() in module.read_bytes() for module in modules)


@pytest.mark.long
def test_a_tree_is_built_again_for_another_mpi(tmp_path):
    tree = checkout(tmp_path / "tree")
    ours, other = wrapper(tmp_path / "ours"), wrapper(tmp_path / "other", ANOTHER)
    assert build_in_place(tree, other)
    refused = python(tree, "-c", SAY)
    assert refused.returncode != 0
    assert "pypartial was built for: Intel MPI 99.9.9" in refused.stderr

    assert build_in_place(tree, ours)
    loaded = python(tree, "-c", SAY)
    assert loaded.returncode == 0, loaded.stderr
    assert str(tree) in loaded.stdout
    assert modules_with(tree, "Intel MPI 99.9.9") == 0

    # What was made first is older than what is in the tree, and comes back all the same.
    assert build_in_place(tree, other) == []
    assert modules_with(tree, "Intel MPI 99.9.9") == 2


@pytest.mark.long
def test_content_counts_and_age_does_not(tmp_path):
    """``git stash``, ``cp -p`` and an unpacked sdist leave files that are older than objects."""
    tree = checkout(tmp_path / "tree")
    mpicc = wrapper(tmp_path / "ours")
    build_in_place(tree, mpicc)
    source = tree / "csrc" / "base" / "random.c"
    header = tree / "csrc" / "reduce" / "half_convert.h"  # few files include it
    for file in (tree / "csrc").rglob("*.*"):
        file.touch()
    assert build_in_place(tree, mpicc) == []

    for file in (source, header):
        mark = f"mark-of-{file.name}"
        before = file.read_text()
        file.write_text(before + MARK.replace("WORD", mark))
        os.utime(file, (1e9, 1e9))
        made = build_in_place(tree, mpicc)
        linked = [line for line in made if "-shared" in line]
        assert len(linked) == 2  # the two modules
        assert file is header or len(made) == 3  # the source serves both, and is compiled once
        assert modules_with(tree, mark) == 2
        file.write_text(before)
        os.utime(file, (1e9 - 1, 1e9 - 1))
        build_in_place(tree, mpicc)
        assert modules_with(tree, mark) == 0


@pytest.mark.long
def test_what_is_saved_while_it_is_first_compiled_is_compiled_again(tmp_path):
    tree = checkout(tmp_path / "tree")
    mpicc = wrapper(tmp_path / "ours")
    base, saved = tree / "csrc" / "base", tmp_path / "saved"
    saved.mkdir()
    (saved / "random.c").write_text((base / "random.c").read_text() + MARK.replace("WORD", "new-c"))
    (saved / "mark.h").write_text(MARK.replace("WORD", "new-h"))
    (base / "mark.h").touch()
    with (base / "text.c").open("a") as source:
        source.write('#include "mark.h"\n')
    saving = mpicc.with_name("saving")
    saving.write_text(SAVING.replace("MPICC", str(mpicc)).replace("SAVED", str(saved)))
    saving.chmod(0o755)

    build_in_place(tree, saving)
    assert list(saved.iterdir()) == []
    assert modules_with(tree, "new-c") == 0
    assert modules_with(tree, "new-h") < 2  # the module that is built second may have it
    build_in_place(tree, saving)
    assert modules_with(tree, "new-c") == 2
    assert modules_with(tree, "new-h") == 2
    assert build_in_place(tree, saving) == []


@pytest.mark.parametrize(
    ("flags", "used"), [("-O0 -g", "-O0"), ("-g -Og", "-Og"), ("-g -fno-lto", "-O3")]
)
def test_the_optimisation_of_cflags_counts(tmp_path, flags, used):
    log = tmp_path / "log"
    mpicc = tmp_path / "mpicc"
    mpicc.write_text(REFUSING.replace("REAL", real_wrapper()).replace("LOG", str(log)))
    mpicc.chmod(0o755)
    assert build(tmp_path, MPICC=str(mpicc), CFLAGS=flags).returncode != 0
    for line in log.read_text().splitlines():
        words = line.split()
        assert [word for word in words if word.startswith("-O")][-1] == used
        assert ("-O3" in words[words.index("-c") :]) == (used == "-O3")


def test_a_wrapper_as_compiler_does_not_call_itself(tmp_path):
    """``CC=mpicc pip install .`` is a common idiom; it was a fork bomb."""
    real = real_wrapper()
    guarded, compiled = tmp_path / "mpicc", tmp_path / "compiled"
    guarded.write_text(GUARD.replace("REAL", real).replace("COMPILED", str(compiled)))
    guarded.chmod(0o755)
    run = build(tmp_path, MPICC=str(guarded), CC=str(guarded))
    assert "calls itself" not in run.stderr
    assert compiled.exists(), run.stderr
