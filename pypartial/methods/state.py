"""The state of an optimizer, as arrays that are averaged over the ranks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ..errors import ArgumentError, MismatchError
from .base import Vector
from .meeting import Meeting

__all__ = ["Shape", "average_state", "check_state", "shapes"]

Shape = tuple[tuple[int, ...], str]  # of an array: its lengths, and the name of its type


def check_state(arrays: Iterable[Any]) -> list[Vector]:
    """Return the arrays as a list; raise unless they can be averaged in place."""
    listed = list(arrays)
    for number, array in enumerate(listed):
        if not isinstance(array, np.ndarray):
            raise ArgumentError(f"state()[{number}] is not a NumPy array: {array!r}")
        if array.dtype.kind != "f" or array.dtype.itemsize > 8:
            raise ArgumentError(
                f"state()[{number}] has the type {array.dtype}; it must be float16, float32 or "
                "float64"
            )
        if not array.flags.writeable:
            raise ArgumentError(f"state()[{number}] is read-only")
    return listed


def shapes(arrays: Sequence[Vector]) -> list[Shape]:
    """Return shape and type of each array."""
    return [(array.shape, array.dtype.name) for array in arrays]


def average_state(
    meeting: Meeting,
    arrays: Sequence[Vector],
    by_rank: Sequence[Sequence[Shape]],
    weights: Sequence[int] | None = None,
) -> None:
    """Replace arrays by their means over the ranks that have any. Collective.

    A rank without arrays has made no update yet, so its optimizer has no state; it is left out.

    Parameters
    ----------
    meeting : Meeting
    arrays : sequence of numpy.ndarray
        This rank's.
    by_rank : sequence
        The `shapes` of all ranks.
    weights : sequence of int, optional
        How much each rank counts, as for `Meeting.average`. If those with arrays count nothing,
        they count the same.

    Raises
    ------
    MismatchError
        On all ranks, if two ranks have different arrays.
    """
    holders = [rank for rank, theirs in enumerate(by_rank) if theirs]
    if not holders:
        return
    first = by_rank[holders[0]]
    for rank in holders:
        _compare(holders[0], first, rank, by_rank[rank])
    shares = [0] * len(by_rank)
    for rank in holders:
        shares[rank] = 1 if weights is None else weights[rank]
    if not any(shares):
        shares = [int(rank in holders) for rank in range(len(by_rank))]
    for wide in (np.float32, np.float64):
        chosen = [number for number, shape in enumerate(first) if _wide(shape) is wide]
        if not chosen:
            continue
        if arrays:
            vector = np.concatenate([arrays[number].reshape(-1) for number in chosen], dtype=wide)
        else:
            vector = np.zeros(sum(_count(first[number]) for number in chosen), wide)
        meeting.average(vector, shares)
        start = 0
        for number in chosen if arrays else []:
            end = start + arrays[number].size
            # np.seterr(all="raise") must not leave the others in the next average.
            with np.errstate(all="ignore"):
                arrays[number][...] = vector[start:end].reshape(arrays[number].shape)
            start = end


def _compare(one: int, first: Sequence[Shape], rank: int, theirs: Sequence[Shape]) -> None:
    if len(first) != len(theirs):
        raise MismatchError(
            f"the optimizers' states differ: rank {one} has {len(first)} arrays, and rank {rank} "
            f"{len(theirs)}"
        )
    for number, (mine, other) in enumerate(zip(first, theirs, strict=True)):
        if mine != other:
            raise MismatchError(
                f"the optimizers' states differ: array {number} has shape {mine[0]} and type "
                f"{mine[1]} on rank {one}, and {other[0]} and {other[1]} on rank {rank}"
            )


def _wide(shape: Shape) -> type[np.float32] | type[np.float64]:
    """Return the type that an array is averaged in: MPI has no half precision."""
    return np.float64 if shape[1] == "float64" else np.float32


def _count(shape: Shape) -> int:
    return int(np.prod(shape[0], dtype=np.int64))
