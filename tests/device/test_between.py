"""What comes between a Start and its Wait: other collective calls of the context, and `away`.

A rank that is inside one counts as left. With buffers of the host its contribution is there by
then, so it is of the round all the same; that of a device may still be on its way.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager

import numpy as np
import pytest
from support.device import Stream

import pypartial as pp

pytestmark = pytest.mark.mpi

COUNT = 1003
LATE = "this rank's contributions have not come to or from their device"


@contextmanager
def soon(let_go):
    """Have another thread let something go, which this one waits for."""
    timer = threading.Timer(0.05, let_go)
    timer.start()
    yield
    timer.join()


def flush(ctx, host, **options):
    host.Flush(**options)


def free(ctx, host, **options):
    host.Free(**options)


def init(ctx, host, **options):
    ctx.Allreduce_init(np.ones(3), np.zeros(3), **options).Free()


def init_groups(ctx, host, **options):
    ctx.Preduce_init(np.ones(3), pp.groups.Static(), **options).Free()


def free_context(ctx, host, **options):
    try:
        ctx.Free(**options)
    except pp.TimeoutError:
        raise
    except pp.Error as error:
        assert "2 live handles" in str(error)


CALLS = [flush, free, init, init_groups, free_context]


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("path", ["staged", "ipc"])
def test_a_contribution_is_of_the_round(comm, array, stream, transport, path, call):
    """The call does not begin before it is off its device, and says so if its time is over."""
    path = path if transport != "mpi" else "staged"
    last, send, out = comm.rank == comm.size - 1, array(COUNT), array(COUNT)
    status = pp.Status()
    with pp.Context(comm, seed=7, transport=transport, patience=None) as ctx:
        host = ctx.Allreduce_init(np.ones(3), np.zeros(3), policy=pp.Full())
        request = ctx.Allreduce_init(send, out, policy=pp.Full(), device_path=path)
        stream.hold(last)
        send.put(comm.rank + 1)
        request.Start()
        if last:
            with pytest.raises(pp.TimeoutError, match=LATE):
                call(ctx, host, timeout=0.05)
            stream.hold(False)
        call(ctx, host)
        request.Wait(status)
        assert status.cause is pp.Cause.POLICY
        assert (out.get() == comm.size * (comm.size + 1) // 2).all()
        request.Free()
        if call is not free:
            host.Free()


def test_a_rank_goes_away_with_its_contribution_given(comm, array, stream, transport):
    last, send, out = comm.rank == comm.size - 1, array(COUNT), array(COUNT)
    status = pp.Status()
    with pp.Context(comm, seed=7, transport=transport, patience=None) as ctx:
        request = ctx.Allreduce_init(send, out, policy=pp.Full())
        for step in range(3):
            stream.hold(last)
            send.put(comm.rank + step)
            request.Start()
            with soon(lambda: stream.hold(False)), ctx.away():
                comm.Barrier()
            request.Wait(status)
            assert status.cause is pp.Cause.POLICY
            assert (out.get() == sum(range(comm.size)) + comm.size * step).all()
        request.Free()


def test_what_other_threads_start_meanwhile_may_come_later(comm, array, stream, monkeypatch):
    """Else a call might never begin: there may be a contribution on its way at any time."""
    later, waits, made = Stream(), threading.Event(), []
    buffers = [array(COUNT) for _ in range(4)]
    with pp.Context(comm, seed=7, patience=None) as ctx:
        first = ctx.Allreduce_init(buffers[0], buffers[1], policy=pp.Full())
        second = ctx.Allreduce_init(buffers[2], buffers[3], policy=pp.Full())
        await_device = ctx._calls.await_device

        def note(*arguments):
            waits.set()
            return await_device(*arguments)

        def make():
            made.append(ctx.Allreduce_init(np.ones(3), np.zeros(3), timeout=20))

        monkeypatch.setattr(ctx._calls, "await_device", note)
        stream.hold(True)
        first.Start()
        thread = threading.Thread(target=make)
        thread.start()
        waits.wait()
        later.hold(True)
        second.Start(stream=later)
        stream.hold(False)
        thread.join()
        later.hold(False)
        for request in (first, second):
            request.Wait()
            request.Free()
        made[0].Free()
    later.close()
