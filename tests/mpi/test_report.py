"""Reports of real ranks: their sums are what statuses said, and a slow rank is named."""

from __future__ import annotations

import dataclasses
import logging
import random
import time

import numpy as np
import pytest
from support.ranks import patient_ctx  # noqa: F401  # the fixture `ctx`

import pypartial as pp
from pypartial.report import CAUSES

pytestmark = [pytest.mark.mpi, pytest.mark.sizes(1, 2, 3, 5, 7)]
several = pytest.mark.mpi(min_size=2)

STEPS, STEP_S, TIMES = 20, 5e-3, 5
ATTEMPTS = 4  # a busy machine may slow any rank down: a defect shows each time


def own_row(ctx):
    return next(row for row in ctx.report().ranks if row.rank == ctx.rank)


def known_here(ctx):
    """How many ranks show this one what they count."""
    stats = ctx.stats()
    return stats.neighbours if stats.shares_memory else 1


# ---- sums ---------------------------------------------------------------------------------------


class Told:
    """Adds up what statuses say."""

    def __init__(self):
        names = ("calls", "given", "external", "contributions", "active", "missed", "staleness")
        self.sums = dict.fromkeys((*names, "most_stale"), 0)
        self.causes = dict.fromkeys(CAUSES, 0)

    def _add(self, **values):
        for name, value in values.items():
            self.sums[name] += value
        self.sums["given"] += 1
        self.sums["most_stale"] = max(self.sums["most_stale"], values.get("staleness", 0))

    def round(self, status):
        self.causes[status.cause.value] += 1
        self._add(
            contributions=status.contributions,
            active=status.active,
            missed=status.missed,
            staleness=status.staleness,
            external=status.activation == "external",
        )

    def group(self, status, staleness=0):
        self._add(active=len(status.group), staleness=staleness)

    def queue(self, status):
        self._add(active=status.received, staleness=status.staleness, missed=status.skipped)

    def check(self, row):
        assert {name: getattr(row, name) for name in self.sums} == self.sums
        assert row.causes == self.causes


def many_requests(comm, ctx, steps):
    """Make rounds of several requests in random order, and compare the sums now and then."""
    draws, told, status = random.Random(comm.rank), Told(), pp.Status()
    send, out = np.ones(5), np.zeros(5)
    options = [
        {"policy": "majority"},
        {"policy": "solo", "deliver": "latest"},
        {"policy": "solo", "deliver": "each"},
        {"policy": f"quorum:{max(1, comm.size - 1)}", "deliver": "each"},
        {"policy": "full,deadline=1ms"},
    ]
    requests = [ctx.Allreduce_init(send, out, **each) for each in options]
    for step in range(steps):
        for request in requests:
            if draws.random() < 0.05:
                time.sleep(draws.uniform(0, 1e-3))
            request.Start()
            told.sums["calls"] += 1
            if draws.random() < 0.1:
                while not request.Test(status):
                    time.sleep(0)
            elif draws.random() < 0.1:
                request.View(status)
            else:
                request.Wait(status)
            told.round(status)
            while request.deliver == "each" and request.More(status):
                told.round(status)
        if step % 50 == 0:
            told.check(own_row(ctx))
    for request in requests:
        if request.deliver == "each":
            for each in request.Drain():
                told.round(each)
        else:
            request.Flush(status)
            told.round(status)
    told.check(own_row(ctx))


def test_sums_of_rounds_are_what_statuses_said(comm, ctx):
    many_requests(comm, ctx, 200)


@pytest.mark.long
def test_sums_of_many_rounds(comm, ctx):
    many_requests(comm, ctx, 10_000)


def test_sums_of_groups_gossip_and_queues(comm, ctx):
    told, status = Told(), pp.Status()
    graph = pp.topology.ring() if comm.size > 1 else pp.topology.complete()
    groups = ctx.Preduce_init(np.ones(5), groups=pp.groups.Controller(min(2, comm.size)))
    gossip = ctx.Gossip_init(np.ones(5), pp.topology.complete())
    queue = ctx.Queue_init(np.ones(5), graph, staleness=2)
    for _ in range(50):
        groups.Start()
        groups.Wait(status)
        told.group(status)
        gossip.Start()
        gossip.Wait(status)
        told.group(status, status.staleness)
        queue.Start()
        queue.Wait(status)
        told.queue(status)
        told.sums["calls"] += 3
    told.check(own_row(ctx))
    for request in (groups, gossip, queue):
        request.Flush()


def test_late_results_are_those_of_rounds_that_were_there(comm, ctx, gate):
    """Rank 0 makes three rounds alone; the others find them, and then wait for nobody."""
    if known_here(ctx) < comm.size:
        pytest.skip("by messages a rank may hear of a complete round after its Start")
    request = ctx.Allreduce_init(np.ones(1), np.zeros(1), policy="solo")
    status = pp.Status()
    for _ in range(3 if comm.rank == 0 else 0):
        request.Start()
        request.Wait(status)
        assert status.included
    gate.Barrier()
    assert (own_row(ctx).given, own_row(ctx).late) == ((3, 0) if comm.rank == 0 else (0, 0))
    if comm.rank:
        request.Start()
        request.Wait(status)
        assert not status.included
        assert own_row(ctx).late == 1
    gate.Barrier()
    if comm.rank == 0:
        late = {row.rank: row.late for row in ctx.report().ranks}
        assert late == {rank: int(rank > 0) for rank in range(comm.size)}
    gate.Barrier()
    request.Flush()


def test_what_is_late_is_not_included(comm, ctx):
    draws, status, missing = random.Random(comm.rank), pp.Status(), 0
    request = ctx.Allreduce_init(np.ones(1), np.zeros(1), policy="solo")
    for _ in range(200):
        if draws.random() < 0.2:
            time.sleep(1e-3)
        request.Start()
        request.Wait(status)
        missing += not status.included
    # A round may be under way at the Start, too late for it to be joined, and not complete.
    assert own_row(ctx).late <= missing
    request.Flush()


# ---- who is slow --------------------------------------------------------------------------------


class Loop:
    """Steps in which one rank sleeps longer; `requests` are all started, then all waited for."""

    def __init__(self, ctx, *requests, each_step=lambda step: None, together=False):
        self.together = together
        self.ctx, self.requests, self.each_step = ctx, requests, each_step

    def run(self, slow, times=TIMES):
        for step in range(STEPS):
            time.sleep(STEP_S * (times if self.ctx.rank == slow else 1))
            if self.together:
                pp.Startall(self.requests)
            else:
                for request in self.requests:
                    request.Start()
            self.each_step(step)
            if self.together:
                pp.Waitall(self.requests)
            else:
                for request in self.requests:
                    request.Wait()
        for request in self.requests:
            request.Flush()
            request.Free()


def judge(comm, slow, make):
    """In a few attempts, each with a context of its own, all ranks find the slow one."""
    for _ in range(ATTEMPTS):
        with pp.Context(comm, seed=7, patience=None) as ctx:
            make(ctx).run(slow)
            report = ctx.report(all=True)
        assert [row.rank for row in report.ranks] == list(range(comm.size))
        found = comm.allgather(report.verdict.rank)
        assert len(set(found)) == 1
        if found[0] == slow:
            return report
    pytest.fail(f"rank {slow} was slow in each of {ATTEMPTS} runs, and not named:\n{report}")


def vectors(request_of):
    return request_of(np.ones(100), np.zeros(100))


SLOW = pytest.mark.parametrize("slow", [pytest.param(0, marks=pytest.mark.thorough), -1])
POLICIES = ["full", "majority", "solo", "first:2", "quorum", "full,deadline=1ms"]


@several
@SLOW
@pytest.mark.parametrize("policy", POLICIES)
def test_a_slow_rank_is_named_by_rounds(comm, slow, policy):
    policy = pp.Quorum(max(1, comm.size - 1)) if policy == "quorum" else policy
    slow %= comm.size
    report = judge(
        comm, slow, lambda ctx: Loop(ctx, vectors(lambda *v: ctx.Allreduce_init(*v, policy=policy)))
    )
    assert report.verdict.times > 2
    assert f"Rank {slow} computes" in str(report)
    if policy == "full":
        row = report.ranks[slow]
        assert row.last > 0.5 and row.behind_s > 2 * STEP_S
        assert row.waited_for_s == max(other.waited_for_s for other in report.ranks)
        assert row.waited_for_s > STEPS / 2 * 2 * STEP_S
        assert report.waited[:, slow].argmin() == slow


@several
@SLOW
@pytest.mark.parametrize(
    "generator", [pp.groups.Smart(2), pp.groups.Controller(2), pp.groups.Random(2)], ids=str
)
def test_a_slow_rank_is_named_by_groups(comm, slow, generator):
    judge(
        comm,
        slow % comm.size,
        lambda ctx: Loop(ctx, ctx.Preduce_init(np.ones(100), groups=generator)),
    )


@several
@SLOW
@pytest.mark.parametrize("mode", ["async", "sync"])
def test_a_slow_rank_is_named_by_gossip(comm, slow, mode):
    judge(
        comm,
        slow % comm.size,
        lambda ctx: Loop(ctx, ctx.Gossip_init(np.ones(100), pp.topology.ring(), mode)),
    )


@several
@SLOW
@pytest.mark.parametrize("options", [{}, {"staleness": 2}], ids=str)
def test_a_slow_rank_is_named_by_queues(comm, slow, options):
    judge(
        comm,
        slow % comm.size,
        lambda ctx: Loop(ctx, ctx.Queue_init(np.ones(100), pp.topology.ring(), **options)),
    )


@several
@SLOW
@pytest.mark.parametrize("policy", ["majority", "full"])
def test_a_slow_rank_is_named_beside_calls_of_its_own(comm, slow, policy):
    """The others wait for it in a metric, too: that is not computation."""

    def make(ctx):
        request = vectors(lambda *v: ctx.Allreduce_init(*v, policy=policy))
        return Loop(ctx, request, each_step=lambda step: ctx.comm.allreduce(1.0))

    judge(comm, slow % comm.size, make)


@several
@SLOW
@pytest.mark.parametrize("policy", ["majority", "full"])
def test_a_slow_rank_is_named_beside_away_blocks(comm, gate, slow, policy):
    def make(ctx):
        def evaluate(step):
            with ctx.away():
                gate.Barrier()

        return Loop(
            ctx, vectors(lambda *v: ctx.Allreduce_init(*v, policy=policy)), each_step=evaluate
        )

    judge(comm, slow % comm.size, make)


@several
@SLOW
@pytest.mark.parametrize("together", [False, True])
def test_a_slow_rank_is_named_by_several_requests(comm, slow, together):
    def make(ctx):
        policies = ("majority", "full", "solo")
        requests = [vectors(lambda *v, p=p: ctx.Allreduce_init(*v, policy=p)) for p in policies]
        return Loop(ctx, *requests, together=together)

    judge(comm, slow % comm.size, make)


@pytest.mark.parametrize("policy", ["majority", "full"])
def test_no_rank_is_named_where_all_are_equal(comm, policy):
    make = lambda ctx: Loop(ctx, vectors(lambda *v: ctx.Allreduce_init(*v, policy=policy)))  # noqa: E731
    report = judge(comm, None, make)
    assert report.line().startswith("No rank stands out")


# ---- which ranks a report has -------------------------------------------------------------------


def test_a_report_has_the_ranks_of_the_node_or_all(comm, transport):
    with pp.Context(comm, seed=7, transport=transport, patience=None) as ctx:
        Loop(ctx, vectors(ctx.Allreduce_init)).run(slow=None)
        comm.Barrier()
        near, known = ctx.report(), ctx.report(all=True)
        assert len(near.ranks) == known_here(ctx)
        assert ctx.rank in [row.rank for row in near.ranks]
        assert near.size == known.size == comm.size
        assert ("report(all=True)" in str(near)) == (len(near.ranks) < comm.size)
        assert "report(all=True)" not in str(known)
        assert [row.rank for row in known.ranks] == list(range(comm.size))
        assert near.waited.shape == (comm.size, comm.size)
        for row in near.ranks:  # counted by the rank itself, whoever asks
            there = known.ranks[row.rank]
            assert (row.calls, row.given, row.computes_s) == (
                there.calls,
                there.given,
                there.computes_s,
            )
        heard = comm.allgather(known.to_json())
        assert len(set(heard)) == 1
        comm.Barrier()


def test_a_report_before_the_first_step(comm, ctx):
    report = ctx.report()
    assert all(row.calls == row.given == 0 for row in report.ranks)
    assert report.verdict.rank is None
    assert str(ctx.report(all=True)).endswith("No rank stands out: no step was timed")


def test_ranks_report_while_others_make_rounds(comm, ctx):
    """Local: rank 0 asks again and again, and what it is told never goes back."""
    request, before = ctx.Allreduce_init(np.ones(1), np.zeros(1), policy="solo"), {}
    until = time.monotonic() + 0.3
    while time.monotonic() < until:
        request.Start()
        request.Wait()
        if comm.rank == 0:
            for row in ctx.report().ranks:
                assert row.calls >= before.get(row.rank, 0)
                before[row.rank] = row.calls
                for value in dataclasses.astuple(row)[-6:]:
                    assert value is None or 0 <= value < 1000
    request.Flush()


# ---- report_every -------------------------------------------------------------------------------

KINDS = {
    "rounds": lambda ctx: ctx.Allreduce_init(np.ones(5), np.zeros(5)),
    "groups": lambda ctx: ctx.Preduce_init(
        np.ones(5), groups=pp.groups.Controller(min(2, ctx.size))
    ),
    "gossip": lambda ctx: ctx.Gossip_init(np.ones(5), pp.topology.complete()),
    "queue": lambda ctx: ctx.Queue_init(np.ones(5), pp.topology.complete()),
}


@pytest.mark.parametrize("kind", KINDS)
def test_rank_0_logs_a_line_now_and_then(comm, caplog, kind):
    began = time.monotonic()
    with caplog.at_level(logging.INFO, "pypartial"), pp.Context(comm, report_every=0.04) as ctx:
        Loop(ctx, KINDS[kind](ctx)).run(slow=None)
        spent = time.monotonic() - began
    said = [record.getMessage() for record in caplog.records if record.name == "pypartial"]
    said = [text for text in said if "stands out" in text or "came last" in text]
    if comm.rank:
        assert said == []
    else:
        assert 1 <= len(said) <= spent / 0.04
        assert all("\n" not in text for text in said)


@several
def test_the_line_names_the_slow_rank(comm, caplog):
    for _ in range(ATTEMPTS):
        caplog.clear()
        with (
            caplog.at_level(logging.INFO, "pypartial"),
            pp.Context(comm, patience=None, report_every=0.2) as ctx,
        ):
            Loop(ctx, vectors(lambda *v: ctx.Allreduce_init(*v, policy="full"))).run(slow=1)
            alone = len(ctx.report().ranks) == 1
        said = [record.getMessage() for record in caplog.records]
        found = alone or any("rank 1 came last in " in text for text in said)
        if comm.bcast(found):
            return
    pytest.fail(f"the lines were {said}")


def test_no_line_unless_asked(comm, caplog, ctx):
    Loop(ctx, vectors(ctx.Allreduce_init)).run(slow=None)
    assert not [r for r in caplog.records if "stands out" in r.getMessage()]


# ---- wrong arguments ----------------------------------------------------------------------------


@pytest.mark.parametrize("every", [0, -1, float("nan"), "soon", [1]])
def test_a_time_that_is_none_is_refused(comm, every):
    with pytest.raises(pp.ArgumentError, match="report_every must be a number of seconds above 0"):
        pp.Context(comm, report_every=every)


@several
def test_a_time_that_is_wrong_on_one_rank(comm):
    refused = comm.rank == comm.size - 1
    expected = pp.ArgumentError if refused else pp.MismatchError
    with pytest.raises(expected, match="report_every"):
        pp.Context(comm, report_every=-1 if refused else 1)
    with pp.Context(comm, report_every=1 if refused else None):  # only rank 0's counts
        pass


@pytest.mark.parametrize("every", [1e12, float("inf")])
def test_a_time_that_never_comes(comm, caplog, every):
    with pp.Context(comm, report_every=every) as ctx:
        Loop(ctx, vectors(ctx.Allreduce_init)).run(slow=None)
    assert not caplog.records


def test_a_context_that_is_over(comm):
    with pp.Context(comm) as ctx:
        assert ctx.report().size == comm.size
    for options in ({}, {"all": True}):
        with pytest.raises(pp.Error, match="freed"):
            ctx.report(**options)


def test_all_is_named(comm, ctx):
    with pytest.raises(TypeError):
        ctx.report(True)
    assert ctx.report(all=False).size == comm.size
