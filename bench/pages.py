"""Tables in Markdown, and putting them into a page of the documentation, between two marks.

A table stands between ``<!-- table: NAME -->`` and ``<!-- end of table -->``. NAME is the script
that makes it, and, if that makes several, a word behind it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

OPENING = "<!-- table: "
BEGIN, END = OPENING + "{} -->", "<!-- end of table -->"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown.

    Raises
    ------
    ValueError
        If a row has not as many cells as the head.
    """
    lines = [head, ["-"] * len(head), *rows]
    for cells in lines:
        if len(cells) != len(head):
            raise ValueError(f"{len(cells)} cells under {len(head)} heads: {cells}")
    return "\n".join("| " + " | ".join(cell(text) for text in cells) + " |" for cells in lines)


def cell(text: str) -> str:
    """Return the text of a cell, which a bar or a line break would end."""
    return " ".join(text.split()).replace("|", "\\|")


def fragment(name: str, *parts: str) -> str:
    """Return what stands in a page, its marks included."""
    return "\n\n".join([BEGIN.format(name), *parts, END]) + "\n"


def put(page: Path, fragment: str) -> bool:
    """Put a fragment into the place of the one with the same mark; return whether there was one.

    Raises
    ------
    ValueError
        If the mark is there, but not its end.
    """
    mark = fragment.partition("\n")[0]
    text = page.read_text(encoding="utf-8")
    inside = f"(?:(?!{re.escape(OPENING)}).)*?"  # no other table
    old = re.compile(re.escape(mark) + inside + re.escape(END), re.DOTALL)
    new, places = old.subn(lambda _match: fragment.rstrip("\n"), text)
    if places < text.count(mark):
        raise ValueError(f"{page}: {mark} without {END}")
    page.write_text(new, encoding="utf-8")
    return places > 0
