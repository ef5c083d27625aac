"""Arrays of `Context.alloc` in the memory of a device: rounds read them without a copy."""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import sys
import threading
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from support.device import Lent, Stream, device
from support.on_device import (
    cannot_close,
    contributes_once,
    first_refuses_what_last_has_opened,
    soon,
)
from support.pairwise import pairwise

import pypartial as pp

pytestmark = pytest.mark.mpi

COUNT = 1003


@pytest.fixture(autouse=True)
def cupy(monkeypatch):
    """As much of CuPy as alloc needs."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "support" / "standin"))
    yield importlib.import_module("cupy")
    sys.modules.pop("cupy")


@pytest.fixture
def alloc(ctx, cupy, stream):
    """Return a function that makes such arrays on the stream of the tests."""
    lent = []

    def make(count, dtype="i8", of=ctx, **part):
        made = of.alloc(count, dtype, device=0)
        cupy.cuda.get_current_stream().synchronize()
        lent.append(Lent(made, stream, **part))
        return lent[-1]

    yield make
    for one in lent:
        one.close()


@pytest.fixture(params=["ipc", "staged"])
def path(request):
    """Where such an array is read in place, and where it is a buffer as any other."""
    if request.param == "ipc":
        request.getfixturevalue("needs_ipc")
    return request.param


def opened(ctx, *buffers, **options):
    request = ctx.Allreduce_init(*buffers, device_path="ipc", **options)
    assert (request.device_path, request.device_path_reason) == ("ipc", "")
    return request


def sums(comm, request, send, out, steps=5):
    """Whether rounds give the sums that they should."""
    for step in range(steps):
        send.put(np.arange(send.count) % 50 + step)
        request.Start()
        request.Wait()
        expected = comm.size * (np.arange(send.count) % 50 + step)
        if not (out.get() == expected).all():
            return False
        send.settle()
    return True


# ---- the array ----------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [5, (2, 3), (), (0, 4)])
@pytest.mark.parametrize("dtype", ["f4", "c16", "?", "u2"])
def test_shape_and_elements(comm, cupy, stand_in, stream, shape, dtype):
    """Zeros, in the device's memory, as long as Python refers to them."""
    before = stand_in.fake_live(b"memory")
    with pp.Context(comm) as ctx:
        made = ctx.alloc(shape, dtype, device=comm.rank % 2)
        assert stand_in.fake_live(b"memory") == before + 1
    with cupy.cuda.Device(comm.rank % 2):
        cupy.cuda.get_current_stream().synchronize()
    assert (made.shape, made.dtype) == (np.zeros(shape).shape, np.dtype(dtype))
    if made.size:
        assert not Lent(made, stream).get().any()
    assert stand_in.fake_live(b"memory") == before + 1
    del made
    gc.collect()
    soon(lambda: stand_in.fake_live(b"memory") == before)


def test_float64_by_default_and_the_host_without_a_device(ctx, cupy):
    made = ctx.alloc(3, device=0)
    assert made.dtype == np.float64
    cupy.cuda.get_current_stream().synchronize()  # the zeros are written
    assert isinstance(ctx.alloc(3, "f4"), np.ndarray)
    assert isinstance(ctx.alloc(3, "f4", None), np.ndarray)


@pytest.mark.parametrize(
    ("device", "why"),
    [(2, "device"), (-1, "device must be in 0"), ("0", "device"), (1 << 40, "device must be in")],
)
def test_no_such_device(ctx, stand_in, device, why):
    with pytest.raises(pp.ArgumentError, match=why):
        ctx.alloc(4, "f4", device=device)


@pytest.mark.parametrize("dtype", ["g", ">f4", "U3", "M8[s]"])
def test_types_that_devices_do_not_have(ctx, dtype):
    with pytest.raises(pp.ArgumentError, match="is not a type of CuPy"):
        ctx.alloc(4, dtype, device=0)


def test_no_memory(ctx, stand_in):
    stand_in.fake_fail(b"cuMemAlloc", 1, 2)
    with pytest.raises(MemoryError, match="cuMemAlloc failed"):
        ctx.alloc(4, "f4", device=0)


@pytest.mark.parametrize("lacks_memory", [False, True])
def test_the_device_is_not_restored(ctx, alloc, stand_in, lacks_memory):
    """The error is that of the call, which leaves nothing behind, also if there is another one."""
    memory = stand_in.fake_live(b"memory")
    kind, text = pp.Error, "^the application's device is not current again: .* cuCtxPopCurrent "
    if lacks_memory:
        kind, text = MemoryError, "cuMemAlloc failed .*; and the application's device is not curr"
        stand_in.fake_fail(b"cuMemAlloc", 1, 2)
    with device(1):
        stand_in.fake_fail(b"cuCtxPopCurrent", 1, 719)
        with pytest.raises(kind, match=text):
            ctx.alloc(4, "f4", device=0)
        stand_in.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))
    ctx._native.lib.pp_await_disposal(1_000_000)
    soon(lambda: stand_in.fake_live(b"memory") == memory)
    assert alloc(4, "f4").made.size == 4


def test_without_cupy(ctx, stand_in, monkeypatch):
    memory = stand_in.fake_live(b"memory")
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(pp.Error, match=r"not installed: `pip install 'pypartial-mpi\[cuda12\]'`"):
        ctx.alloc(4, "f4", device=0)
    gc.collect()
    soon(lambda: stand_in.fake_live(b"memory") == memory)


def test_after_the_context_was_freed(comm):
    ctx = pp.Context(comm)
    ctx.Free()
    with pytest.raises(pp.Error, match="was freed"):
        ctx.alloc(4, "f4", device=0)


def test_a_forked_child_frees_nothing(comm, alloc, stand_in):
    one = alloc(COUNT)
    one.put(7)
    one.settle()
    child = os.fork()
    if child == 0:
        freed = stand_in.fake_calls(b"cuMemFree")
        one.made = None
        gc.collect()
        os._exit(stand_in.fake_calls(b"cuMemFree") != freed)
    assert os.waitpid(child, 0)[1] == 0
    assert (one.get() == 7).all()


# ---- rounds -------------------------------------------------------------------------------------


def test_rounds_without_a_copy(comm, ctx, alloc, array, stand_in, needs_ipc):
    """Of each round only the result is copied; Free gives all back."""
    send, out = alloc(COUNT), array(COUNT, "i8")
    memory = stand_in.fake_live(b"memory")
    request = opened(ctx, send, out, policy=pp.Full())
    assert stand_in.fake_live(b"mappings") == 2 * (comm.size - 1)
    assert sums(comm, request, send, out)
    before, bytes_before = stand_in.fake_calls(b"cuMemcpyAsync"), ctx.stats().ipc_bytes
    for _ in range(10):
        request.Start()
        request.Wait()
    # One vector is not folded, but copied to the result.
    assert stand_in.fake_calls(b"cuMemcpyAsync") - before == (10 if comm.size > 1 else 20)
    assert ctx.stats().ipc_bytes - bytes_before == 10 * COUNT * 8
    request.Free()
    soon(lambda: stand_in.fake_live(b"memory") == memory)
    assert stand_in.fake_live(b"mappings") == 0


def test_memory_outlives_the_array_while_others_read_it(
    comm, ctx, alloc, array, stand_in, needs_ipc
):
    """The handle holds it."""
    send, out = alloc(COUNT), array(COUNT, "i8")
    request = opened(ctx, send, out, policy=pp.Full())
    assert sums(comm, request, send, out)
    memory = stand_in.fake_live(b"memory")
    request._owners = ()
    send.close()
    gc.collect()
    assert stand_in.fake_live(b"memory") == memory
    request.Start()
    request.Wait()
    request.Free()
    soon(lambda: stand_in.fake_live(b"memory") < memory)


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i4", "c8", "?"])
def test_results_have_the_bits_of_the_hosts(comm, ctx, alloc, array, dtype, needs_ipc):
    """Half precision and logical operations are copied."""
    from mpi4py import MPI

    op = MPI.LXOR if dtype == "?" else MPI.SUM
    values = (np.random.default_rng(comm.rank).standard_normal(COUNT) * 10).astype(dtype)
    send, out, expected = alloc(COUNT, dtype), array(COUNT, dtype), np.zeros(COUNT, dtype)
    on_device = opened(ctx, send, out, policy=pp.Full(), op=op)
    on_host = ctx.Allreduce_init(values, expected, policy=pp.Full(), op=op)
    send.put(values)
    for request in (on_device, on_host):
        request.Start()
        request.Wait()
        request.Free()
    assert out.get().tobytes() == expected.tobytes()


@pytest.mark.parametrize("first", [0, 1, 77])
def test_a_part_in_place(comm, ctx, alloc, first, needs_ipc):
    """The buffer is read at its place in the array, and the result is copied to it."""
    both = alloc(COUNT, "f8", first=first, past=first + 100)
    request = opened(ctx, None, both, policy=pp.Full())
    for step in range(5):
        both.put(np.arange(100) + step)
        request.Start()
        request.Wait()
        assert (both.get() == comm.size * (np.arange(100) + step)).all()
    assert ctx.stats().ipc_bytes == 5 * 800
    request.Free()


def test_some_ranks_lend(comm, ctx, alloc, array, needs_ipc):
    """Each rank may have such an array or not; two arrays are copied."""
    one, two, first, second = alloc(COUNT), alloc(5), array(COUNT, "i8"), array(5, "i8")
    one.put(3)
    two.put(7)
    request = opened(ctx, [one, two], [first, second], policy=pp.Full())
    request.Start()
    request.Wait()
    assert (first.get()[-1], second.get()[-1]) == (3 * comm.size, 7 * comm.size)
    request.Free()
    before = ctx.stats().ipc_bytes
    send, out = alloc(COUNT) if comm.rank % 2 else array(COUNT, "i8"), array(COUNT, "i8")
    request = opened(ctx, send, out, policy=pp.Full())
    assert sums(comm, request, send, out)
    assert ctx.stats().ipc_bytes - before == (1 if comm.rank % 2 else 2) * 5 * COUNT * 8
    request.Free()


def test_two_handles_read_one_array(comm, ctx, alloc, array, stand_in, needs_ipc):
    """The other ranks open it twice, at one place; when one handle is freed, it is still there."""
    send, out, others = alloc(COUNT), array(COUNT, "i8"), comm.size - 1
    opens = stand_in.fake_calls(b"cuIpcOpenMemHandle")
    first, second = (opened(ctx, send, out, policy=pp.Full()) for _ in range(2))
    assert stand_in.fake_calls(b"cuIpcOpenMemHandle") - opens == 4 * others
    assert stand_in.fake_live(b"mappings") == 3 * others
    bytes_before = ctx.stats().ipc_bytes
    assert sums(comm, first, send, out) and sums(comm, second, send, out)
    assert sums(comm, first, send, out)
    first.Free()
    soon(lambda: stand_in.fake_live(b"mappings") == 2 * others)
    assert sums(comm, second, send, out)
    assert ctx.stats().ipc_bytes - bytes_before == 4 * 5 * COUNT * 8  # of results
    second.Free()
    soon(lambda: stand_in.fake_live(b"mappings") == 0)


@pytest.mark.parametrize("path", ["staged", "auto"])
def test_elsewhere_it_is_a_buffer_as_any(comm, ctx, alloc, array, path):
    send, out = alloc(COUNT), alloc(COUNT)
    request = ctx.Allreduce_init(send, out, policy=pp.Full(), device_path=path)
    assert sums(comm, request, send, out)
    request.Free()


@pairwise(
    policy=[pp.Solo(), pp.Majority(), pp.Full()],
    deliver=["latest", "sum", "each"],
    extra={"small": 0, "large": 40_000},
)
def test_the_loop(comm, ctx, alloc, array, stream, policy, deliver, extra, needs_ipc):
    """Every contribution enters one round, also late ones, and buffers that are overwritten."""
    send, out = alloc(comm.size + extra), array(comm.size + extra, "i8")
    options = {"policy": policy, "deliver": deliver, "lent": True}
    contributes_once(comm, partial(opened, ctx), send, out, 20, **options)


# ---- slow streams -------------------------------------------------------------------------------


@pytest.mark.parametrize("view", [False, True], ids=["wait", "view"])
def test_nothing_waits_for_a_stream_that_is_held(comm, alloc, array, stream, path, view):
    """A late Wait returns; what was on its way is copied before it is overwritten."""
    last, total = comm.rank == comm.size - 1, np.zeros(comm.size, "i8")
    with pp.Context(comm, seed=7, window=16) as ctx:
        send, out, other = alloc(comm.size, of=ctx), array(comm.size, "i8"), Stream()
        request = ctx.Allreduce_init(send, out, policy=pp.Solo(), device_path=path)
        assert request.device_path == path
        send.put(np.eye(comm.size, dtype="i8")[comm.rank])
        stream.hold(last and comm.size > 1)
        if comm.size > 1 and last:
            comm.Barrier()
            request.Start()
            if view:
                result = Lent(request.View(stream=other), other)
            else:
                request.Wait(stream=other)
                result = out
            send.put(-5, other)  # behind the copy
            stream.hold(False)
            total += result.get(other)
        else:
            for step in range(5):
                request.Start()
                request.Wait()
                total += out.get()
                if step == 0 and comm.size > 1:
                    comm.Barrier()
        request.Flush()
        total += out.get()
        seen = comm.allgather(total.tolist())
        assert seen[0][: comm.size - 1] == [5] * (comm.size - 1)
        assert seen[0][-1] == (5 if comm.size == 1 else 1)
        request.Free()
        other.wait()
        other.close()


@pytest.mark.sizes(2)
def test_a_round_reads_the_buffer_when_the_result_is_there(comm, alloc, array, stand_in, needs_ipc):
    """Wait gives the buffer back when the device has read it, and times out until then."""
    with pp.Context(comm, seed=7, patience=None) as ctx:
        send, out = alloc(COUNT, of=ctx), array(COUNT, "i8")
        request = opened(ctx, send, out, policy=pp.Solo())
        send.put(1 + comm.rank)
        send.stream.wait()
        if comm.rank == 0:
            request.Start()
            request.Wait()  # round 0, alone
            stand_in.fake_hold_all()
        comm.Barrier()
        if comm.rank == 1:
            request.Start()  # late for round 0
            request._land("Start", None, results=False)  # round 1 finds it
            assert ctx.stats().ipc_bytes == 0
        comm.Barrier()
        if comm.rank == 0:
            stand_in.fake_hold(send.stream.ptr, False)
            request.Start()  # claims round 1, whose fold is held
            request._land("Start", None, results=False)
            with pytest.raises(pp.TimeoutError):
                request.Wait(timeout=0.05)
        comm.Barrier()
        if comm.rank == 1:
            for _ in range(2):
                with pytest.raises(pp.TimeoutError):
                    request.Wait(timeout=0.05)
                assert not request.Test()
        comm.Barrier()
        stand_in.fake_let_all_go()
        request.Wait()
        if comm.rank == 1:
            send.put(0)
        assert out.get()[-1] in ((3,) if comm.rank == 0 else (1, 3))
        request.Flush()
        request.Free()


@pytest.mark.sizes(2)
def test_free_after_a_test_that_found_the_buffer_read(comm, alloc, array, stand_in, needs_ipc):
    """No thread looks for the buffer afterwards: the progress thread sleeps as long as before."""
    with pp.Context(comm, seed=7, patience=None) as ctx:
        send, out = alloc(COUNT, of=ctx), array(COUNT, "i8")
        request = opened(ctx, send, out, policy=pp.Solo())
        send.stream.wait()
        if comm.rank == 0:
            request.Start()
            request.Wait()  # round 0, alone
            stand_in.fake_hold_all()
        comm.Barrier()
        if comm.rank == 1:
            request.Start()  # late for round 0
            request._land("Start", None, results=False)  # round 1 finds it
        comm.Barrier()
        if comm.rank == 0:
            stand_in.fake_hold(send.stream.ptr, False)
            request.Start()  # claims round 1, whose fold is held
            request._land("Start", None, results=False)
            with pytest.raises(pp.TimeoutError):
                request.Wait(timeout=0.05)
        comm.Barrier()
        if comm.rank == 1:
            assert not request.Test()
        comm.Barrier()
        stand_in.fake_let_all_go()
        request.Free()
        before = ctx.stats().sleeps
        time.sleep(0.5)  # several are 0.1 s long, or hundreds short
        assert ctx.stats().sleeps - before < 50


@pytest.mark.sizes(3)
@pytest.mark.parametrize("held", [False, True], ids=["at once", "held"])
def test_starts_after_waits_that_timed_out(comm, alloc, array, stream, path, held):
    """There are more than parts: each is counted once, with what the buffer held.

    The buffer is written behind the Wait, on its stream, though the Start's may not go on.
    """
    send_more, other = 10, Stream()
    with pp.Context(comm, seed=7, patience=None) as ctx:
        send, out, status = alloc(COUNT, of=ctx), array(COUNT, "i8"), pp.Status()
        options = {"policy": pp.Quorum(2), "deliver": "sum", "device_path": path}
        request = ctx.Allreduce_init(send, out, **options)
        assert request.device_path == path
        first, second = stream, other
        for step in range(send_more if comm.rank == 0 else 0):
            send.put(step, first)
            stream.hold(held)
            request.Start(stream=first)
            with pytest.raises(pp.TimeoutError):
                request.Wait(timeout=0.05 if step % 2 else 0, stream=second)
            first, second = second, first
        if comm.rank > 0:
            send.put(100)
        stream.hold(False)
        stream.wait()
        other.wait()
        comm.Barrier()
        if comm.rank > 0:
            request.Start()
        request.Wait(status)
        before = int(out.get()[-1])
        request.Flush()
        assert before + int(out.get()[-1]) == 200 + sum(range(send_more))
        request.Free()
        other.close()


def test_a_capture_that_begins_before_a_wait_times_out(comm, alloc, array, stream, stand_in):
    """Nothing is queued on its stream, and the result is still to be had."""
    other = Stream()
    with pp.Context(comm, progress="caller") as ctx:
        send, out = alloc(COUNT, of=ctx), array(COUNT, "i8")
        request = ctx.Allreduce_init(send, out, policy=pp.Full(), device_path="staged")
        send.put(1)
        send.settle()
        stream.hold(True)
        request.Start(stream=stream)
        stand_in.fake_hold_calls(b"cuEventQuery", True)

        def begin():
            soon(lambda: stand_in.fake_held_calls(b"cuEventQuery"))  # Wait has asked before
            time.sleep(0.2)
            other.capture(True)
            stand_in.fake_hold_calls(b"cuEventQuery", False)

        thread = threading.Thread(target=begin)
        thread.start()
        with pytest.raises(pp.ArgumentError, match="is being captured into a graph"):
            request.Wait(timeout=0.05, stream=other)
        thread.join()
        other.capture(False)
        stream.hold(False)
        request.Wait(stream=other)
        other.wait()
        assert (out.get() == comm.size).all()
        request.Free()
    other.close()


@pytest.mark.parametrize("first", [True, False])
def test_one_of_two_buffers_is_an_array(comm, ctx, alloc, array, stream, first):
    """What is queued behind a Wait in vain, on its stream, comes after the copy."""
    lent, other, outs = alloc(COUNT), array(3, "i8"), [array(COUNT, "i8"), array(3, "i8")]
    sends, second = [lent, other], Stream()
    if not first:
        sends, outs = sends[::-1], outs[::-1]
    request = ctx.Allreduce_init(sends, outs, policy=pp.Full(), device_path="staged")
    for send in sends:
        send.put(1)
    stream.wait()
    stream.hold(True)
    request.Start(stream=stream)
    with pytest.raises(pp.TimeoutError):
        request.Wait(timeout=0, stream=second)
    lent.put(-999, second)
    time.sleep(0.05)  # without order it is there by now
    stream.hold(False)
    request.Wait(stream=second)
    assert all((out.get(second) == comm.size).all() for out in outs)
    request.Free()
    second.close()


def let_go(stand_in, stream):
    """Let a stream go when a call waits for it."""
    try:
        soon(lambda: stand_in.fake_held_calls(b"cuStreamSynchronize"))
    finally:
        stand_in.fake_hold(stream, False)


@pytest.mark.sizes(2, 3)
def test_a_wait_in_vain_returns_when_the_device_has_copied(comm, alloc, array, stand_in, needs_ipc):
    """The buffer is copied aside, and may then be overwritten."""
    with pp.Context(comm, seed=7, patience=None) as ctx:
        send, out = alloc(COUNT, of=ctx), array(COUNT, "i8")
        request = opened(ctx, send, out, policy=pp.Full())
        work = stand_in.fake_stream_before(stand_in.fake_newest_stream())
        send.put(comm.rank + 1)
        send.settle()
        if comm.rank == 0:
            stand_in.fake_hold(work, True)
            request.Start()
            request._land("Start", None, results=False)  # links
            later = threading.Thread(target=let_go, args=[stand_in, work])
            later.start()
            with pytest.raises(pp.TimeoutError):
                request.Wait(timeout=0)
            send.put(-1)
            send.settle()
            later.join()
        comm.Barrier()
        if comm.rank > 0:
            request.Start()
        request.Wait()
        assert (out.get() == sum(range(1, comm.size + 1))).all()
        request.Free()


def test_starts_that_fail(comm, ctx, alloc, array, stand_in, needs_ipc):
    """Their parts are used again."""
    send, out = alloc(COUNT), array(COUNT, "i8")
    request = opened(ctx, send, out, policy=pp.Full())
    for _ in range(12 if comm.rank == 0 else 0):
        stand_in.fake_fail(b"cuEventRecord", 1, 999)
        with pytest.raises(pp.Error, match="cuEventRecord failed"):
            request.Start()
        stand_in.fake_fail(b"cuEventRecord", 0, 0)
    assert sums(comm, request, send, out)
    request.Free()


@pytest.mark.filterwarnings("ignore:device_path='ipc' is not possible")
def test_an_array_of_a_refusal_that_a_rank_cannot_close(comm, ctx, array, stand_in, needs_ipc):
    """It is not freed with the last reference."""
    if comm.size == 1:
        pytest.skip("a rank alone maps no memory of others")
    last, out = comm.rank == comm.size - 1, array(COUNT, "i8")
    before = stand_in.fake_live(b"memory")
    send = ctx.alloc(COUNT, "i8", device=0)
    refused = first_refuses_what_last_has_opened(comm, stand_in, 2 * (comm.size - 1))
    with cannot_close(stand_in, last), refused:
        request = ctx.Allreduce_init(send, out, policy=pp.Full(), device_path="ipc")
    assert request.device_path == "staged"
    soon(lambda: last or stand_in.fake_live(b"mappings") == 0)
    held = comm.allgather(stand_in.fake_live(b"mappings"))
    assert held[-1] == 2 * (comm.size - 1)
    request.Free()
    address = send.__cuda_array_interface__["data"][0]
    del request, send
    gc.collect()
    kept = 2 * (not last)  # what the handle had made, and the array
    soon(lambda: stand_in.fake_live(b"memory") == before + kept)
    assert stand_in.fake_misuses() == 0
    for kind, count in ((b"mappings", held[comm.rank]), (b"memory", kept), (b"contexts", kept)):
        for _ in range(count):
            stand_in.fake_take_back(kind)
    # The library goes on to know it as an array of its own: memory of others must not be there.
    others = [array(COUNT, "i8") for _ in range(20)]
    assert not kept or address not in [one.address for one in others]


def test_an_array_that_is_closed_at_the_second_try(comm, ctx, array, stand_in, needs_ipc):
    """The end of Free, or the next one, tries again; its maker keeps it until then."""
    if comm.size == 1:
        pytest.skip("a rank alone maps no memory of others")
    before = stand_in.fake_live(b"memory"), stand_in.fake_live(b"mappings")
    send, out = ctx.alloc(COUNT, "i8", device=0), array(COUNT, "i8")
    other = ctx.Allreduce_init(None, out, policy=pp.Full(), device_path="staged")
    request = opened(ctx, send, out, policy=pp.Full())
    if comm.rank == 0:  # of each rank it closes what the handle had made, and the array
        stand_in.fake_fail(b"cuIpcCloseMemHandle", 2, 999)
    request.Free()
    del request, send
    gc.collect()
    other.Free()
    soon(lambda: stand_in.fake_live(b"mappings") == before[1])
    soon(lambda: stand_in.fake_live(b"memory") == before[0] + 1)


@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize("call", ["cuIpcGetMemHandle", "cuIpcOpenMemHandle"])
@pytest.mark.filterwarnings("ignore:device_path='ipc' is not possible")
def test_one_rank_cannot(comm, ctx, alloc, array, stand_in, call, nth, needs_ipc):
    """Then all have their buffers copied, and nothing is left mapped or held."""
    if comm.size == 1 and call == "cuIpcOpenMemHandle":
        pytest.skip("a rank alone maps no memory of others")
    send, out = alloc(COUNT), array(COUNT, "i8")
    memory = stand_in.fake_live(b"memory")
    if comm.rank == comm.size - 1:
        stand_in.fake_fail(call.encode(), nth, 801)
    request = ctx.Allreduce_init(send, out, policy=pp.Full(), device_path="ipc")
    stand_in.fake_fail(call.encode(), 0, 0)
    assert f"{call} failed" in request.device_path_reason
    assert stand_in.fake_live(b"mappings") == 0
    soon(lambda: stand_in.fake_live(b"memory") == memory)
    assert sums(comm, request, send, out)
    request.Free()
