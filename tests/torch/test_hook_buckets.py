"""Buckets of DDP in one vector; needs no ranks."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import pypartial as pp
from pypartial.torch import replicas
from pypartial.torch.buckets import Buckets


class Bucket:
    """What DDP gives a hook: its gradients are numbered from `start`."""

    def __init__(self, parameters, start=0.0):
        self._parameters = parameters
        count = sum(one.numel() for one in parameters)
        self._buffer = torch.arange(start, start + count, dtype=parameters[0].dtype)

    def parameters(self):
        return self._parameters

    def buffer(self):
        return self._buffer


@pytest.fixture
def parameters():
    return [torch.nn.Parameter(torch.zeros(count)) for count in (2, 3, 4)]


@pytest.fixture
def vector():
    return np.zeros(9, np.float32)


def test_buckets_lie_one_behind_the_other(vector, parameters):
    buckets = Buckets(vector, parameters)
    one, two, three = parameters
    first = buckets.put(Bucket([three, two], 1.0))
    assert not buckets.complete
    second = buckets.put(Bucket([one], 8.0))
    assert buckets.complete
    np.testing.assert_array_equal(vector, np.arange(1.0, 10.0))
    arrived = buckets.take()
    assert not buckets.complete
    vector *= 2
    for bucket in arrived:
        bucket.give()
    assert first.value().tolist() == [2, 4, 6, 8, 10, 12, 14]
    assert second.value().tolist() == [16, 18]
    pieces = [(parameter, piece.tolist()) for parameter, piece in buckets.gradients()]
    assert [piece for _, piece in pieces] == [[2, 4, 6, 8], [10, 12, 14], [16, 18]]
    assert all(given is known for (given, _), known in zip(pieces, (three, two, one), strict=True))


def test_a_result_of_another_type_goes_into_the_bucket(parameters):
    vector = np.zeros(9, np.float64)
    buckets = Buckets(vector, parameters)
    bucket = Bucket(parameters)
    future = buckets.put(bucket)
    vector += 1
    buckets.take()[0].give()
    assert future.value() is bucket.buffer()
    assert future.value().tolist() == list(range(1, 10))


@pytest.mark.parametrize("order", [(0, 1), (1, 0), (1, 2, 0), (2, 0, 1)])
def test_buckets_may_have_no_elements(vector, order):
    """Neither the first nor the last ones are taken for other ones."""
    whole = torch.nn.Parameter(torch.zeros(9))
    empty = [torch.nn.Parameter(torch.zeros(0, 3)) for _ in range(len(order) - 1)]
    cut = [[[whole], *([one] for one in empty)][number] for number in order]
    buckets = Buckets(vector, [whole, *empty])
    for settled in (False, True):
        buckets.settled = settled
        futures = []
        for part in cut:
            assert not buckets.complete
            futures.append(buckets.put(Bucket(part, 1.0)))
        assert buckets.complete
        for bucket in buckets.take():
            bucket.give()
        values = [future.value().tolist() for future in futures]
        assert values == [list(range(1, 10)) if part[0] is whole else [] for part in cut]
        pieces = [(parameter, piece.shape) for parameter, piece in buckets.gradients()]
        assert [id(parameter) for parameter, _ in pieces] == [id(part[0]) for part in cut]
        assert all(shape == parameter.shape for parameter, shape in pieces)
    buckets.arrange([Bucket(part) for part in cut])
    assert not buckets.complete


def test_ddp_may_change_buckets_before_they_are_settled(vector, parameters):
    """Each parameter has one piece then, also if a bucket stays as it was."""
    buckets = Buckets(vector, parameters)
    one, two, three = parameters
    for cut in ([[one], [two, three]], [[one], [three], [two]], [[one], [two], [three]]):
        for part in cut:
            buckets.put(Bucket(part))
        assert buckets.complete
        buckets.take()
        pieces = [parameter for parameter, _ in buckets.gradients()]
        assert list(map(id, pieces)) == [id(parameter) for part in cut for parameter in part]


def test_settled_buckets_must_stay(vector, parameters):
    buckets = Buckets(vector, parameters)
    for part in ([parameters[0]], parameters[1:]):
        buckets.put(Bucket(part))
    buckets.take()
    buckets.settled = True
    with pytest.raises(pp.Error, match="changed its buckets while gradients were on their way"):
        buckets.put(Bucket(parameters[1:]))


def test_a_foreign_parameter_is_refused(vector, parameters):
    buckets = Buckets(vector, parameters)
    with pytest.raises(pp.Error, match="registered with another DDP module"):
        buckets.put(Bucket([torch.nn.Parameter(torch.zeros(9))]))


def test_buckets_can_be_arranged_without_data(vector, parameters):
    buckets = Buckets(vector, parameters)
    buckets.arrange([Bucket(parameters[1:]), Bucket(parameters[:1])])
    assert not buckets.complete
    assert [piece.numel() for _, piece in buckets.gradients()] == [3, 4, 2]
    assert vector.tolist() == [0] * 9


def test_pieces_have_the_order_of_their_parameters():
    weight = torch.zeros(2, 3, 2, 2).to(memory_format=torch.channels_last)
    gap = torch.zeros(4, 2)[:, :1]
    vector = np.zeros(28, np.float32)
    buckets = Buckets(vector, [weight, gap])
    buckets.put(Bucket([weight, gap]))
    (_, piece), (_, other) = buckets.gradients()
    assert piece.stride() == weight.stride()
    assert piece.permute(0, 2, 3, 1).reshape(-1).tolist() == list(range(24))
    assert other.reshape(-1).tolist() == list(range(24, 28))


@pytest.mark.skipif(not hasattr(torch.Tensor, "grad_dtype"), reason="torch has no grad_dtype yet")
def test_what_is_on_its_way_is_applied_in_the_type_of_gradients():
    weight = torch.nn.Parameter(torch.zeros(2, dtype=torch.bfloat16))
    weight.grad_dtype = torch.float32
    seen = []
    sgd = torch.optim.SGD([weight], lr=1.0)
    sgd.register_step_pre_hook(lambda *_: seen.append(weight.grad))
    replicas.apply(sgd, [(weight, torch.ones(2))])
    assert [one.dtype for one in seen] == [torch.float32]
    assert weight.tolist() == [-1, -1]
    assert weight.grad is None
