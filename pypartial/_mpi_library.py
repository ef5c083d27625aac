"""Which MPI is which: names in version texts, files of libraries, compiler wrappers.

The build has to compile for the MPI that mpi4py will load, and the import has to see whether it
did. Both read this file: `setup.py` before anything is installed, so it needs the standard library
only and imports nothing of the package.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote

__all__ = ["Library", "identify", "install_command", "is_mpi_library", "mapped_files"]

DISTRIBUTION = "pypartial-mpi"  # `pypartial` on PyPI is another project

# In C: the MPI whose header this is, as a string. The module says it, and the build asks a compiler
# wrapper for it.
BUILT_FOR = r"""
#include <mpi.h>

#define PP_QUOTE_(x) #x
#define PP_QUOTE(x) PP_QUOTE_(x)

#if defined(I_MPI_VERSION)
#define PP_BUILT_FOR "Intel MPI " I_MPI_VERSION
#elif defined(CRAY_MPICH_VERSION)
#define PP_BUILT_FOR "Cray MPICH " PP_QUOTE(CRAY_MPICH_VERSION)
#elif defined(MVAPICH_VERSION)
#define PP_BUILT_FOR "MVAPICH " MVAPICH_VERSION
#elif defined(MVAPICH2_VERSION)
#define PP_BUILT_FOR "MVAPICH " MVAPICH2_VERSION
#elif defined(MPICH_VERSION)
#define PP_BUILT_FOR "MPICH " MPICH_VERSION
#elif defined(OPEN_MPI)
#define PP_BUILT_FOR "Open MPI " PP_QUOTE(OMPI_MAJOR_VERSION) "." PP_QUOTE(OMPI_MINOR_VERSION) "." \
    PP_QUOTE(OMPI_RELEASE_VERSION)
#else
#define PP_BUILT_FOR "unknown MPI " PP_QUOTE(MPI_VERSION) "." PP_QUOTE(MPI_SUBVERSION)
#endif
"""

# What a process prints that loads mpi4py's MPI, which is not initialised for it.
ASK = """
import json, sys
import mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
with open("/proc/self/maps", errors="replace") as maps:
    files = sorted({line.split(maxsplit=5)[5].strip() for line in maps if ".so" in line})
print()
json.dump([MPI.Get_library_version().strip(), files], sys.stdout)
"""


@dataclass(frozen=True)
class Library:
    """An MPI library: its version text, one line, and the files of it that a process has mapped."""

    version: str
    files: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.version} ({', '.join(self.files) or 'a file we could not find'})"


def identify(text: str) -> tuple[str, str]:
    """Return name and major.minor of an MPI from its version text, in lower case.

    Only the first line counts: the others may name a compiler, or another MPI that this one is
    made of.
    """
    names = ("open mpi", "cray mpich", "mvapich", "intel", "mpich")
    first = text.strip().partition("\n")[0].lower()
    name = next((name for name in names if name in first), first.split(" ")[0])
    number = re.search(r"(\d+)\.(\d+)", first)
    return name, ".".join(number.groups()) if number else ""


def is_mpi_library(path: str) -> bool:
    """Whether the file's name is that of an MPI library."""
    # Cray has a library for each compiler, such as libmpi_gnu_123.so.12.
    of_cray = r"_(cray|gnu|intel|nvidia|amd|aocc)(_\d+)?"
    return re.match(rf"libmpi(ch|_abi|{of_cray})?\.so", os.path.basename(path)) is not None


def mapped_files() -> set[str]:
    """Return the files mapped into this process; empty where there is no /proc."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
            lines = maps.read().splitlines()
    except OSError:
        return set()
    fields = (line.split(maxsplit=5) for line in lines)
    return {field[5] for field in fields if len(field) == 6 and field[5].startswith("/")}


def of_mpi4py() -> Library | None:
    """Return the MPI that mpi4py loads, in a process of its own; None if there is none.

    A build that pip isolates does not see the environment it builds for, but runs its interpreter:
    ``-I`` makes Python forget the isolation.
    """
    for options in ([], ["-I"]):
        asked = _output([sys.executable, *options, "-c", ASK]).splitlines()
        if asked and asked[-1].startswith("["):
            version, files = json.loads(asked[-1])
            return Library(version.splitlines()[0], tuple(filter(is_mpi_library, files)))
    return None


# ---- compiler wrappers --------------------------------------------------------------------------


def built_for(wrapper: Sequence[str]) -> str | None:
    """Return which MPI a compiler wrapper compiles for, or None if it compiles for none.

    Parameters
    ----------
    wrapper : sequence of str
        The command, such as ``["mpicc"]``.
    """
    with tempfile.TemporaryDirectory() as folder:
        probe = Path(folder, "probe.c")
        probe.write_text(f"{BUILT_FOR}PROBE PP_BUILT_FOR\n")
        asked = _output([*wrapper, "-E", str(probe)])
    line = re.search(r"^PROBE (.*)$", asked, re.MULTILINE)
    return "".join(re.findall(r'"([^"]*)"', line.group(1))) if line else None


def is_wrapper(compiler: Sequence[str]) -> bool:
    """Whether a compiler is an MPI's wrapper, by what it does, not by its name.

    A wrapper calls the compiler that a variable names. It must never be told to call itself: it
    would start itself until the machine has no processes left.
    """
    mark = "pypartial-looks-for-a-wrapper"
    variables = ("OMPI_CC", "MPICH_CC", "I_MPI_CC")
    return mark in _output([*compiler, "-c", f"{mark}.c"], dict.fromkeys(variables, "echo"))


def library_folders(wrapper: Sequence[str]) -> list[str]:
    """Return the folders in which a wrapper lets the linker look, in its order."""
    # With a file to link: Open MPI's shows no folders where there are only options.
    shown = _output([*wrapper, "-show", "pypartial-looks-for-folders.o"])
    try:
        words = shlex.split(shown)  # Intel MPI's quotes its folders
    except ValueError:  # what it shows is no command
        return []
    following = [*words[1:], ""]
    named = [
        word[2:] or after
        for word, after in zip(words, following, strict=True)
        if word.startswith("-L")
    ]
    return list(filter(None, named))


def wrapper_of(library: Library) -> str | None:
    """Return the file of the compiler wrapper that belongs to a library, if one can be found.

    It is looked for beside the library's folder, beside the interpreter, and on PATH under the
    names that distributions give it where they have several.
    """
    tried = set()
    for program in _wrappers_near(library):
        if program not in tried and identify(built_for([program]) or "") == identify(
            library.version
        ):
            return program
        tried.add(program)
    return None


def _wrappers_near(library: Library) -> Iterator[str]:
    names = ("mpicc", "mpicc.openmpi", "mpicc.mpich")
    folders = [os.path.dirname(sys.executable)]
    for file in library.files:
        for path in (Path(file), Path(os.path.realpath(file))):
            folders += [str(parent / "bin") for parent in list(path.parents)[1:4]]
    for where in (os.pathsep.join(folders), None):
        for name in names:
            found = shutil.which(name, path=where)
            if found is not None:
                yield found


def _output(command: Sequence[str], variables: dict[str, str] | None = None) -> str:
    """Return what a command prints on stdout; empty if it cannot be started."""
    environment = {**os.environ, **(variables or {})}
    try:
        done = subprocess.run(
            command, capture_output=True, stdin=subprocess.DEVNULL, text=True, env=environment
        )
    except OSError:
        return ""
    return done.stdout


# ---- what to type -------------------------------------------------------------------------------


def install_command(library: Library) -> str:
    """Return the one command that builds this package for another MPI and installs it."""
    wrapper = wrapper_of(library) or "/path/to/the/mpicc/of/that/MPI"
    return (
        f"PYPARTIAL_MPICC={shlex.quote(wrapper)} {shlex.quote(sys.executable)} -m pip install "
        f"--force-reinstall --no-deps --no-cache-dir {shlex.quote(_origin())}"
    )


def _origin() -> str:
    """Return where this package came from: the folder that can be built again."""
    checkout = Path(__file__).resolve().parent.parent
    if (checkout / "setup.py").exists():
        return str(checkout)
    try:
        text = metadata.distribution(DISTRIBUTION).read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        text = None
    url = json.loads(text)["url"] if text else ""
    if url.startswith("file://") and not url.endswith(".whl"):
        return unquote(url.removeprefix("file://"))
    return "/path/to/the/checkout"
