"""The optimizer with full rounds trains as DistributedDataParallel with gloo does."""

from __future__ import annotations

import functools

import pytest
import torch
import torch.distributed as dist
from support.pairwise import pairwise
from support.training import backward, flat, net
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import pypartial as pp
import pypartial.torch
from pypartial.methods import EagerSGD, Method, Synchronous

pytestmark = [
    pytest.mark.mpi(min_size=2),
    pytest.mark.filterwarnings("ignore:.broadcast_buffers. is deprecated"),  # its successor is new
]

STEPS = 200
TOLERANCE = 1e-9  # of the norm
OPTIMIZERS = {
    "momentum": lambda model: torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
    "adamw": lambda model: torch.optim.AdamW(model.parameters(), lr=0.01),
}


@functools.cache
def ddp(group: dist.ProcessGroup, optimizer: str, norm: bool) -> tuple[Tensor, nn.Module]:
    """Return the parameters after all steps, and this rank's model."""
    model = net(norm)
    wrapped = DistributedDataParallel(model, process_group=group, broadcast_buffers=False)
    sgd = OPTIMIZERS[optimizer](model)
    for step in range(STEPS):
        sgd.zero_grad()
        backward(wrapped, group.rank(), step)
        sgd.step()
    return parameters(model), model


def parameters(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@pairwise(
    way={
        "synchronous": (Synchronous(), None),
        "full": (EagerSGD(pp.Full()), None),
        "overlap": (Synchronous(), 2),
    },
    optimizer=list(OPTIMIZERS),
    norm={"plain": False, "batchnorm": True},
)
def test_equals_ddp(gloo, comm, ctx, way: tuple[Method, int | None], optimizer: str, norm: bool):
    method, overlap = way
    wanted, theirs = ddp(gloo, optimizer, norm)
    model = net(norm, seed=comm.rank)
    if comm.rank == 0:
        model.load_state_dict(net(norm).state_dict())  # the other ranks are given it
    with pp.torch.DistributedOptimizer(
        OPTIMIZERS[optimizer](model), ctx, method, overlap=overlap, model=model
    ) as opt:
        for step in range(STEPS):
            opt.zero_grad()
            backward(model, comm.rank, step)
            opt.step()
        assert opt.rounds == STEPS
        own = [buffer.clone() for buffer in model.buffers()]
    assert torch.linalg.norm(parameters(model) - wanted) <= TOLERANCE * torch.linalg.norm(wanted)
    assert not wanted.equal(parameters(net(norm)))
    for mine, before, their in zip(model.buffers(), own, theirs.buffers(), strict=True):
        torch.testing.assert_close(before, their, rtol=1e-7, atol=1e-9)
        ranks = comm.allgather(before)
        if before.is_floating_point():
            torch.testing.assert_close(mine, torch.stack(ranks).mean(0), rtol=1e-12, atol=1e-12)
        assert len({flat(model).numpy().tobytes() for model in comm.allgather(model)}) == 1
