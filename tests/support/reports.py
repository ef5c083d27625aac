"""What a report of ranks that are waited for says of each."""

from __future__ import annotations

import re


def said_of_ranks(text: str) -> list[tuple[list[int], str]]:
    """Return the ranks that a report names together, and what it says of them."""
    parts = re.split(r"ranks? ([\d, -]+) \(", text)
    return [(_ranks(named), does) for named, does in zip(parts[1::2], parts[2::2], strict=True)]


def _ranks(named: str) -> list[int]:
    spans = [span.split("-") for span in named.split(", ")]
    return [rank for span in spans for rank in range(int(span[0]), int(span[-1]) + 1)]
