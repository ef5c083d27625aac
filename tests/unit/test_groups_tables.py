"""Groups without a state: the static table, weights, generators in text, and how groups mix."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pypartial.sim.generators import Plan, parse_generator
from pypartial.sim.group_run import read_log
from pypartial.sim.groups import static_group, weights
from pypartial.sim.handle import CoreError
from pypartial.sim.mixing import (
    analyse,
    frozen_stretches,
    largest_rate,
    mean_matrix,
    rho_bar,
    spectral_rho,
)

# ---- the static table ----------------------------------------------------------------------------

Phases = list[list[tuple[int, ...]]]


def table(nodes: int, per_node: int) -> Phases:
    """The groups of all phases."""
    group = static_group(nodes, per_node)
    ranks = range(nodes * per_node)
    phases = []
    for phase in range(4):
        groups = {rank: tuple(group(phase, rank)) for rank in ranks}
        for rank, members in groups.items():  # all members agree on it
            assert members == () or (rank in members and len(members) > 1)
            assert all(groups[member] == members for member in members)
        phases.append(sorted(set(groups.values()) - {()}))
    return phases


@pytest.mark.parametrize(
    ("nodes", "per_node", "first", "third"),
    [
        (3, 1, [(0, 1, 2)], [(0, 1)]),  # an odd node is not paired
        (2, 2, [(0, 2)], [(1, 3)]),
        (1, 2, [], []),
        (1, 4, [(2, 3)], [(0, 3)]),
        (2, 3, [(0, 3)], [(0, 2), (1, 4), (3, 5)]),
        (1, 5, [(2, 3)], [(0, 4)]),  # 4 has nobody in phase 0, and neither has 3 in phase 2
        (1, 8, [(2, 3), (4, 5), (6, 7)], [(0, 7), (3, 4), (5, 6)]),
    ],
)
def test_other_layouts(
    nodes: int, per_node: int, first: list[tuple[int, ...]], third: list[tuple[int, ...]]
) -> None:
    phases = table(nodes, per_node)
    assert (phases[0], phases[2]) == (first, third)
    whole = [tuple(range(n * per_node, (n + 1) * per_node)) for n in range(nodes)]
    assert phases[1] == phases[3] == (whole if per_node > 1 else [])


def test_phases_repeat_and_layouts_are_checked() -> None:
    group = static_group(4, 4)
    assert [group(phase, 1) for phase in range(4)] == [group(phase, 1) for phase in range(4, 8)]
    with pytest.raises(CoreError, match="rank 16 is not in"):
        group(0, 16)
    with pytest.raises(CoreError, match="not a layout"):
        static_group(0, 4)(0, 0)


# ---- weights -------------------------------------------------------------------------------------


def by_the_paper(kind: str, alpha: Fraction, iterations: list[int]) -> tuple[list[Fraction], ...]:
    """Eq. 9 version by version, in fractions; the last weight is the initial model's."""
    relative = [max(iterations) - iteration + 1 for iteration in iterations]
    oldest = max(relative)
    given, initial = [Fraction(0)] * len(iterations), Fraction(0)
    for version in range(1, oldest + 1):
        share = (1 - alpha) * alpha ** (version - 1) / (1 - alpha**oldest)
        there = version
        if version not in relative:
            if kind == "initial":
                initial += share
                continue
            there = min(relative, key=lambda r: (abs(r - version), r))  # of two the newer
        same = [index for index, number in enumerate(relative) if number == there]
        for index in same:
            given[index] += share / len(same)
    return given, [initial]


@settings(max_examples=300, derandomize=True, database=None, deadline=None)
@given(
    kind=st.sampled_from(("closest", "initial")),
    alpha=st.sampled_from((0.0, 0.25, 0.5, 0.75, 0.875)),
    iterations=st.lists(st.integers(1, 12), min_size=1, max_size=6),
)
def test_weights_follow_equation_9(kind: str, alpha: float, iterations: list[int]) -> None:
    given_, initial = weights(kind, alpha, iterations)
    expected, more = by_the_paper(kind, Fraction(alpha), iterations)
    assert given_ == pytest.approx([float(share) for share in expected], abs=1e-12)
    assert initial == pytest.approx(float(more[0]), abs=1e-12)


def test_weights_of_ranks_that_are_far_apart() -> None:
    given_, initial = weights("initial", 0.5, [2**62, 1])
    assert given_ == pytest.approx([0.5, 0]) and initial == pytest.approx(0.5)
    assert weights("constant", 0.5, [9, 1, 1, 1]) == ([0.25] * 4, 0)


def test_a_large_alpha_can_make_a_stale_model_weigh_more() -> None:
    """The documentation warns of it."""
    (newest, stale), _ = weights("closest", 0.5, [10, 1])
    assert newest > stale
    (newest, stale), _ = weights("closest", 0.99, [3, 1])
    assert newest > stale  # versions 1 and 2 count for the newest
    shared, _ = weights("closest", 0.9, [3, 3, 3, 2])
    assert shared[3] > shared[0]


@pytest.mark.parametrize(
    ("alpha", "iterations", "text"),
    [(1.0, [1], "alpha=1"), (-0.5, [1], "alpha=-0.5"), (0.5, [], "count=0")],
)
def test_weights_that_are_wrong(alpha: float, iterations: list[int], text: str) -> None:
    with pytest.raises(CoreError, match=text):
        weights("closest", alpha, iterations)


# ---- generators in text --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "plan"),
    [
        ("random:3", Plan("random", 3)),
        ("random:2,reuse", Plan("random", 2, reuse=True)),
        ("smart:4,c-thres=2,inter-intra", Plan("smart", 4, c_thres=2, inter_intra=True)),
        ("smart:2,no-division,foresight=0", Plan("smart", 2, division=False, foresight=0)),
        ("smart:2,no-unfreeze", Plan("smart", 2, unfreeze=False)),
        ("controller:2,history=9,no-unfreeze", Plan("controller", 2, history=9, unfreeze=False)),
        ("static", Plan("static")),
    ],
)
def test_generators_in_text(text: str, plan: Plan) -> None:
    assert parse_generator(text) == parse_generator(f" {text.upper()} ") == plan
    assert parse_generator(plan.text) == plan


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("ring:3", "write one of random:SIZE, smart:SIZE, controller:SIZE, static"),
        ("smart", "write smart:2"),
        ("smart:1", "at least 2 ranks"),
        ("static:4", "has no size"),
        ("smart:3,reuse", "'reuse' is not an option of smart"),
        ("smart:3,inter-intra=1", "write inter-intra"),
        ("smart:3,c-thres", "write c-thres=4"),
        ("smart:3,c-thres=0", "c-thres is at least 1"),
        ("controller:3,history=0", "history is at least 1"),
        ("smart:3,foresight=100001", "foresight is at most 100000"),
        ("smart:3,c-thres=x", "write c-thres=4"),
        ("static,reuse", "it has: none"),
    ],
)
def test_texts_that_are_no_generators(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        parse_generator(text)


# ---- how groups mix ------------------------------------------------------------------------------


def test_the_matrix_of_groups() -> None:
    mean = mean_matrix([[0, 2], [0, 1, 2]], 3)
    both = [[1 / 2, 0, 1 / 2], [0, 1, 0], [1 / 2, 0, 1 / 2]]
    assert np.allclose(mean, (np.array(both) + 1 / 3) / 2)
    with pytest.raises(ValueError, match="no groups"):
        mean_matrix([], 3)


def test_rho_of_groups() -> None:
    assert analyse([[0, 1], [0, 2], [0, 1], [1, 2]], 3).rho == pytest.approx(0.625)
    assert analyse([[0, 1], [0, 2], [1, 2]], 3).rho == pytest.approx(0.5)
    assert spectral_rho(mean_matrix([[0, 1, 2]], 3)) == pytest.approx(0)
    apart = analyse([[0, 1], [2, 3]] * 20, 4)
    assert (apart.rho, apart.gap, apart.rate) == (1, 0, 0)
    assert math.isinf(apart.rho_bar)


@pytest.mark.parametrize(("ranks", "size", "window"), [(8, 2, 28), (12, 3, 24), (9, 4, 12)])
def test_the_sync_graph_has_as_many_groups_as_that_of_the_controller(
    ranks: int, size: int, window: int
) -> None:
    assert analyse([list(range(size))], ranks).window == window


def test_the_largest_rate_solves_theorem_1() -> None:
    assert rho_bar(0.25) == pytest.approx(1 / 3 + 4)
    rate = largest_rate(0.25, 8, 2, 10)
    eta = 2 / 8 * rate
    assert eta * 10 + 2 * 8**3 * eta**2 * 10**2 * rho_bar(0.25) / 2**2 == pytest.approx(1)
    assert largest_rate(0, 8, 8, 4) == pytest.approx(1 / 4)  # an allreduce: eta L <= 1


def naive_stretches(groups: list[list[int]], ranks: int, window: int) -> list[int]:
    """The same by reachability, for every window."""
    frozen = []
    for end in range(window, len(groups) + 1):
        matrix = mean_matrix(groups[end - window : end], ranks) > 0
        frozen.append(not np.linalg.matrix_power(matrix.astype(float), ranks).all())
    marks = [-1, *(i for i, frozen_ in enumerate(frozen) if not frozen_), len(frozen)]
    return [b - a - 1 for a, b in pairwise(marks) if b - a > 1]


@settings(max_examples=150, derandomize=True, database=None, deadline=None)
@given(
    groups=st.lists(
        st.lists(st.integers(0, 4), min_size=2, max_size=3, unique=True), min_size=1, max_size=30
    ),
    window=st.integers(1, 8),
)
def test_frozen_stretches(groups: list[list[int]], window: int) -> None:
    everybody = [[0, 1, 2, 3, 4], *groups]  # so that no rank is left out of all groups
    assert frozen_stretches(everybody, 5, window) == naive_stretches(everybody, 5, window)


# ---- logs ----------------------------------------------------------------------------------------


def test_lines_that_are_not_of_a_log() -> None:
    good = '{"event": "begin", "members": [0, 2]}'
    end = '{"event": "end", "members": [0, 2]}'
    assert read_log(iter([good, "", end]), "x") == [[0, 2]]
    members = ('["a"]', "[Infinity]", '"01"', "[1.0]", "[true]", "1")
    odd = [f'{{"event": "begin", "members": {text}}}' for text in members]
    for bad in ("x", "[1]", '{"event": "begin"}', "[" * 200_000, *odd):
        with pytest.raises(ValueError, match="x, line 2: not a line of a log"):
            read_log(iter([good, bad]), "x")
    for bad in ('{"event": "begin", "members": []}', '{"event": "begin", "members": [1, 1]}'):
        with pytest.raises(ValueError, match="not the members of a group"):
            read_log(iter([bad]), "x")
