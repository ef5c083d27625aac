"""`DistributedOptimizer` with `ADPSGD`, `DPSGD` and `Hop`: models averaged with neighbours'."""

from __future__ import annotations

import copy

import pytest
import torch
from mpi4py import MPI
from support.training import backward, flat, net, train_alone
from torch import nn

import pypartial as pp
import pypartial.torch
from pypartial.methods import ADPSGD, DPSGD, Hop

pytestmark = [pytest.mark.mpi(min_size=2), pytest.mark.sizes(2, 3)]

STEPS = 12
METHODS = [ADPSGD("complete"), ADPSGD(pp.topology.star(), "active"), DPSGD("star"), Hop("ring")]
IDS = ["all", "active", "d-psgd", "hop"]


def same(comm, *tensors: torch.Tensor) -> bool:
    mine = [tensor.detach().double().numpy().tobytes() for tensor in tensors]
    return all(theirs == mine for theirs in comm.allgather(mine))


@pytest.mark.parametrize("method", METHODS, ids=IDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_models_end_equal(comm, ctx, method, dtype):
    """Buffers and momentum, too, although ranks make different numbers of steps."""
    model = net(norm=True, dtype=dtype, seed=comm.rank)
    inner = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    with pp.torch.DistributedOptimizer(inner, ctx, method, model=model) as opt:
        assert same(comm, flat(model))
        begun = flat(model)
        for step in range(STEPS + 5 * comm.rank):
            opt.zero_grad()
            backward(model, comm.rank, step)
            opt.step()
            assert not isinstance(method, ADPSGD) or comm.rank in opt.status.group
        assert opt.rounds == STEPS + 5 * comm.rank
    assert same(comm, flat(model), *(inner.state[p]["momentum_buffer"] for p in model.parameters()))
    assert not flat(model).equal(begun)


@pytest.mark.parametrize("method", METHODS[:2], ids=IDS[:2])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_every_change_of_every_rank_counts_once(comm, ctx, method, dtype):
    """Gradients do not depend on the model here; some steps have none, and some are not plain."""
    model = nn.Linear(4, 2, dtype=dtype)
    with torch.no_grad():
        model.weight.zero_()
        model.bias.zero_()
    inner = torch.optim.SGD(model.parameters(), lr=0.25, momentum=0.5)
    down = velocity = 0.0
    near = 1e-12 if dtype == torch.float64 else 0.05
    with pp.torch.DistributedOptimizer(inner, ctx, method) as opt:
        for step in range(STEPS + comm.rank):
            opt.zero_grad()
            if step % 4 != 1:
                ((1 + comm.rank) * (model.weight.sum() + model.bias.sum())).backward()
                velocity = 0.5 * velocity + 1 + comm.rank
                down -= 0.25 * velocity
            opt.step()
            if step % 4 == 2:
                with torch.no_grad():  # as a clamp of the program's own
                    model.weight += 0.125
                    model.bias += 0.125
                down += 0.125
            if velocity:  # it stays this rank's own
                kept = inner.state[model.bias]["momentum_buffer"].tolist()
                assert kept == pytest.approx([velocity] * 2, rel=near)
    mean = torch.full((2, 4), comm.allreduce(down) / comm.size, dtype=dtype)
    torch.testing.assert_close(model.weight.detach(), mean, rtol=near, atol=near)
    assert same(comm, model.weight, model.bias)


@pytest.mark.parametrize("method", METHODS, ids=IDS)
def test_one_rank_trains_alone(method):
    """What is added to a model is its change, which is rounded."""
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
    train_alone(alone, torch.optim.SGD(alone.parameters(), lr=0.05, momentum=0.9), 1, STEPS)
    torch.testing.assert_close(flat(model), flat(alone), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("method", METHODS, ids=IDS)
def test_a_checkpoint_is_loaded_into_a_model_that_is_wrapped(comm, ctx, method):
    model, other = net(), net(seed=5)
    inner = torch.optim.SGD(model.parameters(), lr=0.05)
    with pp.torch.DistributedOptimizer(inner, ctx, method, model=model) as opt:
        backward(model, comm.rank, 0)
        opt.step()
        opt.flush()
        assert same(comm, flat(model))
        saved = opt.state_dict()
        model.load_state_dict(other.state_dict())
    torch.testing.assert_close(flat(model), flat(other), rtol=1e-12, atol=1e-12)
    with pp.torch.DistributedOptimizer(inner, ctx, method, model=model) as opt:
        opt.load_state_dict(saved)
        assert opt.rounds == saved["worker"]["rounds"] == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"overlap": 2}, "overlap gives each piece rounds"),
        ({"before_round": print}, "before_round needs rounds that all ranks apply"),
    ],
)
def test_what_needs_rounds_is_refused(ctx, options, words):
    sgd = torch.optim.SGD(net().parameters(), lr=0.05)
    with pytest.raises(pp.ArgumentError, match=words):
        pp.torch.DistributedOptimizer(sgd, ctx, METHODS[0], **options)
