"""A method of this file: what one needs to train a model by `DistributedOptimizer`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from support.training import backward, flat, net

import pypartial as pp
import pypartial.torch
from pypartial.methods import EagerSGD, Method, Worker
from pypartial.methods.base import State, Update, Vector
from pypartial.methods.eager import EachWorker
from pypartial.methods.place import Place

pytestmark = [pytest.mark.mpi, pytest.mark.sizes(1, 3)]

STEPS = 6
LIMIT = 0.1


@dataclass(frozen=True)
class Clipped(Method):
    """Averages gradients whose elements each rank has clipped before, in rounds of all ranks."""

    averages_models = drifts = False
    lockstep = True

    def worker(
        self, ctx: pp.Context, x: Vector, *, extra: int = 0, state: State | None = None
    ) -> Worker:
        return self._worker_at(Place(x), ctx, extra, state)

    def _worker_at(
        self, place: Place, ctx: pp.Context, extra: int, state: State | None
    ) -> ClippedWorker:
        return ClippedWorker(self, EagerSGD(pp.Full()), place, ctx, extra, state)


class ClippedWorker(EachWorker):
    def _make_step(self, update: Update) -> int:
        self.gradient[:] = self.gradient.clip(-LIMIT, LIMIT)
        return super()._make_step(update)


def clipped_backward(model: torch.nn.Module, rank: int, step: int) -> None:
    backward(model, rank, step)
    torch.nn.utils.clip_grad_value_(model.parameters(), LIMIT)


def adam(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=0.01)


def train(ctx: pp.Context, method: Method, of: Any, **options: Any) -> torch.Tensor:
    model = net()
    with pp.torch.DistributedOptimizer(adam(model), ctx, method, **options) as opt:
        for step in range(STEPS):
            opt.zero_grad()
            of(model, ctx.rank, step)
            opt.step()
        opt.flush()
        assert opt.state_dict()["worker"]["method"] == repr(method)
    return flat(model)


def test_it_has_the_bits_of_gradients_clipped_by_the_program(ctx):
    assert torch.equal(
        train(ctx, Clipped(), backward), train(ctx, EagerSGD(pp.Full()), clipped_backward)
    )


def test_its_attributes_say_what_suits_it(ctx):
    seen: list[int] = []
    train(ctx, Clipped(), backward, before_round=seen.append)
    assert seen == [*range(STEPS)]
    with pytest.raises(pp.ArgumentError, match=r"overlap gives .* the method is Clipped\(\)"):
        train(ctx, Clipped(), backward, overlap=2)
