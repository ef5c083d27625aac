"""Replicas that are to be equal: what a program changes between rounds, and `before_round`."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from support.training import backward, flat, net, train_alone
from torch import nn

import pypartial as pp
import pypartial.torch
from pypartial.methods import EagerSGD, PartialReduce, Ripples, Synchronous

pytestmark = [pytest.mark.mpi(min_size=2), pytest.mark.sizes(2, 3)]

STEPS = 8
SET, WRITTEN = "hyperparameters were set between rounds", "parameters were written after step()"
KEPT = [(Synchronous(), None), (Synchronous(), 2), (EagerSGD(), None), (EagerSGD("solo"), None)]
KINDS = {
    "momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
    "tensor": lambda p: torch.optim.Adam(p, lr=torch.tensor(0.01), foreach=False),
}


@contextmanager
def warned(action: Any = "always") -> Iterator[list[str]]:
    """Collect what a block warns of, or logs where warnings are errors."""
    texts: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: texts.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("pypartial")
    logger.addHandler(handler)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter(action)
            yield texts
        texts += [str(one.message) for one in caught or []]
    finally:
        logger.removeHandler(handler)


def parted(texts: list[str]) -> list[str]:
    return [text for text in texts if "of the ranks differed" in text]


def are_equal(comm, model: nn.Module, inner: torch.optim.Optimizer) -> bool:
    """Compare the bits of models, states and hyperparameters."""
    state = [sorted(inner.state[p].items()) for p in model.parameters()]
    groups = [{k: v for k, v in group.items() if k != "params"} for group in inner.param_groups]
    torch.set_printoptions(precision=20, profile="full")
    mine = flat(model).numpy().tobytes(), repr(state), repr(groups)
    torch.set_printoptions(profile="default")
    return all(theirs == mine for theirs in comm.allgather(mine))


def set_rate(model: nn.Module, opt: Any, step: int) -> None:
    """As a loop does by its own iteration; ranks apply a round at different ones."""
    rate = 0.01 * (1 + step)
    for group in opt.param_groups:
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


@torch.no_grad()
def clamp(model: nn.Module, opt: Any, step: int) -> None:
    """As a loop does behind its steps; another rank is at another round then."""
    for p in model.parameters():
        p.clamp_(-0.1 / (1 + step), 0.1)


@pytest.mark.parametrize(("change", "text"), [(set_rate, SET), (clamp, WRITTEN), (None, "")])
@pytest.mark.parametrize(
    ("method", "overlap", "kind"),
    [*((*kept, "adamw") for kept in KEPT), *((EagerSGD(), None, kind) for kind in KINDS)],
    ids=str,
)
def test_what_was_changed_by_hand_becomes_rank_0s(comm, ctx, method, overlap, change, text, kind):
    """At a flush, and at the end, where ranks with fewer steps have come before."""
    model = net(dtype=torch.float32)
    inner = KINDS[kind](model.parameters())
    kept = []
    with warned() as texts:
        opt = pp.torch.DistributedOptimizer(inner, ctx, method, overlap=overlap)
        for step in range(STEPS + 2 * comm.rank):
            opt.zero_grad()
            backward(model, comm.rank, step)
            opt.step()
            if change is not None:
                change(model, opt, step + comm.rank)
            if step == STEPS // 2:
                own = flat(model)
                opt.flush()
                kept.append(are_equal(comm, model, inner))
                if change is not None and isinstance(method, Synchronous) and comm.rank == 0:
                    assert torch.equal(flat(model), own)
        opt.finish()
        kept.append(are_equal(comm, model, inner))
    assert kept == [True, True]
    told = parted(texts)
    assert comm.allgather(told) == [told] * comm.size
    assert len(told) == (2 if change else 0)
    assert all(text in one for one in told)


@pytest.mark.parametrize("method", [Synchronous(), EagerSGD()])
def test_numbers_that_are_not_equal_to_themselves(comm, ctx, method):
    """Equal bits of NaN are equal; a rank's own are replaced, and its buffers averaged as ever."""
    model = net(norm=True)
    inner = KINDS["adamw"](model.parameters())
    with pp.torch.DistributedOptimizer(inner, ctx, method, model=model) as opt:
        backward(model, comm.rank, 0)
        opt.step()
        opt.flush()
        with torch.no_grad(), warned() as texts:
            model[0].weight[0] = float("nan")
            opt.flush()  # the same everywhere
            model[0].weight[1] = float("nan") if comm.rank else 2.0
            inner.state[model[0].bias]["exp_avg"][0] = comm.rank
            inner.state[model[0].bias]["step"] += comm.rank
            inner.param_groups[0]["betas"] = (0.5, float("nan") if comm.rank else 0.25)
            model[1].running_mean.fill_(comm.rank)
            opt.flush()
        assert len(parted(texts)) == 1
        assert "the parameters, optimizer states, hyperparameters of" in texts[0]
        assert are_equal(comm, model, inner)
        assert model[0].weight[:2].isnan().all(1).tolist() == [True, False]
        assert inner.state[model[0].bias]["exp_avg"][0] == 0
        assert inner.param_groups[0]["betas"] == (0.5, 0.25)
        assert model[1].running_mean[0] == (comm.size - 1) / 2


def test_a_state_of_other_values_is_left(comm, ctx):
    model = net()
    inner = KINDS["momentum"](model.parameters())
    with warned() as texts, pp.torch.DistributedOptimizer(inner, ctx) as opt:
        opt.param_groups[0]["mine"] = {comm.rank}
        opt.state[model[0].weight]["mine"] = {comm.rank}
        backward(model, comm.rank, 0)
        opt.step()
        opt.flush()
    assert not parted(texts)
    assert opt.param_groups[0]["mine"] == opt.state[model[0].weight]["mine"] == {comm.rank}


def test_a_scheduler_and_a_hook_of_each_round_are_not_by_hand(comm, ctx):
    model = net()
    inner = KINDS["momentum"](model.parameters())
    scheduler = torch.optim.lr_scheduler.ExponentialLR(inner, 0.9)
    inner.register_step_post_hook(lambda *_: clamp(model, inner, 0))
    with warned() as texts, pp.torch.DistributedOptimizer(inner, ctx, None, scheduler) as opt:
        for step in range(STEPS + comm.rank):
            opt.zero_grad()
            backward(model, comm.rank, step)
            opt.step()
        opt.flush()
        opt.param_groups[0]["momentum"] = 0.5  # alike on all ranks, at the same round
    assert not parted(texts)
    assert are_equal(comm, model, inner)


class TestBeforeRound:
    def warm_up(self, inner: torch.optim.Optimizer, seen: list[tuple[int, float]]) -> Any:
        def set_rate(number: int) -> None:
            seen.append((number, min(1, (number + 1) / 5) * 0.05))
            for group in inner.param_groups:
                group["lr"] = seen[-1][1]

        return set_rate

    @pytest.mark.parametrize(("method", "overlap"), KEPT, ids=str)
    def test_each_round_has_its_rate_on_all_ranks(self, comm, ctx, method, overlap):
        model = net()
        inner = KINDS["momentum"](model.parameters())
        seen: list[tuple[int, float]] = []
        with (
            warned() as texts,
            pp.torch.DistributedOptimizer(
                *(inner, ctx, method), overlap=overlap, before_round=self.warm_up(inner, seen)
            ) as opt,
        ):
            for step in range(STEPS + comm.rank):
                opt.zero_grad()
                backward(model, comm.rank, step)
                opt.step()
                assert inner.param_groups[0]["lr"] == seen[-1][1]
        assert not parted(texts)
        assert are_equal(comm, model, inner)
        assert comm.allgather(seen) == [seen] * comm.size
        assert [number for number, _ in seen] == list(range(opt.rounds))

    def test_it_goes_on_from_a_checkpoint(self, comm, ctx):
        model, alone, seen = net(), net(), []
        inner, kept = KINDS["adamw"](model.parameters()), None
        for first in (0, STEPS):
            with pp.torch.DistributedOptimizer(
                *(inner, ctx, Synchronous()), before_round=lambda number: seen.append(number)
            ) as opt:
                if kept is not None:
                    opt.load_state_dict(kept)
                for step in range(first, first + STEPS):
                    opt.zero_grad()
                    backward(model, comm.rank, step)
                    opt.step()
                opt.flush()
                kept = opt.state_dict()
        assert seen == list(range(2 * STEPS))
        train_alone(alone, KINDS["adamw"](alone.parameters()), comm.size, 2 * STEPS)
        torch.testing.assert_close(flat(model), flat(alone), rtol=1e-9, atol=1e-9)

    @pytest.mark.parametrize("overlap", [None, 1])
    def test_an_exception_in_it_is_one_of_the_step(self, comm, overlap):
        """The round is not applied, and cannot be applied once more."""
        w = nn.Parameter(torch.zeros(3))

        def fail(number: int) -> None:
            if number == 1:
                raise ValueError("no rate")

        with pytest.raises(pp.Error, match="lacks round 1"), pp.Context(comm) as ctx:
            opt = pp.torch.DistributedOptimizer(
                torch.optim.SGD([w], lr=1.0), ctx, Synchronous(), before_round=fail, overlap=overlap
            )
            for _ in range(2):
                opt.zero_grad()
                w.sum().backward()
                if opt.rounds == 0:
                    opt.step()
            with pytest.raises(ValueError, match="no rate"):
                opt.step()
            assert (opt.rounds, w.tolist()) == (1, [-1.0] * 3)
            ctx.comm.Barrier()  # this rank gives up the context below
            opt.step()

    @pytest.mark.parametrize(
        ("options", "text"),
        [
            ({"before_round": 0.1}, "before_round must be a function of .* not 0.1"),
            ({"method": PartialReduce(2)}, "before_round needs .* not PartialReduce"),
            ({"method": Ripples(pp.groups.Smart(2))}, "before_round needs .* not Ripples"),
            ({"method": EagerSGD(deliver="sum")}, "before_round needs .*deliver='sum'"),
        ],
        ids=str,
    )
    def test_refused(self, comm, ctx, options, text):
        options = {"before_round": print, **options}
        is_odd = comm.rank == comm.size - 1
        with pytest.raises(pp.ArgumentError if is_odd else pp.MismatchError, match=text):
            inner = KINDS["momentum"](net().parameters())
            pp.torch.DistributedOptimizer(inner, ctx, **options if is_odd else {})
        with pytest.raises(pp.MismatchError, match="before_round"):
            inner = KINDS["momentum"](net().parameters())
            pp.torch.DistributedOptimizer(inner, ctx, before_round=print if is_odd else None)


# ---- warnings -----------------------------------------------------------------------------------

MANY = "there are more rounds than a rank has batches"
WARNS = [
    ("momentum", {"policy": "solo"}, MANY),
    ("momentum", {"policy": "first:2"}, MANY),
    ("plain", {"policy": "solo", "clip_norm": 1.0}, MANY),
    ("plain", {"policy": "solo"}, None),
    ("momentum", {"policy": "first:1"}, None),
    ("momentum", {}, None),
    ("momentum", {"method": EagerSGD("solo", "sum")}, "drift apart"),
]


@pytest.mark.parametrize("action", ["always", "error"])
@pytest.mark.parametrize(("kind", "options", "text"), WARNS, ids=str)
def test_a_warning_stops_no_rank(comm, ctx, kind, options, text, action):
    """Rank 0 warns, once; where warnings are errors it logs the text, and all ranks go on."""
    kinds = {**KINDS, "plain": lambda p: torch.optim.SGD(p, lr=0.05)}
    model = net()
    with warned(action) as texts:
        opt = pp.torch.DistributedOptimizer(kinds[kind](model.parameters()), ctx, **options)
        backward(model, comm.rank, 0)
        opt.step()
        opt.param_groups[0]["lr"] = 0.1 * (1 + comm.rank)
        opt.finish()
    is_kept = not text or "drift" not in text
    assert len(parted(texts)) == is_kept
    others = [one for one in texts if one not in parted(texts)]
    assert len(others) == (text is not None and comm.rank == 0)
    assert all(text in one for one in others)


# ---- one way to give a policy -------------------------------------------------------------------


def test_a_policy_is_short_for_a_method(comm, ctx):
    for policy in ("quorum:2,deadline=5ms", pp.Quorum(2, deadline=0.005)):
        inner = KINDS["momentum"](net().parameters())
        with pp.torch.DistributedOptimizer(inner, ctx, policy=policy) as opt:
            assert opt._method == EagerSGD(pp.Quorum(2, deadline=0.005))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"policy": "majorty"}, "'majorty' is not a policy"),
        ({"policy": 3}, "policy must be .* not 3"),
        ({"policy": "solo", "method": Synchronous()}, r"method=Synch.* policy='solo' exclude"),
    ],
    ids=str,
)
def test_a_wrong_policy_is_told_to_all(comm, ctx, options, text):
    is_odd = comm.rank == comm.size - 1
    inner = KINDS["momentum"](net().parameters())
    with pytest.raises(pp.ArgumentError if is_odd else pp.MismatchError, match=text):
        pp.torch.DistributedOptimizer(inner, ctx, **options if is_odd else {})
