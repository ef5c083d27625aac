"""Deadlines and grace periods, on ranks that come much later than others. Judged by causes."""

from __future__ import annotations

import logging
import os
import time

import numpy as np
import pytest
from support.stalls import Turns

import pypartial as pp

pytestmark = [pytest.mark.mpi(min_size=2), pytest.mark.sizes(2, 3, 4)]

SOON_S = 0.02
NEVER_S = 600.0  # longer than any test may take
GRACE_S = 3.0  # long enough for ranks that have only a barrier to pass
SEED = 5
LARGE = 1 << 22  # elements: a round takes several times as long as the deadline


@pytest.fixture
def ctx(comm, transport):
    """A context in which nobody leaves by patience."""
    with pp.Context(comm, seed=SEED, transport=transport, patience=None) as context:
        yield context


def make(ctx, policy, **options):
    send, out = np.zeros(ctx.size, "i8"), np.zeros(ctx.size, "i8")
    send[ctx.rank] = 1
    return ctx.Allreduce_init(send, out, policy=policy, **options), out


def drawn_first(comm):
    """Return who is drawn for the first round of a context's first handle: all ranks are there."""
    with pp.Context(comm, seed=SEED, patience=None) as ctx:
        request, _ = make(ctx, pp.Majority())
        status = pp.Status()
        request.Start()
        comm.Barrier()
        request.Wait(status)
        request.Flush()
        request.Free()
    return status.initiator


def named(out):
    return tuple(np.flatnonzero(out).tolist())


@pytest.mark.parametrize("name", ["majority", "first", "quorum", "full"])
@pytest.mark.parametrize("deliver", ["latest", "sum", "each"])
def test_a_deadline_makes_the_round_without_the_rank_it_waits_for(comm, ctx, gate, name, deliver):
    absent = drawn_first(comm) if name in ("majority", "first") else comm.size - 1
    policy = {
        "majority": pp.Majority(deadline=SOON_S),
        "first": pp.FirstOf(1, deadline=SOON_S),
        "quorum": pp.Quorum(comm.size, deadline=SOON_S),
        "full": pp.Full(deadline=SOON_S),
    }[name]
    request, out = make(ctx, policy, deliver=deliver)
    status = pp.Status()
    if comm.rank != absent:
        request.Start()
        request.Wait(status)
    gate.Barrier()
    if comm.rank == absent:
        request.Start()
        request.Wait(status)
    assert status.round == 0
    assert status.cause == "deadline"
    assert status.contributors == named(out)
    assert status.active == len(status.contributors) > 0
    assert absent not in status.contributors
    if name in ("majority", "first"):
        assert status.initiator in status.contributors
    else:
        assert status.initiator is None
    total = out.copy()
    if deliver == "each":
        for last in request.Drain():
            total += out
            status = last
    else:
        request.Flush(status)
        total += out
    assert status.cause == "flush"
    assert total.tolist() == [1] * comm.size
    assert request.Free() == 0


@pytest.mark.sizes(2, 3)
@pytest.mark.parametrize(
    ("calls", "progress"), [("test", "thread"), ("test", "caller"), ("compute", "thread")]
)
def test_a_deadline_of_a_rank_that_does_not_wait(comm, gate, transport, calls, progress):
    """It polls, or computes. With patience it need not look at the clock at once, but has to here.

    A progress thread that does not know of the deadline sleeps for 100 ms.
    """
    turns, in_time = Turns(comm, 8, SOON_S / 2), 0
    options = {"transport": transport, "progress": progress}
    options["patience"] = NEVER_S if progress == "thread" else None
    with pp.Context(comm, seed=SEED, **options) as ctx:
        if progress == "caller" and (transport == "mpi" or ctx.stats().neighbours < comm.size):
            pytest.skip("without a thread a rank in a barrier serves no other rank by messages")
        request, _ = make(ctx, pp.Quorum(comm.size, deadline=SOON_S / 4))
        status = pp.Status()
        for _ in turns:
            if comm.rank > 0:
                gate.Barrier()
            time.sleep(1.5 * SOON_S)  # the thread sleeps by then, for long
            began = time.monotonic()
            request.Start()
            if comm.rank == 0 and calls == "compute":
                before = ctx.stats().rounds
                time.sleep(2 * SOON_S)
                soon = ctx.stats().rounds > before  # a Test would look at the clock itself
            while not request.Test(status):
                time.sleep(1e-4)
            if calls == "test":
                soon = time.monotonic() - began < 2 * SOON_S
            assert comm.rank > 0 or status.cause == "deadline"
            if comm.rank == 0:
                gate.Barrier()
            in_time += turns.count() and comm.rank == 0 and soon
        request.Flush()
        request.Free()
    assert comm.rank > 0 or in_time > 2 * turns.number // 3


@pytest.mark.sizes(2)
def test_calls_before_the_deadline_leave_the_thread_asleep(comm, ctx, gate):
    """It knows of the deadline: none of them wakes it for that again."""
    # So soon that the thread sleeps until then, and no longer.
    request, _ = make(ctx, pp.Quorum(comm.size, deadline=0.09))
    calls = 2000
    if comm.rank == 0:
        request.Start()
        before = ctx.stats().sleeps
        for _ in range(calls):
            ctx.stats()
        assert ctx.stats().sleeps - before < calls / 20
    gate.Barrier()
    if comm.rank > 0:
        request.Start()
    request.Wait()
    request.Free()


@pytest.mark.long
@pytest.mark.sizes(3)
def test_a_deadline_that_passes_while_a_rank_works_at_another_round(comm, ctx, gate, transport):
    """It waits for that round, and then computes. Its thread must not sleep for 100 ms.

    It did so in about one turn of twenty.
    """
    turns, in_time = Turns(comm, 60, SOON_S / 2), 0
    if transport == "mpi" or not ctx.stats().shares_memory or ctx.stats().neighbours < comm.size:
        pytest.skip("only where ranks share memory does a rank that waits work for so long at once")
    small, _ = make(ctx, pp.Quorum(comm.size, deadline=SOON_S / 10))
    large = ctx.Allreduce_init(np.ones(LARGE), np.zeros(LARGE), policy=pp.Full())
    for _ in turns:
        time.sleep(1.5 * SOON_S)  # the threads sleep by then, for long
        gate.Barrier()
        before = ctx.stats().rounds
        if comm.rank == 0:
            small.Start()
        large.Start()
        large.Wait()
        time.sleep(2 * SOON_S)
        soon = ctx.stats().rounds == before + 2
        gate.Barrier()
        if comm.rank > 0:
            small.Start()
        small.Wait()
        in_time += turns.count() and soon
    small.Flush()
    for request in (small, large):
        request.Free()
    assert comm.rank > 0 or in_time >= turns.number - 1


@pytest.mark.parametrize("name", ["majority", "quorum", "full"])
def test_a_deadline_that_is_not_reached_changes_nothing(comm, ctx, name):
    policy = {
        "majority": pp.Majority(deadline=NEVER_S),
        "quorum": pp.Quorum(comm.size, deadline=NEVER_S),
        "full": pp.Full(deadline=NEVER_S),
    }[name]
    request, out = make(ctx, policy, deliver="each")
    status = pp.Status()
    for number in range(10):
        request.Start()
        request.Wait(status)
        assert (status.round, status.cause) == (number, "policy")
        assert status.contributors == named(out)
        if name != "majority":
            assert status.active == comm.size
    for _ in request.Drain():
        pass
    request.Free()


def test_a_deadline_does_not_override_max_lag(comm, ctx, gate):
    """A rank that withholds its part holds the round up until it calls."""
    request, _ = make(ctx, pp.Solo(deadline=SOON_S), max_lag=0)
    status, absent = pp.Status(), comm.size - 1
    request.Start()
    request.Wait(status)
    request.Flush()
    gate.Barrier()
    if comm.rank != absent:
        request.Start()
        with pytest.raises(pp.TimeoutError):
            request.Wait(timeout=5 * SOON_S)
        gate.Barrier()
    else:
        gate.Barrier()
        request.Start()
    request.Wait(status, timeout=60)
    request.Flush()
    request.Free()


HELD_BACK = "withheld from it by max_lag"


@pytest.mark.parametrize(
    ("policy", "words"),
    [(pp.Full(), "(computing"), (pp.Full(deadline=SOON_S), HELD_BACK)],
    ids=str,
)
def test_a_stall_warning_says_what_holds_a_full_round_up(
    comm, transport, gate, caplog, policy, words
):
    """Full() waits for a rank that computes; with a deadline it is that rank's max_lag."""
    absent, texts = comm.size - 1, []
    options = {"transport": transport, "patience": None, "stall_warning": 10 * SOON_S}
    with pp.Context(comm, seed=SEED, **options) as ctx:
        request, _ = make(ctx, policy, max_lag=0)
        request.Start()
        request.Wait()
        request.Flush()
        gate.Barrier()
        if comm.rank != absent:
            request.Start()
            limit = time.monotonic() + 30
            # The rank may not have answered the first warnings in time.
            while not any(words in text for text in texts):
                assert time.monotonic() < limit, texts
                with (
                    caplog.at_level(logging.WARNING, logger="pypartial"),
                    pytest.raises(pp.TimeoutError),
                ):
                    request.Wait(timeout=25 * SOON_S)
                texts = [record.getMessage() for record in caplog.records]
            assert policy.deadline is not None or not any(HELD_BACK in text for text in texts)
            gate.Barrier()
        else:
            gate.Barrier()
            request.Start()
        request.Wait(timeout=60)
        request.Flush()
        request.Free()


@pytest.mark.sizes(3)
@pytest.mark.parametrize("name", ["solo", "majority"])
def test_a_grace_period_lets_late_ranks_in(comm, ctx, gate, transport, name):
    """In the memory of a node it ends when nobody is missing: else this would take ten minutes."""
    stats = ctx.stats()
    on_one_board = stats.shares_memory and stats.neighbours == comm.size
    before = transport == "mpi" and os.environ.get("PYPARTIAL_NODE_RANKS")
    if not on_one_board and (name == "solo" or before):
        pytest.skip("by messages it lasts as long as it is said to: once is enough")
    grace = NEVER_S if on_one_board else GRACE_S
    policy = {"solo": pp.Solo(grace=grace), "majority": pp.Majority(grace=grace)}[name]
    first = 0 if name == "solo" else drawn_first(comm)
    request, out = make(ctx, policy)
    status = pp.Status()
    if comm.rank == first:
        request.Start()
    gate.Barrier()
    if comm.rank != first:
        request.Start()
    request.Wait(status, timeout=60)
    assert (status.round, status.cause) == (0, "policy")
    assert status.contributors == tuple(range(comm.size)) == named(out)
    if name == "majority":
        assert status.initiator == first
    request.Flush()
    request.Free()


def test_a_long_grace_is_slept_through(comm, gate):
    """Who waits for ranks that do not come uses no core, and sees them when they come."""
    with pp.Context(comm, seed=SEED, progress="caller", patience=None) as ctx:
        stats = ctx.stats()
        if not stats.shares_memory or stats.neighbours < comm.size:
            pytest.skip("by messages it lasts as long as it is said to")
        request, out = make(ctx, pp.Solo(grace=NEVER_S))
        if comm.rank == 0:
            request.Start()
            began = time.monotonic()
            while ctx.stats().sleeps < stats.sleeps + 10:  # there is no other thread
                assert time.monotonic() - began < 30
                with pytest.raises(pp.TimeoutError):
                    request.Wait(timeout=SOON_S)
        gate.Barrier()
        if comm.rank > 0:
            request.Start()
        request.Wait(timeout=60)
        assert named(out) == tuple(range(comm.size))
        request.Flush()
        request.Free()


def test_without_grace_nobody_is_waited_for(comm, ctx, gate):
    request, _ = make(ctx, pp.Solo(grace=0))
    status = pp.Status()
    if comm.rank == 0:
        request.Start()
        request.Wait(status, timeout=60)
        assert status.contributors == (0,)
    gate.Barrier()
    if comm.rank != 0:
        request.Start()
        request.Wait(status, timeout=60)
        # Late, as rank 0 has been given round 0; with others that came before, theirs.
        assert status.round == 0 if comm.size == 2 else status.round < comm.size
    request.Flush()
    request.Free()
