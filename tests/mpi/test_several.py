"""Several handles, several contexts."""

from __future__ import annotations

import logging
import random
import time

import numpy as np
import pytest
from support.oracles import Log, judge
from support.reports import said_of_ranks

import pypartial as pp

pytestmark = pytest.mark.mpi

STEPS = 25


def make(comm, ctx, number, policy, deliver="sum"):
    made = []
    for _ in range(number):
        send, out = np.zeros(comm.size, "i8"), np.zeros(comm.size, "i8")
        send[comm.rank] = 1
        made.append((ctx.Allreduce_init(send, out, policy=policy, deliver=deliver), out))
    return made


def policy_for(name, size):
    return {
        "solo": pp.Solo(),
        "majority": pp.Majority(),
        "quorum": pp.Quorum(max(1, size // 2)),
        "full": pp.Full(),
    }[name]


@pytest.mark.parametrize("pattern", ["start-wait", "all starts, all waits"])
@pytest.mark.parametrize("number", [2, 3])
@pytest.mark.parametrize("name", ["solo", "majority", "quorum", "full"])
@pytest.mark.sizes(1, 2, 3, 5, 8)
def test_gradient_buckets(comm, ctx, name, number, pattern):
    """Both patterns of the contract's point 9: never a deadlock, and equal replicas."""
    made = make(comm, ctx, number, policy_for(name, comm.size))
    requests = [request for request, _ in made]
    replicas = [np.zeros(comm.size, "i8") for _ in made]
    slow = comm.rank == comm.size - 1
    work = random.Random(comm.rank)
    for step in range(STEPS):
        time.sleep(work.uniform(0, 2e-3 if slow else 2e-4))
        if pattern == "start-wait":
            for request in requests:
                request.Start()
                request.Wait()
        else:
            pp.Startall(requests)
            pp.Waitall(requests, [pp.Status() for _ in requests])
        for (_, out), replica in zip(made, replicas, strict=True):
            replica += out
        if step % 10 == 9 or step == STEPS - 1:
            for (request, out), replica in zip(made, replicas, strict=True):
                request.Flush()
                replica += out
                assert replica.tolist() == [step + 1] * comm.size
    for request in requests:
        assert request.Free() == 0


def test_handles_of_different_kinds(comm, ctx):
    """Policy, delivery, type and size may differ from handle to handle."""
    kinds = [
        (np.int32, 3, pp.Solo(), "latest"),
        (np.float64, 5000, pp.Majority(), "sum"),
        (np.int64, 1, pp.Full(), "each"),
    ]
    made = []
    for dtype, count, policy, deliver in kinds:
        out = np.zeros(count, dtype)
        made.append((ctx.Allreduce_init(np.ones(count, dtype), out, policy=policy,
                                        deliver=deliver), out))  # fmt: skip
    for _ in range(STEPS):
        for request, out in made:
            request.Start()
            request.Wait()
            assert (out == out[0]).all()
    assert made[2][1][0] == comm.size
    for request, _ in made[:2]:
        request.Flush()
    for _ in made[2][0].Drain():
        pass
    for request, _ in made:
        request.Free()


def test_handles_come_and_go(comm, ctx):
    held = set()  # what remains is the context's own
    for number in range(6):
        made = make(comm, ctx, 1 + number % 3, pp.Majority())
        for _ in range(3):
            for request, _ in made:
                request.Start()
                request.Wait()
        for request, _ in reversed(made):
            request.Free()
        held.add(ctx.stats().buffer_bytes)
    assert len(held) == 1


def test_free_with_rounds_going_on(comm, ctx):
    """A Free while other ranks are still calling serves them to the end."""
    send, out = np.ones(1, "i8"), np.zeros(1, "i8")
    for policy in (pp.Solo(), pp.Majority(), pp.Quorum(1), pp.Full()):
        request = ctx.Allreduce_init(send, out, policy=policy)
        for _ in range(1 + 5 * comm.rank):
            request.Start()
            request.Wait()
        request.Free()


@pytest.mark.sizes(2)
def test_rounds_made_during_an_init_are_not_missed(comm):
    """Until a rank is back from a collective call, what the others make counts as given.

    Rank 1 never starts the gate, whose max_lag is 0: rank 0's Wait there ends when rank 1 is in the
    call. The pause is for rank 1 to fall asleep there, so that it learns of the round and of the
    end of the call at once.
    """
    with pp.Context(comm, seed=7, patience=None) as ctx:
        out, status = np.zeros(1, "i8"), pp.Status()
        request = ctx.Allreduce_init(np.ones(1, "i8"), out, policy=pp.Solo(), deliver="sum")
        gate = ctx.Allreduce_init(None, np.zeros(1, "i8"), policy=pp.Solo(), max_lag=0)
        missed = []
        for _ in range(10):
            comm.barrier()
            if comm.rank == 0:
                gate.Start()
                gate.Wait()
                time.sleep(0.02)
                request.Start()
                request.Wait()
            other = ctx.Allreduce_init(None, np.zeros(1, "i8"))
            if comm.rank == 1:
                request.Start()
                request.Wait(status)
                missed.append(status.missed)
            comm.barrier()  # the Free counts rounds, too
            other.Free()
        assert sum(missed) == 0, missed
        gate.Free()
        request.Free()


def test_contexts_on_overlapping_communicators(comm):
    """All ranks, the even ones, the odd ones: alive at the same time, used in turn.

    Several contexts can deadlock when max_lag holds a rank back in one while it waits in another;
    a window for all rounds that there can be excludes that.
    """
    half = comm.Split(comm.rank % 2, comm.rank)
    window = comm.size * STEPS + 2
    with (
        pp.Context(comm, seed=1, window=window) as whole,
        pp.Context(half, seed=2, window=window) as part,
    ):
        assert (whole.size, part.size) == (comm.size, half.size)
        assert part.comm == half
        for policy in (pp.Solo(), pp.Full()):
            logs = []
            for members, ctx in ((comm, whole), (half, part)):
                send, out = np.zeros(members.size, "i8"), np.zeros(members.size, "i8")
                send[members.rank] = 1
                request = ctx.Allreduce_init(
                    send, out, policy=policy, deliver="sum", max_lag=window - 1
                )
                logs.append((members, request, out, Log(members.size, STEPS + 1)))
            status = pp.Status()
            for _ in range(STEPS):
                for _, request, out, log in logs:
                    request.Start()
                    log.started()
                    request.Wait(status)
                    log.given(status, out)
            for members, request, out, log in logs:
                request.Flush(status)
                log.given(status, out)
                judge(members, log, request, left=True)
                request.Free()
    half.Free()


def test_two_contexts_on_one_communicator(comm):
    with pp.Context(comm, seed=1) as one, pp.Context(comm, seed=2, progress="caller") as two:
        outs = [np.zeros(1, "i8"), np.zeros(1, "i8")]
        requests = [
            ctx.Allreduce_init(np.ones(1, "i8"), out, policy=pp.Full())
            for ctx, out in zip((one, two), outs, strict=True)
        ]
        for _ in range(10):
            pp.Startall(requests)
            pp.Waitall(requests)
            assert outs[0][0] == outs[1][0] == comm.size
        for request in requests:
            request.Free()


def test_contexts_one_after_the_other(comm):
    """Nothing is used up: communicators, pages of doorbells, threads."""
    for number in range(20):
        with pp.Context(comm, seed=number) as ctx:
            out = np.zeros(1, "i8")
            request = ctx.Allreduce_init(np.ones(1, "i8"), out, policy=pp.Full())
            request.Start()
            request.Wait()
            assert out[0] == comm.size
            request.Free()


@pytest.mark.sizes(3)
def test_a_deadlock_is_reported(comm, caplog):
    """Outside the patterns of point 9: two handles, waited for in opposite orders."""
    with pp.Context(comm, stall_warning=0.2) as ctx:
        requests = [ctx.Allreduce_init(None, np.ones(1), policy=pp.Full()) for _ in range(2)]
        mine = requests if comm.rank == 0 else requests[::-1]
        mine[0].Start()
        others = list(range(1, comm.size)) if comm.rank == 0 else [0]
        expected = others, f"waiting on handle {mine[1].id}"
        texts, said, limit = [], [], time.monotonic() + 30
        # When the first was asked it may have come later, or not have answered in time.
        while not any((ranks, does.split(")")[0]) == expected for ranks, does in said):
            assert time.monotonic() < limit, texts
            with (
                caplog.at_level(logging.WARNING, logger="pypartial"),
                pytest.raises(pp.TimeoutError),
            ):
                mine[0].Wait(timeout=0.5)
            texts = [record.getMessage() for record in caplog.records]
            said = said_of_ranks("".join(texts[-1:]))
        assert all(text.startswith(f"pypartial: Wait on handle {mine[0].id} ") for text in texts), (
            texts
        )
        comm.barrier()  # everybody has waited in vain
        mine[1].Start()  # and so it is resolved
        pp.Waitall(mine, timeout=30)
        comm.barrier()
        for request in requests:
            request.Free()


@pytest.mark.mpi(min_size=2)
def test_seeds_draw_differently_and_the_same_everywhere(comm):
    """The initiators of Majority rounds follow from the seed, if everybody is always there."""

    def initiators(seed):
        with pp.Context(comm, seed=seed, patience=None) as ctx:
            request = ctx.Allreduce_init(None, np.ones(1), policy=pp.Majority(), deliver="each")
            found, status = [], pp.Status()
            for _ in range(12):
                request.Start()
                request.Wait(status)
                found.append(status.initiator)
            for _ in request.Drain():
                pass
            request.Free()
        return tuple(found)

    first, again, other = initiators(1), initiators(1), initiators(2)
    assert first == again != other
    assert len(set(comm.allgather((first, other)))) == 1
