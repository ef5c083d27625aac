"""What an optimizer does with gradients and parameters: views, types, flags, options."""

from __future__ import annotations

import copy
import io
import re
import warnings

import pytest
import torch
from mpi4py import MPI
from support.memory import ended
from support.training import backward, batch, flat, net, train_alone
from torch import nn
from torch.optim import lr_scheduler as schedules

import pypartial as pp
import pypartial.torch
from pypartial.methods import EagerSGD, PartialReduce, Ripples, Synchronous
from pypartial.torch.gradients import Gradients
from pypartial.torch.layout import Layout

pytestmark = [pytest.mark.mpi(min_size=2), pytest.mark.sizes(3)]

STEPS = 12
needs_grad_dtype = pytest.mark.skipif(
    not hasattr(torch.Tensor, "grad_dtype"), reason="torch has no grad_dtype yet"
)
GROUPS = [PartialReduce(2), Ripples(pp.groups.Smart(2))]
EQUAL = PartialReduce(2, "dynamic", missing="initial", history=6, final="equal")


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.02)


def are_equal(comm, model: nn.Module) -> bool:
    return len(set(comm.allgather(flat(model).numpy().tobytes()))) == 1


@pytest.mark.parametrize("error", [MemoryError, torch.OutOfMemoryError])
@pytest.mark.parametrize(
    ("method", "overlap", "call"),
    [
        (Synchronous(), 1, "zeros"),
        (Synchronous(), 2, "zeros"),
        (Synchronous(), 2, "others"),
        (EagerSGD(), None, "others"),
        (PartialReduce(2), None, "zeros"),
        (PartialReduce(2), None, "others"),
    ],
)
@pytest.mark.parametrize("half", [False, True])
def test_a_rank_without_memory(comm, ctx, monkeypatch, method, overlap, call, error, half):
    """All ranks raise before the first handle is made, and the context can be used further."""
    model = net().bfloat16() if half else net()
    where = type(Layout(list(model.named_parameters())).home) if call == "zeros" else Gradients
    made, calls = getattr(where, call), []
    last = 2 if overlap == 2 else 1

    def refused(*rest):
        calls.append(rest)
        if comm.rank == comm.size - 1 and len(calls) == last:
            raise error("none is left")
        return made(*rest)

    is_odd = comm.rank == comm.size - 1
    expected, text = (MemoryError, "none") if is_odd else (pp.MismatchError, "rank 2: MemoryError")
    with monkeypatch.context() as patch, pytest.raises(expected, match=text):
        patch.setattr(where, call, refused if call == "zeros" else staticmethod(refused))
        pp.torch.DistributedOptimizer(adamw(model), ctx, method, overlap=overlap)
    assert not ctx._requests
    with pp.torch.DistributedOptimizer(adamw(model), ctx, method, overlap=overlap) as opt:
        backward(model, comm.rank, 0) if not half else None
        opt.step()
    assert are_equal(comm, model)


@pytest.mark.parametrize("method", [Synchronous(), EagerSGD(), PartialReduce(2)])
def test_a_rank_without_memory_for_its_gradient(comm, ctx, monkeypatch, method):
    model = net()
    home = Layout(list(model.named_parameters())).home
    where, call = (type(home), "zeros") if home.is_device else (pp.Context, "alloc")
    error = torch.OutOfMemoryError if home.is_device else MemoryError

    def refused(*_: object) -> None:
        raise error("none is left")

    is_odd = comm.rank == comm.size - 1
    expected, text = (MemoryError, "none") if is_odd else (pp.MismatchError, "rank 2: MemoryError")
    with monkeypatch.context() as patch, pytest.raises(expected, match=text):
        if is_odd:
            patch.setattr(where, call, refused)
        pp.torch.DistributedOptimizer(adamw(model), ctx, method)
    assert not ctx._requests


class TestGradients:
    def reset(self, how: str, opt, model: nn.Module) -> None:
        if how == "none":
            opt.zero_grad()
        elif how == "zeros":
            opt.zero_grad(set_to_none=False)
        else:
            model.zero_grad()

    @pytest.mark.parametrize("how", ["none", "zeros", "model's"])
    def test_zero_grad_may_keep_or_drop_the_views(self, comm, ctx, how):
        model, alone = net(), net()
        with pp.torch.DistributedOptimizer(adamw(model), ctx, Synchronous()) as opt:
            for step in range(STEPS):
                self.reset(how, opt, model)
                backward(model, comm.rank, step)
                opt.step()
        train_alone(alone, adamw(alone), comm.size, STEPS)
        torch.testing.assert_close(flat(model), flat(alone), rtol=1e-12, atol=1e-12)

    @pytest.mark.parametrize("overlap", [None, 1])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_a_gradient_given_by_data_counts(self, comm, ctx, overlap, dtype):
        """Although torch counts no change; also for a flush, which would lose it."""
        w = nn.Parameter(torch.zeros(3, dtype=dtype))
        sgd = torch.optim.SGD([w], lr=1.0)
        with pp.torch.DistributedOptimizer(sgd, ctx, Synchronous(), overlap=overlap) as opt:
            w.sum().backward()
            opt.step()
            for _ in range(2):
                w.grad.data = torch.full_like(w, 2)
                with pytest.raises(pp.Error, match="a gradient waits for its step"):
                    opt.flush()
                opt.step()
            assert w.tolist() == [-5.0] * 3
            with pytest.raises(pp.Error, match="was applied by the last"):
                opt.step()
            opt.flush()
            assert w.tolist() == [-5.0] * 3

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_a_gradient_that_is_moved_was_applied_all_the_same(self, comm, ctx, dtype):
        model = nn.Linear(3, 1, bias=False, dtype=dtype)
        sgd = torch.optim.SGD(model.parameters(), lr=1.0)
        with pp.torch.DistributedOptimizer(sgd, ctx, Synchronous()) as opt:
            model(torch.ones(1, 3, dtype=dtype)).sum().backward()
            opt.step()
            model.share_memory()
            with pytest.raises(pp.Error, match="was applied by the last"):
                opt.step()

    def test_gradients_are_views_of_one_vector(self, comm, ctx):
        model = net()
        with pp.torch.DistributedOptimizer(adamw(model), ctx, Synchronous()) as opt:
            backward(model, comm.rank, 0)
            opt.step()
            places = [p.grad.data_ptr() for p in model.parameters()]
            ends = [p.grad.data_ptr() + p.grad.nbytes for p in model.parameters()]
            assert ends[:-1] == places[1:]
            opt.zero_grad(set_to_none=False)
            backward(model, comm.rank, 1)
            opt.step()
            assert [p.grad.data_ptr() for p in model.parameters()] == places
            opt.flush()  # overwrites the vector
            assert [p.grad for p in model.parameters()] == [None] * len(places)
            backward(model, comm.rank, 2)  # is dropped by the end

    @pytest.mark.parametrize("overlap", [None, 2])
    @pytest.mark.parametrize("set_to_none", [True, False])
    @pytest.mark.parametrize(
        "trip",
        [lambda m: m.double().float(), nn.Module.share_memory],
        ids=["types", "shared"],
    )
    def test_gradients_may_be_given_other_memory_behind_a_step(
        self, request, comm, ctx, trip, set_to_none, overlap
    ):
        """They stay the same tensors, and lie in the vector no more."""
        if trip is nn.Module.share_memory and "stand_in" in request.fixturenames:
            pytest.skip("memory of a device stays where it is")
        model, alone = net(dtype=torch.float32), net(dtype=torch.float32)
        method = Synchronous()
        with pp.torch.DistributedOptimizer(adamw(model), ctx, method, overlap=overlap) as opt:
            for step in range(STEPS):
                opt.zero_grad(set_to_none)
                backward(model, comm.rank, step)
                opt.step()
                trip(model)
        assert are_equal(comm, model)
        train_alone(alone, adamw(alone), comm.size, STEPS)
        torch.testing.assert_close(flat(model), flat(alone), rtol=1e-4, atol=1e-4)

    @pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
    def test_gradients_may_be_assigned_to_what_they_are(self, comm, ctx, dtype):
        w = nn.Parameter(torch.zeros(2, dtype=dtype))
        sgd = torch.optim.SGD([w], lr=1.0)
        with pp.torch.DistributedOptimizer(sgd, ctx, Synchronous()) as opt:
            for _ in range(3):
                opt.zero_grad(set_to_none=False)
                (w * 2 * comm.rank).sum().backward()
                w.grad.data = w.grad.data.clamp(-10, 10)
                opt.step()
        assert w.tolist() == [-3.0 * (comm.size - 1)] * 2

    @pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
    def test_gradients_that_are_made_elsewhere_are_noticed(self, comm, ctx, dtype):
        """As by a CUDA graph, which writes to what p.grad was when it was captured."""
        w = nn.Parameter(torch.zeros(3, dtype=dtype))
        there = torch.ones_like(w)
        sgd = torch.optim.SGD([w], lr=1.0)
        with pp.torch.DistributedOptimizer(sgd, ctx, Synchronous()) as opt:
            w.grad = there
            opt.step()
            there.fill_(2)
            with pytest.raises(pp.Error, match=r"parameter 0 of group 0 was applied by the last"):
                opt.step()
            with pytest.raises(pp.Error, match=r"was applied by the last step\(\)"):
                opt.step()  # not only once
            assert opt.rounds == 1
            opt.zero_grad()
            w.grad = there
            opt.step()
        assert w.tolist() == [-3] * 3

    @pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
    def test_gradients_may_be_made_in_place_by_what_torch_does_not_count(self, comm, ctx, dtype):
        """As by a CUDA graph that was captured behind the first step."""
        w = nn.Parameter(torch.zeros(3, dtype=dtype))
        sgd = torch.optim.SGD([w], lr=1.0)
        with pp.torch.DistributedOptimizer(sgd, ctx, Synchronous()) as opt:
            w.grad = torch.ones_like(w)
            opt.step()
            opt.zero_grad(set_to_none=False)
            (2 * w).sum().backward()  # is captured
            for step in range(4):
                w.grad.data.fill_(2)  # is replayed
                if step == 1:  # as a GradScaler does, on one rank
                    opt.found_inf = torch.tensor(float(comm.rank == 0))
                opt.step()
                opt.found_inf = torch.tensor(0.0)
                if step == 2:
                    view = w.grad
                    opt.flush()
                    assert w.grad is None
                    w.grad = view
            del opt.found_inf
        assert w.double().tolist() == pytest.approx([-1 - 2 * (4 - 1 / comm.size)] * 3, rel=0.01)

    def test_a_gradient_that_only_other_ranks_have_is_not_contributed_later(self, comm, ctx):
        """It is this rank's p.grad behind the step."""
        w = nn.Parameter(torch.zeros(3, dtype=torch.float64))
        sgd = torch.optim.SGD([w], lr=1.0)
        with pp.torch.DistributedOptimizer(sgd, ctx, Synchronous()) as opt:
            if comm.rank:
                w.grad = torch.ones_like(w)
            opt.step()
            with pytest.raises(pp.Error, match=r"was applied by the last step\(\)"):
                opt.step()
            opt.zero_grad()
            opt.step()
        torch.testing.assert_close(w.detach(), torch.full_like(w, 1 / comm.size - 1))

    @pytest.mark.filterwarnings("error:grad and param do not obey the gradient layout contract")
    @pytest.mark.parametrize("set_to_none", [True, False])
    @pytest.mark.parametrize("method", [Synchronous(), "overlap", PartialReduce(3)], ids=str)
    def test_gradients_have_the_memory_format_of_parameters(self, comm, method, set_to_none):
        """Fused optimizers take both as they lie in memory."""

        def images(fused: bool) -> tuple[nn.Module, torch.optim.Optimizer]:
            torch.manual_seed(1)
            model = nn.Sequential(nn.Conv2d(2, 4, 2), nn.Flatten(), nn.Linear(16, 3)).double()
            model = model.to(memory_format=torch.channels_last)
            return model, torch.optim.SGD(model.parameters(), lr=0.05, fused=fused)

        def pixels(model: nn.Module, rank: int, step: int) -> None:
            x, y = batch(rank, step)
            (model(x[:, :6].repeat(1, 3).view(8, 2, 3, 3)) - y).square().mean().backward()

        overlap = 2 if method == "overlap" else None
        method = Synchronous() if overlap else method
        model, sgd = images(fused=True)
        with (
            pp.Context(comm, patience=None) as ctx,
            pp.torch.DistributedOptimizer(sgd, ctx, method, overlap=overlap) as opt,
        ):
            for step in range(STEPS):
                opt.zero_grad(set_to_none)
                pixels(model, comm.rank, step)
                opt.step()
                strides = [p.stride() for p in model.parameters()]
                assert [p.grad.stride() for p in model.parameters()] == strides
        assert strides[0] == (8, 1, 4, 2)
        alone, by_hand = images(fused=False)
        train_alone(alone, by_hand, comm.size, STEPS, pixels)
        torch.testing.assert_close(flat(model), flat(alone), rtol=1e-12, atol=1e-12)

    @pytest.mark.parametrize("set_to_none", [True, False])
    def test_parameters_that_no_rank_uses_are_left_alone(self, comm, ctx, set_to_none):
        """As DDP leaves them: AdamW would make them smaller otherwise, and give them a state."""

        class Branches(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                torch.manual_seed(1)
                self.one, self.two, self.never = (nn.Linear(6, 3).double() for _ in range(3))

        def partly(model: nn.Module, rank: int, step: int) -> None:
            x, y = batch(rank, step)
            uses_two = rank == 0 and step % 2 == 0  # nobody uses `two` in odd steps
            layer = model.two if uses_two else model.one
            (layer(x) - y).square().mean().backward()

        model, alone = Branches(), Branches()
        inner = adamw(model)
        with pp.torch.DistributedOptimizer(inner, ctx, Synchronous()) as opt:
            for step in range(STEPS):
                opt.zero_grad()
                partly(model, comm.rank, step)
                opt.step()
                assert model.never.weight.grad is None
                assert (model.two.weight.grad is None) == (step % 2 == 1)
        train_alone(alone, adamw(alone), comm.size, STEPS, partly)
        torch.testing.assert_close(flat(model), flat(alone), rtol=1e-12, atol=1e-12)
        assert model.never.weight not in inner.state
        assert are_equal(comm, model)

    def test_a_gradient_with_a_graph_counts(self, comm, ctx):
        model, alone = net(), net()

        def twice(model: nn.Module, rank: int, step: int) -> None:
            x, y = batch(rank, step)
            (model(x) - y).square().mean().backward(create_graph=True)

        with (
            pytest.warns(UserWarning, match="create_graph"),
            pp.torch.DistributedOptimizer(adamw(model), ctx, Synchronous()) as opt,
        ):
            for step in range(3):
                opt.zero_grad(set_to_none=False)
                twice(model, comm.rank, step)
                opt.step()
        train_alone(alone, adamw(alone), comm.size, 3)
        torch.testing.assert_close(flat(model), flat(alone), rtol=1e-12, atol=1e-12)

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
    def test_half_precision_is_widened_on_its_way(self, comm, ctx, dtype):
        """In half precision 2048 and 1 are 2048."""
        w = nn.Parameter(torch.zeros(5, dtype=dtype))
        single = nn.Parameter(torch.zeros(2))
        sgd = torch.optim.SGD([w, single], lr=1.0)
        with pp.torch.DistributedOptimizer(sgd, ctx, Synchronous()) as opt:
            w.grad = torch.full_like(w, 2048 if comm.rank == 0 else 3)
            single.grad = torch.full_like(single, comm.rank)
            opt.step()
            assert (w.dtype, w.grad.dtype) == (dtype, dtype)
            opt.zero_grad()
            opt.step()  # nobody has a gradient: nothing changes
        mean = torch.full((5,), (2048 + 3 * (comm.size - 1)) / comm.size)
        assert w.equal(-mean.to(dtype))
        assert single.equal(torch.full((2,), -(comm.size - 1) / 2))

    def test_double_makes_all_double(self, comm, ctx):
        small, large = nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(3).double())
        sgd = torch.optim.SGD([small, large], lr=1.0)
        with pp.torch.DistributedOptimizer(sgd, ctx, Synchronous()) as opt:
            small.grad = torch.ones_like(small)
            large.grad = torch.full_like(large, 1 + 1e-12)
            opt.step()
        torch.testing.assert_close(
            -large.detach(), torch.full_like(large, 1 + 1e-12), rtol=1e-15, atol=0
        )
        assert small.equal(-torch.ones(3))

    @needs_grad_dtype
    @pytest.mark.parametrize("overlap", [None, 1])
    @pytest.mark.parametrize("set_to_none", [True, False])
    def test_gradients_may_have_another_type_than_the_parameter(
        self, comm, ctx, overlap, set_to_none
    ):
        w = nn.Parameter(torch.zeros(5, dtype=torch.bfloat16))
        single = nn.Parameter(torch.zeros(2))
        w.grad_dtype = torch.float32
        single.grad_dtype = torch.bfloat16
        sgd = torch.optim.SGD([w, single], lr=1.0)
        own = 256.0 if comm.rank == 0 else 3.0
        mean = (256 + 3 * (comm.size - 1)) / comm.size  # not in bfloat16
        with pp.torch.DistributedOptimizer(sgd, ctx, Synchronous(), overlap=overlap) as opt:
            for _ in range(2):
                opt.zero_grad(set_to_none)
                ((w.float() * own).sum() + 3 * comm.size * single.sum()).backward()
                opt.step()
                assert (w.grad.dtype, single.grad.dtype) == (torch.float32, torch.bfloat16)
                assert w.grad.tolist() == pytest.approx([mean] * 5, rel=1e-6)
        assert single.tolist() == [-6 * comm.size] * 2
        assert w.dtype == torch.bfloat16

    @needs_grad_dtype
    def test_double_gradients_make_all_double(self, comm, ctx):
        w = nn.Parameter(torch.zeros(3))
        w.grad_dtype = torch.float64
        sgd = torch.optim.SGD([w], lr=1.0)
        with pp.torch.DistributedOptimizer(sgd, ctx, Synchronous()) as opt:
            w.grad = torch.full((3,), 1 + 1e-12, dtype=torch.float64)
            opt.step()
            assert w.grad.tolist() == pytest.approx([1 + 1e-12] * 3, rel=1e-15)

    def test_clip_norm_is_of_the_mean(self, comm, ctx):
        model, alone = net(), net()
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        with pp.torch.DistributedOptimizer(sgd, ctx, Synchronous(), clip_norm=0.3) as opt:
            for step in range(STEPS):
                opt.zero_grad()
                backward(model, comm.rank, step)
                opt.step()
        by_hand = torch.optim.SGD(alone.parameters(), lr=0.1)
        train_alone(alone, by_hand, comm.size, STEPS, clip_norm=0.3)
        torch.testing.assert_close(flat(model), flat(alone), rtol=1e-12, atol=1e-12)

    def test_no_sync_adds_up(self, comm, ctx):
        model, alone = net(), net()

        def both(model: nn.Module, rank: int, step: int) -> None:
            backward(model, rank, 2 * step)
            backward(model, rank, 2 * step + 1)

        with pp.torch.DistributedOptimizer(adamw(model), ctx, Synchronous()) as opt:
            for step in range(STEPS):
                opt.zero_grad()
                with opt.no_sync():
                    backward(model, comm.rank, 2 * step)
                    with pytest.raises(pp.Error, match=r"step\(\) inside no_sync\(\)"):
                        opt.step()
                backward(model, comm.rank, 2 * step + 1)
                opt.step()
        train_alone(alone, adamw(alone), comm.size, STEPS, both)
        torch.testing.assert_close(flat(model), flat(alone), rtol=1e-12, atol=1e-12)


def one_cycle(inner, steps: int = 5):
    return schedules.OneCycleLR(inner, 1.0, total_steps=steps)


def warmed_up(inner):
    return schedules.SequentialLR(
        inner, [schedules.LinearLR(inner), schedules.CosineAnnealingLR(inner, 7)], milestones=[2]
    )


class TestScheduler:
    def test_steps_with_each_round(self, comm, ctx):
        model = net()
        inner = torch.optim.SGD(model.parameters(), lr=1.0)
        scheduler = torch.optim.lr_scheduler.StepLR(inner, 1, 0.5)
        with pp.torch.DistributedOptimizer(inner, ctx, EagerSGD(), scheduler) as opt:
            for step in range(5 + comm.rank):
                opt.zero_grad()
                backward(model, comm.rank, step)
                opt.step()
            opt.flush()
            opt.flush()  # applies nothing: no round
            assert scheduler.last_epoch == opt.rounds
            assert opt.param_groups[0]["lr"] == 0.5**opt.rounds
        assert comm.allgather(opt.rounds) == [opt.rounds] * comm.size

    @pytest.mark.parametrize(
        ("make", "method", "of"),
        [
            (one_cycle, EagerSGD(), "OneCycleLR with total_steps=5"),
            (lambda o: schedules.CosineAnnealingLR(o, 7), EagerSGD("first:1"), "LR with T_max=7"),
            (
                lambda o: schedules.PolynomialLR(o, 9),
                EagerSGD(pp.Quorum(2)),
                "LR with total_iters",
            ),
            (warmed_up, EagerSGD(pp.Full(deadline=9)), "CosineAnnealingLR with T_max=7"),
            (lambda o: schedules.ChainedScheduler([one_cycle(o)]), EagerSGD(), "total_steps=5"),
            (one_cycle, EagerSGD(pp.Full()), None),
            (one_cycle, Synchronous(), None),
            (one_cycle, EagerSGD(deliver="sum", sync_every=4), None),  # a step for each call
            (one_cycle, PartialReduce(2), None),
            (lambda o: schedules.StepLR(o, 7), EagerSGD(), None),
            (lambda o: schedules.LinearLR(o, total_iters=3), EagerSGD(), None),
            (lambda o: None, EagerSGD(), None),
        ],
    )
    def test_a_fixed_length_is_warned_of(self, comm, ctx, make, method, of):
        inner = torch.optim.SGD(net().parameters(), lr=1.0, momentum=0.9)
        scheduler = make(inner)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            opt = pp.torch.DistributedOptimizer(inner, ctx, method, scheduler)
        assert len(caught) == (of is not None and comm.rank == 0)
        for one in caught:
            assert re.search(rf"{of}.*, makes a step for each round", str(one.message))
            assert one.filename == __file__
        opt.finish()

    @pytest.mark.parametrize("overlap", [None, 2])
    @pytest.mark.parametrize(
        ("make", "last"),
        [
            (one_cycle, 4),
            (lambda o: schedules.ChainedScheduler([one_cycle(o), schedules.StepLR(o, 2)]), 4),
            (
                lambda o: schedules.SequentialLR(o, [schedules.ConstantLR(o), one_cycle(o)], [3]),
                7,
            ),
            (
                lambda o: schedules.SequentialLR(o, [one_cycle(o), schedules.StepLR(o, 2)], [5]),
                None,
            ),
        ],
        ids=["alone", "chained", "behind another", "before another"],
    )
    def test_a_cycle_keeps_its_last_rate(self, comm, ctx, make, last, overlap):
        """By itself it would raise in one of the rounds, which the other ranks have applied."""

        def used(opt, inner, count: int, then) -> list[tuple[float, float]]:
            found = []
            for _ in range(count):
                found.append((inner.param_groups[0]["lr"], inner.param_groups[0]["momentum"]))
                opt.zero_grad()
                next(iter(inner.param_groups[0]["params"])).sum().backward()
                then()
            return found

        def inner_one():
            inner = torch.optim.SGD(net().parameters(), lr=1.0, momentum=0.9)
            return inner, make(inner)

        inner, scheduler = inner_one()
        with pp.torch.DistributedOptimizer(
            inner, ctx, Synchronous(), scheduler, overlap=overlap
        ) as opt:
            found = used(opt, inner, STEPS, opt.step)
        alone, scheduler = inner_one()
        count = STEPS if last is None else 1 + last
        expected = used(alone, alone, count, lambda: (alone.step(), scheduler.step()))
        assert found == expected + expected[-1:] * (STEPS - count)


class TestGradScaler:
    SCALE = 1024.0

    def train(self, comm, ctx, spoiled: set[tuple[int, int]], use: bool, manual: bool = False):
        """Train; the ranks and steps that are spoiled have infinite gradients, or none."""
        model = net()
        inner = torch.optim.AdamW(model.parameters(), lr=0.02)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(inner, 0.9)
        scaler = torch.amp.GradScaler("cpu", init_scale=self.SCALE, enabled=use)
        models = []
        with pp.torch.DistributedOptimizer(inner, ctx, Synchronous(), scheduler) as opt:
            for step in range(6):
                opt.zero_grad()
                x, y = batch(comm.rank, step)
                loss = (model(x) - y).square().mean()
                scaler.scale(loss).backward()
                if (comm.rank, step) in spoiled:
                    if use:
                        next(model.parameters()).grad[0] = torch.inf
                    else:
                        opt.zero_grad()
                if manual:
                    scaler.unscale_(opt)
                scaler.step(opt)
                scaler.update()
                models.append(flat(model))
            rates = scheduler.get_last_lr()
        return models, rates, scaler.get_scale()

    @pytest.mark.parametrize("manual", [False, True], ids=["step", "unscale_"])
    def test_changes_nothing_but_the_range(self, comm, ctx, manual):
        plain, _, _ = self.train(comm, ctx, set(), use=False)
        scaled, _, _ = self.train(comm, ctx, set(), use=True, manual=manual)
        for one, other in zip(plain, scaled, strict=True):
            assert one.equal(other)  # a power of two

    @pytest.mark.parametrize("manual", [False, True], ids=["step", "unscale_"])
    def test_a_rank_that_skips_contributes_zeros(self, comm, ctx, manual):
        plain, _, _ = self.train(comm, ctx, {(0, 2), (1, 4)}, use=False)
        scaled, _, scale = self.train(comm, ctx, {(0, 2), (1, 4)}, use=True, manual=manual)
        for one, other in zip(plain, scaled, strict=True):
            assert one.equal(other)
        assert scale == (self.SCALE / 2 if comm.rank < 2 else self.SCALE)

    def test_a_skipped_step_leaves_no_gradient_behind(self, comm, ctx):
        """With groups nothing is applied then, and the next flush would miss its step."""
        model = nn.Linear(2, 2)
        scaler = torch.amp.GradScaler("cpu", init_scale=self.SCALE)
        inner = torch.optim.SGD(model.parameters(), lr=0.1)
        with pp.torch.DistributedOptimizer(inner, ctx, PartialReduce(2)) as opt:
            scaler.scale(model(torch.full((1, 2), torch.inf)).sum()).backward()
            scaler.step(opt)
            scaler.update()
            opt.flush()
        assert opt.rounds == 0

    def test_a_step_that_all_skip_changes_nothing(self, comm, ctx):
        spoiled = {(rank, 3) for rank in range(comm.size)}
        models, rates, scale = self.train(comm, ctx, spoiled, use=True)
        assert models[3].equal(models[2])
        assert not models[4].equal(models[3])
        assert rates == [pytest.approx(0.02 * 0.9**5)]
        assert scale == self.SCALE / 2

    @pytest.mark.parametrize("unscale", [False, True])
    def test_a_step_that_raises_leaves_no_scale(self, comm, ctx, unscale):
        """The next one would multiply it by the scaler's."""
        w = nn.Parameter(torch.zeros(3))
        sgd = torch.optim.SGD([w], lr=1.0)
        scaler = torch.amp.GradScaler("cpu", init_scale=self.SCALE)
        with pp.torch.DistributedOptimizer(sgd, ctx, Synchronous()) as opt:
            scaler.scale(w.sum()).backward()
            w.requires_grad_(False)
            with pytest.raises(pp.Error, match="was frozen"):
                scaler.step(opt)
            w.requires_grad_(True)
            if unscale:
                scaler.update()
                opt.zero_grad()
                scaler.scale(w.sum()).backward()
                scaler.unscale_(opt)
            scaler.step(opt)
            scaler.update()
        assert w.tolist() == [-1.0] * 3


class TestGroups:
    @pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
    def test_a_group_of_all_ranks_trains_as_one(self, comm, dtype):
        """The mean of models that made a plain step is the model after the mean's step."""
        model, alone = net(dtype=dtype), net(dtype=dtype)
        sgd = torch.optim.SGD(model.parameters(), lr=0.05)
        with (
            pp.Context(comm, patience=None) as ctx,
            pp.torch.DistributedOptimizer(sgd, ctx, PartialReduce(comm.size)) as opt,
        ):
            for step in range(STEPS):
                opt.zero_grad()
                backward(model, comm.rank, step)
                opt.step()
                assert opt.status.group == tuple(range(comm.size))
                assert are_equal(comm, model)
        train_alone(alone, torch.optim.SGD(alone.parameters(), lr=0.05), comm.size, STEPS)
        near = 1e-12 if dtype == torch.float64 else 0.05
        torch.testing.assert_close(flat(model), flat(alone), rtol=near, atol=near)
        assert not flat(model).equal(flat(net(dtype=dtype)))

    @pytest.mark.parametrize("method", GROUPS, ids=["partial-reduce", "ripples"])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_models_end_equal(self, comm, ctx, method, dtype):
        model = net(norm=True, dtype=dtype, seed=comm.rank)
        inner = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        with pp.torch.DistributedOptimizer(inner, ctx, method, model=model) as opt:
            assert are_equal(comm, model)
            for step in range(STEPS + 5 * comm.rank):
                opt.zero_grad()
                backward(model, comm.rank, step)
                opt.step()
            assert opt.rounds == STEPS + 5 * comm.rank
        assert are_equal(comm, model)
        state = [inner.state[p]["momentum_buffer"].double() for p in model.parameters()]
        assert (
            len(set(comm.allgather(torch.cat([t.flatten() for t in state]).numpy().tobytes()))) == 1
        )

    @pytest.mark.parametrize("method", GROUPS, ids=["partial-reduce", "ripples"])
    def test_one_rank_trains_alone(self, method):
        model = net()
        alone = copy.deepcopy(model)
        inner = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        with (
            pp.Context(MPI.COMM_SELF) as ctx,
            pp.torch.DistributedOptimizer(inner, ctx, method, model=model) as opt,
        ):
            for step in range(STEPS):
                opt.zero_grad()
                backward(model, 0, step)
                opt.step()
                assert opt.status.group == (0,)
        sgd = torch.optim.SGD(alone.parameters(), lr=0.05, momentum=0.9)
        train_alone(alone, sgd, 1, STEPS)
        assert flat(model).equal(flat(alone))

    @pytest.mark.parametrize("method", [*GROUPS, EQUAL], ids=["partial-reduce", "ripples", "equal"])
    def test_a_model_counts_by_the_steps_of_its_rank(self, comm, ctx, method):
        """So do its buffers and the state. A rank that has finished counts nothing any more.

        With ``final="equal"`` all count the same.
        """
        by_steps = method.final == "steps"
        model = net(norm=True)
        inner = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

        def whole() -> torch.Tensor:
            state = [inner.state[p]["momentum_buffer"].flatten() for p in model.parameters()]
            return torch.cat([flat(model), *state])

        def train(opt, steps: int) -> torch.Tensor:
            for step in range(steps):
                opt.zero_grad()
                backward(model, comm.rank, step)
                opt.step()
            return whole()

        def check(made: int, own: torch.Tensor) -> None:
            counts, models = zip(*others(made, own), strict=True)
            weights = torch.tensor(counts if by_steps else [1] * comm.size).double()
            mean = weights @ torch.tensor(models, dtype=torch.float64) / weights.sum()
            torch.testing.assert_close(whole(), mean, rtol=1e-12, atol=1e-12)

        def others(made: int, own: torch.Tensor) -> list[tuple[int, list[float]]]:
            with ctx.away():
                return comm.allgather((made, own.tolist()))

        with pp.torch.DistributedOptimizer(inner, ctx, method, model=model) as opt:
            made = 2 + 5 * comm.rank
            own = train(opt, made)
            opt.flush()
            check(made, own)
            made = 3 if comm.rank == 1 else 0
            own = train(opt, made)
            opt.flush()
            check(made, own)
            if comm.rank == 1:
                own = train(opt, 4)
                opt.flush()
                assert not by_steps or whole().equal(own)
        assert are_equal(comm, model)

    def test_parameters_in_one_vector_are_saved_loaded_and_copied_as_before(self, comm, ctx):
        model, other = net(), net(seed=5)
        with pp.torch.DistributedOptimizer(adamw(model), ctx, GROUPS[0]) as opt:
            weight = model[0].weight
            twin = copy.deepcopy(model)
            model.load_state_dict(other.state_dict())
            assert flat(model).equal(flat(other))
            assert not flat(twin).equal(flat(model))
            file = io.BytesIO()
            torch.save(model.state_dict(), file)
            loaded = torch.load(io.BytesIO(file.getvalue()))
            assert loaded["0.weight"].equal(weight)
            backward(model, 0, 0)  # the same gradient on all ranks
            opt.step()
            assert model[0].weight is weight
        alone = net(seed=5)
        by_hand = adamw(alone)
        backward(alone, 0, 0)
        by_hand.step()
        torch.testing.assert_close(flat(model), flat(alone), rtol=1e-12, atol=1e-12)

    def test_the_rest_stays_where_it_is(self, ctx):
        for method in (Synchronous(), EagerSGD(pp.Solo(), "sum", 2)):
            model = net()
            places = [p.data_ptr() for p in model.parameters()]
            with pp.torch.DistributedOptimizer(adamw(model), ctx, method):
                assert [p.data_ptr() for p in model.parameters()] == places


class TestTheEnd:
    @pytest.mark.filterwarnings("ignore:.*drift apart")
    @pytest.mark.parametrize(
        ("method", "overlap"),
        [
            (Synchronous(), None),
            (EagerSGD(pp.Solo(), "sum", 4), None),
            (PartialReduce(2), None),
            (Synchronous(), 2),
        ],
        ids=["each", "sum", "groups", "overlap"],
    )
    def test_no_vector_is_kept(self, comm, ctx, request, method, overlap):
        """But that of a model that groups average, which is the model's memory."""
        model = net()
        opt = pp.torch.DistributedOptimizer(adamw(model), ctx, method, overlap=overlap)
        for step in range(3):
            opt.zero_grad()
            backward(model, comm.rank, step)
            opt.step()
        driver = opt._driver
        if overlap is None:
            vectors = [driver._worker.gradient]
        else:
            vectors = [piece.vector for piece in driver._pieces]
        have_ended = [ended(vector) for vector in vectors]
        del driver, vectors
        assert not any(has() for has in have_ended)
        opt.finish()
        forget_vectors(request)
        assert all(has() for has in have_ended)
        assert opt.rounds >= 3 and opt.status is not None
        assert opt.state_dict()["worker"]["rounds"] == opt.rounds
        for call in (opt.step, opt.flush, opt.finish, opt.away):
            with pytest.raises(pp.Error, match=r"after finish\(\)"):
                call()
        assert model(torch.ones(1, 6).double()).shape == (1, 3)


def forget_vectors(request) -> None:
    """Have the device of the stand-in, if it is there, keep none that nobody else has."""
    if "stand_in" in request.fixturenames:
        request.getfixturevalue("stand_in").arrays.clear()


class TestMeetings:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_ranks_that_meet_twice_average_what_they_have(self, comm, ctx, dtype):
        """Those in finish() meet rank 0 behind its step, and then again."""
        w = nn.Parameter(torch.zeros(3, dtype=dtype))
        sgd = torch.optim.SGD([w], lr=0.0)
        opt = pp.torch.DistributedOptimizer(sgd, ctx, EagerSGD(pp.Full(), "sum", sync_every=1))
        with torch.no_grad():
            w.fill_(3 * comm.rank)
        if comm.rank == 0:
            w.sum().backward()
            opt.step()
            assert w.tolist() == [1.5 * (comm.size - 1)] * 3
        opt.finish()
        assert w.tolist() == [1.5 * (comm.size - 1)] * 3
        assert not opt._driver._arrays._copies


class TestBuffers:
    def test_are_settled_by_flush(self, comm, ctx):
        model = nn.Linear(2, 2)
        model.register_buffer("statistic", torch.tensor(float(comm.rank)))
        model.register_buffer("constant", torch.full((3,), 0.1))
        model.register_buffer("number", torch.tensor([comm.rank, 7]))
        model.register_buffer("brief", torch.tensor([1.0, comm.rank], dtype=torch.bfloat16))
        with pp.torch.DistributedOptimizer(adamw(model), ctx, model=model) as opt:
            assert [float(model.statistic), model.number.tolist()] == [0.0, [0, 7]]
            model.statistic.fill_(comm.rank)
            model.number.fill_(comm.rank + 5)
            model.brief[1] = 2 * comm.rank
            opt.flush()
            assert float(model.statistic) == (comm.size - 1) / 2
            assert model.number.tolist() == [5, 5]
            assert model.brief.tolist() == [1.0, comm.size - 1]
            assert model.constant.equal(torch.full((3,), 0.1))  # its bits

    def test_frozen_parameters_become_those_of_rank_0(self, comm, ctx):
        model = net(seed=comm.rank)
        model[0].weight.requires_grad_(False)
        trained = [p for p in model.parameters() if p.requires_grad]
        sgd = torch.optim.SGD(trained, lr=0.1)
        with pp.torch.DistributedOptimizer(sgd, ctx, Synchronous(), model=model) as opt:
            assert flat(model).equal(comm.bcast(flat(model)))
            backward(model, comm.rank, 0)
            opt.step()
        assert model[0].weight.equal(net(seed=0)[0].weight)
        assert are_equal(comm, model)
