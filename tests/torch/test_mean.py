"""`mean` of the optimizer and of the hook: values, arguments, and ranks that have finished."""

from __future__ import annotations

import math
from contextlib import contextmanager

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import pypartial as pp
from pypartial.methods import EagerSGD, PartialReduce, Synchronous
from pypartial.torch import DistributedOptimizer, HookState, partial_allreduce_hook

pytestmark = pytest.mark.mpi

WAYS = {
    "each": {},
    "synchronous": {"method": Synchronous()},
    "groups": {"method": PartialReduce(2)},
    "meets": {"method": EagerSGD(deliver="sum", sync_every=5)},
    "pieces": {"method": Synchronous(), "overlap": 2},
    "hook": None,
}


@contextmanager
def trainer(comm, way):
    """Give a step, `mean` and `finish`."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 1))
    sgd = torch.optim.SGD(model.parameters(), 0.01)
    with pp.Context(comm, patience=None, seed=2) as ctx:
        if way == "hook":
            called = DistributedDataParallel(model)
            made = HookState(ctx, called, optimizer=sgd)
            called.register_comm_hook(made, partial_allreduce_hook)
        else:
            called, made = model, DistributedOptimizer(sgd, ctx, model=model, **WAYS[way])

        def step():
            sgd.zero_grad()
            called(torch.ones(2, 4)).sum().backward()
            (sgd if way == "hook" else made).step()

        yield step, made
        made.finish()
    with pytest.raises(pp.Error, match="finish"):
        made.mean(1.0)


@pytest.mark.parametrize("way", WAYS)
def test_the_mean_over_ranks_that_have_not_finished(world, comm, way):
    """The later a rank, the more steps it makes; those before it are in finish() then."""
    with trainer(comm, way) as (step, made):
        for number in range(6 + 3 * comm.rank):
            step()
            there = [rank for rank in range(comm.size) if number < 6 + 3 * rank]
            mean = made.mean(comm.rank)
            assert mean == sum(there) / len(there) and type(mean) is float


@pytest.mark.parametrize(
    "like",
    [
        torch.zeros(2, 3, dtype=torch.bfloat16),
        torch.zeros(()),
        torch.zeros(0, 2),
        torch.zeros(1022, dtype=torch.float64),
        torch.zeros(3, 1000).T,
    ],
    ids=lambda like: f"{tuple(like.shape)}",
)
@pytest.mark.parametrize("way", ["each", "pieces"])
def test_a_tensor(world, comm, way, like):
    with trainer(comm, way) as (_, made):
        value = (torch.arange(like.numel()).reshape(like.shape) % 7 + 2 * comm.rank).to(like)
        kept, value = value.clone(), value.requires_grad_()
        mean = made.mean(value)
        assert (mean.dtype, mean.shape, mean.device) == (like.dtype, like.shape, like.device)
        assert torch.equal(mean, kept - 2 * comm.rank + comm.size - 1) and not mean.requires_grad
        assert torch.equal(value, kept)


def test_values_that_are_no_numbers_any_more(world, comm):
    with trainer(comm, "each") as (_, made):
        assert math.isnan(made.mean(math.nan if comm.rank else 1.0))
        assert made.mean(math.inf if comm.rank else 1.0) == math.inf
        assert made.mean(2) == 2


@pytest.mark.parametrize("way", ["each", "pieces", "hook"])
def test_wrong_values(world, comm, way):
    with trainer(comm, way) as (step, made):
        step()
        for value in ("1", None, [1.0], torch.ones(2, dtype=torch.int32), torch.ones(1) * 1j):
            with pytest.raises(pp.ArgumentError, match="mean\\(\\) of"):
                made.mean(value)
        with pytest.raises(pp.MismatchError, match="mean"):
            made.mean(torch.ones(2 + (comm.rank == 1)))
        assert made.mean(1.5) == 1.5


def test_rounds_go_on_without_a_rank_that_averages(world, comm):
    """Without any patience, and more of them than the window."""
    with trainer(comm, "each") as (step, made):
        for first in range(comm.size):
            if comm.rank != first:
                for _ in range(20):
                    step()
            made.mean(1.0)
    dist.barrier()
