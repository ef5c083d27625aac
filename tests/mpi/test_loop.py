"""The loop of the README under every policy and delivery, judged by the oracles."""

from __future__ import annotations

import itertools
import time

import numpy as np
import pytest
from support.oracles import Log, judge
from support.ranks import patient_ctx  # noqa: F401  # the fixture `ctx`

import pypartial as pp
from pypartial._core import ffi, lib
from pypartial._names import algorithms

pytestmark = pytest.mark.mpi

STEPS = 40
LONGEST_DELAY_S = 4e-4


def policies(size):
    return [pp.Solo(), pp.Majority(), pp.Quorum(max(1, size // 2)), pp.Full()]


def delays(comm, steps, seed, longest_s=LONGEST_DELAY_S):
    """Random work: seconds to sleep before every step, different on every rank."""
    return np.random.default_rng((seed, comm.rank)).uniform(0, longest_s, steps)


def loop(comm, request, send, out, steps, log, seed):
    status = pp.Status()
    for delay in delays(comm, steps, seed):
        time.sleep(delay)
        request.Start()
        log.started()
        request.Wait(status)
        log.given(status, out)


def finish(request, out, log):
    """Flush, or Drain: the log then covers everything."""
    status = pp.Status()
    if request.deliver == "each":
        for drained in request.Drain():
            log.given(drained, out)
        return
    request.Flush(status)
    log.given(status, out)


def counting(comm, extra=0):
    """Return send and receive vectors: the named contributors, and some more elements."""
    send = np.zeros(comm.size + extra, np.int64)
    send[comm.rank] = 1
    send[comm.size :] = comm.rank + 1
    return send, np.zeros_like(send)


@pytest.mark.sizes(1, 2, 3, 5, 8)
@pytest.mark.parametrize("policy", [pp.Solo(), pp.Majority()], ids=str)
def test_every_ring_is_heard(comm, policy, transport):
    """No thread sleeps on until its timeout although a neighbour has rung."""
    send, out = counting(comm)
    with pp.Context(comm, seed=7, transport=transport) as ctx:
        if ctx.stats().neighbours < comm.size:
            pytest.skip("ranks on other nodes are polled for: they cannot ring")
        request = ctx.Allreduce_init(send, out, policy=policy)
        for delay in delays(comm, 1000, seed=7, longest_s=1e-3):
            time.sleep(delay)
            request.Start()
            request.Wait()
        request.Flush()
        stats = ctx.stats()
        unheard, sleeps = comm.allreduce(np.array([stats.unheard, stats.sleeps]))
        # In shared memory the ranks that come first wait for nobody, and are not told of by rings.
        assert sleeps > 100 or comm.size == 1 or stats.shares_memory
        assert unheard <= 1  # a ring may come in the very moment in which a timeout ends a sleep
        request.Free()


@pytest.mark.parametrize("deliver", ["latest", "sum", "each"])
@pytest.mark.parametrize("which", range(4), ids=["solo", "majority", "quorum", "full"])
def test_every_policy_and_delivery(comm, ctx, which, deliver):
    policy = policies(comm.size)[which]
    send, out = counting(comm)
    request = ctx.Allreduce_init(send, out, policy=policy, deliver=deliver)
    log = Log(comm.size, 2 * STEPS)
    loop(comm, request, send, out, STEPS, log, seed=which)
    finish(request, out, log)
    rounds = judge(comm, log, request)
    assert request.Free() == 0
    if isinstance(policy, pp.Full):
        assert rounds.rounds == STEPS
        assert rounds.partial == rounds.missed == 0


@pytest.mark.parametrize("deliver", ["latest", "sum", "each"])
@pytest.mark.parametrize("which", range(4), ids=["solo", "majority", "quorum", "full"])
def test_unequal_numbers_of_calls(comm, ctx, which, deliver):
    """The ranks that flush early serve the rounds of the others, down to the last one."""
    send, out = counting(comm)
    request = ctx.Allreduce_init(send, out, policy=policies(comm.size)[which], deliver=deliver)
    log = Log(comm.size, 200)
    loop(comm, request, send, out, 3 + 7 * comm.rank, log, seed=which)
    finish(request, out, log)
    rounds = judge(comm, log, request)
    assert rounds.rounds >= 1
    request.Free()


@pytest.mark.parametrize(
    ("algorithm", "count"),
    list(itertools.product(algorithms(ffi, lib), [1, 1001, 300_001])),
)
@pytest.mark.sizes(1, 2, 3, 5, 8)
def test_payloads_of_late_ranks(comm, ctx, algorithm, count):
    """Merged contributions of several steps, small and large, are summed right."""
    send, out = counting(comm, count)
    for policy, deliver in [(pp.Solo(), "sum"), (pp.Majority(), "each"), (pp.Majority(), "latest")]:
        request = ctx.Allreduce_init(send, out, policy=policy, deliver=deliver, algorithm=algorithm)
        log = Log(comm.size, 40)
        status = pp.Status()

        def note(status, log=log):
            expected = (out[: comm.size] * np.arange(1, comm.size + 1)).sum()
            assert (out[comm.size :] == expected).all()
            log.given(status, out)

        for delay in delays(comm, 6, count):
            time.sleep(delay)
            request.Start()
            log.started()
            request.Wait(status)
            note(status)
        if deliver == "each":
            for drained in request.Drain():
                note(drained)
        else:
            request.Flush(status)
            note(status)
        judge(comm, log, request)
        request.Free()


@pytest.mark.parametrize("progress", ["thread", "caller"])
@pytest.mark.parametrize("which", range(4), ids=["solo", "majority", "quorum", "full"])
def test_lockstep_with_a_barrier_of_the_user(comm, progress, which):
    """Ranks that call at the same time, with and without a thread that serves the late ones."""
    if progress == "caller" and comm.size > 5:
        pytest.skip("without a thread many ranks on few cores take long")
    with pp.Context(comm, seed=3, progress=progress, patience=None) as ctx:
        send, out = counting(comm)
        request = ctx.Allreduce_init(send, out, policy=policies(comm.size)[which], deliver="sum")
        log = Log(comm.size, 40)
        loop(comm, request, send, out, 20, log, seed=1)
        finish(request, out, log)
        judge(comm, log, request)
        request.Free()


@pytest.mark.parametrize("policy", [pp.Full(), pp.Quorum(1, deadline=0.005, grace=2e-4)], ids=str)
def test_a_policy_may_be_its_text(comm, ctx, policy):
    """It is the same policy, also on ranks that pass the object."""
    given, out = (str(policy) if comm.rank else policy), np.zeros(1)
    request = ctx.Allreduce_init(np.ones(1), out, policy=given)
    assert request.policy == policy
    request.Start()
    request.Wait()
    request.Free()


@pytest.mark.parametrize("window", [1, 2, 9])
@pytest.mark.sizes(2, 3, 7)
def test_window(comm, window):
    with pp.Context(comm, window=window, patience=None) as ctx:
        send, out = counting(comm)
        for deliver in ("latest", "sum", "each"):
            request = ctx.Allreduce_init(send, out, policy=pp.Solo(), deliver=deliver)
            assert request.max_lag == (None if deliver == "latest" else window - 1)
            log = Log(comm.size, 100)
            loop(comm, request, send, out, STEPS, log, seed=window)
            finish(request, out, log)
            judge(comm, log, request)
            request.Free()


def test_flush_again_and_again(comm, ctx):
    """The handle goes on after a Flush; the integer replicas are equal at every one."""
    send, out = counting(comm)
    request = ctx.Allreduce_init(send, out, policy=pp.Majority(), deliver="sum")
    replica = np.zeros_like(send)
    for batch in range(5):
        for delay in delays(comm, 1 + (comm.rank + batch) % 3, batch):
            time.sleep(delay)
            request.Start()
            request.Wait()
            replica += out
        request.Flush()
        replica += out
        calls = [
            sum(1 + (rank + earlier) % 3 for earlier in range(batch + 1))
            for rank in range(comm.size)
        ]
        assert replica.tolist() == calls
    request.Free()


def test_flush_collects_an_outstanding_request(comm, ctx):
    send, out = counting(comm)
    request = ctx.Allreduce_init(send, out, policy=pp.Full(), deliver="sum")
    status = pp.Status()
    if comm.rank == 0:
        request.Start()
    request.Flush(status)
    assert out.tolist() == [1] + [0] * (comm.size - 1)  # in the flush, or in a round before it
    assert status.cause == "flush"
    assert status.first in (0, status.round)
    request.Start()
    request.Wait(status)
    assert out.tolist() == [1] * comm.size
    request.Flush()
    request.Free()


def test_free_discards_and_counts_what_is_pending(comm, ctx):
    """A late rank's contribution is pending for the next round, which Free does not run."""
    send, out = counting(comm)
    request = ctx.Allreduce_init(send, out, policy=pp.Solo(), deliver="latest")
    status = pp.Status()
    rounds = 2
    if comm.rank == 0:
        for _ in range(rounds):
            request.Start()
            request.Wait(status)
    comm.barrier()
    discarded = 0
    if comm.rank == 1:
        while ctx.stats().rounds < rounds:  # complete at rank 0, but perhaps not here yet
            pass
        request.Start()
        request.Wait(status)
        assert status.missed == rounds
        assert not status.included
        discarded = 1
    assert request.Free() == discarded


@pytest.mark.sizes(2)
def test_a_round_that_waits_for_a_rank_does_not_keep_it_out(comm, ctx):
    """Its progress thread, asked meanwhile what the rank does, leaves the context to its caller."""
    if not ctx.stats().shares_memory or ctx.stats().neighbours < comm.size:
        pytest.skip("only rounds in shared memory wait (PYPARTIAL_TRANSPORT, PYPARTIAL_NODE_RANKS)")
    # So large that a round waits for 16 ms, once a rank has come while one was reduced.
    send, out = ctx.alloc(1 << 24, "f4"), ctx.alloc(1 << 24, "f4")
    request = ctx.Allreduce_init(send, out, policy=pp.Solo())
    status, met, turns = pp.Status(), 0, 0
    for _ in range(200):
        comm.Barrier()
        moment = time.perf_counter() + 0.05 + (0.006 if comm.rank == 1 else 0)
        while time.perf_counter() < moment:
            pass
        began = time.perf_counter()
        request.Start()
        try:
            request.Wait(status, timeout=1e-3 if comm.rank == 0 else None)
        except pp.TimeoutError:
            request.Wait(status)
        first, second = comm.allgather(began)
        if 0 < second - first < 0.012:  # else a busy machine held up one of them
            turns += 1
            met += status.contributors == (0, 1)
        request.Flush()
        if turns == 9:
            break
    assert met > turns // 2, f"rank 1 was in {met} of {turns} rounds that waited for it"
    request.Free()
