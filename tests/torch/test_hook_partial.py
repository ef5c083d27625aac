"""The hook with partial rounds: nothing is lost, and replicas end alike."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import pypartial as pp
from pypartial.torch import HookState, partial_allreduce_hook

RATE = 1 / 64
SLOW_S = 0.01  # what a step of the slow rank takes longer
DRIFTS = "ignore:.*the replicas drift apart"


class Counters(nn.Module):
    """One parameter for each rank: the gradient of rank r is 1 in the parameter r, and 0 else.

    With plain SGD of the rate RATE, each parameter counts how many steps of its rank were applied.
    """

    def __init__(self, ranks):
        super().__init__()
        self.steps = nn.ParameterList(
            nn.Parameter(torch.zeros(1, dtype=torch.float64)) for _ in range(ranks)
        )

    def forward(self, rank):
        return sum(one * (number == rank) for number, one in enumerate(self.steps)).sum()

    def counts(self, ranks):
        """Return how many steps of each rank were applied, if gradients are averaged over all."""
        return [-one.item() * ranks / RATE for one in self.steps]


def counters(ctx, **options):
    """Return a model of counters, its DDP module, a plain optimizer and a registered state."""
    model = Counters(ctx.size)
    ddp = DistributedDataParallel(model, bucket_cap_mb=1e-6)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=RATE)
    state = HookState(ctx, ddp, optimizer=optimizer, **options)
    ddp.register_comm_hook(state, partial_allreduce_hook)
    return model, ddp, optimizer, state


def network():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2)).double()


def digest(model):
    return b"".join(one.detach().numpy().tobytes() for one in model.parameters())


def alike(comm, model):
    return len(set(comm.allgather(digest(model)))) == 1


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("sync_every", [None, 4])
@pytest.mark.parametrize("policy", [pp.Majority(), pp.Solo()], ids=str)
def test_each_gradient_is_applied_once_on_every_rank(ctx, comm, gloo, policy, sync_every):
    """Also with one slow rank, and with another number of steps on each rank."""
    model, ddp, optimizer, state = counters(ctx, policy=policy, sync_every=sync_every)
    steps = 12 + 5 * comm.rank
    active = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = ddp(comm.rank)
        if comm.rank == 0:
            time.sleep(SLOW_S)  # the computation of this rank takes longer
        loss.backward()
        optimizer.step()
        active.append(comm.size if state.status is None else state.status.active)
    state.finish()
    counts = model.counts(comm.size)
    np.testing.assert_allclose(counts, comm.allgather(steps), atol=1e-9)
    assert alike(comm, model)
    assert min(active) < comm.size, "no round was partial"


@pytest.mark.mpi
@pytest.mark.sizes(2)
@pytest.mark.filterwarnings(DRIFTS)
@pytest.mark.parametrize("deliver", ["sum", "latest"])
def test_latest_gives_the_newest_round_only(ctx, comm, gloo, deliver):
    model, ddp, optimizer, state = counters(ctx, policy=pp.Solo(), deliver=deliver)
    steps = ahead(comm, lambda: step(ddp, optimizer, comm.rank))
    of_rank_0 = comm.allgather(round(model.counts(comm.size)[0]))
    if deliver == "sum":
        assert of_rank_0 == [steps, steps]
    else:
        assert of_rank_0[0] == steps
        assert of_rank_0[1] < steps
    state.finish()
    assert alike(comm, model)


def step(ddp, optimizer, x):
    optimizer.zero_grad()
    ddp(x).sum().backward()
    optimizer.step()


def ahead(comm, step):
    """Make four steps; rank 1 makes the last two when the others have made theirs, alone."""
    step()  # synchronous
    step()  # DDP's forward pass waits for all ranks once more
    if comm.rank == 1:
        for rank in range(comm.size):
            if rank != 1:
                comm.recv(source=rank)
    step()
    step()
    if comm.rank != 1:
        comm.send(None, 1)
    return 4


@pytest.mark.mpi(min_size=2)
@pytest.mark.filterwarnings(DRIFTS)
def test_replicas_drift_and_finish_ends_it(ctx, comm, gloo):
    model, optimizer, state, run = momentum(ctx, comm)
    ahead(comm, run)
    assert not alike(comm, model), "nothing drifted"
    mean = np.mean(comm.allgather(model[0].weight.detach().numpy()), axis=0)
    state.finish(optimizer)
    assert alike(comm, model)
    # Steps that were on their way move it, too.
    assert np.abs(model[0].weight.detach().numpy() - mean).max() < 1.0
    buffers = [optimizer.state[one]["momentum_buffer"] for one in model.parameters()]
    assert len(set(comm.allgather(b"".join(one.numpy().tobytes() for one in buffers)))) == 1


def momentum(ctx, comm, **options):
    model = network()
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
    if "sync_every" in options:
        options["optimizer"] = optimizer
    state = HookState(ctx, ddp, policy=pp.Solo(), **options)
    ddp.register_comm_hook(state, partial_allreduce_hook)
    generator = torch.Generator().manual_seed(comm.rank)

    def run():
        step(ddp, optimizer, torch.randn(4, 6, generator=generator, dtype=torch.float64))

    return model, optimizer, state, run


@pytest.mark.mpi(min_size=2)
def test_sync_every_ends_the_drift_now_and_then(ctx, comm, gloo):
    """Replicas are alike whenever ranks have met, optimizer's state and all."""
    model, optimizer, state, run = momentum(ctx, comm, sync_every=3)
    met = []
    meet = state._meet_once

    def spy(*args, **kwargs):
        least = meet(*args, **kwargs)
        momenta = [optimizer.state[one]["momentum_buffer"] for one in model.parameters()]
        met.append(digest(model) + b"".join(one.numpy().tobytes() for one in momenta))
        return least

    state._meet_once = spy
    for _ in range(8 + 6 * comm.rank):
        if comm.rank == 0:
            time.sleep(SLOW_S)  # the computation of this rank takes longer
        run()
    state.finish()
    assert comm.allgather(len(met)) == [len(met)] * comm.size
    assert len(met) > 2
    assert len(set(comm.allgather(tuple(met)))) == 1


@pytest.mark.mpi
def test_a_flush_gives_all_ranks_the_same_model_and_goes_on(ctx, comm, gloo):
    """Also right behind the first step, when DDP has not cut new buckets yet."""
    model, ddp, optimizer, state = counters(ctx, policy=pp.Solo(), sync_every=4)
    counts = []
    for number in range(10):
        step(ddp, optimizer, comm.rank)
        if number in (0, 5, 9):
            state.flush()
            counts.append(model.counts(comm.size))
    np.testing.assert_allclose(counts, np.outer([1, 6, 10], np.ones(comm.size)), atol=1e-9)
    state.finish()
    np.testing.assert_allclose(model.counts(comm.size), [10] * comm.size, atol=1e-9)


@pytest.mark.mpi
@pytest.mark.parametrize("sync_every", [None, 2])
def test_collective_calls_go_into_away(ctx, comm, gloo, sync_every):
    """Ranks reach it in other rounds, and one is slow."""
    _model, ddp, optimizer, state = counters(ctx, sync_every=sync_every)
    sums = []
    for number in range(9):
        if number % 3 == 0:
            with state.away():
                sums.append(comm.allreduce(number))
        if comm.rank == 0:
            time.sleep(SLOW_S)  # the computation of this rank takes longer
        step(ddp, optimizer, comm.rank)
    state.finish()
    assert sums == [number * comm.size for number in (0, 3, 6)]


@pytest.mark.mpi
def test_steps_may_be_so_few_that_ddp_has_not_cut_new_buckets(ctx, comm, gloo):
    """The last rank makes a single step, while the others go on."""
    steps = 1 if comm.rank == comm.size - 1 else 6
    model, ddp, optimizer, state = counters(ctx)
    for _ in range(steps):
        step(ddp, optimizer, comm.rank)
    state.finish()
    np.testing.assert_allclose(model.counts(comm.size), comm.allgather(steps), atol=1e-9)


@pytest.mark.mpi
@pytest.mark.parametrize("sync_every", [None, 2])
def test_a_rank_may_be_away_before_ddp_has_cut_new_buckets(ctx, comm, gloo, sync_every):
    """The others wait for it in the forward pass of their second step."""
    steps = 1 if comm.rank == comm.size - 1 else 3
    model, ddp, optimizer, state = counters(ctx, sync_every=sync_every)
    for _ in range(2):
        for _ in range(steps):
            step(ddp, optimizer, comm.rank)
        with state.away():
            assert comm.allreduce(1) == comm.size
    state.finish()
    made = comm.allgather(2 * steps)
    np.testing.assert_allclose(model.counts(comm.size), made, atol=1e-9)


class Product(nn.Module):
    """Its gradient is its input, whatever the weights."""

    def __init__(self):
        super().__init__()
        weight = torch.zeros(3, 4, 2, 2, dtype=torch.float64)
        self.weight = nn.Parameter(weight.to(memory_format=torch.channels_last))

    def forward(self, x):
        return self.weight * x


@pytest.mark.mpi(min_size=2)
@pytest.mark.filterwarnings(DRIFTS)
def test_what_finish_applies_is_in_the_order_of_the_weights(ctx, comm, gloo):
    model = Product()
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=RATE)
    state = HookState(ctx, ddp, policy=pp.Solo())
    ddp.register_comm_hook(state, partial_allreduce_hook)
    steps = 1 if comm.rank == 0 else 5
    x = torch.arange(48, dtype=torch.float64).view(3, 4, 2, 2)
    for _ in range(steps):
        step(ddp, optimizer, x)
    state.finish(optimizer)
    expected = -RATE * x * comm.allreduce(steps) / comm.size
    torch.testing.assert_close(model.weight.detach(), expected, rtol=1e-12, atol=0.0)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize(("average", "share"), [("contributors", 1), ("size", None)])
def test_average_says_what_is_divided_by(ctx, comm, gloo, average, share):
    """Rank 0 has finished when the last rounds are made, so it contributes nothing to them."""
    model = nn.Linear(1, 1, bias=False).double()
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=RATE)
    state = HookState(ctx, ddp, policy=pp.Full(), average=average)
    ddp.register_comm_hook(state, partial_allreduce_hook)
    for _ in range(2 if comm.rank == 0 else 5):
        step(ddp, optimizer, torch.ones(1, 1, dtype=torch.float64))
    if comm.rank != 0:
        expected = share or (comm.size - 1) / comm.size
        assert model.weight.grad.item() == pytest.approx(expected, rel=1e-12)
        assert state.status.cause == "departed"
    state.finish(optimizer)


@pytest.mark.mpi
def test_gradients_are_as_before_after_finish(ctx, comm, gloo):
    """What finish applies is not left behind in the parameters."""
    model, ddp, optimizer, state = counters(ctx, policy=pp.Solo())
    for _ in range(3):
        step(ddp, optimizer, comm.rank)
    gradients = [one.grad for one in model.parameters()]
    values = [one.item() for one in gradients]
    state.finish()
    assert [one.grad for one in model.parameters()] == gradients
    assert [one.item() for one in gradients] == values
