"""What comes between a Start and its Wait: other collective calls of the context, and `away`.

A rank that is inside one counts as left. With buffers of the host its contribution is there by
then, so it is of the round all the same; that of a device may still be on its way.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager, nullcontext

import numpy as np
import pytest
from support.device import Stream
from support.on_device import let_go_when_waiting

import pypartial as pp

pytestmark = pytest.mark.mpi

COUNT = 1003
LATE = "this rank's contributions have not come to or from their device"


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
            waiting = let_go_when_waiting(ctx, lambda: stream.hold(False))
            with waiting if last else nullcontext(), ctx.away():
                comm.Barrier()
            request.Wait(status)
            assert status.cause is pp.Cause.POLICY
            assert (out.get() == sum(range(comm.size)) + comm.size * step).all()
        request.Free()


def make_another(ctx, request):
    return ctx.Allreduce_init(np.ones(3), np.zeros(3), timeout=20)


def flush_it(ctx, request):
    request.Flush(timeout=20)


def free_it(ctx, request):
    request.Free(timeout=20)


@contextmanager
def two_requests(comm, array, patch):
    """Yield two requests on a device, a stream for one of them, and an event: a call waits."""
    waits, later = threading.Event(), Stream()
    buffers = [array(COUNT) for _ in range(4)]
    with pp.Context(comm, seed=7, patience=None) as ctx:
        await_device = ctx._calls.await_device

        def note(*arguments):
            waits.set()
            return await_device(*arguments)

        patch.setattr(ctx._calls, "await_device", note)
        first = ctx.Allreduce_init(buffers[0], buffers[1], policy=pp.Full())
        second = ctx.Allreduce_init(buffers[2], buffers[3], policy=pp.Full())
        yield first, second, later, waits
        second.Free()
    later.close()


def in_a_thread(call):
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()


def waits_for_the_second(first, second, later):
    """Flush the first request: it waits for the contribution to the second, which a round gets."""
    status = pp.Status()
    with pytest.raises(pp.TimeoutError, match=LATE):
        first.Flush(timeout=0.05)
    later.hold(False)
    first.Flush()
    second.Wait(status)
    assert status.cause is pp.Cause.POLICY
    first.Free()


@pytest.mark.parametrize("call", [make_another, flush_it, free_it])
def test_what_other_threads_start_meanwhile_may_come_later(comm, array, stream, monkeypatch, call):
    """Else a call might never begin: there may be a contribution on its way at any time."""
    errors, made = [], []
    with two_requests(comm, array, monkeypatch) as (first, second, later, waits):

        def make_call():
            try:
                made.append(call(first._context, first))
            except pp.Error as error:
                errors.append(error)

        stream.hold(True)
        first.Start()
        thread = threading.Thread(target=make_call, daemon=True)
        thread.start()
        assert waits.wait(20), "the call has not waited"
        later.hold(True)
        second.Start(stream=later)
        stream.hold(False)
        thread.join()
        later.hold(False)
        assert errors == []
        second.Wait()
        for request in made:
            if request:
                request.Free()
        if call is not free_it:
            first.Free()


def test_a_call_goes_on_with_what_was_started_before_its_first_try(
    comm, array, stream, monkeypatch
):
    """Of what is started between its tries, only what its own thread starts counts."""
    with two_requests(comm, array, monkeypatch) as (first, second, later, _):
        stream.hold(True)
        first.Start()
        with pytest.raises(pp.TimeoutError):
            first.Flush(timeout=0)
        later.hold(True)
        in_a_thread(lambda: second.Start(stream=later))
        stream.hold(False)
        first.Flush(timeout=20)
        later.hold(False)
        second.Wait()
        stream.hold(True)
        first.Start()
        with pytest.raises(pp.TimeoutError):
            first.Flush(timeout=0)
        later.hold(True)
        second.Start(stream=later)
        stream.hold(False)
        stream.wait()  # then the call has begun before its time is over
        waits_for_the_second(first, second, later)


@pytest.mark.parametrize("other", ["in another thread", "away"])
def test_a_try_that_was_given_up_counts_no_more(comm, array, stream, monkeypatch, other):
    """Another call has begun: the next one waits for what was started before it."""
    with two_requests(comm, array, monkeypatch) as (first, second, later, _):
        stream.hold(True)
        first.Start()
        with pytest.raises(pp.TimeoutError):
            first.Flush(timeout=0)
        stream.hold(False)
        if other == "away":
            with first._context.away():
                comm.Barrier()
        else:
            in_a_thread(lambda: first.Flush(timeout=20))
        later.hold(True)
        in_a_thread(lambda: second.Start(stream=later))
        waits_for_the_second(first, second, later)
