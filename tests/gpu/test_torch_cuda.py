"""Models of PyTorch on a GPU: the optimizer, the hook and the backend, on 2 ranks and more.

    mpirun -n 2 python -m pytest --with-mpi tests/gpu/test_torch_cuda.py

The ranks may share a GPU. Process groups are those of the backend pypartial. Without a GPU, or with
a PyTorch that knows no CUDA, the tests are skipped.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import pytest
from support.pytorch import has_torch

if not has_torch():
    pytest.skip("PyTorch is not installed: pip install torch", allow_module_level=True)

import torch

if not torch.cuda.is_available():
    pytest.skip("PyTorch finds no CUDA device", allow_module_level=True)

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import pypartial as pp
import pypartial.torch
from pypartial.device import DeviceAllreduceRequest
from pypartial.methods import EagerSGD, PartialReduce, Synchronous
from pypartial.torch import HookState, partial_allreduce_hook

pytestmark = pytest.mark.mpi(min_size=2)

CPU = torch.device("cpu")
STEPS = 12
SPIN = 20_000_000  # cycles: some 10 ms
METHODS = {
    "each": (EagerSGD(pp.Full()), None),
    "sum": (EagerSGD(pp.Full(), "sum"), None),
    "overlap": (Synchronous(), 3),
}


@pytest.fixture(scope="module")
def comm():
    """All ranks of the job."""
    from mpi4py import MPI

    return MPI.COMM_WORLD


@pytest.fixture(scope="module")
def cuda(comm) -> torch.device:
    """This rank's device."""
    device = torch.device("cuda", comm.rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


@pytest.fixture(scope="module")
def world(comm, cuda) -> Iterator[None]:
    """The default process group, over all ranks."""
    dist.init_process_group("pypartial", init_method="mpi://")
    yield
    dist.destroy_process_group()


@pytest.fixture
def ctx(comm, cuda) -> Iterator[pp.Context]:
    with pp.Context(comm, seed=7) as context:
        yield context


def net(device: torch.device, dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(1)
    layers = nn.Linear(64, 512), nn.LayerNorm(512), nn.Tanh(), nn.Linear(512, 8)
    return nn.Sequential(*layers).to(device, dtype)


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def loss(model: nn.Module, rank: int, step: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    first = next(model.parameters())
    x = torch.randn(16, 64, generator=generator, dtype=torch.float64).to(first)
    return (model(x) - x[:, :8].sin()).square().mean()


def bits(model: nn.Module) -> list[float]:
    return torch.cat([p.detach().double().flatten() for p in model.parameters()]).tolist()


def are_equal(comm, model: nn.Module) -> bool:
    own = bits(model)
    return all(own == theirs for theirs in comm.allgather(own))


Between = Callable[[int], None]
paths = pytest.mark.parametrize("path", ["staged", "ipc"])


def nothing(step: int) -> None:
    pass


def train_hook(
    ctx, model: nn.Module, between: Between = nothing, path: str = "auto", **options
) -> list[float]:
    """Train by the hook, with `Full`; return the losses."""
    losses = []
    ddp = DistributedDataParallel(model, bucket_cap_mb=0.01, **options)
    optimizer = adamw(ddp)
    state = HookState(ctx, ddp, policy=pp.Full(), device_path=path)
    assert path == "auto" or state.device_path == path, state.device_path_reason
    assert isinstance(state._request, DeviceAllreduceRequest) == next(model.parameters()).is_cuda
    ddp.register_comm_hook(state, partial_allreduce_hook)
    for step in range(STEPS):
        optimizer.zero_grad()
        between(step)
        own = loss(ddp, ctx.rank, step)
        own.backward()
        optimizer.step()
        losses.append(own.detach())
    assert len(state._buckets._parts) > 1
    state.finish(optimizer)
    return torch.stack(losses).tolist()


def train_optimizer(
    ctx, model: nn.Module, how: str, between: Between = nothing, path: str = "auto"
) -> list[float]:
    """Train by the optimizer; return the losses."""
    method, overlap = METHODS[how]
    losses = []
    with pp.torch.DistributedOptimizer(
        *(adamw(model), ctx, method),
        clip_norm=1.0,
        overlap=overlap,
        model=model,
        device_path=path,
    ) as optimizer:
        assert path == "auto" or optimizer.device_path == path, optimizer.device_path_reason
        for step in range(STEPS):
            optimizer.zero_grad()
            between(step)
            own = loss(model, ctx.rank, step)
            own.backward()
            optimizer.step()
            losses.append(own.detach())
    return torch.stack(losses).tolist()


def used(ctx, path: str) -> int:
    """Return how many bytes were copied on a path."""
    stats = ctx.stats()
    return {"staged": stats.staged_bytes, "ipc": stats.ipc_bytes}[path]


@paths
@pytest.mark.parametrize("view", [False, True])
def test_the_hook_has_the_losses_of_the_cpu(comm, ctx, world, cuda, view, path):
    model = net(cuda)
    before = used(ctx, path)
    found = train_hook(ctx, model, path=path, gradient_as_bucket_view=view)
    assert used(ctx, path) > before
    expected = train_hook(ctx, net(CPU), gradient_as_bucket_view=view)
    assert found == pytest.approx(expected, rel=1e-8)
    assert are_equal(comm, model)


@pytest.mark.filterwarnings("ignore:with deliver='sum'")
@paths
@pytest.mark.parametrize("how", METHODS)
def test_the_optimizer_has_the_losses_of_the_cpu(comm, ctx, cuda, how, path):
    model = net(cuda)
    before = used(ctx, path)
    found = train_optimizer(ctx, model, how, path=path)
    assert used(ctx, path) > before
    assert found == pytest.approx(train_optimizer(ctx, net(CPU), how), rel=1e-8)
    assert are_equal(comm, model)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_reduced_in_single(comm, ctx, world, cuda, dtype):
    """Gradients of all ranks are the mean of what each would have, rounded once."""
    model = nn.Linear(2, 1, bias=False).to(cuda, dtype)
    ddp = DistributedDataParallel(model)
    state = HookState(ctx, ddp, policy=pp.Full())
    ddp.register_comm_hook(state, partial_allreduce_hook)
    for _ in range(3):
        ddp.zero_grad()
        ddp(torch.full((1, 2), comm.rank + 1.0, device=cuda, dtype=dtype)).sum().backward()
        mean = torch.full((1, 2), sum(range(1, comm.size + 1)) / comm.size, device=cuda)
        assert torch.equal(model.weight.grad, mean.to(dtype))
    state.finish(torch.optim.SGD(ddp.parameters(), lr=0.0))


class Busy:
    """Keeps the device busy before each step, so that whoever does not wait is too early."""

    def __init__(self, rank: int) -> None:
        self._rank = rank

    def __call__(self, step: int) -> None:
        torch.cuda._sleep(SPIN * (1 + (self._rank + step) % 2))


@pytest.mark.filterwarnings("ignore:with deliver='sum'")
@pytest.mark.parametrize("how", ["hook", *METHODS])
def test_a_busy_device_on_a_side_stream(comm, ctx, world, cuda, how):
    """Everything is queued on another stream than the default one, behind kernels of 10 ms."""

    def train(model: nn.Module, between: Between) -> list[float]:
        if how == "hook":
            return train_hook(ctx, model, between)
        return train_optimizer(ctx, model, how, between)

    expected = train(net(cuda), nothing)
    model, side = net(cuda), torch.cuda.Stream(cuda)
    side.wait_stream(torch.cuda.current_stream(cuda))
    with torch.cuda.stream(side):
        found = train(model, Busy(comm.rank))
    side.synchronize()
    assert found == expected
    assert are_equal(comm, model)


class NoSync:
    """Makes an error of each call of PyTorch's in which the host waits for the device."""

    def __enter__(self) -> None:
        torch.cuda.set_sync_debug_mode("error")

    def __exit__(self, *error: object) -> None:
        torch.cuda.set_sync_debug_mode("default")


def test_the_sync_debug_mode_sees_what_it_should(cuda):
    with NoSync(), pytest.raises(RuntimeError, match="synchroniz"):
        torch.zeros(1, device=cuda).item()


def test_the_host_does_not_wait_in_the_hook(comm, ctx, world, cuda):
    """From the second backward pass on; the first one averages through the host."""
    model = net(cuda)
    ddp = DistributedDataParallel(model, bucket_cap_mb=0.01)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    state = HookState(ctx, ddp, optimizer=optimizer)
    ddp.register_comm_hook(state, partial_allreduce_hook)
    loss(ddp, comm.rank, 0).backward()
    optimizer.step()
    for step in range(1, STEPS):
        optimizer.zero_grad()
        value = loss(ddp, comm.rank, step)
        torch.cuda._sleep(SPIN)
        with NoSync():
            value.backward()
            optimizer.step()
    assert state.status is not None
    state.finish(optimizer)
    assert are_equal(comm, model)


@pytest.mark.parametrize("overlap", [None, 3])
def test_the_host_does_not_wait_in_a_step(comm, ctx, cuda, overlap):
    """Each rank is in each round with all gradients, so it need not look for them."""
    model = net(cuda)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    with pp.torch.DistributedOptimizer(sgd, ctx, Synchronous(), overlap=overlap) as optimizer:
        for step in range(STEPS):
            optimizer.zero_grad()
            value = loss(model, comm.rank, step)
            with NoSync():
                value.backward()
                optimizer.step()
    assert are_equal(comm, model)


def test_partial_rounds_leave_equal_models(comm, ctx, cuda):
    """Ranks whose devices are slow at different times, and with different numbers of batches."""
    model = net(cuda)
    with pp.torch.DistributedOptimizer(adamw(model), ctx, EagerSGD(pp.Solo())) as optimizer:
        for step in range(STEPS + 3 * comm.rank):
            optimizer.zero_grad()
            if step % comm.size == comm.rank:
                torch.cuda._sleep(SPIN)
            loss(model, comm.rank, step).backward()
            optimizer.step()
    assert are_equal(comm, model)


@paths
def test_groups_leave_equal_models(comm, ctx, cuda, path):
    model = net(cuda)
    with pp.torch.DistributedOptimizer(
        adamw(model), ctx, PartialReduce(2), device_path=path
    ) as optimizer:
        assert optimizer.device_path == path, optimizer.device_path_reason
        for step in range(STEPS):
            optimizer.zero_grad()
            loss(model, comm.rank, step).backward()
            optimizer.step()
    assert are_equal(comm, model)
    assert all(p.is_cuda for p in model.parameters())


def test_a_parameter_without_a_gradient_is_left_alone(comm, ctx, cuda):
    model = nn.ModuleDict({"used": net(cuda), "never": nn.Linear(3, 3, device=cuda)})
    inner = adamw(model)
    with pp.torch.DistributedOptimizer(inner, ctx, model=model) as optimizer:
        for step in range(STEPS):
            optimizer.zero_grad()
            loss(model["used"], comm.rank, step).backward()
            optimizer.step()
    assert model["never"].weight not in inner.state
    assert are_equal(comm, model)


def test_a_grad_scaler(comm, ctx, cuda):
    """Half of the ranks skip their first step, whose gradients are infinite."""
    model = net(cuda, torch.float32)
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**8)
    with pp.torch.DistributedOptimizer(adamw(model), ctx) as optimizer:
        for step in range(STEPS):
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.float16):
                value = loss(model, comm.rank, step)
            if step == 0 and comm.rank % 2:
                value = value * float("inf")
            scaler.scale(value).backward()
            scaler.step(optimizer)
            scaler.update()
    assert are_equal(comm, model)
    assert all(torch.isfinite(p).all() for p in model.parameters())


def test_a_run_goes_on_from_its_checkpoint(comm, ctx, cuda):
    def make(model: nn.Module) -> pp.torch.DistributedOptimizer:
        return pp.torch.DistributedOptimizer(adamw(model), ctx, Synchronous(), model=model)

    def steps(model: nn.Module, optimizer, first: int, end: int) -> None:
        for step in range(first, end):
            optimizer.zero_grad()
            loss(model, comm.rank, step).backward()
            optimizer.step()

    model = net(cuda)
    with make(model) as optimizer:
        steps(model, optimizer, 0, STEPS // 2)
        optimizer.flush()
        saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
        steps(model, optimizer, STEPS // 2, STEPS)
    again = net(cuda)
    again.load_state_dict(saved[0])
    with make(again) as optimizer:
        optimizer.load_state_dict(saved[1])
        steps(again, optimizer, STEPS // 2, STEPS)
    assert bits(again) == bits(model)


def test_parameters_in_two_places_are_refused(ctx, cuda):
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, device=cuda))
    with pytest.raises(pp.ArgumentError, match="must be on the CPU, or all on one CUDA device"):
        pp.torch.DistributedOptimizer(adamw(model), ctx)


def test_the_backend(comm, world, cuda):
    """Calls with tensors on the device, behind what is queued there."""
    rank, size = comm.rank, comm.size
    torch.cuda._sleep(SPIN)
    summed = torch.full((3,), float(rank), device=cuda)
    dist.all_reduce(summed)
    assert summed.tolist() == [sum(range(size))] * 3
    told = torch.full((2,), rank, device=cuda)
    dist.broadcast(told, size - 1)
    assert told.tolist() == [size - 1] * 2
    every = [torch.empty(1, device=cuda) for _ in range(size)]
    work = dist.all_gather(every, torch.full((1,), float(rank), device=cuda), async_op=True)
    work.wait()
    assert torch.cat(every).tolist() == list(range(size))
    part = torch.empty(1, device=cuda)
    dist.reduce_scatter_tensor(part, torch.arange(size, dtype=torch.float32, device=cuda))
    assert part.item() == rank * size
    right, left = (rank + 1) % size, (rank - 1) % size
    came = torch.empty(4, device=cuda)
    sent = dist.isend(torch.full((4,), float(rank), device=cuda), right)
    dist.recv(came, left)
    sent.wait()
    assert came.tolist() == [left] * 4


@paths
def test_a_partial_group(comm, world, cuda, path):
    """The same tensor in each step, as the buckets of DDP."""
    group = pp.torch.new_group(policy=pp.Full(), device_path=path)
    gradient = torch.empty(100, device=cuda)
    for step in range(STEPS):
        gradient.fill_(comm.rank + step)
        dist.all_reduce(gradient, dist.ReduceOp.AVG, group=group)
        mean = sum(range(comm.size)) / comm.size + step
        assert gradient.tolist() == pytest.approx([mean] * 100)
        assert group.device_path == (path if step else None), group.device_path_reason
    dist.destroy_process_group(group)
