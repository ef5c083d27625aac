"""The stand-in for the CUDA driver, `fakecuda.c`, and kernels for it: how they are compiled.

A process uses it if PYPARTIAL_CUDA_DRIVER names its file. `fakecuda.h` says what a test can ask of
it, in Python by `ctypes.CDLL` of the same file, and which other variables it reads.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

SUPPORT = Path(__file__).resolve().parent
CSRC = SUPPORT.parents[1] / "csrc"
KERNELS = SUPPORT.parents[1] / "pypartial" / "_device_kernels.cu"
STAND_IN, KERNELS_ON_HOST = "fakecuda.so", "kernels_on_host.so"


def compiler() -> list[str]:
    """Return the command of the C compiler."""
    words = (os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or "").split()
    assert words, "a C compiler is needed"
    return words


def build(folder: Path, *, without: str | None = None, sanitizers: str = "") -> Path:
    """Compile the stand-in and return its file.

    Parameters
    ----------
    folder : Path
        Where the file is to be.
    without : str, optional
        The symbol of a function that it does not have, as an older driver.
    sanitizers : str, optional
        Those that the program has which is to load it.
    """
    library = folder / (f"fakecuda-without-{without}.so" if without else STAND_IN)
    more = [f"-D{without}={without}_is_missing"] if without else []
    more += [f"-fsanitize={sanitizers}", "-fno-sanitize-recover=all"] if sanitizers else []
    subprocess.run(
        [
            *(*compiler(), "-std=gnu11", "-g", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread"),
            # It calls its own functions, also where a program has another stand-in as well.
            *("-shared", "-fPIC", "-Wl,-Bsymbolic", *more, f"-I{CSRC}"),
            *(str(SUPPORT / "fakecuda.c"), "-ldl", "-o", str(library)),
        ],
        check=True,
    )
    return library


def environment(devices: int = 1) -> dict[str, str]:
    """Return what names the stand-in, and kernels if there is a C++ compiler.

    Both are compiled at the first call, and kept until the process ends.
    """
    folder = Path(_compiled().name)
    found = {"PYPARTIAL_CUDA_DRIVER": str(folder / STAND_IN), "FAKECUDA_DEVICES": str(devices)}
    if cpp_compiler():
        found["PYPARTIAL_CUDA_KERNELS"] = str(folder / KERNELS_ON_HOST)
    return found


@functools.cache
def _compiled() -> tempfile.TemporaryDirectory[str]:
    folder = tempfile.TemporaryDirectory(prefix="pp-driver-")
    build(Path(folder.name))
    if cpp_compiler():
        build_kernels(Path(folder.name))
    return folder


def cpp_compiler() -> list[str] | None:
    """Return the command of the C++ compiler; None if there is none."""
    words = (os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++") or "").split()
    return words or None


def build_kernels(folder: Path, *, source: Path = KERNELS, sanitizers: str = "") -> Path:
    """Compile the kernels of devices for the host: the stand-in takes the file for their image.

    Parameters
    ----------
    folder : Path
        Where the file is to be.
    source : Path
        Their source, named `_device_kernels.cu`.
    sanitizers : str, optional
        Those that the program has which is to load it.
    """
    compiler = cpp_compiler()
    assert compiler, "a C++ compiler is needed"
    library = folder / KERNELS_ON_HOST
    more = [f"-fsanitize={sanitizers}", "-fno-sanitize-recover=all"] if sanitizers else []
    subprocess.run(
        [
            *(*compiler, "-std=c++17", "-g", "-O1", "-Wall", "-Wextra", "-Werror"),
            *("-Wno-unknown-pragmas", "-ffp-contract=off", "-shared", "-fPIC", "-Wl,-Bsymbolic"),
            *(*more, f"-I{source.parent}"),
            *(str(SUPPORT / "kernels_on_host.cpp"), "-o", str(library)),
        ],
        check=True,
    )
    return library
