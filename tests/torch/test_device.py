"""Models on a device, that of the stand-in for the CUDA driver, beside the same on the CPU.

The other tests of the optimizer and of the hook run on that device, too: see conftest.py.
"""

from __future__ import annotations

import copy

import pytest
import torch
from support.training import backward, flat, net
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import pypartial as pp
import pypartial.torch
from pypartial.device import DeviceAllreduceRequest, DevicePreduceRequest
from pypartial.methods import EagerSGD, PartialReduce, Synchronous
from pypartial.torch import HookState, on_device, partial_allreduce_hook, replicas

pytestmark = [pytest.mark.mpi(min_size=2), pytest.mark.sizes(3)]

STEPS = 8
METHODS = {
    "each": (EagerSGD(pp.Full()), None),
    "sum": (EagerSGD(pp.Full(), "sum"), None),
    "overlap": (Synchronous(), 3),
}


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.02)


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def on_cpu(monkeypatch) -> None:
    """Take the device away: models that are made from now on are on the CPU."""
    monkeypatch.undo()


def requests(opt) -> list[object]:
    driver = opt._driver
    found = [piece.request for piece in getattr(driver, "_pieces", [])]
    return found or [driver._worker._request]


@pytest.mark.filterwarnings("ignore:with deliver='sum'")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("how", METHODS)
def test_the_optimizer_has_the_bits_of_the_cpu(comm, ctx, stand_in, monkeypatch, how, dtype):
    method, overlap = METHODS[how]

    def train() -> tuple[nn.Module, int]:
        model, before = net(dtype=dtype), ctx.stats().staged_bytes
        with pp.torch.DistributedOptimizer(
            adamw(model), ctx, method, clip_norm=1.0, overlap=overlap, model=model
        ) as opt:
            is_device = [isinstance(one, DeviceAllreduceRequest) for one in requests(opt)]
            for step in range(STEPS):
                opt.zero_grad()
                backward(model, comm.rank, step)
                opt.step()
        staged = ctx.stats().staged_bytes - before
        assert (all(is_device), any(is_device)) == (staged > 0, staged > 0)
        return model, staged

    model, staged = train()
    assert staged > 0 and stand_in.kept >= STEPS
    on_cpu(monkeypatch)
    expected, staged = train()
    assert staged == 0
    assert torch.equal(flat(model), flat(expected))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_hook_has_the_bits_of_the_cpu(comm, ctx, gloo, stand_in, monkeypatch, dtype):
    def train() -> nn.Module:
        model = net(dtype=dtype)
        ddp = DistributedDataParallel(model, bucket_cap_mb=0.0001)
        optimizer = adamw(ddp)
        state = HookState(ctx, ddp, policy=pp.Full())
        ddp.register_comm_hook(state, partial_allreduce_hook)
        for step in range(STEPS):
            optimizer.zero_grad()
            backward(ddp, comm.rank, step)
            optimizer.step()
        assert len(state._buckets._parts) > 1
        request = state._request
        state.finish(optimizer)
        assert isinstance(request, DeviceAllreduceRequest) == state._layout.home.is_device
        return model

    model = train()
    assert stand_in.kept >= STEPS
    on_cpu(monkeypatch)
    assert torch.equal(flat(model), flat(train()))


def test_the_host_waits_for_no_values_in_the_hook(comm, ctx, gloo, stand_in):
    """But in the first backward pass, which is an average of all ranks, and at the end."""
    model = net()
    ddp = DistributedDataParallel(model)
    optimizer = sgd(ddp)
    state = HookState(ctx, ddp, optimizer=optimizer)
    ddp.register_comm_hook(state, partial_allreduce_hook)
    for step in range(STEPS):
        before = stand_in.host_waits
        backward(ddp, comm.rank, step)
        assert (stand_in.host_waits > before) == (step == 0)
        optimizer.step()
    state.finish(optimizer)


@pytest.mark.parametrize("how", ["each", "overlap"])
def test_rounds_without_a_gradient_change_nothing(comm, ctx, monkeypatch, how):
    """Steps that all ranks skip, and the rounds of a rank that has ended. AdamW would decay."""
    method, overlap = METHODS[how]

    def train() -> nn.Module:
        model = net(norm=True)
        with pp.torch.DistributedOptimizer(
            adamw(model), ctx, method, overlap=overlap, model=model
        ) as opt:
            for step in range(STEPS - comm.rank):
                opt.zero_grad()
                backward(model, comm.rank, step)
                if step == 2 and overlap is None:  # as a GradScaler does
                    opt.grad_scale, opt.found_inf = torch.tensor(1.0), torch.tensor(1.0)
                opt.step()
                opt.found_inf = torch.tensor(0.0)
            opt.flush()
        return model

    model = train()
    on_cpu(monkeypatch)
    assert torch.equal(flat(model), flat(train()))


@pytest.mark.parametrize("size", [2, 3])
def test_groups_average_models_on_a_device(comm, ctx, stand_in, monkeypatch, size):
    """In the end all ranks have the same parameters, and the same state of AdamW."""
    means = []

    def average(meeting, vector):
        means.append(vector)
        replicas.average(meeting, vector)

    monkeypatch.setattr(on_device, "average", average)
    model = net(norm=True)
    inner = adamw(model)
    with pp.torch.DistributedOptimizer(inner, ctx, PartialReduce(size), model=model) as opt:
        worker = opt._driver._worker
        assert worker.x.size == 0 and stand_in.owns(worker.gradient)
        assert isinstance(worker._request, DevicePreduceRequest)
        for step in range(STEPS):
            opt.zero_grad()
            backward(model, comm.rank, step)
            opt.step()
            assert opt.rounds == step + 1
        assert all(map(stand_in.owns, model.parameters()))
    assert means and all(one.data_ptr() == model[0].weight.data_ptr() for one in means)
    state = [one.flatten().double() for s in inner.state.values() for one in s.values()]
    own = torch.cat([flat(model), *state]).tolist()
    assert all(own == theirs for theirs in comm.allgather(own))


def test_a_group_of_all_ranks_has_the_model_of_the_cpu(comm, ctx, monkeypatch):
    def train() -> nn.Module:
        model = net()
        with pp.torch.DistributedOptimizer(sgd(model), ctx, PartialReduce(comm.size)) as opt:
            for step in range(STEPS):
                opt.zero_grad()
                backward(model, comm.rank, step)
                opt.step()
        return model

    model = train()
    on_cpu(monkeypatch)
    assert torch.equal(flat(model), flat(train()))


class Branches(nn.Module):
    """Two layers, and one that no rank uses if `never` is True."""

    def __init__(self, never: bool) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.one, self.two = nn.Linear(6, 3).double(), nn.Linear(6, 3).double()
        if never:
            self.never = nn.Linear(6, 3).double()

    def forward(self, x):
        return self.one(x) + self.two(x)


@pytest.mark.parametrize("overlap", [None, 2])
@pytest.mark.parametrize("lacks", [False, True])
def test_the_host_waits_only_for_flags_that_it_cannot_know(comm, ctx, stand_in, lacks, overlap):
    model = Branches(never=lacks)
    inner = sgd(model)  # its steps ask for no values
    with pp.torch.DistributedOptimizer(inner, ctx, Synchronous(), overlap=overlap) as opt:
        for step in range(STEPS):
            opt.zero_grad()
            backward(model, comm.rank, step)
            before = stand_in.host_waits
            opt.step()
            assert (stand_in.host_waits > before) == lacks
    if lacks:
        assert model.never.weight.grad is None


def test_a_checkpoint_of_a_device_is_one_of_the_cpu(comm, ctx, monkeypatch):
    """Saved on the device, and gone on from on the CPU."""

    def make(model, inner):
        return pp.torch.DistributedOptimizer(inner, ctx, Synchronous(), model=model)

    model = net(norm=True)
    inner = adamw(model)
    with make(model, inner) as opt:
        for step in range(STEPS):
            opt.zero_grad()
            backward(model, comm.rank, step)
            opt.step()
            if step == STEPS // 2 - 1:
                opt.flush()
                saved = copy.deepcopy((model.state_dict(), opt.state_dict()))
    on_cpu(monkeypatch)
    again = net(norm=True)
    again.load_state_dict(saved[0])
    with make(again, adamw(again)) as opt:
        opt.load_state_dict(saved[1])
        for step in range(STEPS // 2, STEPS):
            opt.zero_grad()
            backward(again, comm.rank, step)
            opt.step()
        assert opt.rounds == STEPS
    assert torch.equal(flat(again), flat(model))


def test_a_rank_on_the_cpu_is_refused(comm, ctx, gloo, monkeypatch):
    if comm.rank == 1:
        on_cpu(monkeypatch)
    model = net()
    with pytest.raises(pp.MismatchError, match="a CUDA device, and rank 1 parameters on the CPU"):
        pp.torch.DistributedOptimizer(adamw(model), ctx)
    with pytest.raises(pp.MismatchError, match=r"on a CUDA device, and rank 1 .* on the CPU"):
        HookState(ctx, DistributedDataParallel(model), policy=pp.Full())
