"""Programs and environments that a table needs beside what is installed, in build/bench."""

from __future__ import annotations

import hashlib
import os
import runpy
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from _common import WORK, NotHere, say
from commands import ROOT, Problem, tail

# What of the checkout is not copied to be built elsewhere.
BUILT = (".*", "build", "dist", "venv", "*.so", "*.o", "*.egg-info", "_core*.c", "__pycache__")
# What pypartial itself needs where it is built and run; the MPI comes on top.
NEEDS = ("cffi", "mpi4py", "numpy", "rich", "setuptools", "typer")


def compile_c(name: str) -> Path:
    """Compile a program of bench/c with the sources of the library; return its path.

    It is compiled once for each MPI, compiler, set of flags and state of the sources.
    """
    mpicc = shutil.which("mpicc", path=os.path.dirname(sys.executable)) or shutil.which("mpicc")
    if mpicc is None:
        raise NotHere("there is no mpicc")
    build = runpy.run_path(str(ROOT / "pypartial" / "_build.py"))
    sources = [ROOT / "bench" / "c" / f"{name}.c", *(ROOT / source for source in build["REAL"])]
    words = [mpicc, *build["FLAGS"], "-flto=auto", "-DPP_SIM=0"]
    words += [f'-DPP_VERSION="{build["version"]()}"', f"-I{ROOT / 'csrc' / 'include'}"]
    words += map(str, sources)
    program = WORK / f"{name}-{digest(mpicc, words)}"
    if program.exists():
        return program
    WORK.mkdir(parents=True, exist_ok=True)
    say(f"compiling {name}")
    unfinished = program.with_suffix(".new")
    output_of([*words, "-o", str(unfinished), "-lm", "-ldl"])
    unfinished.replace(program)
    return program


def digest(mpicc: str, words: list[str]) -> str:
    """Return what tells a program from all others: what the compiler is told, and what it reads.

    The MPI is in both: the wrapper shows its folders and libraries, and the macros of its header
    have its version.
    """
    parts = [*words, output_of([mpicc, "-show"]), output_of([*words, "-E", "-dD"])]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def output_of(words: list[str]) -> str:
    """Run a compiler; return what it prints.

    Raises
    ------
    Problem
        If it fails.
    """
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Problem(f"{shlex.join(words)}\nexit code {done.returncode}\n{tail(done.stderr)}")
    return done.stdout


def environment(name: str, packages: Sequence[str], options: Sequence[str] = ()) -> Path:
    """Make a virtual environment with some packages, once; return its folder.

    Raises
    ------
    NotHere
        If the packages cannot be had.
    """
    folder = WORK / name
    done = folder / "installed"
    wanted = " ".join([*packages, *options])
    if done.exists() and done.read_text(encoding="utf-8") == wanted:
        return folder
    say(f"installing {', '.join(packages)}")
    shutil.rmtree(folder, ignore_errors=True)
    for words in (
        [sys.executable, "-m", "venv", str(folder)],
        [str(folder / "bin" / "pip"), "install", "--quiet", *options, *packages],
    ):
        made = subprocess.run(words, capture_output=True, text=True, check=False)
        if made.returncode != 0:
            raise NotHere(f"{', '.join(packages)} cannot be installed:\n{tail(made.stderr)}")
    done.write_text(wanted, encoding="utf-8")
    return folder


def build_for(environment: Path, variables: dict[str, str]) -> Path:
    """Compile pypartial as it stands for an environment's MPI; return the folder to import."""
    say(f"building pypartial for {environment.name}")
    folder = environment / "source"
    ignored = shutil.ignore_patterns(*BUILT)
    for part in ("csrc", "pypartial"):  # a source that is no more must not be compiled
        shutil.rmtree(folder / part, ignore_errors=True)
    shutil.copytree(ROOT, folder, ignore=ignored, dirs_exist_ok=True)
    made = subprocess.run(
        [str(environment / "bin" / "python"), "setup.py", "-q", "build_ext", "--inplace"],
        cwd=folder,
        env={**without_builds(), **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode != 0:
        raise Problem(f"pypartial cannot be built for {environment.name}:\n{tail(made.stderr)}")
    return folder


def without_builds() -> dict[str, str]:
    """Return this process's variables without those that choose another MPI or compiler."""
    chosen = ("PYTHONPATH", "MPICC", "PYPARTIAL_MPICC", "CC", "OMPI_CC", "MPICH_CC")
    return {name: value for name, value in os.environ.items() if name not in chosen}
