"""The helps of commands: which commands there are, and what each says for ``--help``."""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / "docs" / "commands.md"
DIRECTIVE = "command-help"  # of docs/conf.py
WIDTH = 80
LIMIT_S = 60


def commands() -> list[str]:
    """Return all commands of pypartial, groups included: ``pypartial bench skew``."""
    import typer.main

    from pypartial.cli.app import app

    return list(_commands("pypartial", typer.main.get_command(app)))


def _commands(name: str, command: Any) -> Iterator[str]:
    yield name
    for word, inner in getattr(command, "commands", {}).items():
        yield from _commands(f"{name} {word}", inner)


def named(page: str) -> list[str]:
    """Return the commands whose helps a page shows."""
    return re.findall(rf"^```+{{{DIRECTIVE}}} (.+?)\s*$", page, re.MULTILINE)


def help_of(command: str) -> str:
    """Return what a command prints for ``--help``, in lines of 80 characters.

    Raises
    ------
    RuntimeError
        If the command fails, or prints nothing.
    """
    name, *words = command.split()
    code, text = _of_pypartial(words) if name == "pypartial" else _of_script(name, words)
    if code != 0 or not text.strip():
        raise RuntimeError(f"{command} --help: exit code {code}\n{text}")
    return "\n".join(line.rstrip() for line in text.strip("\n").splitlines())


def _of_pypartial(words: list[str]) -> tuple[int, str]:
    """Ask in this process: a command that only explains itself starts no MPI."""
    from pypartial.cli.app import parse

    printed, before = io.StringIO(), os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = str(WIDTH)
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            code = parse([*words, "--help"], 1)
    finally:
        if before is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = before
    return code if isinstance(code, int) else 1, printed.getvalue()


def _of_script(name: str, words: list[str]) -> tuple[int, str]:
    """Ask a script of the repository; its Python is this one."""
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)])
    done = subprocess.run(
        [str(ROOT / name), *words, "--help"],
        env={**os.environ, "PATH": path, "COLUMNS": str(WIDTH)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_S,
    )
    return done.returncode, done.stdout
