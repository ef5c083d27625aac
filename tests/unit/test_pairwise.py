"""The combinations of a short run meet every pair of values."""

from __future__ import annotations

from itertools import combinations, product

import pytest
from support.pairwise import covering, pairwise


@pytest.mark.parametrize(
    ("sizes", "most"), [((4, 3, 2), 12), ((3, 3, 3), 11), ((5, 3, 2, 2), 17), ((2, 2), 4)]
)
def test_every_pair_is_met(sizes: tuple[int, ...], most: int) -> None:
    found = list(covering(sizes))
    assert len(set(found)) == len(found) <= most
    for one, other in combinations(range(len(sizes)), 2):
        pairs = {(case[one], case[other]) for case in found}
        assert pairs == set(product(range(sizes[one]), range(sizes[other])))


def test_what_is_left_is_long() -> None:
    made = pairwise(count=[1, 2, 3], name={"a": "x", "b": "y"}, more=[False, True])
    names, cases = made.args
    assert names == ("count", "name", "more")
    assert [case.values for case in cases] == list(product([1, 2, 3], "xy", [False, True]))
    assert cases[1].id == "1-a-True"
    short = [case.values for case in cases if not case.marks]
    assert len(short) == 6
    assert {mark.name for case in cases for mark in case.marks} == {"long"}
