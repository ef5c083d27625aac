"""Tables that the command line prints, read again."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from contextlib import redirect_stdout
from typing import Any


def columns_of(text: str) -> list[list[str]]:
    """Return the headings of each table in a text, whose lines must all have a cell for each."""
    found: list[list[str]] = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in re.split("[┃│]", line)[1:-1]]
        if line.startswith("┃"):
            found.append(cells)
        elif line.startswith("│"):
            assert len(cells) == len(found[-1]), line
    return found


def assert_fits(text: str, width: int = 80) -> None:
    """Check that no line is longer than the terminal, and that no cell is wrapped or cut."""
    assert max(map(len, text.splitlines())) <= width, text
    assert columns_of(text) and "…" not in text


def printed(print_report: Callable[[Any], None], report: Any) -> str:
    """Return what a function prints of a report."""
    stream = io.StringIO()
    with redirect_stdout(stream):
        print_report(report)
    return stream.getvalue()
