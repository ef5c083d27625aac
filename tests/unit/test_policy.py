"""Policies: values, validation, and what they ask of the core."""

import dataclasses
import pickle

import numpy as np
import pytest

import pypartial as pp


def test_policies_compare_by_value_and_show_themselves():
    assert pp.Quorum(3) == pp.Quorum(3) != pp.Quorum(4)
    assert pp.Solo() == pp.Solo() != pp.Majority()
    assert repr(pp.Quorum(3)) == "Quorum(k=3)"
    assert len({pp.Full(), pp.Full(), pp.Solo()}) == 2


@pytest.mark.parametrize("policy", [pp.Solo(), pp.Majority(), pp.Quorum(2), pp.Full()])
def test_policies_are_frozen_and_pickle(policy):
    assert pickle.loads(pickle.dumps(policy)) == policy
    with pytest.raises(dataclasses.FrozenInstanceError):
        policy.k = 1


@pytest.mark.parametrize("size", [1, 2, 7])
def test_what_the_core_is_asked_for(size):
    assert pp.Solo()._resolve(size) == ("PP_FIRST_OF", size)
    assert pp.Majority()._resolve(size) == ("PP_FIRST_OF", 1)
    assert pp.Full()._resolve(size) == ("PP_QUORUM", size)
    assert pp.Quorum(size)._resolve(size) == ("PP_QUORUM", size)
    with pytest.raises(pp.ArgumentError, match=rf"Quorum\({size + 1}\).*only {size} ranks"):
        pp.Quorum(size + 1)._resolve(size)


@pytest.mark.parametrize("k", [0, -1])
def test_quorum_of_nobody_is_refused(k):
    with pytest.raises(pp.ArgumentError, match=rf"Quorum\({k}\)"):
        pp.Quorum(k)


@pytest.mark.parametrize("k", [2.0, "2", None, True])
def test_quorum_wants_an_integer(k):
    with pytest.raises(pp.ArgumentError, match="must be an integer"):
        pp.Quorum(k)


def test_quorum_takes_numpy_integers():
    assert type(pp.Quorum(np.int64(3)).k) is int


@pytest.mark.parametrize("policy", [pp.Solo, pp.Majority, pp.Full])
def test_options_of_later_versions_are_not_swallowed(policy):
    with pytest.raises(TypeError):
        policy(deadline=1.0)
