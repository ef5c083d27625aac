"""The serial replay of groups, on logs made by hand: what it gives, and that it can fail."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from fuzz.replay import Asked, Formed, Replay, average, mean_is_kept

# Sums of these depend on the order: 1 is lost beside 1e16.
ORDERED = [np.full(6, value) for value in (1e16, 1.0, 1.0, -1e16, 1.0)]


def bits(value: float) -> bytes:
    return np.full(2, value).tobytes()


@pytest.mark.parametrize(
    ("association", "wanted"),
    [
        ("node", [((((1e16 + 1) + 1) - 1e16) + 1) / 5] * 6),
        # Five ranks on four positions: the first two are a pair.
        ("recursive_doubling", [(((1e16 + 1) + 1) + (-1e16 + 1)) / 5] * 6),
        ("rabenseifner", [(((1e16 + 1) + 1) + (-1e16 + 1)) / 5] * 6),
    ],
)
def test_the_association_is_the_backends(association: str, wanted: list[float]):
    assert average(ORDERED, association).tolist() == wanted


def test_a_ring_begins_each_chunk_at_another_position():
    found = average(ORDERED, "ring").tolist()  # chunks of 2, 1, 1, 1 and 1 elements
    values = [float(model[0]) for model in ORDERED]
    for chunk, elements in enumerate((found[:2], found[2:3], found[3:4], found[4:5], found[5:])):
        path = values[chunk:] + values[:chunk]
        total = list(itertools.accumulate(path))[-1]
        assert elements == [total / 5] * len(elements)
    assert len(set(found)) > 1


def test_products_are_rounded_before_they_are_added():
    models = [np.full(1, 1 / 3, np.float32), np.full(1, 1 / 7, np.float32)]
    found = average(models, "node", [0.1, 0.9], np.full(1, 3.0, np.float32), 0.2)
    one, other, initial = (np.float32(w) for w in (0.1, 0.9, 0.2))
    parts = one * models[0] + initial * np.float32(3.0), other * models[1]
    assert found.dtype == np.float32
    assert found.tobytes() == (parts[0] + parts[1]).tobytes()


def test_positions_without_a_member_add_nothing():
    given = [ORDERED[0], ORDERED[2], ORDERED[3]]
    found = average(given, "recursive_doubling", positions=[0, 2, 3], size=5)
    assert found.tolist() == [((1e16 + 1.0) + -1e16) / 3] * 6


def test_the_mean_is_kept():
    models = [np.array([1.0, 3.0]), np.array([2.0, 5.0])]
    assert mean_is_kept(models, np.array([1.5, 4.0]))
    assert not mean_is_kept(models, np.array([1.5, 4.0 + 1e-10]))


# Rank 0 runs the group of 1 and 0 before its own with rank 2; then all flush.
GROUPS = [
    Formed(3, (0, 1, 2), (1 / 3,) * 3, flush=True),
    Formed(1, (0, 1), (0.5, 0.5)),
    Formed(2, (0, 2), (0.5, 0.5)),
]
LOGS = [
    [Asked(bits(2.0), 1, 2, bits(5.5)), Asked(bits(7.0), 1, 3, bits(9.0), flush=True)],
    [Asked(bits(4.0), 1, 1, bits(3.0)), Asked(bits(1.0), 1, 3, bits(9.0), flush=True)],
    [Asked(bits(8.0), 1, 2, bits(5.5)), Asked(bits(19.0), 1, 3, bits(9.0), flush=True)],
]


def run(logs: list[list[Asked]], groups: list[Formed] = GROUPS) -> int:
    logs = [[replace(asked) for asked in log] for log in logs]
    done = Replay(logs, "float64", lambda members: "node").run(groups)
    assert logs[0][0].ran == [1, 2]
    return done


def test_groups_are_replayed_in_the_order_of_their_numbers():
    assert run(LOGS) == 3


@pytest.mark.parametrize("rank", range(3))
@pytest.mark.parametrize("at", range(2))
def test_another_average_is_found(rank: int, at: int):
    logs = [list(log) for log in LOGS]
    logs[rank][at] = replace(logs[rank][at], after=bits(5.500000000000001))
    with pytest.raises(AssertionError, match=f"rank {rank} was given another average"):
        run(logs)


def test_a_group_that_nobody_ran_is_found():
    with pytest.raises(AssertionError, match="was given a group that did not run"):
        run(LOGS, [group for group in GROUPS if group.serial != 2])


def test_a_group_of_a_rank_without_a_request_is_found():
    more = Formed(4, (0, 1), (0.5, 0.5))
    with pytest.raises(AssertionError, match="group 4 ran while rank 0 had no request"):
        run(LOGS, [*GROUPS, more])


def test_a_flush_goes_on_with_the_request_that_it_drops():
    logs = [list(log) for log in LOGS]
    logs[1] = [Asked(bits(4.0), 1), Asked(None, 1, 3, bits(29.0 / 3), flush=True)]
    for rank in (0, 2):
        logs[rank][1] = replace(logs[rank][1], after=bits(29.0 / 3))
    assert run(logs) == 3


@pytest.mark.parametrize("last", [None, 1])
def test_a_rank_may_be_alone_after_a_group_of_others(last: int | None):
    groups = [Formed(1, (0, 1), (0.5, 0.5)), Formed(2, (0, 1), (0.5, 0.5))]
    logs = [
        [Asked(bits(2.0), 1, 1, bits(3.0)), Asked(bits(1.0), 2, 2, bits(4.0))],
        [Asked(bits(4.0), 1, 0, bits(3.0), last=last), Asked(bits(7.0), 2, 2, bits(4.0))],
    ]
    assert Replay(logs, "float64", lambda members: "node").run(groups) == 2
    assert [asked.ran for asked in logs[1]] == [[1], [2]]


def test_halves_are_averaged_as_floats():
    before = [np.full(1, value, np.float16).tobytes() for value in (1.0, 2**-11)]
    wanted = ((np.float32(1) + np.float32(2**-11)) / np.float32(2)).astype(np.float16)
    logs = [[Asked(elements, 1, 1, wanted.tobytes())] for elements in before]
    groups = [Formed(1, (0, 1), (0.5, 0.5))]
    assert Replay(logs, "float16", lambda members: "node").run(groups) == 1
