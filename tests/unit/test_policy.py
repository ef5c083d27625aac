"""Policies: values, validation, their text, and what they ask of the core."""

import dataclasses
import math
import pickle
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pypartial as pp
from pypartial.policy import Trigger, as_policy

SECONDS = st.one_of(
    st.floats(0, 1e9, exclude_min=True, allow_subnormal=False),
    st.integers(1, 10**15).map(lambda ns: ns / 1e9),
)


@st.composite
def policies(draw):
    kind = draw(st.sampled_from([pp.Solo, pp.Majority, pp.Full, pp.FirstOf, pp.Quorum]))
    numbers = [draw(st.integers(1, 10**6))] if kind in (pp.FirstOf, pp.Quorum) else []
    deadline = draw(st.none() | SECONDS)
    return kind(*numbers, deadline=deadline, grace=draw(st.none() | st.just(0) | SECONDS))


def test_policies_compare_by_value_and_show_themselves():
    assert pp.Quorum(3) == pp.Quorum(3) != pp.Quorum(4)
    assert pp.Solo() == pp.Solo() != pp.Majority() != pp.FirstOf(1)
    assert pp.Solo() != pp.Solo(deadline=1) == pp.Solo(deadline=1.0)
    assert repr(pp.Quorum(3)) == "Quorum(3)"
    assert repr(pp.FirstOf(3, grace=2e-4, deadline=0.005)) == (
        "FirstOf(3, deadline=0.005, grace=0.0002)"
    )
    assert len({pp.Full(), pp.Full(), pp.Solo()}) == 2


@given(policies())
def test_a_policy_is_the_same_after_it_was_written_and_read(policy):
    assert pp.Policy.parse(str(policy)) == policy
    assert pp.Policy.parse(f" {str(policy).upper().replace('S', 's').replace('M', 'm')} ") == policy
    assert eval(repr(policy), vars(pp)) == policy


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("solo", pp.Solo()),
        ("first:3", pp.FirstOf(3)),
        ("majority", pp.Majority()),
        ("quorum:4", pp.Quorum(4)),
        ("full", pp.Full()),
        ("first:3,deadline=5ms", pp.FirstOf(3, deadline=0.005)),
        ("full,deadline=1.5s,grace=200us", pp.Full(deadline=1.5, grace=2e-4)),
        ("majority,grace=0", pp.Majority(grace=0)),
    ],
)
def test_the_text_of_a_policy(text, policy):
    assert str(policy) == text
    assert pp.Policy.parse(text) == policy


def test_options_are_read_in_any_order_and_case():
    policy = pp.Policy.parse(" Quorum:2, grace=1ms , DEADLINE=2ms")
    assert policy == pp.Quorum(2, deadline=0.002, grace=0.001)


@pytest.mark.parametrize(
    "text",
    [
        *("", "most", "quorum", "quorum:", "first:x", "first:1.5", "first:-1", "solo:3", "solo,"),
        *("solo,5ms", "solo,later=5ms", "solo,grace=1ms,grace=2ms", "policy", ":1"),
        *("first:\N{ARABIC-INDIC DIGIT ONE}", "first:" + 5000 * "9"),
    ],
)
def test_what_is_no_policy_is_refused_by_name(text):
    with pytest.raises(pp.ArgumentError, match=r"is not a policy: .*solo, majority, first:M"):
        pp.Policy.parse(text)


def test_an_argument_is_a_policy_or_its_text():
    assert as_policy("Quorum:2") == pp.Quorum(2) == as_policy(pp.Quorum(2))
    with pytest.raises(pp.ArgumentError, match="'most' is not a policy"):
        as_policy("most")
    for other in (None, 3, b"solo", pp.Solo):
        text = re.escape(f"or text such as 'majority', not {other!r}")
        with pytest.raises(pp.ArgumentError, match=text):
            as_policy(other)


@pytest.mark.parametrize("other", [pp.Majority(), None, 3, b"solo"])
def test_only_texts_are_parsed(other):
    with pytest.raises(pp.ArgumentError, match=re.escape(f"must be a string, not {other!r}")):
        pp.Policy.parse(other)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("first:0", "m must be at least 1"),
        ("solo,deadline=0", "deadline must be a finite number of seconds above 0"),
        ("solo,deadline=5", "'5' is not a duration"),
        ("solo,grace=-1ms", "'-1ms' is not a duration"),
    ],
)
def test_what_is_wrong_with_a_policys_numbers_is_said(text, why):
    with pytest.raises(pp.ArgumentError, match=why):
        pp.Policy.parse(text)


@pytest.mark.parametrize(
    "policy", [pp.Solo(), pp.Majority(), pp.FirstOf(2), pp.Quorum(2), pp.Full(deadline=1)]
)
def test_policies_are_frozen_and_pickle(policy):
    assert pickle.loads(pickle.dumps(policy)) == policy
    with pytest.raises(dataclasses.FrozenInstanceError):
        policy.deadline = 1


@pytest.mark.parametrize("size", [1, 2, 7])
def test_what_activates_a_round(size):
    assert pp.Solo().trigger(size) == Trigger("first_of", size)
    assert pp.Majority().trigger(size) == Trigger("first_of", 1)
    assert pp.FirstOf(size).trigger(size) == Trigger("first_of", size)
    assert pp.Full().trigger(size) == Trigger("quorum", size)
    assert pp.Quorum(size).trigger(size) == Trigger("quorum", size)
    for policy in (pp.Quorum(size + 1), pp.FirstOf(size + 1)):
        with pytest.raises(pp.ArgumentError, match=rf"\({size + 1}\).*only {size} rank"):
            policy.trigger(size)


def test_active_ranks_in_theory():
    expected = {"solo": 1, "majority": 4.5, "first:2": 3, "quorum:5": 5, "full": 8}
    assert {text: pp.Policy.parse(text).expected_active(8) for text in expected} == expected
    assert pp.Majority(deadline=1).expected_active(8) is None
    assert pp.Majority(grace=0).expected_active(8) == 4.5
    least = [p.least_active(8) for p in (pp.Solo(), pp.FirstOf(2), pp.Quorum(5), pp.Full())]
    assert least == [1, 1, 5, 8]


def test_nanoseconds_for_the_core():
    assert (pp.Solo().deadline_ns, pp.Solo().grace_ns) == (0, -1)
    policy = pp.Solo(deadline=0.005, grace=0)
    assert (policy.deadline_ns, policy.grace_ns) == (5_000_000, 0)
    assert pp.Solo(deadline=1e-12).deadline_ns == 1  # 0 would be no deadline at all


def test_a_policy_of_ones_own():
    @dataclasses.dataclass(frozen=True, repr=False)
    class Half(pp.Policy):
        word = "half"

        def trigger(self, size):
            return Trigger("quorum", (size + 1) // 2)

    assert pp.Policy.parse("half,deadline=1s") == Half(deadline=1)
    assert repr(Half()) == "Half()"
    assert Half().least_active(9) == 5


@pytest.mark.parametrize("kind", [pp.Quorum, pp.FirstOf])
@pytest.mark.parametrize("number", [0, -1])
def test_no_ranks_at_all_are_refused(kind, number):
    with pytest.raises(pp.ArgumentError, match=rf"\({number}\)"):
        kind(number)


@pytest.mark.parametrize("kind", [pp.Quorum, pp.FirstOf])
@pytest.mark.parametrize("number", [2.0, "2", None, True])
def test_numbers_of_ranks_are_integers(kind, number):
    with pytest.raises(pp.ArgumentError, match="must be an integer"):
        kind(number)


def test_numpy_numbers_become_plain_ones():
    policy = pp.Quorum(np.int64(3), deadline=np.float32(0.5))
    assert (type(policy.k), type(policy.deadline)) == (int, float)


@pytest.mark.parametrize("value", [0, -1, math.inf, math.nan, "1", True, [], 1e30])
def test_a_deadline_is_a_time_above_0(value):
    with pytest.raises(pp.ArgumentError, match=r"deadline must be a finite .* above 0"):
        pp.Majority(deadline=value)


@pytest.mark.parametrize("value", [-1e-9, math.inf, math.nan, "1", True, [], 1e30])
def test_a_grace_is_a_time_of_0_or_more(value):
    with pytest.raises(pp.ArgumentError, match=r"grace must be a finite .* of 0 or more"):
        pp.Majority(grace=value)


@pytest.mark.parametrize("policy", [pp.Solo, pp.Majority, pp.Full])
def test_options_are_named(policy):
    with pytest.raises(TypeError):
        policy(1.0)
