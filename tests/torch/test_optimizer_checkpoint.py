"""What is saved, and how a run goes on from there."""

from __future__ import annotations

import pytest
import torch
from support.training import backward, flat, net
from torch import nn

import pypartial as pp
import pypartial.torch
from pypartial.methods import EagerSGD, PartialReduce, Synchronous

pytestmark = [pytest.mark.mpi(min_size=2), pytest.mark.sizes(3)]

STEPS, SAVED = 20, 10


class Run:
    """One process of a training program."""

    def __init__(self, ctx, method, overlap=None) -> None:
        self.ctx = ctx
        self.model = net(norm=True)
        self.inner = torch.optim.AdamW(self.model.parameters(), lr=0.02)
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.inner, 0.95)
        self.opt = pp.torch.DistributedOptimizer(
            self.inner, ctx, method, self.scheduler, overlap=overlap, model=self.model
        )

    def train(self, first: int, end: int) -> None:
        for step in range(first, end):
            self.opt.zero_grad()
            backward(self.model, self.ctx.rank, step)
            self.opt.step()

    def save(self, path) -> None:
        self.opt.flush()
        if self.ctx.rank == 0:
            torch.save({"model": self.model.state_dict(), "opt": self.opt.state_dict()}, path)

    def load(self, path) -> None:
        saved = torch.load(path)
        self.model.load_state_dict(saved["model"])
        self.opt.load_state_dict(saved["opt"])

    def bits(self) -> bytes:
        state = [t.flatten().double() for s in self.inner.state.values() for t in s.values()]
        whole = torch.cat([flat(self.model), *state]).numpy().tobytes()
        return whole + str((self.scheduler.get_last_lr(), self.opt.rounds)).encode()


@pytest.fixture
def path(comm, tmp_path):
    return comm.bcast(tmp_path) / "checkpoint.pt"


@pytest.mark.parametrize("others", ["none", "another", "more"])
@pytest.mark.parametrize(
    "optimizer",
    [
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.5),
        lambda p: torch.optim.AdamW(p, lr=0.1, amsgrad=True),
    ],
)
@pytest.mark.parametrize("method", [Synchronous(), PartialReduce(2)], ids=["mean", "groups"])
def test_the_state_of_an_optimizer_becomes_that_of_rank_0(comm, ctx, method, optimizer, others):
    """As after a run with groups, or where rank 0 alone has loaded one."""
    v, w = nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(2, dtype=torch.bfloat16))
    inner = optimizer([v, w])
    has_some = comm.rank == 0 or others != "none"
    if has_some:
        ((1 + comm.rank) * v).sum().backward()
    if others == "more" and comm.rank:
        w.sum().backward()
    if has_some:
        inner.step()
    inner.zero_grad()
    opt = pp.torch.DistributedOptimizer(inner, ctx, method)

    def bits() -> list[tuple[object, ...]]:
        state = [sorted(inner.state[p].items()) for p in (v, w) if p in inner.state]
        return [(k, str(x.dtype), x.tolist()) for values in state for k, x in values]

    expected = optimizer([one := nn.Parameter(torch.zeros(3))])
    one.sum().backward()
    expected.step()
    known = [(k, str(x.dtype), x.tolist()) for k, x in sorted(expected.state[one].items())]
    assert bits() == known
    (v.sum() + w.float().sum()).backward()
    opt.step()
    opt.finish()
    with ctx.away():
        told = comm.allgather((bits(), v.tolist(), w.tolist()))
    assert all(theirs == told[0] for theirs in told)


def _numbers(inner, v, w, rank):
    inner.state[v]["seen"] = torch.zeros(2)
    inner.state["calls"] = 3  # of no parameter: stays


def _nested(inner, v, w, rank):
    inner.state[v]["seen"] = [torch.full((2,), float(rank))]


def _shared(inner, v, w, rank):
    inner.state[v]["seen"] = inner.state[w]["seen"] = torch.full((2,), float(rank))


def _local(inner, v, w, rank):
    inner.state[v]["seen"] = lambda: rank


def _mixed(inner, v, w, rank):
    inner.state[v]["seen"] = inner.state[v][0] = torch.full((2,), float(rank))


def _expanded(inner, v, w, rank):
    inner.state[v]["seen"] = torch.full((1,), float(rank)).expand(2)


@pytest.mark.parametrize("everywhere", [False, True])
@pytest.mark.parametrize("fill", [_numbers, _nested, _shared, _local, _mixed, _expanded])
def test_a_state_of_another_kind_stays_each_ranks_own(comm, ctx, fill, everywhere):
    """It is not known how to copy it; nor is it that of the last rank alone, where that has it."""
    v, w = nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(2))
    inner = torch.optim.SGD([v, w], lr=1.0)
    if everywhere or comm.rank == comm.size - 1:
        fill(inner, v, w, comm.rank)
    mine = {key: dict(inner.state[key]) for key in (v, w) if key in inner.state}
    with pp.torch.DistributedOptimizer(inner, ctx, Synchronous()) as opt:
        if fill is _numbers:
            assert everywhere == (v in inner.state)
            assert ("calls" in inner.state) == (everywhere or comm.rank == comm.size - 1)
            inner.state.clear()
        else:
            assert all(inner.state[p][k] is x for p in mine for k, x in mine[p].items())
        (v.sum() + w.sum()).backward()
        opt.step()
    assert (v.tolist(), w.tolist()) == ([-1.0] * 3, [-1.0] * 2)


class Killed(Exception):
    pass


@pytest.mark.parametrize("overlap", [None, 2])
def test_killed_and_resumed_equals_unbroken(comm, path, overlap):
    with pp.Context(comm) as ctx:
        unbroken = Run(ctx, Synchronous(), overlap)
        with unbroken.opt:
            unbroken.train(0, SAVED)
            unbroken.opt.flush()
            unbroken.train(SAVED, STEPS)
    with pytest.raises(Killed), pp.Context(comm) as ctx:
        killed = Run(ctx, Synchronous(), overlap)
        with killed.opt:
            killed.train(0, SAVED)
            killed.save(path)
            killed.train(SAVED, SAVED + 3)
            ctx.comm.Barrier()  # this rank gives up the context below
            raise Killed
    comm.Barrier()
    with pp.Context(comm) as ctx:
        resumed = Run(ctx, Synchronous(), overlap)
        with resumed.opt:
            resumed.load(path)
            assert resumed.opt.rounds == SAVED
            resumed.train(SAVED, STEPS)
    assert resumed.bits() == unbroken.bits()
    assert killed.bits() != unbroken.bits()
    assert set(comm.allgather(resumed.bits())) == {resumed.bits()}


@pytest.mark.filterwarnings("ignore:.*drift apart")  # only between flushes
@pytest.mark.parametrize(
    ("method", "overlap"),
    [
        (EagerSGD(), None),
        (EagerSGD(pp.Solo(), "sum", 4), None),
        (EagerSGD(pp.Solo(), "sum"), 2),
        (PartialReduce(2), None),
    ],
    ids=["each", "sum", "sum in pieces", "partial-reduce"],
)
def test_what_is_loaded_is_what_was_saved(comm, path, method, overlap):
    with pp.Context(comm, seed=3) as ctx:
        run = Run(ctx, method, overlap)
        with run.opt:
            run.train(0, SAVED + comm.rank)
            run.save(path)
            saved, seed = run.bits(), run.opt.state_dict()["worker"]["seed"]
    assert seed != 3
    with pp.Context(comm, seed=seed) as ctx:
        run = Run(ctx, method, overlap)
        with run.opt:
            run.load(path)
            assert comm.rank or run.bits() == saved
            run.train(SAVED, STEPS)
    assert len(set(comm.allgather(flat(run.model).numpy().tobytes()))) == 1


def test_steps_since_the_flush_would_be_lost(comm, ctx):
    for overlap in (None, 2):
        run = Run(ctx, Synchronous(), overlap)
        with run.opt:
            run.opt.state_dict()
            run.train(0, 2)
            with pytest.raises(pp.Error, match=r"2 steps were made since the last flush"):
                run.opt.state_dict()
            run.opt.flush()
            run.opt.state_dict()


@pytest.mark.parametrize("overlap", [None, 2])
def test_loading_is_refused(ctx, overlap):
    run = Run(ctx, Synchronous(), overlap)
    with run.opt:
        good = run.opt.state_dict()
        for wrong in (None, {}, {**good, "more": 1}, {**good, "scheduler": None}):
            with pytest.raises(pp.ArgumentError, match="state"):
                run.opt.load_state_dict(wrong)
        other = {**good, "worker": {**good["worker"], "method": "EagerSGD()"}}
        with pytest.raises(pp.ArgumentError, match="EagerSGD"):
            run.opt.load_state_dict(other)
        run.train(0, 1)
        with pytest.raises(pp.Error, match="before the first step"):
            run.opt.load_state_dict(good)


def test_an_exception_waits_for_nobody(comm):
    """The first rank leaves the block while the others are still inside."""
    with pytest.raises(Killed), pp.Context(comm) as ctx:
        run = Run(ctx, Synchronous())
        with run.opt:
            run.train(0, 3)
            ctx.comm.Barrier()  # all have: the first that leaves tells the others
            if comm.rank:
                comm.Barrier()
            raise Killed
    if comm.rank == 0:
        comm.Barrier()
    with pytest.raises(pp.Error, match="abandoned"):
        run.opt.flush()


def test_the_end_of_the_block_finishes_once(ctx):
    run = Run(ctx, Synchronous())
    with run.opt:
        run.train(0, 1)
        run.opt.finish()
    for call in (run.opt.step, run.opt.flush, run.opt.finish, run.opt.away):
        with pytest.raises(pp.Error, match=rf"{call.__name__}\(\) after finish\(\)"):
            call()
    assert isinstance(run.model, nn.Module)
    assert run.opt.rounds == 1
