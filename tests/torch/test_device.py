"""Models on a device, that of the stand-in for the CUDA driver, beside the same on the CPU.

The other tests of the optimizer and of the hook run on that device, too: see conftest.py.
"""

from __future__ import annotations

import copy
from contextlib import nullcontext

import pytest
import torch
from support.training import backward, flat, net
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import pypartial as pp
import pypartial.torch
from pypartial._ipc import IPC_FROM, KERNELS
from pypartial.device import DeviceAllreduceRequest, DevicePreduceRequest
from pypartial.methods import ADPSGD, EagerSGD, PartialReduce, Synchronous
from pypartial.torch import HookState, on_device, partial_allreduce_hook, replicas

pytestmark = [pytest.mark.mpi(min_size=2), pytest.mark.sizes(3)]

STEPS = 8
RATHER = "device_path='ipc' is not possible"
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


def used(ctx) -> dict[str, int]:
    """Return how many bytes were copied on each path."""
    stats = ctx.stats()
    return {"staged": stats.staged_bytes, "ipc": stats.ipc_bytes, "direct": stats.direct_bytes}


def paths_since(ctx, before: dict[str, int]) -> set[str]:
    return {path for path, count in used(ctx).items() if count > before[path]}


@pytest.mark.filterwarnings("ignore:with deliver='sum'")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("how", METHODS)
def test_the_optimizer_has_the_bits_of_the_cpu(comm, ctx, stand_in, monkeypatch, how, dtype, path):
    method, overlap = METHODS[how]

    def train(path: str) -> nn.Module:
        model = net(dtype=dtype)
        with pp.torch.DistributedOptimizer(
            *(adamw(model), ctx, method),
            clip_norm=1.0,
            overlap=overlap,
            model=model,
            device_path=path,
        ) as opt:
            is_device = [isinstance(one, DeviceAllreduceRequest) for one in requests(opt)]
            assert set(is_device) == {path != "auto"}
            assert opt.device_path == (None if path == "auto" else path)
            assert opt.device_path_reason == ""
            for step in range(STEPS):
                opt.zero_grad()
                backward(model, comm.rank, step)
                opt.step()
        return model

    before = used(ctx)
    model = train(path)
    assert paths_since(ctx, before) == {path} and stand_in.kept >= STEPS
    # What backward made, whose places views have taken. Pieces copy it on the stream of backward.
    dropped = 0 if overlap else STEPS * len(list(model.parameters()))
    # And gradients of the parameters' own type, beside the vector, which the optimizer has read.
    assert stand_in.kept_beside >= dropped
    assert (stand_in.kept_beside > dropped) == (dtype == torch.bfloat16)
    on_cpu(monkeypatch)
    before = used(ctx)
    assert torch.equal(flat(model), flat(train("auto")))
    assert paths_since(ctx, before) == set()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_hook_has_the_bits_of_the_cpu(comm, ctx, gloo, stand_in, monkeypatch, dtype, path):
    def train(path: str) -> nn.Module:
        model = net(dtype=dtype)
        ddp = DistributedDataParallel(model, bucket_cap_mb=0.0001)
        optimizer = adamw(ddp)
        state = HookState(ctx, ddp, policy=pp.Full(), device_path=path)
        assert state.device_path == (None if path == "auto" else path)
        assert state.device_path_reason == ""
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

    before = used(ctx)
    model = train(path)
    assert paths_since(ctx, before) == {path} and stand_in.kept >= STEPS
    on_cpu(monkeypatch)
    assert torch.equal(flat(model), flat(train("auto")))


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
                    del opt.grad_scale, opt.found_inf
                else:
                    opt.step()
            opt.flush()
        return model

    model = train()
    on_cpu(monkeypatch)
    assert torch.equal(flat(model), flat(train()))


@pytest.mark.parametrize("size", [2, 3])
def test_groups_average_models_on_a_device(comm, ctx, stand_in, monkeypatch, size, path):
    """In the end all ranks have the same parameters, and the same state of AdamW."""
    means = []

    def average(meeting, vector):
        means.append(vector)
        replicas.average(meeting, vector)

    monkeypatch.setattr(on_device, "average", average)
    model = net(norm=True)
    inner, before = adamw(model), used(ctx)
    with pp.torch.DistributedOptimizer(
        inner, ctx, PartialReduce(size), model=model, device_path=path
    ) as opt:
        assert (opt.device_path, opt.device_path_reason) == (path, "")
        worker = opt._driver._worker
        assert worker.x.size == 0 and stand_in.owns(worker.gradient)
        assert isinstance(worker._request, DevicePreduceRequest)
        for step in range(STEPS):
            opt.zero_grad()
            backward(model, comm.rank, step)
            opt.step()
            assert opt.rounds == step + 1
        assert all(map(stand_in.owns, model.parameters()))
    assert paths_since(ctx, before) == {path}
    assert means and all(one.data_ptr() == model[0].weight.data_ptr() for one in means)
    state = [one.flatten().double() for s in inner.state.values() for one in s.values()]
    own = torch.cat([flat(model), *state]).tolist()
    assert all(own == theirs for theirs in comm.allgather(own))


def test_a_group_of_all_ranks_has_the_model_of_the_cpu(comm, monkeypatch, path):
    def train(path: str) -> nn.Module:
        model = net()
        with (
            pp.Context(comm, seed=7, patience=None) as ctx,  # no rank leaves a group
            pp.torch.DistributedOptimizer(
                sgd(model), ctx, PartialReduce(comm.size), device_path=path
            ) as opt,
        ):
            for step in range(STEPS):
                opt.zero_grad()
                backward(model, comm.rank, step)
                opt.step()
        return model

    model = train(path)
    on_cpu(monkeypatch)
    assert torch.equal(flat(model), flat(train("auto")))


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


# ---- the path -----------------------------------------------------------------------------------


def with_hook(ctx, path: str) -> HookState:
    return HookState(ctx, DistributedDataParallel(net()), policy=pp.Full(), device_path=path)


def with_optimizer(ctx, path: str) -> pp.torch.DistributedOptimizer:
    return pp.torch.DistributedOptimizer(adamw(net()), ctx, device_path=path)


wrappers = pytest.mark.parametrize("wrap", [with_optimizer, with_hook])


@wrappers
@pytest.mark.parametrize("path", ["staged", "ipc", "direct", "nvlink"])
def test_a_path_of_a_rank_on_the_cpu_is_refused(comm, ctx, gloo, monkeypatch, wrap, path):
    """By name on that rank, and on the others."""
    text = f"device_path={path!r} is for models on a CUDA device, and here they are on the CPU"
    if path == "nvlink":
        text = "device_path must be one of .*, not 'nvlink'"
    is_wrong = comm.rank == 1
    if is_wrong:
        on_cpu(monkeypatch)
    with pytest.raises(pp.ArgumentError if is_wrong else pp.MismatchError, match=text):
        wrap(ctx, path if is_wrong else "auto")


@wrappers
def test_ranks_whose_paths_differ(comm, ctx, gloo, wrap):
    with pytest.raises(pp.MismatchError, match=r"rank 0 has .*auto.*, and rank 1 .*ipc"):
        wrap(ctx, "ipc" if comm.rank == 1 else "auto")


@wrappers
def test_a_path_that_is_not_possible(comm, ctx, gloo, kernels, monkeypatch, wrap):
    """Rank 0 is told, and every rank shows why."""
    if comm.rank == 1:
        monkeypatch.setenv(KERNELS, "/nowhere")
    if comm.rank == 0:
        with pytest.warns(RuntimeWarning, match=RATHER):
            made = wrap(ctx, "ipc")
    else:
        made = wrap(ctx, "ipc")
    assert made.device_path == "staged"
    assert f"rank 1: {KERNELS}='/nowhere' cannot be read" in made.device_path_reason
    if isinstance(made, pp.torch.DistributedOptimizer):
        made.finish()
    else:  # which needs a backward pass
        made._request.Free()
        made._meeting.close()


def test_a_method_for_models_on_the_cpu(comm, ctx):
    with pytest.raises(pp.ArgumentError, match="trains models in the memory of the host only"):
        pp.torch.DistributedOptimizer(sgd(net()), ctx, ADPSGD("complete"))
    assert not ctx._requests


def test_groups_have_no_addresses_for_mpi(comm, ctx):
    why = 'groups give MPI addresses of devices with backend="comm" only'
    with nullcontext() if comm.rank else pytest.warns(RuntimeWarning, match=why):
        opt = pp.torch.DistributedOptimizer(sgd(net()), ctx, PartialReduce(2), device_path="direct")
    assert opt.device_path == "staged" and why in opt.device_path_reason
    opt.finish()


def test_pieces_on_different_paths(comm, kernels, monkeypatch):
    """With "auto" each piece has the path that its size asks for."""
    model = nn.Sequential(nn.Linear(100, 100), nn.Linear(100, 1)).double()
    monkeypatch.setenv(IPC_FROM, str(8 * 100 * 100))
    with (
        pp.Context(comm, seed=7) as ctx,
        pp.torch.DistributedOptimizer(sgd(model), ctx, Synchronous(), overlap=3) as opt,
    ):
        found = [one.device_path for one in requests(opt)]
        assert set(found) == {"staged", "ipc"}
        assert opt.device_path == "staged, ipc"
