"""Large vectors of a device: they are copied to where rounds read them, and from the ring."""

from __future__ import annotations

import os
import threading
import time

import numpy as np
import pytest
from support.device import Stream
from support.on_device import keeps_results_for_a_slow_consumer

import pypartial as pp

pytestmark = pytest.mark.mpi

COUNT = 3000  # elements: several pages, and not whole ones
REFUSED = 800  # CUDA_ERROR_NOT_PERMITTED


@pytest.fixture(autouse=True)
def _shares_memory():
    if os.environ.get("PYPARTIAL_TRANSPORT") == "mpi":
        pytest.skip("rounds by messages read no memory of the node")


def loop(request, send, out, steps):
    """Make rounds, and return what each gave at its first and at its last element."""
    seen = []
    for step in range(steps):
        send.put(np.arange(send.count) + step)
        request.Start()
        request.Wait()
        seen.append(out.get()[[0, -1]].tolist())
        send.settle()
    return seen


def expected(comm, steps, count=COUNT):
    return [[comm.size * step, comm.size * (count - 1 + step)] for step in range(steps)]


@pytest.mark.parametrize("deliver", ["latest", "sum", "each"])
def test_there_is_no_bounce_buffer_but_one(comm, ctx, array, stand_in, deliver):
    """That one is for a result that comes while another is on its way."""
    send, out = array(COUNT, "i8"), array(COUNT, "i8")
    request = ctx.Allreduce_init(send, out, policy=pp.Full(), deliver=deliver)
    before = stand_in.fake_live(b"host memory")
    assert loop(request, send, out, 20) == expected(comm, 20)
    assert stand_in.fake_live(b"host memory") == before
    assert stand_in.fake_live(b"registrations") > 1
    assert ctx.stats().staged_bytes == 2 * 20 * COUNT * 8
    assert ctx.stats().bounced_bytes == 0
    request.Free()


@pytest.mark.parametrize("nth", [1, 2])
def test_memory_that_the_driver_does_not_pin(comm, ctx, array, stand_in, nth, caplog):
    """Then all goes by bounce buffers, on this rank, and the driver is not asked again.

    It is asked for the first contribution, and then for the first result.
    """
    send, out = array(COUNT, "i8"), array(COUNT, "i8")
    request = ctx.Allreduce_init(send, out, policy=pp.Full())
    before = stand_in.fake_calls(b"cuMemHostRegister")
    if comm.rank == 0:
        stand_in.fake_fail(b"cuMemHostRegister", nth, REFUSED)
    assert loop(request, send, out, 20) == expected(comm, 20)
    if comm.rank == 0:
        assert stand_in.fake_failed() == b"cuMemHostRegister"
        assert stand_in.fake_calls(b"cuMemHostRegister") == before + nth
        stand_in.fake_fail(b"cuMemHostRegister", 0, 0)
    stats = ctx.stats()
    assert stats.staged_bytes == 2 * 20 * COUNT * 8
    bounced = 0 if comm.rank else 2 * 20 - (nth - 1)
    assert stats.bounced_bytes == bounced * COUNT * 8
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == (comm.rank == 0)
    assert all("does not pin the memory that the ranks of the node share" in text for text in told)
    assert all("cuMemHostRegister failed with 800" in text for text in told)
    request.Free()


def test_a_slow_consumer_keeps_its_results(comm, ctx, array):
    """The first is read in the ring when its stream gets there, rounds later."""
    keeps_results_for_a_slow_consumer(comm, ctx.Allreduce_init, array, COUNT)


@pytest.mark.parametrize("call", ["cuMemcpyAsync", "cuEventRecord"])
def test_starts_that_fail(comm, ctx, array, stand_in, call):
    """Their parts are used again: there are fewer than Starts that fail here.

    The event is that behind the copy, which is under way then.
    """
    send, out = array(COUNT, "i8"), array(COUNT, "i8")
    request = ctx.Allreduce_init(send, out, policy=pp.Full())
    for _ in range(12 if comm.rank == 0 else 0):
        stand_in.fake_fail(call.encode(), 1, 999)
        with pytest.raises(pp.Error, match=f"{call} failed"):
            request.Start()
        stand_in.fake_fail(call.encode(), 0, 0)
    assert loop(request, send, out, 5) == expected(comm, 5)
    request.Free()


@pytest.mark.parametrize("count", [4, COUNT], ids=["bounce buffer", "in place"])
def test_a_start_that_cannot_say_when_its_copy_is_over(comm, ctx, array, stream, stand_in, count):
    """It waits for the copy, so that the memory can be used again, and fails."""
    send, out = array(count, "i8"), array(count, "i8")
    request = ctx.Allreduce_init(send, out, policy=pp.Full())
    stream.hold(True)
    stand_in.fake_fail(b"cuEventRecord", 1, 999)
    waited: list[bool] = []
    release = threading.Thread(target=let_go_when_it_waits, args=(stand_in, stream, waited))
    release.start()
    with pytest.raises(pp.Error, match="cuEventRecord failed"):
        request.Start()
    release.join()
    assert waited == [True]
    stand_in.fake_fail(b"cuEventRecord", 0, 0)
    assert loop(request, send, out, 5) == expected(comm, 5, count)
    request.Free()


def let_go_when_it_waits(stand_in, stream, waited):
    limit = time.monotonic() + 20
    while not stand_in.fake_held_calls(b"cuStreamSynchronize") and time.monotonic() < limit:
        time.sleep(0.001)
    waited.append(stand_in.fake_held_calls(b"cuStreamSynchronize") > 0)
    stream.hold(False)


def test_a_start_that_has_queued_one_of_two_copies(comm, ctx, array, stream, stand_in):
    """The part that it goes to is not used again before it is over."""
    sends, outs = [[array(COUNT, "i8") for _ in range(2)] for _ in range(2)]
    request, other = ctx.Allreduce_init(sends, outs, policy=pp.Full()), Stream()
    stream.hold(comm.rank == 0)
    if comm.rank == 0:
        stand_in.fake_fail(b"cuMemcpyAsync", 2, 999)
        with pytest.raises(pp.Error, match="cuMemcpyAsync failed"):
            request.Start(stream=stream)
    for send in sends:
        send.put(2, other)
    if comm.rank == 0:
        request.Start(stream=other)
        for send in sends:
            send.put(99, other)
        other.wait()
        stream.hold(False)
        stream.wait()
    comm.Barrier()
    if comm.rank > 0:
        request.Start(stream=other)
    request.Wait(stream=other)
    assert all((out.get(other) == 2 * comm.size).all() for out in outs)
    request.Free()
    other.close()


@pytest.mark.parametrize("count", [4, COUNT], ids=["bounce buffer", "in place"])
def test_a_start_whose_stream_is_refused_has_queued_nothing(comm, ctx, array, stand_in, count):
    """As if the application had destroyed it: no call takes it, and no memory waits for a copy."""
    calls = (b"cuMemcpyAsync", b"cuEventRecord", b"cuStreamSynchronize")
    send, out = array(count, "i8"), array(count, "i8")
    request = ctx.Allreduce_init(send, out, policy=pp.Full())
    for call in calls:
        stand_in.fake_fail(call, 1, 400)
    with pytest.raises(pp.Error, match="cuMemcpyAsync failed"):
        request.Start()
    for call in calls:
        stand_in.fake_fail(call, 0, 0)
    assert loop(request, send, out, 5) == expected(comm, 5, count)
    request.Free()


@pytest.mark.sizes(3)
def test_more_starts_than_parts(comm, array, stream):
    """Eight parts are pending, a ninth Start is on its way as a round takes them; eight follow."""
    send, out, status = array(COUNT, "i8"), array(COUNT, "i8"), pp.Status()
    send.put(1)
    stream.wait()
    with pp.Context(comm, seed=7, patience=None) as ctx:
        request = ctx.Allreduce_init(send, out, policy=pp.Quorum(2), deliver="sum")

        def start_in_vain():
            request.Start()
            with pytest.raises(pp.TimeoutError):
                request.Wait(timeout=0)

        if comm.rank == 0:
            for _ in range(8):
                start_in_vain()
            stream.wait()
            with pytest.raises(pp.TimeoutError):
                request.Wait(timeout=0.05)
            stream.hold(True)
            start_in_vain()
        comm.Barrier()
        if comm.rank > 0:
            request.Start()
            request.Wait(status)
            assert status.contributions == 10
        comm.Barrier()
        if comm.rank == 0:
            request.Start()
            request.Wait(status)  # the round of the others
            assert status.contributions == 10
            for _ in range(7):
                start_in_vain()
            stream.hold(False)
        request.Flush()
        assert out.get()[[0, -1]].tolist() == [9, 9]
        request.Free()
