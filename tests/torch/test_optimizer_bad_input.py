"""Wrong arguments, models that differ, and parameters that change: told by name, on every rank."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.training import backward, batch, flat, net
from torch import nn

import pypartial as pp
import pypartial.torch
from pypartial.methods import EagerSGD, PartialReduce, Synchronous

pytestmark = [pytest.mark.mpi(min_size=2), pytest.mark.sizes(2)]


def sgd(model: nn.Module, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), **{"lr": 0.1, **options})


needs_grad_dtype = pytest.mark.skipif(
    not hasattr(torch.Tensor, "grad_dtype"), reason="torch has no grad_dtype yet"
)


@pytest.fixture
def printing():
    """What torch prints of tensors, as it was, behind the test."""
    yield
    torch.set_printoptions(profile="default")


def odd(ctx) -> bool:
    """Whether this is the rank that differs."""
    return bool(ctx.rank == ctx.size - 1)


def with_frozen_part(device: str) -> nn.Module:
    return nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, device=device).requires_grad_(False))


def frozen_with_gradient() -> torch.optim.Optimizer:
    model = net()
    backward(model, 0, 0)
    next(model.parameters()).requires_grad_(False)
    return sgd(model)


def expanded() -> torch.optim.Optimizer:
    return torch.optim.SGD([nn.Parameter(torch.zeros(1).expand(3))], lr=1.0)


def make(ctx, wrong: dict[str, Any], optimizer: Any = None) -> None:
    """Make an optimizer, with wrong arguments on one rank."""
    inner = sgd(net())
    arguments: dict[str, Any] = wrong if odd(ctx) else {}
    if optimizer is not None and odd(ctx):
        inner = optimizer
    pp.torch.DistributedOptimizer(inner, ctx, **arguments)


class TestOfOneRank:
    @pytest.mark.parametrize(
        ("wrong", "message"),
        [
            ({"method": "eager"}, "method must be a method"),
            ({"method": EagerSGD}, "method must be a method"),
            ({"clip_norm": 0}, "clip_norm must be above 0"),
            ({"clip_norm": float("nan")}, "clip_norm must be above 0, not nan"),
            ({"clip_norm": "1"}, "clip_norm must be above 0, not '1'"),
            ({"overlap": 2}, "overlap"),
            ({"scheduler": 1}, "scheduler must be"),
            ({"model": 1}, "model must be"),
            ({"device_path": "nvlink"}, "device_path must be one of .*, not 'nvlink'"),
            ({"device_path": "staged"}, "'staged' is for models on a CUDA device, and here they"),
            ({"device_path": "ipc"}, "'ipc' is for models on a CUDA device, and here they are on"),
        ],
        ids=str,
    )
    def test_argument(self, ctx, wrong, message):
        error = pp.ArgumentError if odd(ctx) else pp.MismatchError
        with pytest.raises(error, match=message):
            make(ctx, wrong)

    def test_a_scheduler_that_needs_a_metric(self, ctx):
        inner = sgd(net())
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(inner)
        with pytest.raises(pp.ArgumentError, match=r"its step\(metric\) behind flush\(\)"):
            pp.torch.DistributedOptimizer(inner, ctx, scheduler=plateau)

    @pytest.mark.parametrize(
        ("optimizer", "message"),
        [
            (lambda: 1, "must be a torch.optim.Optimizer, not a int"),
            (lambda: torch.optim.LBFGS(net().parameters()), "LBFGS"),
            (lambda: sgd(net().requires_grad_(False)), "no parameters that require a gradient"),
            (lambda: sgd(net().to("meta")), r"0 of group 0 is on the device meta"),
            (lambda: torch.optim.SGD([torch.zeros(2, dtype=torch.complex64)]), "complex64"),
            (lambda: sgd(nn.LazyLinear(2)), "uninitialized parameter"),
            (lambda: sgd(with_frozen_part("meta")), r"2 of group 0 is not .* on meta"),
            (frozen_with_gradient, "0 of group 0 is frozen and has a gradient"),
            (expanded, "0 of group 0 cannot be written: it is a view that repeats"),
        ],
    )
    def test_optimizer(self, ctx, optimizer: Callable[[], Any], message):
        error = pp.ArgumentError if odd(ctx) else pp.MismatchError
        inner = optimizer()
        if isinstance(inner, torch.optim.Optimizer) and "complex" in message:
            inner.param_groups[0]["params"][0].requires_grad_()
        with pytest.raises(error, match=message):
            make(ctx, {}, inner)

    @pytest.mark.parametrize(
        "buffer", [torch.zeros(1).expand(3), torch.zeros(3, dtype=torch.complex64).conj()]
    )
    def test_buffer_that_cannot_be_written(self, ctx, buffer):
        model = net()
        model.register_buffer("mean", buffer if odd(ctx) else buffer.clone())
        error = pp.ArgumentError if odd(ctx) else pp.MismatchError
        with pytest.raises(error, match="mean cannot be written: it is a view"):
            pp.torch.DistributedOptimizer(sgd(model), ctx, model=model)

    @pytest.mark.parametrize("groups", [False, True])
    def test_parameters_that_share_memory(self, ctx, groups):
        """With groups each would get memory of its own."""
        base = torch.zeros(4)
        parameters = [nn.Parameter(base[:3]), nn.Parameter(base[2:])]
        inner = torch.optim.SGD(parameters, lr=1.0)
        if groups:
            message = "0 of group 0 and 1 of group 0 share memory, and PartialReduce"
            with pytest.raises(pp.ArgumentError, match=message):
                pp.torch.DistributedOptimizer(inner, ctx, PartialReduce(2))
            return
        with pp.torch.DistributedOptimizer(inner, ctx, Synchronous()) as opt:
            sum(p.sum() for p in parameters).backward()
            opt.step()
        assert base.tolist() == [-1.0, -1.0, -2.0, -1.0]

    def test_what_is_like_it_and_is_no_harm(self, comm, ctx):
        """Frozen with zeros, expanded without elements, shared where groups copy parameters."""
        base = torch.zeros(3, dtype=torch.bfloat16)
        pair = [nn.Parameter(base), nn.Parameter(base)]
        frozen, empty = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.empty(1, 0).expand(3, 0))
        frozen.grad = torch.zeros(2)
        frozen.requires_grad_(False)
        inner = torch.optim.SGD([*pair, frozen, empty], lr=1.0)
        opt = pp.torch.DistributedOptimizer(inner, ctx, PartialReduce(2))
        sum(p.sum() for p in pair).backward()
        opt.step()
        opt.finish()
        opt.zero_grad(set_to_none=False)
        assert base.tolist() == [-2.0] * 3

    def test_ctx(self, comm):
        with pytest.raises(pp.ArgumentError, match="ctx must be"):
            pp.torch.DistributedOptimizer(sgd(net()), comm)

    def test_ctx_is_usable_afterwards(self, comm, ctx):
        error = pp.ArgumentError if odd(ctx) else pp.MismatchError
        with pytest.raises(error):
            make(ctx, {"method": 0})
        model = net()
        with pp.torch.DistributedOptimizer(sgd(model), ctx) as opt:
            backward(model, comm.rank, 0)
            opt.step()


def test_groups_larger_than_the_context(comm, ctx):
    for _ in range(2):  # the context is usable afterwards
        with pytest.raises(pp.ArgumentError, match="99"):
            pp.torch.DistributedOptimizer(sgd(net()), ctx, PartialReduce(99))


def test_another_size_than_the_process_group(gloo, comm):
    half = comm.Split(comm.rank < 1)
    message = rf"ctx has {half.size} ranks.*{comm.size}"
    with pp.Context(half) as ctx, pytest.raises(pp.ArgumentError, match=message):
        pp.torch.DistributedOptimizer(sgd(net()), ctx)
    half.Free()


class TestModelsThatDiffer:
    def refused(self, ctx, model: nn.Module, message: str, **options: Any) -> None:
        last = ctx.size - 1
        with pytest.raises(pp.MismatchError, match=message.format(last=last)):
            pp.torch.DistributedOptimizer(sgd(model, **options), ctx, model=model)

    def test_names(self, ctx):
        layer = nn.Linear(2, 2)
        model = nn.ModuleDict({"other" if odd(ctx) else "layer": layer})
        self.refused(
            ctx,
            model,
            r"the models differ: rank 0 has layer.weight: \(2, 2\) torch.float32, trained, "
            r"and rank {last} other.weight",
        )

    def test_shapes(self, ctx):
        model = nn.Linear(2, 4 if odd(ctx) else 3)
        self.refused(ctx, model, r"rank 0 has weight: \(3, 2\).*rank {last} weight: \(4, 2\)")

    def test_types(self, ctx):
        model = nn.Linear(2, 2, dtype=torch.float16 if odd(ctx) else torch.float32)
        self.refused(ctx, model, r"torch.float32.*rank {last} weight: \(2, 2\) torch.float16")

    def test_numbers(self, ctx):
        model = nn.Linear(2, 2, bias=not odd(ctx))
        self.refused(ctx, model, "rank 0 has 2 parameters, and rank {last} 1")

    def test_frozen(self, ctx):
        model = nn.Linear(2, 2)
        model.weight.requires_grad_(not odd(ctx))
        self.refused(ctx, model, r"trained, and rank {last} weight: \(2, 2\) torch.float32$")

    def test_buffers(self, ctx):
        model = nn.Linear(2, 2)
        model.register_buffer("mask", torch.ones(3 if odd(ctx) else 2))
        self.refused(ctx, model, r"rank 0 has mask: \(2,\).*rank {last} mask: \(3,\)")

    def test_hyperparameters(self, ctx):
        rate = 0.2 if odd(ctx) else 0.1
        self.refused(ctx, net(), "the optimizers differ: .*lr 0.1.* rank {last} .*lr 0.2", lr=rate)

    @pytest.mark.parametrize(
        "spell", [lambda one: one, lambda one: (one, 0.9)], ids=["alone", "in a tuple"]
    )
    def test_tensors_among_hyperparameters(self, ctx, spell, printing):
        """They are compared by their values, all digits of them, however they are printed."""
        inner = sgd(net())
        if odd(ctx):
            torch.set_printoptions(precision=8)
        inner.param_groups[0]["rate"] = spell(torch.tensor(0.1))
        pp.torch.DistributedOptimizer(inner, ctx, Synchronous()).finish()
        torch.set_printoptions(profile="default")
        inner.param_groups[0]["rate"] = spell(torch.tensor(0.1 + 1e-6 * odd(ctx)))
        with pytest.raises(pp.MismatchError, match=r"rate .*0\.1000000.* of torch.float32"):
            pp.torch.DistributedOptimizer(inner, ctx, Synchronous())

    def test_memory_formats(self, ctx):
        """By them elements of a vector belong to elements of a parameter; not so of a buffer."""
        torch.manual_seed(1)
        model = nn.Conv2d(3, 4, 2)
        order = torch.channels_last if odd(ctx) else torch.contiguous_format
        model.register_buffer("mask", torch.ones(1, 2, 3, 4).to(memory_format=order))
        pp.torch.DistributedOptimizer(sgd(model), ctx, Synchronous(), model=model).finish()
        model = model.to(memory_format=order)
        message = (
            r"rank 0 has weight: \(4, 3, 2, 2\) torch.float32, trained, and rank {last} weight: "
            r"\(4, 3, 2, 2\) torch.float32, strides \(12, 1, 6, 3\), trained"
        )
        self.refused(ctx, model, message)

    @needs_grad_dtype
    def test_types_of_gradients(self, ctx):
        model = nn.Linear(2, 2)
        model.weight.grad_dtype = torch.float64 if odd(ctx) else torch.float32
        self.refused(ctx, model, r"rank {last} weight: .*float32, gradients torch.float64, tr")

    def test_functions_among_hyperparameters(self, ctx):
        """Their text has an address, which says nothing."""
        inner = sgd(net())
        inner.param_groups[0]["adjust"] = lambda rate: rate + ctx.rank
        inner.param_groups[0]["seen"] = [object() for _ in range(1 + ctx.rank)][-1]
        pp.torch.DistributedOptimizer(inner, ctx, Synchronous()).finish()
        inner.param_groups[0]["adjust"] = max if odd(ctx) else min
        with pytest.raises(pp.MismatchError, match=r"adjust <.* min>.* adjust <.* max>"):
            pp.torch.DistributedOptimizer(inner, ctx, Synchronous())

    def test_methods(self, ctx):
        method = Synchronous() if odd(ctx) else EagerSGD()
        with pytest.raises(pp.MismatchError, match=r"method EagerSGD\(.*method Synchronous\(\)"):
            pp.torch.DistributedOptimizer(sgd(net()), ctx, method)

    def test_classes(self, ctx):
        model = net()
        inner = torch.optim.Adam(model.parameters()) if odd(ctx) else sgd(model)
        with pytest.raises(pp.MismatchError, match=r"the optimizer SGD.*the optimizer Adam"):
            pp.torch.DistributedOptimizer(inner, ctx)


class TestSteps:
    """Refused on this rank before anything is communicated: all can go on."""

    @pytest.fixture
    def model(self) -> nn.Module:
        return net()

    @pytest.fixture
    def opt(self, ctx, model):
        with pp.torch.DistributedOptimizer(sgd(model), ctx, Synchronous(), model=model) as opt:
            yield opt
            opt.zero_grad()
            backward(model, ctx.rank, 0)
            opt.step()
            assert opt.rounds == 1
        bits = flat(model).numpy().tobytes()
        assert set(ctx.comm.allgather(bits)) == {bits}

    def test_closure(self, ctx, opt, model):
        with pytest.raises(pp.ArgumentError, match="closure must be a function, not a float"):
            opt.step(0.5)
        scaler = torch.amp.GradScaler("cpu")
        scaler.scale(model(batch(0, 0)[0]).sum()).backward()
        with pytest.raises(pp.ArgumentError, match="a GradScaler has looked at the gradients"):
            scaler.step(opt, lambda: 0.5)

    def test_copies(self, opt):
        with pytest.raises(pp.Error, match="cannot be copied: save what state_dict"):
            copy.deepcopy(opt)

    def test_a_wrapper_of_it(self, ctx, opt):
        with pytest.raises(pp.ArgumentError, match="Optimizer, not a DistributedOptimizer"):
            pp.torch.DistributedOptimizer(opt, ctx)

    def test_flush_before_step(self, ctx, opt, model):
        backward(model, ctx.rank, 1)
        with pytest.raises(pp.Error, match="a gradient waits for its step"):
            opt.flush()

    def test_added(self, opt):
        with pytest.raises(pp.Error, match="cannot be added"):
            opt.add_param_group({"params": [nn.Parameter(torch.zeros(2))]})
        opt.optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(2))]})
        with pytest.raises(pp.Error, match="has 5 parameters, and had 4"):
            opt.step()
        del opt.optimizer.param_groups[1]

    def test_replaced(self, opt):
        parameters = opt.param_groups[0]["params"]
        kept = parameters[1]
        parameters[1] = nn.Parameter(torch.zeros_like(kept))
        with pytest.raises(pp.Error, match=r"parameter 0\.bias was replaced"):
            opt.step()
        parameters[1] = kept

    def test_frozen(self, opt, model):
        model[2].weight.requires_grad_(False)
        with pytest.raises(pp.Error, match=r"parameter 2\.weight was frozen"):
            opt.step()
        model[2].weight.requires_grad_(True)

    @pytest.mark.parametrize("change", [lambda w: w.T.contiguous().T, lambda w: w[:, :5]])
    def test_another_form(self, opt, model, change):
        kept = model[0].weight.data
        model[0].weight.data = change(kept)
        message = r"parameter 0\.weight changed from shape \(16, 6\) and strides \(6, 1\) to "
        with pytest.raises(pp.Error, match=message):
            opt.step()
        model[0].weight.data = kept

    @needs_grad_dtype
    def test_another_type_of_gradients(self, opt, model):
        model[0].bias.grad_dtype = torch.float32
        message = r"parameter 0\.bias changed its grad_dtype from torch.float64 to torch.float32"
        with pytest.raises(pp.Error, match=message):
            opt.step()
        model[0].bias.grad_dtype = torch.float64

    def test_another_type(self, opt, model):
        kept = model[0].bias.data
        model[0].bias.data = kept.float()
        with pytest.raises(
            pp.Error, match=r"parameter 0\.bias changed its type from torch.float64"
        ):
            opt.step()
        model[0].bias.data = kept


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_flush_before_the_step_of_gradients_in_place(ctx, dtype):
    """zero_grad(set_to_none=False) leaves the optimizer's views, to which backward then adds."""
    model = net(dtype=dtype)
    x, _ = batch(ctx.rank, 0, dtype)

    def add_gradients() -> None:
        model(x).sum().backward()

    with pp.torch.DistributedOptimizer(sgd(model), ctx, Synchronous(), model=model) as opt:
        for _ in range(2):
            add_gradients()
            opt.step()
            opt.zero_grad(set_to_none=False)
            opt.flush()  # zeros are no gradient
        add_gradients()
        opt.step()
        opt.zero_grad(set_to_none=False)
        add_gradients()
        with pytest.raises(pp.Error, match="a gradient waits for its step"):
            opt.flush()
        opt.step()
        opt.flush()
        assert opt.rounds == 4


@pytest.mark.parametrize(
    ("method", "overlap"), [(Synchronous(), None), (EagerSGD(), None), (Synchronous(), 2)]
)
def test_parameters_may_be_given_other_memory(comm, ctx, method, overlap):
    """As flatten_parameters() of an LSTM gives them on a device."""
    model = net()
    with pp.torch.DistributedOptimizer(sgd(model), ctx, method, overlap=overlap) as opt:
        for step in range(3):
            for p in model.parameters():
                p.data = p.data.clone()
            opt.zero_grad()
            backward(model, comm.rank, step)
            opt.step()
        assert opt.rounds >= 3
    assert not flat(model).equal(flat(net()))
    assert len(set(comm.allgather(flat(model).numpy().tobytes()))) == 1


def test_memory_that_groups_average_must_stay(comm, ctx):
    """A parameter of another type than the vector is copied there, and may move."""
    model = nn.ModuleDict({"one": nn.Linear(2, 2), "two": nn.Linear(2, 2).bfloat16()})
    with pp.torch.DistributedOptimizer(sgd(model), ctx, PartialReduce(2), model=model) as opt:
        model["two"].weight.data = model["two"].weight.data.clone()
        opt.step()
        kept = model["one"].weight.data
        model["one"].weight.data = kept.clone()
        message = r"parameter one\.weight was moved to other memory .* flatten_parameters\(\)"
        with pytest.raises(pp.Error, match=message):
            opt.step()
        model["one"].weight.data = kept
        opt.step()


def test_unfrozen(comm, ctx):
    model = net()
    model[0].bias.requires_grad_(False)
    with pp.torch.DistributedOptimizer(sgd(model), ctx, Synchronous(), model=model) as opt:
        before = model[0].bias.clone()
        backward(model, comm.rank, 0)
        opt.step()
        assert model[0].bias.equal(before)
        model[0].bias.requires_grad_(True)
        with pytest.raises(pp.Error, match=r"parameter 0\.bias was unfrozen"):
            opt.step()


def test_sparse_gradients(comm, ctx):
    model = nn.Embedding(10, 3, sparse=True)
    with pp.torch.DistributedOptimizer(sgd(model), ctx, Synchronous(), model=model) as opt:
        model(torch.tensor([1, 2])).sum().backward()
        with pytest.raises(pp.ArgumentError, match="gradient of parameter weight is sparse"):
            opt.step()
        model.weight.grad = model.weight.grad.to_dense()
        opt.step()
        assert model.weight.grad[1].tolist() == [1.0] * 3


def test_parameters_without_a_model_have_numbers(ctx):
    embedding, linear = nn.Embedding(4, 2, sparse=True), nn.Linear(2, 2)
    groups = [{"params": linear.parameters()}, {"params": embedding.parameters()}]
    with pp.torch.DistributedOptimizer(torch.optim.SGD(groups, lr=0.1), ctx) as opt:
        embedding(torch.tensor([1])).sum().backward()
        with pytest.raises(pp.ArgumentError, match="gradient of parameter 0 of group 1 is sparse"):
            opt.step()


@pytest.mark.parametrize("error", [MemoryError, pp.Error])
@pytest.mark.parametrize("overlap", [None, 2])
def test_a_handle_for_which_a_rank_has_no_memory(comm, ctx, monkeypatch, error, overlap):
    """All ranks raise, and what was made before is freed; the context goes on."""
    made, calls = pp.Context.Allreduce_init, []

    def refused(ctx, *rest, **options):
        request = made(ctx, *rest, **options)
        calls.append(request)
        if len(calls) < 3:  # those of meetings, and of the first piece
            return request
        request.Free()  # all have been there
        raise error("none is left") if odd(ctx) else pp.MismatchError("a rank has none")

    with monkeypatch.context() as patch, pytest.raises(error if odd(ctx) else pp.MismatchError):
        patch.setattr(pp.Context, "Allreduce_init", refused)
        pp.torch.DistributedOptimizer(sgd(net()), ctx, Synchronous(), overlap=overlap)
    assert not ctx._requests
    pp.torch.DistributedOptimizer(sgd(net()), ctx).finish()
