"""The partial allreduce of buffers on a device: the loop, its streams, and what it must not do."""

from __future__ import annotations

import sys
import threading
import time
import warnings
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from mpi4py import MPI
from support.device import (
    BLOCKING,
    Array,
    Pointer,
    Stream,
    device,
    driver,
    no_context,
    order,
    other_context,
)
from support.on_device import (
    adds_in_place,
    contributes_once,
    has_bits_of_the_host,
    waits_for_no_stream_that_is_held,
)
from support.pairwise import pairwise

import pypartial as pp
from pypartial._native import SLICE_S

pytestmark = pytest.mark.mpi

STEPS = 30
AWAY_EVERY = 10  # turns
NOT_READY = 600


def policies(size):
    return [pp.Solo(), pp.Majority(), pp.Quorum(max(1, size // 2)), pp.Full()]


@pairwise(
    policy={"solo": 0, "majority": 1, "quorum": 2, "full": 3},
    deliver=["latest", "sum", "each"],
    extra={"small": 0, "large": 40_000},
)
def test_the_loop(comm, array, stream, transport, policy, deliver, extra):
    send, out = (array(comm.size + extra, "i8") for _ in range(2))
    options = {"policy": policies(comm.size)[policy], "deliver": deliver}
    with pp.Context(comm, seed=7, transport=transport, patience=None) as ctx:
        contributes_once(comm, ctx.Allreduce_init, send, out, STEPS, **options)


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i4", "c8"])
def test_results_have_the_bits_of_the_hosts(comm, ctx, array, dtype):
    init = ctx.Allreduce_init
    has_bits_of_the_host(comm, init, init, array, dtype, "SUM", None, 1001)


def test_several_arrays_in_place(comm, ctx, array):
    adds_in_place(comm, ctx.Allreduce_init, array, "f4")


def test_nothing_waits_for_a_stream_that_is_held(comm, array, stream, transport):
    with pp.Context(comm, seed=7, transport=transport, window=16) as ctx:
        waits_for_no_stream_that_is_held(comm, ctx.Allreduce_init, array, stream)


@pytest.mark.parametrize("path", ["staged", "ipc"])
def test_a_late_result_in_place_comes_after_what_was_started(comm, array, stream, transport, path):
    """Its stream is another one than that of Start, which is held until the request is complete."""
    last, side = comm.rank == comm.size - 1, Stream()
    buffer, status, total = array(comm.size + 2000), pp.Status(), 0.0
    buffer.put(0)
    own = np.zeros(buffer.count, "f4")
    own[comm.rank], own[comm.size :] = 1, comm.rank + 1
    with (
        warnings.catch_warnings(),
        pp.Context(comm, seed=7, transport=transport, window=16) as ctx,
    ):
        warnings.filterwarnings("ignore", "device_path='ipc' is not possible", RuntimeWarning)
        request = ctx.Allreduce_init(MPI.IN_PLACE, buffer, policy=pp.Solo(), device_path=path)
        buffer.put(own)
        stream.hold(last)
        request.Start()
        if comm.size > 1:
            request.Wait(status, stream=side if last else stream)
            assert not (last and status.included)
            limit = time.monotonic() + 0.1  # the result would be there
            while last and time.monotonic() < limit:
                assert driver().cuStreamQuery(Pointer(side.ptr)) == NOT_READY
            stream.hold(False)
            total = buffer.get(side if last else stream)
        stream.hold(False)
        request.Flush(stream=side)
        total = total + buffer.get(side)
        assert total[: comm.size].tolist() == [1] * comm.size
        assert (total[comm.size :] == sum(range(1, comm.size + 1))).all()
        request.Free()
    side.close()


def test_a_warning_that_is_an_error_loses_no_handle(comm, array, caplog):
    """Only rank 0 warns: it would be alone without the handle."""
    send, out = array(1000), array(1000)
    with pp.Context(comm, seed=7, transport="mpi", patience=None) as ctx:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            request = ctx.Allreduce_init(send, out, policy=pp.Full(), device_path="ipc")
        assert request.device_path == "staged"
        assert ("device_path='ipc' is not possible" in caplog.text) == (comm.rank == 0)
        send.put(1)
        request.Start()
        request.Wait()
        assert (out.get() == comm.size).all()
        request.Free()


def test_arrays_of_several_streams(comm, ctx, array, stream):
    """None of them is behind the work of all, so the application has to say which one is."""
    side = Stream()
    sends, outs = [array(1000), Array(1000, "f4", side)], [array(1000), Array(1000, "f4", side)]
    request = ctx.Allreduce_init(sends, outs, policy=pp.Full())
    differ = r"the current stream of {0}\[0\] is 0x.*, and that of {0}\[1\] is 0x.*: pass stream="
    for send in sends:
        send.put(comm.rank, stream)
    with pytest.raises(pp.ArgumentError, match=differ.format("sendbuf")):
        request.Start()
    request.Start(stream=stream)
    for collect in (request.Wait, request.Test, request.More):
        with pytest.raises(pp.ArgumentError, match=differ.format("recvbuf")):
            collect()
    request.Wait(stream=stream)
    for out in outs:
        assert (out.get(stream) == sum(range(comm.size))).all()
    request.Free()
    for one in (sends[1], outs[1]):
        stream.wait()
        one.settle()
        one.close()
    side.close()


def test_a_contribution_is_what_was_queued_before_start(comm, ctx, array, stream):
    """A side stream writes the buffer, and Start is given that stream."""
    side = Stream()
    send, out = array(1000), array(1000)
    request = ctx.Allreduce_init(send, out, policy=pp.Full())
    for step in range(20):
        side.hold(True)
        send.put(step + comm.rank, side)
        request.Start(stream=side)
        send.put(-1, side)
        side.hold(False)
        request.Wait(stream=side)
        side.wait()
        total = out.get()
        assert (total == comm.size * step + sum(range(comm.size))).all(), (step, total[:3])
        send.settle()
    request.Free()
    side.close()


@pytest.mark.parametrize("steps", [7, 12], ids=["some", "many"])
def test_a_slow_consumer_keeps_its_results(comm, ctx, array, steps):
    """Results that wait for their stream are not overwritten; a Wait waits if there are many."""
    send, out, slow = array(100), array(100), Stream()
    request = ctx.Allreduce_init(send, out, policy=pp.Full())
    seen = [array(100) for _ in range(steps)]
    slow.hold(True)
    let_go = threading.Timer(0.2, slow.hold, [False])
    for step in range(steps):
        if step == 8:  # the ninth Wait returns only because of this
            let_go.start()
        send.put(step)
        request.Start()
        request.Wait(stream=slow)
        seen[step].copy(out, slow)
    slow.hold(False)
    slow.wait()
    assert [int(one.get()[-1]) for one in seen] == [step * comm.size for step in range(steps)]
    let_go.cancel()
    request.Free()
    slow.close()


def test_calls_of_the_driver(comm, ctx, array, stream, stand_in):
    """A loop pins no more memory; a handle that is idle makes no call at all."""
    send, out = array(1000), array(1000)
    request = ctx.Allreduce_init(send, out, policy=pp.Full())

    def turn():
        request.Start()
        request.Wait()
        stream.wait()

    turn()
    pinned, events = stand_in.fake_live(b"host memory"), stand_in.fake_live(b"events")
    for _ in range(20):
        turn()
    assert stand_in.fake_live(b"host memory") == pinned
    assert stand_in.fake_live(b"events") == events
    other = ctx.Allreduce_init(np.ones(1), np.ones(1), policy=pp.Full())
    calls = stand_in.fake_calls(b"")
    for _ in range(20):
        other.Start()
        other.Wait()
    comm.Barrier()
    assert stand_in.fake_calls(b"") == calls
    other.Free()
    request.Free()


@pytest.mark.parametrize("count", [4, 30_000])
def test_a_call_makes_its_device_current_once(comm, array, stand_in, count):
    """What it does there is many calls of the driver."""
    send, out = array(count), array(count)
    send.put(1)
    with pp.Context(comm, progress="caller") as ctx:
        request = ctx.Allreduce_init(send, out, policy=pp.Full())
        for _ in range(3):
            for call in (request.Start, request.Wait):
                before = [stand_in.fake_calls(name) for name in (b"cuCtxPushCurrent", b"")]
                began = time.monotonic()
                call()
                slices = 1 + int((time.monotonic() - began) / SLICE_S)  # of a Wait that waits long
                after = [stand_in.fake_calls(name) for name in (b"cuCtxPushCurrent", b"")]
                assert 1 <= after[0] - before[0] <= slices
                assert after[1] - before[1] > 4
        assert (out.get() == comm.size).all()
        request.Free()


@pytest.mark.parametrize(
    ("count", "dtype", "rows"),
    [(1, "u1", 0), (2, "u1", 1), (2**15 - 2, "u1", 1), (2**15 - 1, "u1", 0), (2**13, "f4", 0)],
)
def test_few_bytes_go_to_the_device_as_rows(comm, ctx, array, stream, stand_in, count, dtype, rows):
    """Otherwise its kernels' part would write them; an odd number is of no two rows."""
    send, out = array(count, dtype), array(count, dtype)
    send.put(np.arange(count) % 7 + comm.rank)
    request = ctx.Allreduce_init(send, out, policy=pp.Full())
    before = stand_in.fake_calls(b"cuMemcpy2DAsync")
    request.Start()
    request.Wait()
    assert stand_in.fake_calls(b"cuMemcpy2DAsync") - before == rows
    expected = sum(np.arange(count) % 7 + rank for rank in range(comm.size))
    assert (out.get() == expected).all()
    request.Free()


def test_a_loop_does_not_wake_the_progress_thread(comm, ctx, array, stream, stand_in):
    """The application looks for its elements itself, as it comes back at once from each Start."""
    if comm.size > 1:
        pytest.skip("other ranks are woken as well")
    send, out = array(4), array(4)
    request = ctx.Allreduce_init(send, out, policy=pp.Full())
    stand_in.fake_seed(0)  # without pauses a copy is over at once

    def rings(turns):
        before = ctx.stats().rings
        for _ in range(turns):
            request.Start()
            request.Wait()
            stream.wait()
        return ctx.stats().rings - before

    rings(20)
    # Woken by each Start it rings each time. A busy machine may be late with the copies for once.
    assert any(rings(400) < 200 for _ in range(5))
    request.Free()


@pytest.mark.parametrize("held", [False, True])
def test_an_application_that_stays_away_is_replaced(comm, ctx, array, stream, held):
    """It came back at once from each Start; when it does not, its progress thread looks soon.

    And again and again, if the device is not there at the first look.
    """
    if comm.size == 1:
        pytest.skip("no other rank waits for this one")
    send, out = array(4), array(4)
    request = ctx.Allreduce_init(send, out, policy=pp.Full())

    def waits():
        found = []
        for turn in range(1, 12 * AWAY_EVERY + 1):
            away = turn % AWAY_EVERY == 0
            send.put(np.full(4, turn))
            if away and comm.rank == 0:
                time.sleep(turn / AWAY_EVERY * 2e-3)  # up to 24 ms: the thread sleeps for longest
            if away and comm.rank == 0 and held:
                stream.wait()
                stream.hold(True)
            began = time.monotonic()
            request.Start()
            if away and comm.rank == 0 and held:
                time.sleep(0.01)
                began = time.monotonic()
                stream.hold(False)
            if away and comm.rank == 0:
                comm.Barrier()  # the others are there when they have this rank's part
            request.Wait()
            if away and comm.rank > 0:
                ended = time.monotonic()
                comm.Barrier()
            assert (out.get() == turn * comm.size).all()
            if away:
                began = comm.bcast(began)  # on one machine the clock is the same
                found += [] if comm.rank == 0 else [ended - began]
        return found

    def looks_soon():
        found = sorted(waits())
        return comm.allreduce(comm.rank == 0 or found[len(found) * 2 // 3] < 0.03, MPI.LAND)

    # Where nobody looks before the thread's sleep is over, half of them take 50 ms and more, each
    # time. A busy machine may delay all ranks for once.
    assert any(looks_soon() for _ in range(5))
    request.Free()


def test_late_requests_are_complete_at_start(comm, ctx, array, stream):
    """A rank whose copy is held is given the round that it missed, and its own part comes later."""
    if comm.size == 1:
        pytest.skip("a rank alone is never late")
    send, out = array(comm.size), array(comm.size)
    own = np.eye(comm.size, dtype="f4")[comm.rank]
    request = ctx.Allreduce_init(send, out, policy=pp.Solo())
    status = pp.Status()
    if comm.rank == 0:
        send.put(own)
        request.Start()
        request.Wait(status)
        assert out.get().tolist() == own.tolist()
    comm.Barrier()
    other = Stream()
    if comm.rank == 1:
        send.put(own)
        stream.wait()
        stream.hold(True)
        request.Start()
        assert request.Test(status, stream=other)
        assert (status.round, status.included) == (0, False)
        other.wait()
        stream.hold(False)
        assert out.get().tolist() == np.eye(comm.size)[0].tolist()
    comm.Barrier()
    request.Flush(status)
    assert status.contributions == 1
    seen = [0, 1] if comm.rank > 1 else [1]  # the others were not given the first round
    assert out.get().tolist() == np.eye(comm.size)[seen].sum(axis=0).tolist()
    request.Free()
    other.close()


# ---- late ranks, and ranks that wait ------------------------------------------------------------


@pytest.mark.parametrize(
    ("progress", "transport"), [("thread", "auto"), ("thread", "mpi"), ("caller", "auto")]
)
def test_a_rank_that_is_always_late_contributes(comm, array, stream, stand_in, progress, transport):
    """And pins no more memory. By messages a rank in a barrier serves others by its thread only."""
    send, out, status = array(100), array(100), pp.Status()
    with pp.Context(
        comm, seed=7, transport=transport, progress=progress, patience=None, window=64
    ) as ctx:
        request = ctx.Allreduce_init(send, out, policy=pp.Solo(), deliver="latest")
        send.put(1)
        for _ in range(30):
            if comm.rank > 0:
                comm.Barrier()
                stream.wait()
            request.Start()
            request.Wait(status)
            if comm.rank == 0:
                comm.Barrier()
            pinned = stand_in.fake_live(b"host memory")
            comm.Barrier()
        request.Flush(status)
        assert status.contributions < 10 * comm.size
        assert pinned < 20
        request.Free()


def held_by_their_devices(comm, request, stream, timeout):
    """All ranks wait in vain for a round that needs two of them."""
    stream.wait()
    stream.hold(True)
    request.Start()
    with pytest.raises(pp.TimeoutError):
        request.Wait(timeout=timeout)
    comm.Barrier()


@pytest.mark.sizes(3)
def test_ranks_whose_copies_are_on_their_way_lose_no_patience(
    comm, array, stream, transport, caplog
):
    """None of them is ready, so none holds the others up."""
    send, out = array(4), array(4)
    send.put(1)
    with pp.Context(comm, seed=7, transport=transport, patience=0.4) as ctx:
        request = ctx.Allreduce_init(send, out, policy=pp.Quorum(2))
        held_by_their_devices(comm, request, stream, timeout=0.8)
        ctx._log_note()
        assert "patience" not in caplog.text
        comm.Barrier()  # from here on a rank may stand still for longer
        stream.hold(False)
        request.Wait()
        request.Flush()
        request.Free()


@pytest.mark.sizes(3)
def test_ranks_whose_copies_are_on_their_way_do_not_hurry_others(comm, array, stream, transport):
    """One that is ready activates nothing alone."""
    send, out, status = array(4), array(4), pp.Status()
    send.put(1)
    with pp.Context(comm, seed=7, transport=transport, patience=None) as ctx:
        request = ctx.Allreduce_init(send, out, policy=pp.Quorum(2))
        held_by_their_devices(comm, request, stream, timeout=0.1)
        if comm.rank == 0:  # it is ready, and a quorum is two
            stream.hold(False)
            with pytest.raises(pp.TimeoutError):
                request.Wait(status, timeout=0.1)
        comm.Barrier()
        stream.hold(False)
        request.Wait(status)
        assert status.active >= 2
        assert status.cause is pp.Cause.POLICY
        request.Flush()
        request.Free()


@pytest.mark.sizes(2, 3)
def test_a_deadline_that_passes_while_a_copy_is_on_its_way(comm, array, stream, transport):
    """The round is activated when the copy has come off."""
    send, out, status = array(4), array(4), pp.Status()
    send.put(1)
    stream.wait()
    with pp.Context(comm, seed=7, transport=transport, patience=None) as ctx:
        request = ctx.Allreduce_init(send, out, policy=pp.Quorum(comm.size, deadline=0.05))
        if comm.rank == 0:
            stream.hold(True)
            request.Start()
            timer = threading.Timer(0.3, stream.hold, [False])
            timer.start()
            request.Wait(status, timeout=20)
            timer.join()
            assert status.cause is pp.Cause.DEADLINE
        comm.Barrier()
        request.Flush()
        request.Free()


@pytest.mark.sizes(3)
def test_patience_is_that_of_a_device_that_was_fast(comm, array, stream, transport):
    """Without `patience=` a rank may take some times as long as it usually did."""
    send, out, status = array(4), array(4), pp.Status()
    with pp.Context(comm, seed=7, transport=transport) as ctx:
        request = ctx.Allreduce_init(send, out, policy=pp.Quorum(2))
        for _ in range(8):
            send.put(1)
            request.Start()
            request.Wait()
            comm.Barrier()
        stream.wait()
        stream.hold(comm.rank > 0)
        request.Start()
        if comm.rank == 0:
            request.Wait(status, timeout=20)  # where nothing is known it is 30
            assert status.active == 1
        comm.Barrier()
        stream.hold(False)
        request.Flush()
        request.Free()


def test_another_thread_that_waits_is_woken_by_a_start(comm, array, stream):
    """One thread waits on the host's handle for a Start that comes after rounds on a device."""
    send, out, ones, sums = array(4), array(4), np.ones(1), np.zeros(1)
    send.put(1)
    with pp.Context(comm, seed=7) as ctx:
        on_device = ctx.Allreduce_init(send, out, policy=pp.Full())
        on_host = ctx.Allreduce_init(ones, sums, policy=pp.Full())
        if comm.rank == 0:
            on_host.Start()
            waits = threading.Thread(target=on_host.Wait)
            waits.start()
        for _ in range(10):
            on_device.Start()
            on_device.Wait()
        assert comm.rank > 0 or comm.size == 1 or waits.is_alive()
        comm.Barrier()
        if comm.rank > 0:
            on_host.Start()
            on_host.Wait()
        else:
            waits.join()
        assert sums[0] == comm.size
        on_device.Free()
        on_host.Free()


def test_a_graph_that_another_thread_captures(comm, ctx, array, stream):
    """The library's calls do not disturb it, nor does it disturb them."""
    send, out, other = array(4), array(4), Stream()
    send.put(1)
    request = ctx.Allreduce_init(send, out, policy=pp.Full())
    other.capture(True)
    for _ in range(5):
        request.Start()
        request.Wait()
    other.capture(False)
    assert (out.get() == comm.size).all()
    request.Free()
    other.close()


# ---- timeouts -----------------------------------------------------------------------------------


def test_test_does_not_wait_for_the_device(comm, ctx, array, stream, stand_in):
    """With eight results on their way no request is complete."""
    send, out, slow = array(4), array(4), Stream()
    request = ctx.Allreduce_init(send, out, policy=pp.Full())
    slow.hold(True)
    for _ in range(8):
        send.put(1)
        request.Start()
        request.Wait(stream=slow)
    request.Start()
    with pytest.raises(pp.TimeoutError):
        request.Wait(timeout=0.05, stream=slow)
    assert not request.Test(stream=slow)
    comm.Barrier()
    slow.hold(False)
    request.Wait(stream=slow)
    slow.wait()
    assert (out.get() == comm.size).all()
    request.Free()
    slow.close()
    check_idle(comm, ctx, stand_in)


def test_many_results_are_forgotten_by_free(comm, ctx, array, stand_in):
    """Also if the last Start finds that they have arrived, and nothing is collected after it."""
    send, out, slow = array(4), array(4), Stream()
    request = ctx.Allreduce_init(send, out, policy=pp.Full())
    slow.hold(True)
    for _ in range(8):
        request.Start()
        request.Wait(stream=slow)
    slow.hold(False)
    slow.wait()
    request.Start()
    request.Free()
    slow.close()
    check_idle(comm, ctx, stand_in)


def check_idle(comm, ctx, stand_in):
    """Nothing is looked for on the device any more: threads sleep long, and call no driver."""
    calls, host = stand_in.fake_calls(b""), ctx.Allreduce_init(np.ones(1), np.ones(1))
    for _ in range(20):
        comm.Barrier()
        host.Start()
        host.Wait()
    sleeps = ctx.stats().sleeps
    time.sleep(0.3)
    assert ctx.stats().sleeps - sleeps < 50  # with copies on their way it would be 200 and more
    assert stand_in.fake_calls(b"") == calls
    host.Free()


def test_buffers_are_let_go_by_free(ctx, array):
    send, out = array(4), array(4)
    before = [sys.getrefcount(one) for one in (send, out)]
    request = ctx.Allreduce_init(send, out, policy=pp.Full())
    held = [sys.getrefcount(one) for one in (send, out)]
    assert all(count > free for count, free in zip(held, before, strict=True))
    request.Free()
    assert [sys.getrefcount(one) for one in (send, out)] == before


# ---- bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("result", "error", "text"),
    [(2, MemoryError, "CUDA has no memory"), (999, pp.Error, "CUDA reports an error")],
    ids=["no memory", "another"],
)
@pytest.mark.parametrize("call", ["cuMemHostAlloc", "cuStreamCreateWithPriority"])
@pytest.mark.parametrize("init", ["Allreduce_init", "Preduce_init"])
def test_a_driver_that_fails_when_a_handle_is_made(
    comm, ctx, array, stand_in, init, call, result, error, text
):
    """Every rank raises, and the rank of the driver what that said; no argument is wrong."""
    rest = {"Allreduce_init": array(4), "Preduce_init": pp.groups.Given()}
    arguments, last = (array(4), rest[init]), comm.rank == comm.size - 1
    if last:
        stand_in.fake_fail(call.encode(), 1, result)
    with pytest.raises(error if last else pp.MismatchError, match=text) as raised:
        getattr(ctx, init)(*arguments)
    assert not isinstance(raised.value, pp.ArgumentError)
    stand_in.fake_fail(call.encode(), 0, 0)
    getattr(ctx, init)(*arguments).Free()


def test_a_buffer_is_no_longer_than_its_memory(comm, ctx, array):
    """Nobody hears of it: the next call of the others is the next one here."""
    made = array(1000)
    longer = SimpleNamespace(
        __cuda_array_interface__={**made.__cuda_array_interface__, "shape": (1001,)}
    )
    text = rf"recvbuf: 4004 bytes from address {made.address:#x} on do not end"
    with pytest.raises(pp.ArgumentError, match=text):
        ctx.Allreduce_init(MPI.IN_PLACE, longer)
    request = ctx.Allreduce_init(MPI.IN_PLACE, (longer, 1000), policy=pp.Full())
    made.put(1)
    request.Start()
    request.Wait()
    assert (made.get() == comm.size).all()
    request.Free()


def test_a_driver_that_does_not_say_where_a_buffer_ends(comm, ctx, array, stand_in):
    """No argument is wrong. Nobody hears of it here, either."""
    send, out = array(4), array(4)
    stand_in.fake_fail(b"cuPointerGetAttributes", 2, 999)
    with pytest.raises(pp.Error, match="cuPointerGetAttributes failed") as raised:
        ctx.Allreduce_init(send, out)
    stand_in.fake_fail(b"cuPointerGetAttributes", 0, 0)
    assert not isinstance(raised.value, pp.ArgumentError)
    ctx.Allreduce_init(send, out).Free()


def test_device_and_host_do_not_mix(comm, ctx, array):
    with pytest.raises(pp.ArgumentError, match="sendbuf is in device memory and recvbuf in host"):
        ctx.Allreduce_init(array(4), np.zeros(4, "f4"))
    if comm.size > 1:
        buffers = (array(4), array(4)) if comm.rank else (np.zeros(4, "f4"), np.zeros(4, "f4"))
        with pytest.raises(pp.MismatchError, match="in the memory of a device"):
            ctx.Allreduce_init(*buffers)


@pytest.mark.parametrize("call", ["Start", "Wait", "Test", "Flush"])
def test_streams_that_cannot_be_used(comm, ctx, array, stream, call):
    """The call has done nothing."""
    send, out = array(4), array(4)
    send.put(1)
    request = ctx.Allreduce_init(send, out, policy=pp.Full())
    bad = Stream()
    bad.capture(True)
    if call != "Start":
        request.Start()
    with pytest.raises(pp.ArgumentError, match="is being captured"):
        getattr(request, call)(stream=bad)
    bad.capture(False)
    bad.close()
    with pytest.raises(pp.ArgumentError, match="was destroyed"):
        getattr(request, call)(stream=bad)
    with pytest.raises(pp.ArgumentError, match="stream"):
        getattr(request, call)(stream=0)
    if call == "Start":
        request.Start()
    request.Wait()
    assert (out.get() == comm.size).all()
    request.Free()


@pytest.fixture
def old_driver(stand_in):
    """The driver of CUDA 12.4 does not tell of which context a stream in capture is."""
    stand_in.fake_version(12040)
    yield
    stand_in.fake_version(12080)


@pytest.mark.parametrize("call", ["Start", "Wait", "Test", "Flush"])
def test_a_capture_with_an_old_driver(comm, ctx, array, stream, old_driver, call):
    """The text is as with others, and the capture is not disturbed."""
    send, out, other = array(4), array(4), Stream()
    send.put(1)
    request = ctx.Allreduce_init(send, out, policy=pp.Full())
    stream.wait()
    if call != "Start":
        request.Start()
    other.capture(True)
    with pytest.raises(pp.ArgumentError, match="is being captured into a graph"):
        getattr(request, call)(stream=other)
    other.capture(False)
    if call == "Start":
        request.Start(stream=other)
    request.Wait(stream=other)
    other.wait()
    assert (out.get() == comm.size).all()
    request.Free()
    other.close()


@pytest.mark.parametrize("call", ["Start", "Wait", "Test", "Flush"])
def test_the_default_stream_while_a_blocking_one_is_captured(comm, ctx, array, stream, call):
    """It would wait for that. The call has done nothing, and the capture goes on."""
    send, out, blocking = array(comm.size, "i8"), array(comm.size, "i8"), Stream(BLOCKING)
    send.put(1)
    request = ctx.Allreduce_init(send, out, policy=pp.Full())
    stream.wait()
    if call != "Start":
        request.Start()
    blocking.capture(True)
    with pytest.raises(pp.ArgumentError, match="waits for the legacy default stream"):
        getattr(request, call)(stream=1)
    if call == "Start":
        request.Start()  # on one that does not wait for it
    blocking.capture(False)
    request.Wait(stream=1)
    order(1, stream.ptr)
    assert (out.get() == comm.size).all()
    request.Free()
    blocking.close()


@pytest.fixture
def flushed(comm, ctx, array, stream):
    """A request with a contribution that has come off, and a stream that sees its flush's sum."""
    send, out, other = array(comm.size, "i8"), array(comm.size, "i8"), Stream()
    send.put(1)
    request = ctx.Allreduce_init(send, out, policy=pp.Full())
    request.Start()
    stream.wait()
    yield request, other
    other.wait()
    assert (out.get() == comm.size).all()
    request.Free()
    other.close()


@pytest.mark.sizes(2, 3)
def test_a_flush_that_timed_out_is_repeated_on_a_captured_stream(comm, flushed):
    """That is refused, and the call is still in progress."""
    request, other = flushed
    if comm.rank == 0:
        with pytest.raises(pp.TimeoutError, match="not complete after"):
            request.Flush(timeout=0.02)
        other.capture(True)
        with pytest.raises(pp.ArgumentError, match="is being captured into a graph"):
            request.Flush(stream=other)
        other.capture(False)
    comm.Barrier()
    request.Flush(stream=other)


def test_a_stream_of_another_device(ctx, array, stream):
    """The call has done nothing."""
    send, out = array(4), array(4)
    send.put(1)
    with device(1):
        other = Stream()
    request = ctx.Allreduce_init(send, out, policy=pp.Full())
    with pytest.raises(pp.ArgumentError, match="no stream of the device"):
        request.Start(stream=other)
    request.Start()
    with pytest.raises(pp.ArgumentError, match="no stream of the device"):
        request.Wait(stream=other)
    request.Wait()
    assert (out.get() == ctx.size).all()
    request.Free()
    other.close()


def test_a_stream_of_another_context(ctx, array, stream):
    """It is on the same device, and was not destroyed. The call has done nothing."""
    send, out = array(4), array(4)
    send.put(1)
    request = ctx.Allreduce_init(send, out, policy=pp.Full())
    with other_context():
        other = Stream()
        with pytest.raises(pp.ArgumentError, match="another context of that device than the prim"):
            request.Start(stream=other)
        request.Start()
        with pytest.raises(pp.ArgumentError, match="such as a green context"):
            request.Wait(stream=other)
        other.close()
    request.Wait()
    assert (out.get() == ctx.size).all()
    request.Free()


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("call", ["Start", "Wait", "Test", "Flush"])
def test_a_default_stream_of_another_context(comm, ctx, array, stream, call, number):
    """The library would take that of the primary one. The call has done nothing."""
    send, out = array(comm.size, "i8"), array(comm.size, "i8")
    send.put(1)
    request = ctx.Allreduce_init(send, out, policy=pp.Full())
    stream.wait()
    if call != "Start":
        request.Start()
    with other_context(), pytest.raises(pp.ArgumentError, match="device 0 is not its primary one"):
        getattr(request, call)(stream=number)
    if call == "Start":
        request.Start(stream=number)
    request.Wait(stream=number)
    order(number, stream.ptr)
    assert (out.get() == comm.size).all()
    request.Free()


@pytest.mark.parametrize("current", [no_context, partial(device, 0), partial(device, 1)])
def test_default_streams_are_those_of_the_buffers_device(comm, ctx, array, stream, current):
    """That is so if no context is current, or one of another device."""
    send, out = array(comm.size, "i8"), array(comm.size, "i8")
    send.put(1)
    request = ctx.Allreduce_init(send, out, policy=pp.Full())
    stream.wait()
    with current():
        request.Start(stream=1)
        request.Wait(stream=1)
    order(1, stream.ptr)
    assert (out.get() == comm.size).all()
    request.Free()


def test_the_current_context_is_asked_for_with_default_streams(ctx, array, stand_in, stream):
    """Once a call."""
    request = ctx.Allreduce_init(array(4), array(4), policy=pp.Full())
    more = stand_in.fake_calls(b"cuCtxGetDevice")
    for used, calls in ((stream, 0), (1, 1), (2, 1)):
        for call in (request.Start, request.Wait):
            before = stand_in.fake_calls(b"cuCtxGetCurrent")
            call(stream=used)
            assert stand_in.fake_calls(b"cuCtxGetCurrent") - before == calls
    assert stand_in.fake_calls(b"cuCtxGetDevice") == more
    order(1, stream.ptr)
    order(2, stream.ptr)
    request.Free()


def test_a_driver_that_does_not_tell_its_context(comm, ctx, array, stand_in):
    """The call has done nothing."""
    send, out = array(4), array(4)
    send.put(1)
    request = ctx.Allreduce_init(send, out, policy=pp.Full())
    stand_in.fake_fail(b"cuCtxGetCurrent", 1, 999)
    with pytest.raises(pp.Error, match="cuCtxGetCurrent failed"):
        request.Start(stream=1)
    request.Start()
    request.Wait()
    assert (out.get() == comm.size).all()
    request.Free()


def test_two_devices(comm, ctx, array, stream):
    """In one handle they are refused; ranks may use different ones."""
    with device(1):
        stream_of_1 = Stream()
        ours = [Array(4, "f4", stream_of_1) for _ in range(2)]
    with pytest.raises(pp.ArgumentError, match=r"is on device 1 and .* on device 0"):
        ctx.Allreduce_init(ours[0], array(4))
    buffers = ours if comm.rank % 2 else [array(4), array(4)]
    request = ctx.Allreduce_init(*buffers, policy=pp.Full())
    assert request.device == comm.rank % 2
    with device(request.device):
        buffers[0].put(1)
        request.Start()
        request.Wait()
        assert (buffers[1].get() == comm.size).all()
    request.Free()
    with device(1):
        for one in ours:
            one.close()
        stream_of_1.close()


def too_old(_number):
    raise RuntimeError("cudaErrorInsufficientDriver: driver version is insufficient")


@pytest.mark.parametrize(
    ("cupy", "text"),
    [
        (None, r"is not installed: `pip install 'pypartial-mpi\[cuda12\]'`$"),
        (
            SimpleNamespace(cuda=SimpleNamespace(Device=too_old)),
            r"cannot be used: `pip install --force-reinstall cupy-cuda12x`, without another build "
            "of CuPy beside it. It says: cudaErrorInsufficientDriver: driver version is insuff",
        ),
    ],
    ids=["none", "too-new"],
)
def test_a_view_needs_a_cupy_that_works(ctx, array, monkeypatch, cupy, text):
    """The call has done nothing."""
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    send, out = array(4), array(4)
    send.put(1)
    request = ctx.Allreduce_init(send, out, policy=pp.Full())
    request.Start()
    with pytest.raises(pp.Error, match=f"View gives an array of CuPy, which {text}"):
        request.View()
    request.Wait()
    assert (out.get() == ctx.size).all()
    request.Free()
