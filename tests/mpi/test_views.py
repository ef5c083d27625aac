"""Results that are read where they lie."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import pypartial as pp

pytestmark = [pytest.mark.mpi, pytest.mark.sizes(1, 2, 3, 4)]

COUNT = 70_000


def counting(comm, count=COUNT):
    send = np.full(count, 1 << comm.rank, np.int64)
    return send, np.zeros(count, np.int64)


@pytest.mark.parametrize("deliver", ["latest", "sum"])
def test_a_view_stays_while_others_go_on(comm, ctx, deliver):
    """Rank 0 keeps its view; the rounds that the others make meanwhile go elsewhere."""
    send, out = counting(comm)
    request = ctx.Allreduce_init(send, out, policy=pp.Solo(), deliver=deliver)
    status = pp.Status()
    for _ in range(5):
        request.Start()
        view = request.View(status)
        contributors = sum(1 << rank for rank in status.contributors)
        assert view.shape == (COUNT,)
        seen = view.copy()
        if deliver == "latest":  # what is late may sum several contributions of a rank
            assert seen[0] >= contributors > 0
        comm.barrier()
        if comm.rank > 0:
            # With "sum" rank 0 withholds its part beyond max_lag, 3 rounds.
            for _ in range(3 if deliver == "latest" else 1):
                request.Start()
                request.Wait()
        comm.barrier()
        if comm.rank == 0:
            assert (view == seen).all()
        comm.barrier()
    request.Flush()
    request.Free()


def test_a_view_is_no_copy(comm, ctx):
    send, out = counting(comm)
    request = ctx.Allreduce_init(send, out, policy=pp.Full())
    request.Start()
    view = request.View()
    assert (view == (1 << comm.size) - 1).all()
    shared = ctx.stats().shares_memory
    assert not view.flags.writeable
    assert np.shares_memory(view, out) != shared
    assert (out == (0 if shared else view)).all()
    request.Start()
    request.Wait()
    assert (out == (1 << comm.size) - 1).all()
    request.Free()


def test_a_view_of_several_buffers(comm, ctx):
    sends = [np.full(n, comm.rank + 1.0) for n in (3, 0, 40_000)]
    outs = [np.zeros_like(send) for send in sends]
    request = ctx.Allreduce_init(sends, outs, policy=pp.Full())
    request.Start()
    view = request.View()
    assert view.shape == (40_003,)
    assert (view == comm.size * (comm.size + 1) / 2).all()
    request.Free()


def test_a_view_of_half_precision_is_in_the_receive_buffer(comm, ctx):
    send, out = np.full(100, 0.5, "f2"), np.zeros(100, "f2")
    request = ctx.Allreduce_init(send, out, policy=pp.Full())
    request.Start()
    view = request.View()
    assert view.dtype == np.float16
    assert np.shares_memory(view, out)
    assert (out == comm.size / 2).all()
    request.Free()


def test_a_view_outlives_its_context(comm):
    with pp.Context(comm) as ctx:
        send, out = counting(comm)
        request = ctx.Allreduce_init(send, out, policy=pp.Full())
        request.Start()
        view = request.View()
        request.Free()
    del ctx, request, out
    gc.collect()
    assert view.sum() >= 0  # whatever it shows now, it may be read


def test_bad_arguments(comm, ctx):
    request = ctx.Allreduce_init(None, np.ones(1), policy=pp.Full())
    with pytest.raises(pp.ArgumentError, match="status must be"):
        request.View("status")
    with pytest.raises(pp.ArgumentError, match="timeout must be"):
        request.View(timeout=-1)
    with pytest.raises(pp.Error, match="nothing was started"):
        request.View()
    request.Start()
    assert request.View(timeout=30) == [comm.size]
    request.Free()
    with pytest.raises(pp.Error, match="freed"):
        request.View()


@pytest.mark.sizes(4)
def test_ranks_that_are_away_keep_no_round_up_by_their_views(comm):
    """Each has pinned an older result, and the last one keeps all since: the ring would be full."""
    send, out = counting(comm, 1000)
    there = [comm.Split(int(comm.rank <= last), comm.rank) for last in range(comm.size)]
    total = np.zeros_like(out)
    with pp.Context(comm, seed=7, patience=None) as ctx:
        request = ctx.Allreduce_init(send, out, policy=pp.Solo(), deliver="each")

        def take_part():
            request.Start()
            total[:] += request.View()
            return 1

        starts = 0
        for last in range(comm.size - 1, 0, -1):
            for _ in range(6 if comm.rank <= last else 0):
                starts += take_part() if comm.rank == 0 else 0
                there[last].Barrier()
                starts += take_part() if comm.rank > 0 else 0
                there[last].Barrier()
            if comm.rank == last:
                with ctx.away():
                    comm.Barrier()
        for _ in range(30 if comm.rank == 0 else 0):
            request.Start()
            request.Wait(timeout=20)
            total += out
            starts += 1
        if comm.rank == 0:
            with ctx.away():
                comm.Barrier()
        for _ in request.Drain():
            total += out
        request.Free()
    assert (total == comm.allreduce(starts << comm.rank)).all()
    for part in there:
        part.Free()
