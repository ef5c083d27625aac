"""Where results come from: what stands in front of every JSON file of results."""

from __future__ import annotations

import datetime
import os
import platform
import sys
from collections.abc import Sequence
from typing import Any

# Of the files' form. Fields that are added leave it as it is; a change of what is there raises it.
FORMAT = 1

_typed: list[str] | None = None


def note_command(words: Sequence[str] | None) -> None:
    """Keep the words of the command that runs, without the program's name; None: the process's."""
    global _typed
    _typed = None if words is None else list(words)


def header() -> dict[str, Any]:
    """Return format, date, command and machine, in types that JSON knows; of this process."""
    now = datetime.datetime.now(datetime.timezone.utc)
    return {
        "format": FORMAT,
        "date": now.isoformat(timespec="seconds"),
        "command": ["pypartial", *(sys.argv[1:] if _typed is None else _typed)],
        "machine": machine(),
    }


def machine() -> dict[str, Any]:
    """Return cores, processor and software of this node; MPI's version only if it is loaded."""
    return {
        "cores": os.cpu_count() or 1,
        "cpu": _cpu(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "mpi": _mpi(),
    }


def _cpu(path: str = "/proc/cpuinfo") -> str:
    """Return the processor's name, or else what kind it is."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            for line in file:
                name, _, value = line.partition(":")
                if name.strip() in ("model name", "cpu model", "Processor"):
                    return " ".join(value.split())
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _mpi() -> str | None:
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is None:
        return None
    vendor, numbers = mpi.get_vendor()
    return f"{vendor} {'.'.join(map(str, numbers))}"
