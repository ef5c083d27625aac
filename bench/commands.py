"""Launching what is measured: commands of pypartial, and programs that save such a JSON file."""

from __future__ import annotations

import json
import shlex
import sys
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from support.mpirun import end_survivors, launch, make_environment, run, scratch  # noqa: E402

LIMIT_S = 900.0  # for one launch
TAIL_LINES = 15
# No figure depends on what was measured here before, and a message is on one line.
VARIABLES = {"PYPARTIAL_TUNING": "off", "PYTHONDONTWRITEBYTECODE": "1", "COLUMNS": "200"}


class Problem(Exception):
    """A launch failed; the text says how."""


def command(*words: str, python: str = sys.executable) -> list[str]:
    """Return the command line of a command of pypartial that lacks only the file's name."""
    return [python, "-m", "pypartial", *words, "--json"]


def launched(
    ranks: int,
    words: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    launcher: Sequence[str] | None = None,
    limit_s: float = LIMIT_S,
) -> dict[str, Any]:
    """Launch a program in a folder of its own; return what it saves as JSON.

    Parameters
    ----------
    ranks : int
        One needs no launcher.
    words : sequence of str
        Its command line, without the last argument: the name of the file.
    env : mapping, optional
        Variables to set (an empty value: to remove).
    launcher : sequence of str, optional
        Another one than the mpirun of this environment.
    limit_s : float
        After this time it is ended.

    Raises
    ------
    Problem
        If it fails, or takes longer; the text has the end of its output.
    """
    full = [*start(ranks, launcher), *words]
    mark = uuid.uuid4().hex
    with scratch() as (folder, segments):
        file = folder / "results.json"
        environment = make_environment({**VARIABLES, **(env or {})}, mark, folder, segments)
        try:
            code, output = run([*full, str(file)], environment, folder, limit_s)
        finally:
            end_survivors(mark)
        if code != 0:
            raise Problem(f"{shlex.join(full)}\nexit code {code}\n{tail(output)}")
        results: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return results


def start(ranks: int, launcher: Sequence[str] | None = None) -> list[str]:
    """Return the beginning of a command line; one rank needs no launcher."""
    if launcher is not None:
        return [*launcher, "-n", str(ranks)]
    return launch(ranks) if ranks > 1 else []


def tail(output: str) -> str:
    return "\n".join(output.splitlines()[-TAIL_LINES:])
