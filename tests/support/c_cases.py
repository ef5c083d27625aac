"""Programs of tests/unit/c: parts of the core with cases of their own, compiled without MPI."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

__all__ = ["CSRC", "SANITIZED", "compiled"]

ROOT = Path(__file__).resolve().parents[2]
CSRC = ROOT / "csrc"
CASES = ROOT / "tests" / "unit" / "c"
SANITIZED = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")


def compiled(folder: Path, name: str, parts: Iterable[str], *options: str) -> Path:
    """Return the program that is made of some cases and of the parts of the core that they need.

    Parameters
    ----------
    folder : Path
        Where it is made.
    name : str
        That of the file of cases, without its end, and of the program.
    parts : iterable of str
        Files, or patterns of files, in csrc.
    *options : str
        More options of the compiler.
    """
    compiler = shutil.which("gcc") or shutil.which("cc")
    assert compiler, "this test needs a C compiler"
    sources = [str(source) for part in parts for source in sorted(CSRC.glob(part))]
    command = [compiler, "-std=gnu11", "-g", "-O1", "-pthread", "-Wall", "-Wextra", "-Werror"]
    command += [f"-I{CSRC}", *sources, str(CASES / f"{name}.c"), *options]
    subprocess.run([*command, "-o", str(folder / name)], check=True)
    return folder / name
