"""DDP with the hook and `Full` is DDP, whatever DDP does with its buckets."""

from __future__ import annotations

import copy
import functools
import inspect

import numpy as np
import pytest
import torch
from support.memory import ended
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import pypartial as pp
from pypartial.torch import HookState, partial_allreduce_hook

LONG, SHORT = 200, 20
ROWS = 8
CAP_MB = 0.002  # several buckets

SGD = functools.partial(torch.optim.SGD, lr=0.05, momentum=0.9)
ADAMW = functools.partial(torch.optim.AdamW, lr=0.01)


def dense():
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Linear(12, 24), nn.Tanh(), nn.Linear(24, 24), nn.LayerNorm(24), nn.Linear(24, 3)
    ).double()


def images():
    """Convolutions whose weights are not in row-major order, and batch normalisation."""
    torch.manual_seed(2)
    model = nn.Sequential(
        nn.Conv2d(3, 24, 2), nn.BatchNorm2d(24), nn.ReLU(), nn.Flatten(), nn.Linear(24, 3)
    )
    return model.double().to(memory_format=torch.channels_last)


def mixed():
    """Parameters of two types, so that DDP makes buckets of two types."""
    model = dense()
    model[0] = model[0].float()
    model.insert(0, Cast(torch.float32))
    model.insert(2, Cast(torch.float64))
    return model


class Cast(nn.Module):
    def __init__(self, dtype):
        super().__init__()
        self.dtype = dtype

    def forward(self, x):
        return x.to(self.dtype)


def batch(model, rank, step):
    first = next(iter(model.module.children()))
    shape = (ROWS, 3, 2, 2) if isinstance(first, nn.Conv2d) else (ROWS, 12)
    generator = torch.Generator().manual_seed(1000 * rank + step)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def train(ddp, optimizer, rank, steps, accumulate=1):
    for step in range(steps):
        if step % accumulate == 0:
            optimizer.zero_grad()
        if (step + 1) % accumulate:
            with ddp.no_sync():
                ddp(batch(ddp, rank, step)).square().mean().backward()
            continue
        ddp(batch(ddp, rank, step)).square().mean().backward()
        optimizer.step()


def weights(model):
    return torch.cat([one.detach().double().reshape(-1) for one in model.parameters()]).numpy()


def same_on_all_ranks(comm, array):
    return len(set(comm.allgather(array.tobytes()))) == 1


# In torch 2.13 broadcast_buffers has a new name.
NEW = "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters
NO_BROADCAST = {"forward_sync_buffers" if NEW else "broadcast_buffers": False}

CASES = {
    "momentum": (LONG, dense, SGD, {}, 1),
    "adamw": (LONG, dense, ADAMW, {}, 1),
    "one bucket": (SHORT, dense, SGD, {"bucket_cap_mb": 25}, 1),
    "static graph": (SHORT, dense, ADAMW, {"static_graph": True}, 1),
    "static graph, two types": (SHORT, mixed, SGD, {"static_graph": True}, 1),
    "bucket view": (SHORT, dense, SGD, {"gradient_as_bucket_view": True}, 1),
    "no_sync": (SHORT, dense, SGD, {}, 3),
    "no_sync, bucket view": (SHORT, dense, SGD, {"gradient_as_bucket_view": True}, 3),
    "unused": (SHORT, dense, SGD, {"find_unused_parameters": True}, 1),
    "images": (LONG, images, SGD, NO_BROADCAST, 1),
    "images, adamw": (SHORT, images, ADAMW, NO_BROADCAST, 1),
    "two types": (SHORT, mixed, SGD, {"gradient_as_bucket_view": True}, 1),
}


@pytest.mark.filterwarnings("ignore:find_unused_parameters")
@pytest.mark.mpi
@pytest.mark.parametrize("case", CASES)
def test_full_gives_the_weights_of_ddp(ctx, comm, gloo, case):
    steps, make, optimize, options, accumulate = CASES[case]
    model = make()
    model_of_gloo = copy.deepcopy(model)

    ddp = DistributedDataParallel(model_of_gloo, **options)
    train(ddp, optimize(ddp.parameters()), comm.rank, steps, accumulate)

    ddp = DistributedDataParallel(model, **{"bucket_cap_mb": CAP_MB, **options})
    optimizer = optimize(ddp.parameters())
    state = HookState(ctx, ddp, policy=pp.Full())
    ddp.register_comm_hook(state, partial_allreduce_hook)
    train(ddp, optimizer, comm.rank, steps, accumulate)

    assert same_on_all_ranks(comm, weights(model))
    assert (len(state._buckets._parts) > 1) == (case != "one bucket")
    assert state._buckets.settled
    synchronous = 2 if "static_graph" in options else 1
    assert state.status.round == steps // accumulate - synchronous - 1
    state.finish(optimizer)
    expected = weights(model_of_gloo)
    tolerance = 1e-5 if make is mixed else 1e-9
    assert np.linalg.norm(weights(model) - expected) <= tolerance * np.linalg.norm(expected)
    buffers = [buffer.double().numpy() for buffer in model.buffers()]
    assert all(same_on_all_ranks(comm, buffer) for buffer in buffers)


class Empty(nn.Module):
    """A model with parameters without elements, of other types, which have buckets of their own."""

    def __init__(self, types):
        super().__init__()
        self.dense = dense()
        self.empty = nn.ParameterList(nn.Parameter(torch.zeros(0, 2, dtype=one)) for one in types)

    def forward(self, x):
        return self.dense(x) + sum(one.double().sum() for one in self.empty)


@pytest.mark.mpi
@pytest.mark.parametrize("static_graph", [False, True])
@pytest.mark.parametrize("types", [[torch.float32], [torch.float32, torch.bfloat16]])
def test_parameters_without_elements(ctx, comm, gloo, types, static_graph):
    model = Empty(types)
    alone = copy.deepcopy(model.dense)
    ddp = DistributedDataParallel(model, static_graph=static_graph, bucket_cap_mb=CAP_MB)
    optimizer = SGD(ddp.parameters())
    state = HookState(ctx, ddp, policy=pp.Full())
    ddp.register_comm_hook(state, partial_allreduce_hook)
    by_hand = SGD(alone.parameters())
    for step in range(SHORT):
        inputs = [batch(ddp, rank, step) for rank in range(comm.size)]
        for wrapped, sgd, own in (
            (ddp, optimizer, inputs[comm.rank]),
            (alone, by_hand, torch.cat(inputs)),
        ):
            sgd.zero_grad()
            wrapped(own).square().mean().backward()
            sgd.step()
    parts = state._buckets._parts.values()
    assert sum(part.end == part.offset for part in parts) == len(types)
    state.finish(optimizer)
    expected = weights(alone)
    assert np.linalg.norm(weights(model.dense) - expected) <= 1e-9 * np.linalg.norm(expected)


@pytest.mark.mpi
def test_finish_averages_running_statistics(ctx, comm, gloo):
    model = images()
    ddp = DistributedDataParallel(model, **NO_BROADCAST)
    optimizer = SGD(ddp.parameters())
    state = HookState(ctx, ddp, policy=pp.Full())
    ddp.register_comm_hook(state, partial_allreduce_hook)
    train(ddp, optimizer, comm.rank, 3)
    with torch.no_grad():
        model[1].num_batches_tracked += comm.rank
    means = comm.allgather(model[1].running_mean.numpy())
    state.finish(optimizer)
    np.testing.assert_allclose(model[1].running_mean.numpy(), np.mean(means, axis=0), rtol=1e-12)
    assert model[1].num_batches_tracked.item() == 3  # rank 0's


@pytest.mark.mpi
def test_finish_keeps_no_vector(ctx, comm, gloo, request):
    """What DDP itself keeps of the last backward pass ends with its reducer."""
    ddp = DistributedDataParallel(dense())
    optimizer = SGD(ddp.parameters())
    state = HookState(ctx, ddp, policy=pp.Full())
    ddp.register_comm_hook(state, partial_allreduce_hook)
    train(ddp, optimizer, comm.rank, 3)
    has_ended = ended(state._vector)
    state.finish(optimizer)
    shown = state.status, state.device_path
    del ddp.reducer, ddp.logger
    if "stand_in" in request.fixturenames:  # which keeps all vectors
        request.getfixturevalue("stand_in").arrays.clear()
    assert has_ended()
    assert (state.status, state.device_path) == shown and shown[0] is not None
    with pytest.raises(pp.Error, match="was called before"):
        state.finish(optimizer)


@pytest.mark.mpi
def test_half_precision_is_summed_in_single(ctx, comm, gloo):
    model = nn.Linear(2, 1, bias=False).bfloat16()
    ddp = DistributedDataParallel(model)
    state = HookState(ctx, ddp, policy=pp.Full())
    ddp.register_comm_hook(state, partial_allreduce_hook)
    # bfloat16 has 8 bits: in it, 1 + 256 - 256 is 0.
    values = [1.0, 256.0, -256.0, 0.0, 0.0][: comm.size]
    for _ in range(3):
        ddp.zero_grad()
        ddp(torch.tensor([[values[comm.rank], 1.0]]).bfloat16()).sum().backward()
        expected = torch.tensor([[sum(values) / comm.size, 1.0]]).bfloat16()
        assert model.weight.grad.dtype == torch.bfloat16
        assert torch.equal(model.weight.grad, expected)
    state.finish(torch.optim.SGD(ddp.parameters(), lr=0.0))
