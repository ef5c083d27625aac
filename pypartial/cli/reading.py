"""Functions that several commands use to read their options."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import typer

from .._sight import TRACE_VARIABLE
from ..units import parse_size

Value = TypeVar("Value")


def read(option: str, parse_text: Callable[[str], Value], text: str) -> Value:
    """Parse the text of an option; a `ValueError` becomes a usage error."""
    try:
        return parse_text(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=f"'{option}'") from None


def refuse(complaint: str | None) -> None:
    """Raise a usage error if there is something to complain about."""
    if complaint is not None:
        raise typer.BadParameter(complaint)


def listed(values: list[str] | None) -> list[str]:
    """Return the parts of the values of an option, which commas separate."""
    return [part.strip() for value in values or [] for part in value.split(",")]


def read_sizes(values: list[str] | None, default: Sequence[str]) -> tuple[int, ...]:
    """Return the bytes that --size names."""
    return tuple(read("--size", parse_size, text) for text in listed(values) or default)


def files_complaint(json: Path | None, plot: Path | None) -> str | None:
    """Return why results cannot be saved, before they are measured; None if they can."""
    for name, path in (("--json", json), ("--plot", plot)):
        if path is not None and not path.absolute().parent.is_dir():
            return f"{name} {path}: there is no folder {path.parent}"
        refusal = None if path is None else file_refusal(path)
        if refusal is not None:
            return f"{name} {path}: cannot be written: {refusal}"
    if plot is None:
        return None
    if json is not None and _same(json, plot):
        return "--json and --plot name the same file"
    if plot.suffix.lower() not in (".png", ".pdf", ".svg"):
        return f"--plot {plot}: the name must end in .png, .pdf or .svg"
    if importlib.util.find_spec("matplotlib") is None:
        return f"--plot {plot}: needs matplotlib (pip install matplotlib)"
    return None


def _same(one: Path, other: Path) -> bool:
    """Return whether two names are of one file, which may not exist yet."""
    if one.exists() and other.exists():
        return one.samefile(other)
    return os.path.realpath(one) == os.path.realpath(other)


def file_refusal(path: Path) -> str | None:
    """Return why a file cannot be written, None if it can; the test changes nothing."""
    target = os.path.realpath(path)  # a link may lead to a file that does not exist yet
    exists = os.path.exists(target)
    if exists and not os.path.isfile(target):
        return None  # opening a pipe, for example, could wait for its reader
    try:
        open(target, "ab").close()
        if not exists:
            os.unlink(target)
    except OSError as error:
        return error.strerror or str(error)
    return None


def trace_into(folder: str) -> None:
    """Have the contexts of all ranks traced; the command passes the variable on."""
    if any(Path(folder).glob("*.pptrace")):
        refuse(f"--trace: {folder} has a trace already: name another folder, or delete it")
    os.environ[TRACE_VARIABLE] = folder
