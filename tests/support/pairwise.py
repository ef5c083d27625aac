"""Combinations of arguments, of which the short run needs those that meet every pair of values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations, product
from typing import Any

import pytest

Pair = tuple[tuple[int, int], tuple[int, int]]


def pairwise(**axes: Sequence[Any] | Mapping[str, Any]) -> pytest.MarkDecorator:
    """Parametrize a test by all combinations of some values; most of them are marked as long.

    The others meet every pair of values of two arguments: few defects need more than two.

    Parameters
    ----------
    **axes : sequence or mapping
        The values of each argument. A mapping has them by the words by which the test is named.
    """
    named = [_named(values) for values in axes.values()]
    needed = set(covering([len(values) for values in named]))
    cases = []
    for chosen in product(*(range(len(values)) for values in named)):
        words, values = zip(*(axis[i] for axis, i in zip(named, chosen, strict=True)), strict=True)
        marks = [] if chosen in needed else [pytest.mark.long]
        cases.append(pytest.param(*values, id="-".join(words), marks=marks))
    return pytest.mark.parametrize(tuple(axes), cases)


def _named(values: Sequence[Any] | Mapping[str, Any]) -> list[tuple[str, Any]]:
    if isinstance(values, Mapping):
        return list(values.items())
    return [(str(value), value) for value in values]


def covering(sizes: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yield combinations of numbers below `sizes` that have every pair: the most useful first."""
    every = list(product(*map(range, sizes)))
    missing = {pair for one in every for pair in _pairs(one)}
    while missing:
        best = max(every, key=lambda one: sum(pair in missing for pair in _pairs(one)))
        missing.difference_update(_pairs(best))
        yield best


def _pairs(one: Iterable[int]) -> list[Pair]:
    return list(combinations(enumerate(one), 2))
