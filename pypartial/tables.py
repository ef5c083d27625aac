"""Tables on standard output, with as many columns as the terminal has room for."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ._launch import terminal_width

if TYPE_CHECKING:  # ranks that print nothing do not load it
    from rich.console import Console
    from rich.table import Table

_ENDLESS = 1 << 16
_LEAST = 80


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes
    ----------
    heading : str
    spare : int
        Where there is no room, columns with the highest number are left out first; never with 0.
    numbers : bool
        Whether it holds numbers.
    """

    heading: str
    spare: int = 0
    numbers: bool = True


def print_table(
    title: str,
    columns: Sequence[Column],
    sections: Iterable[Sequence[Sequence[str]]],
    notes: Sequence[str] = (),
) -> None:
    """Print a table and notes; no cell is wrapped, or cut.

    A line below the table names the columns that the terminal has no room for.

    Parameters
    ----------
    title : str
    columns : sequence of Column
    sections : iterable of sequence of sequence of str
        The cells of the rows, in groups with a line between them.
    notes : sequence of str
        Notes that explain the table.
    """
    rows = [list(section) for section in sections]
    limit, most = terminal_width(), max(column.spare for column in columns)
    table = _table(columns, rows, most)
    everything = width = _width(table)
    while limit is not None and width > limit and most > 0:
        most -= 1
        table = _table(columns, rows, most)
        width = _width(table)
    lines = limit or max(width, _LEAST)
    print(textwrap.fill(title, lines))
    _console(width).print(table)
    missing = ", ".join(dict.fromkeys(one.heading for one in columns if one.spare > most))
    hint = f"No room for {missing}: COLUMNS={everything} shows them, --json FILE saves them."
    for note in (*([hint] if missing else []), *notes):
        print(textwrap.fill(note, lines, break_on_hyphens=False))


def _table(columns: Sequence[Column], rows: Sequence[Sequence[Sequence[str]]], most: int) -> Table:
    """Return a table of the columns that are spare by no more than `most`."""
    from rich.table import Table

    table = Table()
    shown = [column.spare <= most for column in columns]
    for column in itertools.compress(columns, shown):
        table.add_column(
            column.heading, justify="right" if column.numbers else "left", no_wrap=True
        )
    for section in rows:
        for cells in section:
            table.add_row(*itertools.compress(cells, shown))
        table.add_section()
    return table


def _width(table: Table) -> int:
    return _console(_ENDLESS).measure(table).maximum


def _console(width: int) -> Console:
    from rich.console import Console

    # Plain text: a launcher may give a rank a terminal although the output goes to a file.
    return Console(color_system=None, highlight=False, force_terminal=False, width=width)
