"""Methods of training, as far as they need no ranks: values, names, loading, averaged states."""

import dataclasses
import pickle

import numpy as np
import pytest

import pypartial as pp
from pypartial import methods
from pypartial.methods import (
    ADPSGD,
    DPSGD,
    EagerSGD,
    Hop,
    Method,
    PartialReduce,
    Ripples,
    Synchronous,
    check_method,
)
from pypartial.methods.state import average_state, check_state, shapes

ALL = [
    *[Synchronous(), EagerSGD(), PartialReduce(3), Ripples(pp.groups.Smart(3)), ADPSGD("ring")],
    *[DPSGD("ring"), Hop("ring")],
]


# ---- values -------------------------------------------------------------------------------------


def test_methods_are_values():
    for method in ALL:
        assert isinstance(method, Method)
        assert (
            eval(repr(method), vars(methods) | vars(pp) | vars(pp.groups) | vars(pp.topology))
            == method
        )
        assert pickle.loads(pickle.dumps(method)) == method
        assert len({method, dataclasses.replace(method)}) == 1
        with pytest.raises(dataclasses.FrozenInstanceError):
            method.size = 4
    assert EagerSGD() == EagerSGD(pp.Majority(), "each", None)
    assert EagerSGD() != Synchronous()


def test_values_are_kept_as_their_types():
    method = EagerSGD(deliver="sum", sync_every=np.int64(5))
    assert repr(method) == "EagerSGD(policy=Majority(), deliver='sum', sync_every=5)"
    assert type(method.sync_every) is int
    assert EagerSGD("quorum:4,deadline=5ms") == EagerSGD(pp.Quorum(4, deadline=0.005))
    method = PartialReduce(np.int32(4), "dynamic", np.float32(0.25))
    assert repr(method) == (
        "PartialReduce(size=4, weights='dynamic', alpha=0.25, missing='closest', history='auto', "
        "unfreeze=True, backend='auto', final='steps')"
    )
    assert ADPSGD("torus:2x3") == ADPSGD(pp.topology.torus(2, 3), initiators="all")
    method = PartialReduce(2, history=np.int64(5), unfreeze=np.False_)
    assert (type(method.history), method.unfreeze) == (int, False)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: EagerSGD("majorty"), "'majorty' is not a policy"),
        (lambda: EagerSGD(pp.Majority), r"policy must be pypartial\.Solo.* not <class"),
        (lambda: EagerSGD(deliver="all"), "deliver must be one of 'latest', 'sum', 'each'"),
        (lambda: EagerSGD(deliver=["sum"]), "deliver must be one of"),
        (lambda: EagerSGD(sync_every=5), "sync_every is for deliver='sum' and 'latest'"),
        (lambda: EagerSGD(deliver="sum", sync_every=0), "sync_every must be in 1"),
        (lambda: EagerSGD(deliver="sum", sync_every=2.5), "sync_every must be an integer"),
        (lambda: PartialReduce(0), "size must be in 1"),
        (lambda: PartialReduce("3"), "size must be an integer"),
        (lambda: PartialReduce(True), "size must be an integer"),
        (lambda: PartialReduce(3, "equal"), "weights must be one of 'constant', 'dynamic'"),
        (lambda: PartialReduce(3, "dynamic", 1.0), "alpha must be a number from 0"),
        (lambda: PartialReduce(3, alpha="0.5"), "alpha must be a number from 0"),
        (lambda: PartialReduce(3, missing="none"), "missing must be one of 'closest', 'initial'"),
        (lambda: PartialReduce(3, history=0), "history must be in 1"),
        (lambda: PartialReduce(3, history="long"), "history must be 'auto' or an integer"),
        (lambda: PartialReduce(3, unfreeze=1), "unfreeze must be True or False"),
        (lambda: PartialReduce(3, backend="mpi"), "backend must be one of 'auto', 'node'"),
        (lambda: PartialReduce(3, final="mean"), "final must be one of 'steps', 'equal'"),
        (lambda: Ripples(pp.groups.Smart(3), "mpi"), "backend must be one of 'auto', 'node'"),
        (lambda: Ripples(pp.groups.Smart(3), final="mean"), "final must be one of"),
        (lambda: Ripples("smart:3"), "generator must be one of pypartial.groups"),
        (lambda: Ripples(pp.groups.Smart), "generator must be one of pypartial.groups"),
        (lambda: ADPSGD("ringlet"), "'ringlet' is not a topology"),
        (lambda: ADPSGD(pp.topology.ring), "topology must be a topology such as"),
        (lambda: ADPSGD("ring", "passive"), "initiators must be one of 'all', 'active'"),
        (lambda: DPSGD(3), "topology must be a topology such as"),
        (lambda: Hop("ring", max_ig=0), "max_ig=0 is not in 1"),
        (lambda: Hop("ring", backup=-1), "backup=-1 is not in 0"),
        (lambda: Hop("ring", backup=(0, -1)), "backup=-1 is not in 0"),
        (lambda: Hop("ring", backup="1"), "backup must be a list"),
        (lambda: Hop("ring", staleness=0.5), "staleness must be an integer"),
        (lambda: Hop("ring", protocol="token"), "protocol must be one of 'tokens'"),
        (lambda: Ripples(pp.groups.Given()), "does not name its group; use Table"),
    ],
)
def test_a_wrong_value_is_refused(make, words):
    with pytest.raises(pp.ArgumentError, match=words):
        make()


# ---- names --------------------------------------------------------------------------------------


def test_check_method_takes_methods_and_names_the_others():
    for method in ALL:
        assert check_method(method) is method
    for wrong in ("eager", EagerSGD, None, 3, pp.Majority()):
        with pytest.raises(pp.ArgumentError, match=r"must be one of Synchronous\(\), EagerSGD\(\)"):
            check_method(wrong)


# ---- loading -------------------------------------------------------------------------------------


def test_an_unknown_attribute_of_the_package():
    with pytest.raises(AttributeError, match="module 'pypartial' has no attribute 'jax'"):
        getattr(pp, "jax")  # noqa: B009


# ---- states that are averaged --------------------------------------------------------------------


class Twice:
    """Stands for a meeting of two ranks of which the other has the same arrays, plus 2."""

    def __init__(self):
        self.called = []

    def average(self, array, weights):
        self.called.append((array.dtype.name, array.size, weights))
        array += 1 if weights == [1, 1] else 0


def test_states_are_averaged_as_one_vector_of_each_type():
    """Whatever their shapes and strides; half precision is averaged in single."""
    matrix = np.zeros((4, 6), "f4")
    arrays = [
        np.array(3.0, "f4"),
        matrix[:, ::2],
        np.ones(2),
        np.full((1, 2), 5, "f2"),
        np.zeros(0),
    ]
    meeting = Twice()
    average_state(meeting, check_state(iter(arrays)), [shapes(arrays)] * 2)
    assert meeting.called == [("float32", 1 + 12 + 2, [1, 1]), ("float64", 2, [1, 1])]
    assert [array.max() for array in arrays[:4]] == [4, 1, 2, 6]
    assert matrix.sum() == 12
    assert [array.dtype.str[1:] for array in arrays] == ["f4", "f4", "f8", "f2", "f8"]


def test_ranks_without_a_state_give_zeros_and_keep_nothing():
    meeting = Twice()
    average_state(meeting, [], [[], [((2, 2), "float16"), ((), "float64")]])
    assert meeting.called == [("float32", 4, [0, 1]), ("float64", 1, [0, 1])]
    average_state(meeting, [], [[], []])
    assert len(meeting.called) == 2


@pytest.mark.parametrize(
    ("weights", "have", "shares"),
    [
        ([3, 5], [True, True], [3, 5]),
        ([3, 5], [True, False], [3, 0]),
        ([0, 5], [True, True], [0, 5]),
        ([0, 5], [True, False], [1, 0]),  # rank 1 has made no update
        ([0, 0], [True, True], [1, 1]),
    ],
)
def test_states_count_as_the_models_do(weights, have, shares):
    meeting, arrays = Twice(), [np.ones(3)]
    by_rank = [shapes(arrays) if has else [] for has in have]
    average_state(meeting, arrays, by_rank, weights)
    assert meeting.called == [("float64", 3, shares)]
