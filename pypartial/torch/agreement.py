"""Errors that all ranks of a group raise together, after they have told each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from .._arguments import as_argument_error
from .._native import CORE_ERRORS
from ..errors import ArgumentError, MismatchError

__all__ = ["agree", "allocated", "lack_of_memory", "same"]

Memory = TypeVar("Memory")


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


def allocated(gather: Callable[[Any], list[Any]], make: Callable[[], Memory]) -> Memory:
    """Return memory that every rank makes; raise on all ranks if one has none. Collective.

    Parameters
    ----------
    gather : callable
        Returns the values of all ranks, by rank, such as `Meeting.gather`.
    make : callable
        Returns this rank's memory. It is local.

    Raises
    ------
    MemoryError
        If this rank has none, whatever torch raises then.
    MismatchError
        If another rank has none.
    """
    memory, problem = None, None
    try:
        memory = make()
    except Exception as error:  # the other ranks must learn of it
        problem = lack_of_memory(error)
    told = gather(problem and f"{type(problem).__name__}: {problem}")
    if problem is not None:
        raise problem
    for rank, theirs in enumerate(told):
        if theirs is not None:
            raise MismatchError(f"rank {rank}: {theirs}")
    assert memory is not None
    return memory


def lack_of_memory(error: Exception) -> Exception:
    """Return what is raised for an error of an allocation: torch has several of its own."""
    if isinstance(error, CORE_ERRORS):
        return error
    if isinstance(error, RuntimeError):
        lack = MemoryError(str(error))
        lack.__cause__ = error
        return lack
    return as_argument_error(error)
