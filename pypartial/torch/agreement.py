"""Errors that all ranks of a group raise together, after they have told each other."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import ArgumentError, MismatchError

__all__ = ["agree", "same"]


def agree(complaints: Sequence[str | None], rank: int) -> None:
    """Raise if a rank complains about its arguments.

    Parameters
    ----------
    complaints : sequence of str or None
        By rank.
    rank : int
        This rank.

    Raises
    ------
    ArgumentError
        If this rank's arguments are wrong.
    MismatchError
        If another rank's are.
    """
    own = complaints[rank]
    if own is not None:
        raise ArgumentError(own)
    for other, theirs in enumerate(complaints):
        if theirs is not None:
            raise MismatchError(f"rank {other}: {theirs}")


def same(what: str, texts: Sequence[str]) -> None:
    """Raise `MismatchError` unless all ranks have rank 0's text."""
    for rank, theirs in enumerate(texts):
        if theirs != texts[0]:
            raise MismatchError(f"{what} differ: rank 0 has {texts[0]}, and rank {rank} {theirs}")
