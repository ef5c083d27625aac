"""Reports of training with PyTorch: the rank whose backward pass is slow is named."""

from __future__ import annotations

import time

import pytest
import torch
from support.training import backward, net
from torch.nn.parallel import DistributedDataParallel

import pypartial as pp
import pypartial.torch
from pypartial.methods import EagerSGD, PartialReduce, Synchronous

pytestmark = [pytest.mark.mpi(min_size=2), pytest.mark.sizes(2, 3)]

STEPS, STEP_S, ATTEMPTS = 20, 10e-3, 4


def train(model, optimizer, rank, slow, times):
    for step in range(STEPS):
        optimizer.zero_grad()
        time.sleep(STEP_S * (times if rank == slow else 1))  # in place of a long backward pass
        backward(model, rank, step)
        optimizer.step()


def judge(comm, make, slow, times):
    """A busy machine may slow any rank down: the whole measurement is repeated."""
    for _ in range(ATTEMPTS):
        with pp.Context(comm, seed=7, patience=None) as ctx:
            make(ctx, slow, times)
            report = ctx.report(all=True)
        assert len({*comm.allgather(report.verdict.rank)}) == 1
        if report.verdict.rank == slow and report.verdict.times > 1 + (times - 1) / 2:
            return
    pytest.fail(f"rank {slow} was slow, and not named:\n{report}")


@pytest.mark.parametrize("times", [pytest.param(2, marks=pytest.mark.thorough), 5])
@pytest.mark.parametrize(
    ("method", "overlap"),
    [(Synchronous(), 1), (Synchronous(), 2), (EagerSGD(), None), (PartialReduce(2), None)],
    ids=str,
)
def test_by_the_optimizer(comm, method, overlap, times):
    def make(ctx, slow, times):
        model = net()
        inner = torch.optim.SGD(model.parameters(), lr=0.01)
        with pp.torch.DistributedOptimizer(inner, ctx, method, overlap=overlap) as optimizer:
            train(model, optimizer, comm.rank, slow, times)

    for slow in range(comm.size):
        judge(comm, make, slow, times)


@pytest.mark.parametrize("policy", ["majority", "full"])
def test_by_the_hook_of_ddp(comm, world, policy):
    def make(ctx, slow, times):
        model = DistributedDataParallel(net())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        state = pp.torch.HookState(ctx, model, policy=policy, optimizer=optimizer)
        model.register_comm_hook(state, pp.torch.partial_allreduce_hook)
        train(model, optimizer, comm.rank, slow, times)
        state.finish(optimizer)

    for slow in range(comm.size):
        judge(comm, make, slow, 5)
