"""What a Start contributes, and who sees a result, by the streams of the device."""

from __future__ import annotations

import time
from contextlib import nullcontext

import numpy as np
import pytest
from support import gpu

import pypartial as pp

pytestmark = pytest.mark.mpi

COUNT = 4096
SPIN_NS = 100_000_000
# Of Start's time to the kernel's. It is a few microseconds; more ranks than cores take turns.
AT_ONCE = 0.2
# Each waits for a kernel of 100 ms: a hundred on 2 ranks with arrays of CuPy.
TURNS = {("cupy", 2): 100}
FEWER_TURNS = 10
GROUP = 10  # turns after which results are looked at
FULL = 2000  # blocks: as many as a device has at once, at least
QUEUED = 7  # results that queue up meanwhile; a ninth would have Wait wait
LEGACY, PER_THREAD = 1, 2


@pytest.fixture
def arrays(kit):
    return kit.new(COUNT, "float32"), kit.new(COUNT, "float32")


def check(kit, comm, out, step, stream=None):
    """Rank r has contributed step + r."""
    found = kit.get(out, COUNT, "float32", stream)
    assert (found == comm.size * step + sum(range(comm.size))).all(), (step, found[:4])


def test_a_kernel_on_a_side_stream_is_waited_for(comm, ctx, kit, path, arrays):
    """It takes 100 ms and writes the buffer; Start returns at once, and the sum has its values.

    What was queued on the stream of Wait overwrites the buffer before the result comes. In each
    group of turns that stream is busy for so long that results queue up.
    """
    send, out = arrays
    side, consumer = kit.stream(), kit.stream()
    seen = [kit.new(COUNT, "float32") for _ in range(GROUP)]
    request = gpu.made(ctx, path, send, out, policy=pp.Full())
    kit.spin(send, COUNT, -1, 0, side)  # the driver loads it
    kit.wait(side)
    took = []

    def take_turn(step):
        queued = time.monotonic_ns()
        kit.spin(send, COUNT, step + comm.rank, SPIN_NS, side)
        began = time.monotonic_ns()
        request.Start(stream=side)
        took.append(time.monotonic_ns() - began)
        kit.put(send, np.full(COUNT, -999, "f4"), side)  # waits for the copy
        kit.spin(out, COUNT, -7, 1_000_000, consumer)
        request.Wait(stream=consumer)
        assert time.monotonic_ns() - queued > 0.9 * SPIN_NS, "the kernel was not waited for"
        kit.copy(seen[step % GROUP], out, 4 * COUNT, consumer)

    turns = FEWER_TURNS if gpu.is_stand_in() else TURNS.get((kit.name, comm.size), FEWER_TURNS)
    for first in range(0, turns, GROUP):
        with kit.busy(consumer, QUEUED * SPIN_NS):
            for step in range(first, first + QUEUED):
                take_turn(step)
        for step in range(first + QUEUED, first + GROUP):
            take_turn(step)
        kit.settle([side, consumer])
        for step, copied in enumerate(seen, first):
            check(kit, comm, copied, step)
    assert np.median(took) < AT_ONCE * SPIN_NS, took
    request.Free()


@pytest.mark.sizes(2, 4, 8)  # a rank alone is never late
def test_a_late_result_in_place_is_behind_the_contribution(comm, ctx, kit, path):
    """That is behind a kernel of 100 ms. The result comes before, on another stream."""
    last, side, late = comm.rank == comm.size - 1, kit.stream(), False
    buffer, status = kit.new(COUNT, "float32"), pp.Status()
    request = gpu.made(ctx, path, None, buffer, policy=pp.Solo())
    for _ in range(3):
        comm.Barrier()
        kit.put(buffer, np.full(COUNT, 2**comm.rank, "f4"))
        with kit.busy(kit.home, SPIN_NS) if last else nullcontext():
            request.Start()
            request.Wait(status, stream=side)
        late |= not status.included
        total = kit.get(buffer, COUNT, "float32", side)
        request.Flush(stream=side)
        total += kit.get(buffer, COUNT, "float32", side)
        assert (total == 2**comm.size - 1).all(), total[:4]
    assert late or not last
    request.Free()


@pytest.mark.sizes(2, 4, 8)  # a rank alone misses nothing
def test_missed_rounds_are_merged_behind_other_work(comm, ctx, kit, path):
    """With "ipc" a device does so that is full: what is queued reads results that must stay."""
    last, draw = comm.rank == comm.size - 1, np.random.default_rng(comm.rank)
    send, out, scratch = kit.new(COUNT, "int64"), kit.new(COUNT, "int64"), kit.new(1, "float32")
    busy, consumer, given, results = kit.stream(), kit.stream(), 0, []
    request = gpu.made(ctx, path, send, out, policy=pp.Solo(), deliver="sum")

    def take_part():
        value = int(draw.integers(1 << 40))
        kit.put(send, np.full(COUNT, value))
        request.Start()
        request.Wait(stream=consumer)
        results.append(kit.new(COUNT, "int64"))
        kit.copy(results[-1], out, 8 * COUNT, consumer)
        return value

    for _ in range(3):
        if last:
            kit.spin(scratch, 1, 0, SPIN_NS, busy, blocks=FULL)
        comm.Barrier()
        for _ in range(3 if comm.rank == 0 else 0):
            given += take_part()
        comm.Barrier()
        if comm.rank > 0:
            given += take_part()
        kit.settle([consumer])
    request.Flush()
    total = sum(kit.get(one, COUNT, "int64") for one in [*results, out])
    assert (total == comm.allreduce(given)).all(), total[:4]
    kit.wait(busy)
    request.Free()


def test_a_consumer_is_behind_the_result(comm, ctx, kit, path, arrays):
    """A copy on the stream of Wait sees the result; nobody waits for the stream in between."""
    send, out = arrays
    seen = [kit.new(COUNT, "float32") for _ in range(20)]
    stream, scratch = kit.stream(), kit.new(1, "float32")
    request = gpu.made(ctx, path, send, out, policy=pp.Full())
    for step, copied in enumerate(seen):
        kit.put(send, np.full(COUNT, step + comm.rank, "f4"))
        request.Start()
        kit.spin(scratch, 1, 0, 1_000_000, stream)  # so that the copy is late
        request.Wait(stream=stream)
        kit.copy(copied, out, 4 * COUNT, stream)
    kit.wait(stream)
    for step, copied in enumerate(seen):
        check(kit, comm, copied, step)
    request.Free()


def test_a_view_is_behind_the_result(comm, ctx, kit, path):
    """Also of several receive buffers, which are put together on the stream of View."""
    sends = [kit.new(3, "float32"), kit.new(5, "float32")]
    outs = [kit.new(3, "float32"), kit.new(5, "float32")]
    stream, scratch, seen = kit.stream(), kit.new(1, "float32"), kit.new(8, "float32")
    request = gpu.made(ctx, path, sends, outs, policy=pp.Full())
    for step in range(10):
        for send, count in zip(sends, (3, 5), strict=True):
            kit.put(send, np.full(count, step + comm.rank, "f4"))
        request.Start()
        kit.spin(scratch, 1, 0, 5_000_000, stream)
        view = request.View(stream=stream)
        assert view.shape == (8,)
        place = kit.address(seen), int(view.data.ptr)
        gpu.ok(gpu.driver().cuMemcpyAsync(*place, 32, kit.number(stream)))
        found = kit.get(seen, 8, "float32", stream)
        assert (found == comm.size * step + sum(range(comm.size))).all(), (step, found)
    request.Free()


@pytest.mark.parametrize("number", [LEGACY, PER_THREAD])
def test_default_streams(comm, ctx, kit, path, arrays, number):
    send, out = arrays
    request = gpu.made(ctx, path, send, out, policy=pp.Full())
    for step in range(10):
        kit.spin(send, COUNT, step + comm.rank, 1_000_000, number)
        request.Start(stream=number)
        request.Wait(stream=number)
        check(kit, comm, out, step, number)
    request.Free()


@pytest.mark.parametrize("number", [LEGACY, PER_THREAD])
def test_default_streams_of_another_context(comm, ctx, kit, path, arrays, number):
    """They are others than those of the primary one. The call has done nothing."""
    send, out = arrays
    request = gpu.made(ctx, path, send, out, policy=pp.Full())
    kit.put(send, np.full(COUNT, comm.rank, "f4"))
    kit.wait()
    refused = pytest.raises(pp.ArgumentError, match="is not its primary one")
    with gpu.other_context(), refused:
        request.Start(stream=number)
    request.Start(stream=number)
    with gpu.other_context(), refused:
        request.Wait(stream=number)
    request.Wait(stream=number)
    check(kit, comm, out, 0, number)
    request.Free()


def test_the_legacy_default_stream_while_a_blocking_one_is_captured(comm, ctx, kit, path, arrays):
    """It would wait for that. The call has done nothing."""
    send, out = arrays
    request = gpu.made(ctx, path, send, out, policy=pp.Full())
    kit.put(send, np.full(COUNT, comm.rank, "f4"))
    kit.wait()
    refused = pytest.raises(pp.ArgumentError, match="waits for the legacy default stream")
    with gpu.blocking_stream() as blocking:
        with gpu.captured(blocking), refused:
            request.Start(stream=LEGACY)
        request.Start(stream=LEGACY)
    request.Wait(stream=LEGACY)
    check(kit, comm, out, 0, LEGACY)
    request.Free()


def test_the_current_stream_is_that_of_the_library(comm, ctx, kit, path, arrays):
    """Without stream=, Start and Wait use the stream that is current when they are called."""
    send, out = arrays
    request = gpu.made(ctx, path, send, out, policy=pp.Full())
    for step in range(10):
        stream = kit.stream()
        with kit.use(stream):
            kit.spin(send, COUNT, step + comm.rank, 5_000_000, stream)
            request.Start()
            request.Wait()
            check(kit, comm, out, step, stream)
    request.Free()


@pytest.mark.parametrize("call", ["Start", "Wait", "Test", "Flush"])
def test_streams_that_cannot_be_used(comm, ctx, kit, path, arrays, call):
    """The call has done nothing."""
    send, out = arrays
    kit.put(send, np.full(COUNT, comm.rank, "f4"))
    request = gpu.made(ctx, path, send, out, policy=pp.Full())
    if call != "Start":
        request.Start()
    stream = kit.stream()
    refused = pytest.raises(pp.ArgumentError, match="is being captured")
    with gpu.captured(kit.number(stream)), refused:
        getattr(request, call)(stream=stream)
    with pytest.raises(pp.ArgumentError, match="stream"):
        getattr(request, call)(stream=0)
    if call == "Start":
        request.Start()
    request.Wait()
    check(kit, comm, out, 0)
    request.Free()
