"""What other libraries ask of an optimizer: that it is one of torch, wherever they put it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.training import backward, flat, mean_gradients, net
from torch import nn
from torch.optim import lr_scheduler as schedules
from torch.optim.optimizer import register_optimizer_step_pre_hook

import pypartial as pp
import pypartial.torch
from pypartial.methods import EagerSGD, PartialReduce, Synchronous

pytestmark = [pytest.mark.mpi(min_size=2), pytest.mark.sizes(2, 3)]

STEPS = 8


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.02)


def test_it_is_one_of_torch(ctx):
    """Its parts are the wrapped optimizer's, also after this has replaced them."""
    inner = adamw(net())
    with pp.torch.DistributedOptimizer(inner, ctx) as opt:
        assert isinstance(opt, torch.optim.Optimizer)
        inner.load_state_dict(inner.state_dict())
        for name in ("param_groups", "state", "defaults"):
            assert getattr(opt, name) is getattr(inner, name)


def by_plateau(opt: torch.optim.Optimizer) -> tuple[Any, Callable[[int], None]]:
    scheduler = schedules.ReduceLROnPlateau(opt, factor=0.5, patience=0)
    return scheduler, scheduler.step


def by_batch(opt: torch.optim.Optimizer) -> tuple[Any, Callable[[int], None]]:
    scheduler = schedules.OneCycleLR(opt, 0.05, total_steps=STEPS + 1)
    return scheduler, lambda step: scheduler.step()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("make", [by_batch, by_plateau])
def test_a_scheduler_of_the_wrapper_counts_batches(comm, ctx, make):
    model, alone = net(), net()
    opt = pp.torch.DistributedOptimizer(adamw(model), ctx, Synchronous())
    expected = adamw(alone)
    _, mine = make(opt)
    _, theirs = make(expected)
    for step in range(STEPS):
        opt.zero_grad()
        backward(model, comm.rank, step)
        opt.step()
        mine(step)
        gradients = mean_gradients(alone, comm.size, step)
        for p, gradient in zip(alone.parameters(), gradients, strict=True):
            p.grad = gradient
        expected.step()
        theirs(step)
        assert opt.param_groups[0]["lr"] == expected.param_groups[0]["lr"]
    opt.finish()
    torch.testing.assert_close(flat(model), flat(alone), rtol=1e-12, atol=1e-12)


@pytest.mark.filterwarnings("ignore:the .* of the ranks differed")
@pytest.mark.parametrize("method", [EagerSGD("solo"), PartialReduce(2)], ids=str)
def test_replicas_are_equal_in_the_end_whatever_a_scheduler_did(comm, ctx, method):
    model = net()
    inner = torch.optim.SGD(model.parameters(), lr=0.05)
    with pp.torch.DistributedOptimizer(inner, ctx, method) as opt:
        scheduler = schedules.ExponentialLR(opt, 0.9)
        for step in range(STEPS + 2 * comm.rank):
            opt.zero_grad()
            backward(model, comm.rank, step)
            opt.step()
            scheduler.step()
    assert len(set(comm.allgather(flat(model).numpy().tobytes()))) == 1


@pytest.mark.parametrize("overlap", [None, 2])
def test_a_closure_computes_the_gradients_once(comm, ctx, overlap):
    """Also where gradients are off, as torch's own optimizers call it."""

    def train(by_closure: bool) -> torch.Tensor:
        model, calls = net(), []

        def closure() -> int:
            calls.append(len(calls))
            opt.zero_grad()
            backward(model, comm.rank, calls[-1])
            return calls[-1]

        with pp.torch.DistributedOptimizer(
            adamw(model), ctx, Synchronous(), overlap=overlap
        ) as opt:
            for step in range(STEPS):
                if by_closure:
                    with torch.no_grad():
                        assert opt.step(closure=closure) == step
                else:
                    closure()
                    assert opt.step() is None
        assert calls == list(range(STEPS))
        return flat(model)

    assert train(True).equal(train(False))


def test_hooks_are_called_once_a_call(comm, ctx):
    """Of the wrapper, whatever number of rounds it applies."""
    model, told = net(), []
    with pp.torch.DistributedOptimizer(adamw(model), ctx) as opt:
        opt.register_step_pre_hook(lambda one, args, kwargs: told.append(("before", one)))
        opt.register_step_post_hook(lambda one, args, kwargs: told.append(("after", one)))
        opt.register_state_dict_pre_hook(lambda one: told.append(("saving", one)))
        opt.register_state_dict_post_hook(lambda one, state: {**state, "mine": 1})
        opt.register_state_dict_post_hook(lambda one, state: state.update(more=2))
        state = opt.state_dict()
        assert (state["mine"], state["more"]) == (1, 2)

        def clean(one, state):
            del state["mine"], state["more"]

        opt.register_load_state_dict_pre_hook(clean)
        opt.register_load_state_dict_post_hook(lambda one: told.append(("loaded", one)))
        opt.load_state_dict(state)
        assert "mine" in state
        assert told == [("saving", opt), ("loaded", opt)]
        for step in range(3):
            opt.zero_grad()
            backward(model, comm.rank, step)
            opt.step()
        assert told[2:] == [("before", opt), ("after", opt)] * 3


def test_who_watches_all_optimizers_sees_it(comm, ctx):
    model, told = net(), []
    with pp.torch.DistributedOptimizer(adamw(model), ctx) as opt:
        with torch.profiler.profile() as profile:
            opt.step()
        handle = register_optimizer_step_pre_hook(lambda one, args, kwargs: told.append(one))
        opt.step()
        handle.remove()
        opt.step()
    assert told == [opt]  # of gradients that are None no round is applied
    names = [event.name for event in profile.events()]
    assert names.count("Optimizer.step#DistributedOptimizer.step") == 1


class Client:
    """As Lightning's: its class is made a subclass of what it holds, which has the attributes."""

    def __init__(self, optimizer: torch.optim.Optimizer, copies: bool) -> None:
        if copies:  # in older versions
            self.__dict__ = {k: v for k, v in optimizer.__dict__.items() if k != "step"}
        self._optimizer = optimizer
        self.__class__ = type("Of", (type(self), type(optimizer)), {})  # type: ignore[assignment]

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        return self._optimizer

    def step(self, closure: Any = None) -> Any:
        return self._optimizer.step(closure)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._optimizer, name)


@pytest.mark.parametrize("copies", [False, True])
def test_it_is_the_same_in_an_object_of_a_client(comm, ctx, copies):
    model = net()
    inner = adamw(model)
    opt = pp.torch.DistributedOptimizer(inner, ctx, Synchronous())
    client: Any = Client(opt, copies)
    assert isinstance(client, pp.torch.DistributedOptimizer)
    client.load_state_dict(client.state_dict())  # as accelerate does
    scheduler = schedules.ExponentialLR(opt, 0.9)
    for step in range(3):
        client.zero_grad()
        client.step(lambda step=step: backward(model, comm.rank, step))
        scheduler.step()
    assert client.param_groups is inner.param_groups
    with pytest.raises(pp.Error, match="steps were made since"):
        client.state_dict()
    client.consolidate_state_dict()
    assert set(client.state_dict()) == {"optimizer", "scheduler", "worker"}
    assert set(client.state_dict()["optimizer"]) == {"state", "param_groups"}
    client.finish()
    with pytest.raises(pp.Error, match=r"step\(\) after finish\(\)"):
        opt.step()
