"""Vectors in the memory of devices that the ranks share: as with the host's, to the bit."""

from __future__ import annotations

import gc
import importlib
import sys
import time
import weakref
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from support.device import Array, Stream, device, device_of
from support.on_device import (
    RESULTS,
    adds_in_place,
    contributes_once,
    first_refuses_what_last_has_opened,
    has_bits_of_the_host,
    keeps_results_for_a_slow_consumer,
    one_rank_cannot,
    rounds_instead,
    several_handles_and_contexts,
    sums,
    waits_for_no_stream_that_is_held,
)
from support.pairwise import pairwise

import pypartial as pp

pytestmark = [pytest.mark.mpi, pytest.mark.usefixtures("needs_ipc")]

STEPS = 20
COUNT = 1003
KERNELS = "PYPARTIAL_CUDA_KERNELS"


def opened(ctx, *buffers, **options):
    """Make a handle, which must be on this path."""
    request = ctx.Allreduce_init(*buffers, device_path="ipc", **options)
    assert (request.device_path, request.device_path_reason) == ("ipc", "")
    return request


@pairwise(
    policy=[pp.Solo(), pp.Majority(), pp.Full()],
    deliver=["latest", "sum", "each"],
    extra={"small": 0, "large": 40_000},
)
def test_the_loop(comm, ctx, array, policy, deliver, extra):
    send, out = (array(comm.size + extra, "i8") for _ in range(2))
    options = {"policy": policy, "deliver": deliver}
    contributes_once(comm, partial(opened, ctx), send, out, STEPS, **options)


def test_free_waits_for_what_a_start_that_failed_has_queued(ctx, array, stream, stand_in):
    """The event behind the copy is not recorded, but the copy is on the handle's own stream."""
    send, out = array(4, "i8"), array(4, "i8")
    request = opened(ctx, send, out, policy=pp.Full())
    stream.hold(True)
    stand_in.fake_fail(b"cuEventRecord", 2, 999)
    with pytest.raises(pp.Error, match="cuEventRecord failed"):
        request.Start()
    stand_in.fake_fail(b"cuEventRecord", 0, 0)
    with pytest.raises(
        pp.TimeoutError,
        match="have not come to or from their device",
    ):
        request.Free(timeout=0.05)
    stream.hold(False)
    request.Free()


@pytest.mark.parametrize("count", [1, COUNT, 30_000])
@pytest.mark.parametrize(("dtype", "op", "average"), RESULTS)
def test_results_have_the_bits_of_the_hosts(comm, ctx, array, dtype, op, average, count):
    on_device, on_host = partial(opened, ctx), ctx.Allreduce_init
    has_bits_of_the_host(comm, on_device, on_host, array, dtype, op, average, count)


@pytest.mark.parametrize("dtype", ["f2", "f4"])
def test_several_arrays_in_place(comm, ctx, array, dtype):
    adds_in_place(comm, partial(opened, ctx), array, dtype)


def test_what_is_counted_and_kept(comm, ctx, array, stand_in):
    """A loop takes no more memory, and nothing passes the host."""
    send, out = array(COUNT, "i8"), array(COUNT, "i8")
    memory = stand_in.fake_live(b"memory")
    request = opened(ctx, send, out, policy=pp.Full())
    taken, host = stand_in.fake_live(b"memory"), stand_in.fake_live(b"host memory")
    assert taken > memory
    assert stand_in.fake_live(b"mappings") == comm.size - 1
    assert sums(comm, request, send, out, 20)
    assert stand_in.fake_live(b"memory") == taken
    assert stand_in.fake_live(b"host memory") == host
    stats = ctx.stats()
    assert (stats.staged_bytes, stats.ipc_bytes) == (0, 2 * 20 * COUNT * 8)
    assert comm.allreduce(stats.device_rounds) == 20
    request.Free()


def test_several_handles_and_contexts(comm, array):
    with pp.Context(comm, seed=1) as one, pp.Context(comm, seed=2) as two:
        several_handles_and_contexts(comm, one, two, opened, array, COUNT)


def test_ranks_on_different_devices(comm, ctx, array):
    """They are mapped where the devices can access each other's memory."""
    with device(comm.rank % 2):
        stream = Stream()
        send, out = (Array(COUNT, "i8", stream) for _ in range(2))
        request = opened(ctx, send, out, policy=pp.Full())
        assert sums(comm, request, send, out)
        request.Free()
        for one in (send, out):
            one.close()
        stream.close()


# ---- slow streams -------------------------------------------------------------------------------


def test_a_slow_consumer_keeps_its_results(comm, ctx, array):
    """The first is read in the ring when its stream gets there, rounds later."""
    keeps_results_for_a_slow_consumer(comm, partial(opened, ctx), array, COUNT)


def test_nothing_waits_for_a_stream_that_is_held(comm, array, stream):
    with pp.Context(comm, seed=7, window=16) as ctx:
        waits_for_no_stream_that_is_held(comm, partial(opened, ctx), array, stream)
        assert ctx.stats().device_wait_ns > 0 or comm.rank < comm.size - 1


@pytest.mark.parametrize(("call", "nth"), [("cuMemcpyAsync", 1), ("cuEventRecord", 2)])
def test_starts_that_fail(comm, ctx, array, stand_in, call, nth):
    """Their parts are used again: there are fewer than Starts that fail here.

    The second event is that behind the copy, which is under way then.
    """
    send, out = array(COUNT, "i8"), array(COUNT, "i8")
    request = opened(ctx, send, out, policy=pp.Full())
    for _ in range(12 if comm.rank == 0 else 0):
        stand_in.fake_fail(call.encode(), nth, 999)
        with pytest.raises(pp.Error, match=f"{call} failed"):
            request.Start()
        stand_in.fake_fail(call.encode(), 0, 0)
    assert sums(comm, request, send, out)
    request.Free()


@pytest.mark.sizes(3)
@pytest.mark.parametrize("dtype", ["f2", "i8"])
def test_more_starts_than_parts(comm, array, stream, dtype):
    """Those that find no free part are combined with what is pending, on the device."""
    send, out, status = array(COUNT, dtype), array(COUNT, dtype), pp.Status()
    send.put(1)
    stream.wait()
    with pp.Context(comm, seed=7, patience=None) as ctx:
        request = opened(ctx, send, out, policy=pp.Quorum(2), deliver="sum")
        for _ in range(10 if comm.rank == 0 else 0):
            request.Start()
            with pytest.raises(pp.TimeoutError):
                request.Wait(timeout=0)
        request._land("Start", None, results=False)
        comm.Barrier()
        if comm.rank > 0:
            request.Start()
        request.Wait(status)
        assert status.contributions in (11, 12)  # two ranks are enough
        request.Flush()
        request.Free()


def test_a_device_that_does_not_come_to_a_round(comm, array, stand_in):
    """Nothing else waits for it: another handle's rounds complete, and calls time out."""
    send, out, ones = array(COUNT, "i8"), array(COUNT, "i8"), np.ones(1)
    with pp.Context(comm, seed=7) as ctx:
        host = ctx.Allreduce_init(ones, np.zeros(1), policy=pp.Full())
        stand_in.fake_hold_new(True)
        request = opened(ctx, send, out, policy=pp.Full())
        stand_in.fake_hold_new(False)
        send.put(1)
        request.Start()
        with pytest.raises(pp.TimeoutError):
            request.Wait(timeout=0.05)
        host.Start()
        host.Wait()
        comm.Barrier()
        stand_in.fake_let_all_go()
        request.Wait()
        assert (out.get() == comm.size).all()
        request.Free()
        host.Free()


@pytest.mark.sizes(2, 3)
def test_a_rank_that_has_claimed_a_round_computes(comm, array, stream):
    """Without a progress thread it is the last that could publish it, and blocks elsewhere."""
    send, out, last = array(COUNT, "i8"), array(COUNT, "i8"), comm.size - 1
    with pp.Context(comm, progress="caller", patience=None) as ctx:
        request = opened(ctx, send, out, policy=pp.Full())
        for step in range(20):
            send.put(step)
            if comm.rank == last:
                comm.Barrier()
            request.Start()
            request._land("Start", None, results=False)  # links
            if comm.rank == last:
                done = request.Test()  # has claimed the round
                comm.Barrier()
                assert done or request.Wait()
            else:
                comm.Barrier()
                request.Wait(timeout=20)
                comm.Barrier()
            assert (out.get() == step * comm.size).all()
            send.settle()
        request.Free()


# ---- views --------------------------------------------------------------------------------------


@pytest.fixture
def cupy(monkeypatch):
    """As much of CuPy as views need."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "support" / "standin"))
    yield importlib.import_module("cupy")
    sys.modules.pop("cupy")


@pytest.mark.parametrize("path", ["ipc", "staged"])
@pytest.mark.parametrize("dtype", ["f2", "i8"])
def test_views(comm, ctx, array, cupy, path, dtype):
    """They show the memory of the ring, or the receive buffer, as long as work reads them."""
    send, out, slow = array(COUNT, dtype), array(COUNT, dtype), Stream()
    request = ctx.Allreduce_init(send, out, policy=pp.Full(), device_path=path)
    seen = [array(COUNT, dtype) for _ in range(5)]
    in_ring, status = 0, pp.Status()
    for late in (False, True):
        slow.hold(late)
        for step, kept in enumerate(seen):
            send.put(step)
            request.Start()
            view = request.View(status, stream=slow)
            assert (view.shape, view.dtype, status.round) == ((COUNT,), dtype, step + 5 * late)
            in_ring += view.data.ptr != out.address
            kept.copy_from(view.data.ptr, slow)
            if step == 0 and not late:  # the next view may be there, too, whatever the machine does
                slow.wait()
        slow.hold(False)
        slow.wait()
        assert [int(kept.get()[-1]) for kept in seen] == [comm.size * n for n in range(5)]
        send.settle()
    assert in_ring >= 2 if (path, dtype) == ("ipc", "i8") else in_ring == 0
    slow.hold(True)
    send.put(7)
    request.Start()
    view = request.View(stream=slow)
    seen[0].copy_from(view.data.ptr, slow)
    with pytest.raises(
        pp.TimeoutError,
        match="have not come to or from their device",
    ):
        request.Free(timeout=0.05)
    slow.hold(False)
    request.Free()
    slow.wait()
    assert int(seen[0].get()[-1]) == 7 * comm.size
    slow.close()


@pytest.mark.parametrize("path", ["ipc", "staged"])
@pytest.mark.parametrize("dtype", ["f2", "i8"])
@pytest.mark.parametrize("call", ["Wait", "View", "Flush"])
def test_the_next_result_comes_after_what_reads_a_view(comm, ctx, array, cupy, path, dtype, call):
    """Also on another stream, and where the view shows the receive buffer."""
    send, out, slow, other = array(COUNT, dtype), array(COUNT, dtype), Stream(), Stream()
    request = ctx.Allreduce_init(send, out, policy=pp.Full(), device_path=path)
    first, second = array(COUNT, dtype), array(COUNT, dtype)
    send.put(1)
    request.Start()
    slow.hold(True)
    view = request.View(stream=slow)
    first.copy_from(view.data.ptr, slow)
    send.put(2)
    if call != "Flush":  # which gives zeros, as nothing is pending
        request.Start()
    made = getattr(request, call)(stream=other)
    second.copy_from(made.data.ptr if call == "View" else out.address, other)
    slow.hold(False)
    slow.wait()
    other.wait()
    seen = [int(one.get()[-1]) for one in (first, second)]
    assert seen == [comm.size, 0 if call == "Flush" else 2 * comm.size]
    request.Free()
    slow.close()
    other.close()


def test_more_ends_a_view_also_if_there_is_no_more(comm, ctx, array, cupy):
    """Whatever happens to the view's stream then."""
    send, out, stream = array(COUNT, "i8"), array(COUNT, "i8"), Stream()
    request = opened(ctx, send, out, policy=pp.Full(), deliver="each")
    send.put(1)
    request.Start()
    assert request.View(stream=stream).data.ptr != out.address
    assert not request.More()
    stream.capture(True)
    request.Start()
    stream.capture(False)
    request.Wait()
    assert (out.get() == comm.size).all()
    request.Free()
    stream.close()


def test_a_view_is_on_the_device_of_the_buffers(comm, ctx, stand_in, cupy):
    """Also of a result that is in the memory of another rank's device."""
    number, places = comm.rank % 2, set()
    with device(number):
        stream = Stream()
        send, out = (Array(COUNT, "i8", stream) for _ in range(2))
        request = opened(ctx, send, out, policy=pp.Full())
        for step in range(8):
            send.put(step)
            request.Start()
            view = request.View()
            assert view.data.ptr != out.address and view.device.id == number
            places.add(device_of(view.data.ptr))
        request.Free()
        for one in (send, out):
            one.close()
        stream.close()
    assert len(places) == min(comm.size, 2)


@pytest.mark.parametrize("path", ["ipc", "staged"])
def test_a_view_of_several_buffers_is_behind_its_stream(comm, ctx, array, cupy, path):
    """They are put together where the result comes, and not on the stream that is current."""
    sends, outs = [array(3, "i8"), array(5, "i8")], [array(3, "i8"), array(5, "i8")]
    request = ctx.Allreduce_init(sends, outs, policy=pp.Full(), device_path=path)
    slow, kept = Stream(), array(8, "i8")
    for step, send in enumerate(sends):
        send.put(step + 1)
    request.Start()
    slow.hold(True)
    view = request.View(stream=slow)
    assert view.shape == (8,)
    kept.copy_from(view.data.ptr, slow)
    cupy.cuda.get_current_stream().synchronize()  # what is there does not come after the result
    slow.hold(False)
    slow.wait()
    assert kept.get().tolist() == [comm.size] * 3 + [2 * comm.size] * 5
    request.Free()
    slow.close()


def test_a_view_of_bfloat16_has_that_type(comm, ctx, array, cupy):
    """The name of the type in the array interface, V2, is that of any two bytes."""
    dtype = np.dtype(ml_dtypes.bfloat16)
    send, out = array(COUNT, dtype), array(COUNT, dtype)
    request = ctx.Allreduce_init(send, out, policy=pp.Full(), device_path="ipc")
    send.put(np.ones(COUNT, dtype))
    request.Start()
    view = request.View()
    assert (view.dtype, view.shape) == (dtype, (COUNT,))
    request.Free()


def test_the_stream_of_a_view_lives_until_the_next_call(comm, ctx, array, cupy):
    """The next call records an event on it, whatever the application has kept."""
    send, out = array(COUNT, "i8"), array(COUNT, "i8")
    request = ctx.Allreduce_init(send, out, policy=pp.Full(), device_path="ipc")
    for step in range(3):
        send.put(step)
        request.Start()
        stream = cupy.cuda.Stream()
        gone = weakref.ref(stream)
        view = request.View(stream=stream)
        # The device may not have come to the end of the view before, which is on a stream that
        # nothing else waits for: then the result is copied.
        assert step > 0 or view.data.ptr != out.address
        del stream
        with pytest.raises(pp.Error):  # nothing was started: this is no next view
            request.View(stream=cupy.cuda.Stream())
        gc.collect()
        assert gone() is not None
    send.put(3)
    request.Start()
    stream = cupy.cuda.Stream()
    gone = weakref.ref(stream)
    request.View(stream=stream)
    del stream
    request.Free()
    assert gone() is None


@pytest.mark.parametrize("call", ["Start", "More", "Flush", "Drain", "Free"])
def test_the_stream_of_a_view_is_captured_at_the_next_call(comm, ctx, array, cupy, call):
    """No event can be recorded there. The call has done nothing, and the view goes on."""
    send, out, captured, other = array(COUNT, "i8"), array(COUNT, "i8"), Stream(), Stream()
    deliver = "each" if call in ("More", "Drain") else "latest"
    request = opened(ctx, send, out, policy=pp.Full(), deliver=deliver)
    send.put(1)
    out.put(0)
    request.Start()
    assert request.View(stream=captured).data.ptr != out.address
    captured.capture(True)
    with pytest.raises(pp.ArgumentError, match=r"the last View's stream=0x.* is being captured"):
        made = getattr(request, call)(**({} if call == "Free" else {"stream": other}))
        next(made)  # of Drain
    captured.capture(False)
    assert (out.get() == 0).all()
    for _ in range(3):
        request.Start()
        request.Wait()
        assert (out.get() == comm.size).all()
    request.Free()
    captured.close()
    other.close()


@pytest.mark.parametrize("path", ["ipc", "staged"])
def test_more_gives_no_more_than_eight_results_on_their_way(comm, array, stand_in, path):
    if comm.size == 1:
        pytest.skip("a rank alone is given each round at once")
    send, out, slow, status = array(COUNT, "i8"), array(COUNT, "i8"), Stream(), pp.Status()
    with pp.Context(comm, window=16) as ctx:
        request = ctx.Allreduce_init(
            send, out, policy=pp.Solo(), deliver="each", max_lag=12, device_path=path
        )
        assert request.device_path == path
        send.put(1)
        for _ in range(12 if comm.rank == 0 else 0):
            request.Start()
            request.Wait()
            send.settle()
        comm.Barrier()
        if comm.rank == 1:
            slow.hold(True)
            request.Start()
            request.Wait(status, stream=slow)
            given = 1
            while request.More(status, stream=slow):
                given += 1
            assert (given, status.round) == (8, 7)
            slow.hold(False)
            slow.wait()
            while request.More(status, stream=slow):
                slow.wait()
            assert status.round == 11
        comm.Barrier()
        for _ in request.Drain():
            pass
        request.Free()
    slow.close()


def test_there_is_no_view_in_place_on_the_default_stream_of_a_thread(comm, ctx, array, cupy):
    """The next call may be another thread's, which has another such stream."""
    send, out = array(COUNT, "i8"), array(COUNT, "i8")
    request = ctx.Allreduce_init(send, out, policy=pp.Full(), device_path="ipc")
    send.put(1)
    request.Start()
    assert request.View(stream=2).data.ptr == out.address
    request.Free()


# ---- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "call", ["cuModuleLoadData", "cuIpcGetMemHandle", "cuMemAlloc", "cuIpcOpenMemHandle"]
)
@pytest.mark.filterwarnings("error")
def test_one_rank_cannot(comm, ctx, array, stand_in, call):
    """As in a container without a namespace of processes in common, or when memory is short."""
    if comm.size == 1 and call == "cuIpcOpenMemHandle":
        pytest.skip("a rank alone maps no memory of others")
    made = array(1)  # allocates before the failure
    assert made.count == 1
    one_rank_cannot(comm, stand_in, call, partial(rounds_instead, comm, ctx, array, "ipc"))


@pytest.mark.filterwarnings("ignore:device_path:RuntimeWarning")
def test_memory_of_a_refusal_is_used_again(comm, ctx, array, stand_in):
    """Also what another rank has mapped."""
    if comm.size == 1:
        pytest.skip("a rank alone maps no memory of others")
    send, out = array(COUNT, "i8"), array(COUNT, "i8")
    with first_refuses_what_last_has_opened(comm, stand_in):
        request = ctx.Allreduce_init(send, out, policy=pp.Full(), device_path="ipc")
    assert request.device_path == "staged"
    memory = stand_in.fake_live(b"memory")
    again = opened(ctx, send, out, policy=pp.Full())
    assert stand_in.fake_live(b"memory") <= memory + 1  # and a bounce buffer
    assert sums(comm, again, send, out)
    request.Free()
    again.Free()


def test_without_kernels(comm, ctx, array, stand_in, monkeypatch):
    if comm.rank == comm.size - 1:
        monkeypatch.setenv(KERNELS, "/nowhere")
    rounds_instead(comm, ctx, array, "ipc", f"rank {comm.size - 1}: {KERNELS}='/nowhere'")


def test_without_cupy(comm, ctx, array, stand_in, monkeypatch):
    """The kernels cannot be compiled then."""
    monkeypatch.delenv(KERNELS)
    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.setitem(sys.modules, "cupy.cuda", None)
    rounds_instead(comm, ctx, array, "ipc", "rank 0: ")


def test_ranks_that_share_no_memory(comm, array, stand_in):
    if comm.size == 1:
        pytest.skip("a rank alone shares memory with all")
    with pp.Context(comm, seed=7, transport="mpi") as ctx:
        rounds_instead(comm, ctx, array, "ipc", "the rounds are made of messages")


def test_no_elements(comm, ctx, array):
    with pytest.warns(RuntimeWarning) if comm.rank == 0 else nullcontext():
        request = ctx.Allreduce_init(array(0), array(0), device_path="ipc")
    assert "there are no elements" in request.device_path_reason
    request.Start()
    request.Wait()
    request.Free()


def test_bad_input(comm, ctx, array):
    with pytest.raises(pp.ArgumentError, match="device_path must be"):
        ctx.Allreduce_init(array(4), array(4), device_path="nvlink")
    with pytest.raises(pp.ArgumentError, match="in the host's: leave it out"):
        ctx.Allreduce_init(np.ones(4), np.zeros(4), device_path="ipc")
    if comm.size > 1:
        path = "ipc" if comm.rank else "staged"
        with pytest.raises(pp.MismatchError, match="device_path=ipc"):
            ctx.Allreduce_init(array(4), array(4), device_path=path)


# ---- what "auto" chooses -------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "path"), [(COUNT - 1, "staged"), (COUNT, "ipc")])
@pytest.mark.filterwarnings("error")
def test_auto_from_a_size(comm, ctx, array, monkeypatch, count, path):
    """The variable of rank 0 counts, when the context is made."""
    monkeypatch.setenv("PYPARTIAL_IPC_FROM", "7" if comm.rank else str(8 * COUNT))
    send, out = array(count, "i8"), array(count, "i8")
    with pp.Context(comm, seed=7) as told:
        request = told.Allreduce_init(send, out, policy=pp.Full())
        assert (request.device_path, request.device_path_reason) == (path, "")
        assert sums(comm, request, send, out)
        request.Free()
    request = ctx.Allreduce_init(send, out, policy=pp.Full())
    assert request.device_path == "staged"
    request.Free()


@pytest.mark.filterwarnings("error")
def test_auto_where_it_is_not_possible(comm, array, monkeypatch):
    """Nobody has asked for it, so nobody is warned."""
    monkeypatch.setenv("PYPARTIAL_IPC_FROM", "0")
    if comm.rank == comm.size - 1:
        monkeypatch.setenv(KERNELS, "/nowhere")
    send, out = array(COUNT, "i8"), array(COUNT, "i8")
    with pp.Context(comm, seed=7) as ctx:
        request = ctx.Allreduce_init(send, out, policy=pp.Full())
        assert request.device_path == "staged"
        assert f"rank {comm.size - 1}: {KERNELS}='/nowhere'" in request.device_path_reason
        assert sums(comm, request, send, out)
        request.Free()


@pytest.mark.parametrize("value", ["1M", "-1", "1.5", "many"])
def test_a_size_that_is_no_number_of_bytes(comm, monkeypatch, value):
    """The ranks on which it is one hear of it."""
    last = comm.rank == comm.size - 1
    monkeypatch.setenv("PYPARTIAL_IPC_FROM", value if last else "0")
    error = pp.ArgumentError if last else pp.MismatchError
    with pytest.raises(error, match=f"PYPARTIAL_IPC_FROM={value!r} is not a number"):
        pp.Context(comm)


def test_host_and_device_mix_if_that_is_asked_for(comm, ctx, array):
    send, out = array(4, "f8"), array(4, "f8")
    if comm.rank % 2:
        send, out = np.ones(4), np.zeros(4)
    else:
        send.put(1)
    request = ctx.Allreduce_init(send, out, policy=pp.Full(), device_path="staged")
    request.Start()
    request.Wait()
    assert ((out if comm.rank % 2 else out.get()) == comm.size).all()
    request.Free()


def test_an_idle_handle_makes_no_call(comm, ctx, array, stand_in):
    send, out = array(COUNT, "i8"), array(COUNT, "i8")
    request = opened(ctx, send, out, policy=pp.Full())
    assert sums(comm, request, send, out)
    comm.Barrier()
    calls = stand_in.fake_calls(b"")
    other = ctx.Allreduce_init(np.ones(1), np.ones(1), policy=pp.Full())
    for _ in range(20):
        other.Start()
        other.Wait()
    sleeps = ctx.stats().sleeps
    time.sleep(0.3)
    assert ctx.stats().sleeps - sleeps < 50
    assert stand_in.fake_calls(b"") == calls
    other.Free()
    request.Free()
