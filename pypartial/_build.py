"""What cffi compiles: the modules ``pypartial._core`` and ``pypartial._core_sim``.

Both are made of the same sources. Only the second can simulate ranks: it has the files of the
simulation, and in the others what simulated ranks need (the macro PP_SIM). `setup.py` runs this
file (``cffi_modules``); nothing imports it. The declarations are read from the public headers in
``csrc/include``, between their two CDEF marks, so the interface is written down once. Which
compiler is used, and which MPI, is decided in `setup.py`.
"""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import cffi

ROOT = Path(__file__).resolve().parent.parent
INCLUDE = ROOT / "csrc" / "include"
SIMULATION = re.compile(r"csrc/(sim/|transport/sim|reduce/fenced)")

FLAGS = ["-O3", "-std=gnu11", "-Wall", "-Wextra", "-fvisibility=hidden", "-pthread"]

# Which MPI this module was compiled for, and which library file serves it. The check at import
# (pypartial/_native.py) compares both with the MPI that mpi4py loaded.
IDENTITY_CDEF = """
const char *pp_built_for(void);
const char *pp_mpi_file(void);
"""

IDENTITY_SOURCE = (
    "#define _GNU_SOURCE 1\n#include <dlfcn.h>\n"
    + runpy.run_path(str(ROOT / "pypartial" / "_mpi_library.py"))["BUILT_FOR"]
    + r"""
static const char *pp_built_for(void)
{
    return PP_BUILT_FOR;
}

/* The file that provides MPI_Init in this process, as seen from this module. */
static const char *pp_mpi_file(void)
{
    int (*init)(int *, char ***) = MPI_Init;
    Dl_info info = {0};
    if (dladdr(*(void **)&init, &info) == 0 || info.dli_fname == NULL)
        return "";
    return info.dli_fname;
}
"""
)


def declarations(header: Path) -> str:
    """Return the text between the CDEF marks of a public header."""
    match = re.search(
        r"/\* CDEF BEGIN \*/(.*)/\* CDEF END \*/", header.read_text(encoding="utf-8"), re.DOTALL
    )
    if match is None:
        raise RuntimeError(f"{header}: no CDEF BEGIN and CDEF END marks")
    return match.group(1)


def version() -> str:
    """Return the package's version, as written in ``pypartial/__init__.py``."""
    text = (ROOT / "pypartial" / "__init__.py").read_text(encoding="utf-8")
    match = re.search(r'^__version__ = "([^"]+)"$', text, re.MULTILINE)
    if match is None:
        raise RuntimeError("pypartial/__init__.py does not set __version__")
    return match.group(1)


def files(pattern: str) -> list[str]:
    """Return the files under csrc that match, relative to the root (as setuptools wants them)."""
    return sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "csrc").rglob(pattern))


def module(name: str, headers: list[str], sources: list[str], simulates: bool) -> cffi.FFI:
    """Return what cffi compiles for one module."""
    ffi = cffi.FFI()
    ffi.cdef("".join(declarations(INCLUDE / header) for header in headers) + IDENTITY_CDEF)
    ffi.set_source(
        f"pypartial.{name}",
        "".join(f'#include "{header}"\n' for header in headers) + IDENTITY_SOURCE,
        sources=sources,
        depends=files("*.h"),
        include_dirs=["csrc/include"],
        define_macros=[("PP_VERSION", f'"{version()}"'), ("PP_SIM", str(int(simulates)))],
        extra_compile_args=FLAGS,
        extra_link_args=["-pthread"],
        libraries=["m", "dl"],
    )
    return ffi


SOURCES = files("*.c")
REAL = [source for source in SOURCES if not SIMULATION.match(source)]
HEADERS = [
    "pypartial.h",
    "pypartial_device.h",
    "pypartial_gossip.h",
    "pypartial_queues.h",
    "pypartial_sight.h",
]
ffi = module("_core", HEADERS, REAL, simulates=False)
sim_ffi = module("_core_sim", [*HEADERS, "pypartial_sim.h"], SOURCES, simulates=True)
