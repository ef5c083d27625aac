"""Partial rounds: ranks stay equal with deliver="each", and drift apart with "sum"."""

from __future__ import annotations

import time
import warnings
from typing import Any, NamedTuple

import pytest
import torch
from support.training import backward, flat, net
from torch import Tensor, nn

import pypartial as pp
import pypartial.torch
from pypartial.methods import EagerSGD, Method, Synchronous

pytestmark = [pytest.mark.mpi(min_size=2), pytest.mark.sizes(4)]

SLOW_S = 0.03  # what a step of the slow rank computes longer
STEPS = 40
OPTIMIZERS = {
    "momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
}


class Round(NamedTuple):
    status: Any
    counts: list[float]  # by rank: how many of its gradients the round has
    model: Tensor
    rate: float


class Counted(nn.Module):
    """A model with one more parameter, whose gradient says which rank computed it."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.net = net(dtype=torch.float32)
        self.counter = nn.Parameter(torch.zeros(size))


def train(comm, ctx, method: Method, optimizer: str, steps: int, sleep_s: float) -> list[Round]:
    """Train, and return what each update was, the flush's included."""
    model = Counted(comm.size)
    inner = OPTIMIZERS[optimizer](model.parameters())
    scheduler = torch.optim.lr_scheduler.ExponentialLR(inner, 0.98)
    rounds: list[Round] = []
    with pp.torch.DistributedOptimizer(inner, ctx, method, scheduler) as opt:

        def keep(*_: object) -> None:
            counts = (model.counter.grad * comm.size).tolist()
            rate = inner.param_groups[0]["lr"]
            rounds.append(Round(opt.status, counts, flat(model), rate))

        inner.register_step_post_hook(keep)
        for step in range(steps):
            opt.zero_grad()
            backward(model.net, comm.rank, step)
            model.counter[comm.rank].backward()
            time.sleep(sleep_s)  # the computation of a slow rank
            opt.step()
    assert len({flat(model).numpy().tobytes() for model in comm.allgather(model)}) == 1
    return rounds


def largest_difference(comm, model: Tensor) -> float:
    return max(float((model - other).abs().max()) for other in comm.allgather(model))


@pytest.mark.filterwarnings("ignore:with Solo")  # there are more rounds than batches
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("policy", [pp.Majority(), pp.Solo()], ids=["majority", "solo"])
def test_ranks_stay_equal(comm, ctx, policy, optimizer):
    steps = STEPS - 3 * comm.rank  # uneven batches
    slow = comm.rank == comm.size - 1
    rounds = train(comm, ctx, EagerSGD(policy), optimizer, steps, SLOW_S if slow else 0)
    assert comm.allgather(len(rounds)) == [len(rounds)] * comm.size
    for number, made in enumerate(rounds):
        assert made.status.round == number
        assert made.status.contributors == tuple(r for r in range(comm.size) if made.counts[r])
        assert made.status.contributions == sum(made.counts)
        assert largest_difference(comm, made.model) == 0.0
        assert comm.allgather(made.rate) == [made.rate] * comm.size
    totals = [sum(made.counts[rank] for made in rounds) for rank in range(comm.size)]
    assert totals == comm.allgather(steps)  # conserved
    partial = [made for made in rounds if made.status.active < comm.size]
    assert len(partial) >= 0.3 * len(rounds)


@pytest.mark.parametrize("deliver", ["each", "sum"])
def test_a_rank_in_finish_takes_part_in_flushes(comm, ctx, deliver):
    model = net()
    sgd = torch.optim.SGD(model.parameters(), lr=0.05)
    with pp.torch.DistributedOptimizer(sgd, ctx, EagerSGD(pp.Majority(), deliver)) as opt:
        for step in range(10):
            if comm.rank == 0 and step == 5:
                break
            opt.zero_grad()
            backward(model, comm.rank, step)
            opt.step()
            if step in (3, 7):
                opt.flush()
    assert largest_difference(comm, flat(model)) == 0.0


def test_sum_drifts(comm, ctx):
    slow = comm.rank == comm.size - 1
    method = EagerSGD(pp.Solo(), "sum")
    if comm.rank == 0:
        with pytest.warns(UserWarning, match="drift apart"):
            rounds = train(comm, ctx, method, "momentum", STEPS, 0)
    else:
        rounds = train(comm, ctx, method, "momentum", STEPS, SLOW_S if slow else 0)
    totals = [sum(made.counts[rank] for made in rounds) for rank in range(comm.size)]
    assert totals == pytest.approx([STEPS] * comm.size)  # every rank has applied everything
    assert largest_difference(comm, rounds[-1].model) > 1e-4


@pytest.mark.parametrize("of_the_step", ["scheduler", "clip_norm", None])
def test_a_sum_drifts_under_what_changes_a_step(comm, ctx, of_the_step):
    """Two plain steps, one after the other, are not their sum's then."""
    model = net()
    sgd = torch.optim.SGD(model.parameters(), lr=0.05)
    options: dict[str, Any] = {}
    if of_the_step == "scheduler":
        options["scheduler"] = torch.optim.lr_scheduler.StepLR(sgd, 5)
    elif of_the_step == "clip_norm":
        options["clip_norm"] = 0.1
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        opt = pp.torch.DistributedOptimizer(sgd, ctx, EagerSGD(pp.Solo(), "sum"), **options)
    due = bool(options) and comm.rank == 0
    assert ["drift apart" in str(one.message) for one in caught] == [True] * due
    opt.finish()


def test_sync_every_averages_models_and_states(comm, ctx):
    every, seen = 5, []
    model = net()
    inner = OPTIMIZERS["adamw"](model.parameters())
    method = EagerSGD(pp.Solo(), "sum", every)
    with pp.torch.DistributedOptimizer(inner, ctx, method) as opt:
        for step in range(3 * every):
            opt.zero_grad()
            backward(model, comm.rank, step)
            opt.step()
            state = [t.flatten().double() for s in opt.state.values() for t in s.values()]
            seen.append(torch.cat([flat(model), *state]).numpy().tobytes())
    # Each rank has been, after some step, where all ranks were; not only at the beginning.
    common = set.intersection(*map(set, comm.allgather(seen)))
    assert common


@pytest.mark.parametrize("method", [Synchronous(), EagerSGD()], ids=["synchronous", "eager"])
def test_calls_of_all_ranks_inside_away(comm, ctx, method):
    model = net()
    sgd = OPTIMIZERS["momentum"](model.parameters())
    with pp.torch.DistributedOptimizer(sgd, ctx, method) as opt:
        for step in range(30 + comm.rank):
            opt.zero_grad()
            backward(model, comm.rank, step)
            opt.step()
            if step % 10 == 9 and step < 30:
                with opt.away():
                    assert comm.allreduce(1) == comm.size
                opt.flush()
                assert largest_difference(comm, flat(model)) == 0.0


def test_away_averages_where_steps_do(comm, ctx):
    """With `sync_every`, before the first step, too; bfloat16 is averaged there, not later."""
    method = EagerSGD(pp.Full(), "sum", sync_every=100)
    model = nn.Linear(2, 2, dtype=torch.bfloat16)
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    with pp.torch.DistributedOptimizer(inner, ctx, method) as opt:
        with opt.away():
            pass
        with torch.no_grad():
            model.weight.fill_(comm.rank)
        with opt.away():
            assert model.weight.tolist() == [[(comm.size - 1) / 2] * 2] * 2
        model(torch.ones(1, 2, dtype=torch.bfloat16)).sum().backward()
        with pytest.raises(pp.Error, match="a gradient waits for its step"):
            opt.away()
        opt.zero_grad()
