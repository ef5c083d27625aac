"""A call of the driver that waits keeps nobody else from the context.

Before the driver allocates memory, pins it or takes it back, it may wait for all that is queued on
a device, and for room before it takes more work for a stream. What is queued there may wait for
another rank. So no thread makes such a call with the context's lock: the progress thread, and other
threads of the application, go on meanwhile.
"""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager

import numpy as np
import pytest
from support.device import Stream

import pypartial as pp

pytestmark = pytest.mark.mpi

COUNT, SMALL = 3000, 8
LIMIT_S = 20.0
STAGED, IPC = {"device_path": "staged"}, {"device_path": "ipc"}


@contextmanager
def waiting(stand_in, call, look, let_go):
    """Have another thread look when a call of the function waits, and then let it go.

    It must still wait when the thread has looked.
    """
    ended, waits = threading.Event(), []

    def watch():
        while not ended.is_set() and not stand_in.fake_held_calls(call):
            time.sleep(0.001)
        if not ended.is_set():
            look()
            waits.append(stand_in.fake_held_calls(call) > 0)
        let_go()

    limit = threading.Timer(LIMIT_S, let_go)  # without it a test that must fail would hang
    watcher = threading.Thread(target=watch)
    limit.start()
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()
        limit.cancel()
    assert waits == [True]


@contextmanager
def held(stand_in, call, look):
    """Hold the calls of a function in this block, until another thread has looked."""
    stand_in.fake_hold_calls(call, True)
    with waiting(stand_in, call, look, lambda: stand_in.fake_hold_calls(call, False)):
        yield


def maker(ctx, array, init, path, count=COUNT):
    """Return what makes a handle, of buffers that are there already."""
    if init == "Preduce_init":
        model = array(count, "f8")
        return lambda: ctx.Preduce_init(model, pp.groups.Static(), **path)
    send, out = array(count, "i8"), array(count, "i8")
    return lambda: ctx.Allreduce_init(send, out, policy=pp.Full(), **path)


def made(*arguments):
    return maker(*arguments)()


def once(request, result):
    request.Start()
    request.Wait()
    result.stream.wait()


MAKING = [
    (b"cuMemHostAlloc", STAGED),
    (b"cuMemAlloc", IPC),
    (b"cuModuleLoadData", IPC),
    (b"cuIpcOpenMemHandle", IPC),
]


@pytest.mark.parametrize("init", ["Allreduce_init", "Preduce_init"])
@pytest.mark.parametrize(("call", "path"), MAKING)
def test_while_a_handle_is_made(comm, ctx, array, stand_in, init, call, path):
    if call == b"cuIpcOpenMemHandle" and comm.size == 1:
        pytest.skip("a rank alone maps no memory of others")
    make = maker(ctx, array, init, path)
    with held(stand_in, call, ctx.stats):
        request = make()
    assert request.device_path == path["device_path"]
    request.Free()


FREEING = [
    (b"cuMemFreeHost", STAGED),
    (b"cuMemHostUnregister", STAGED),
    (b"cuMemFree", IPC),
    (b"cuModuleUnload", IPC),
    (b"cuIpcCloseMemHandle", IPC),
]


@pytest.mark.parametrize("init", ["Allreduce_init", "Preduce_init"])
@pytest.mark.parametrize(("call", "path"), FREEING)
def test_while_it_is_freed(comm, ctx, array, stand_in, init, call, path):
    if call == b"cuIpcCloseMemHandle" and comm.size == 1:
        pytest.skip("a rank alone maps no memory of others")
    if call == b"cuMemHostUnregister" and init == "Preduce_init":
        pytest.skip("groups go by bounce buffers")
    request = made(ctx, array, init, path)
    once(request, array(1))
    with held(stand_in, call, ctx.stats):
        request.Free()


def test_while_a_handle_is_made_that_cannot_be(comm, ctx, array, stand_in):
    """What it had is given back."""
    stand_in.fake_fail(b"cuEventCreate", 2, 2)
    make = maker(ctx, array, "Allreduce_init", STAGED)
    with (
        held(stand_in, b"cuMemFreeHost", ctx.stats),
        pytest.raises(MemoryError, match="CUDA has no memory"),
    ):
        make()


@pytest.mark.parametrize(
    ("call", "path", "count"),
    [
        (b"cuMemHostRegister", STAGED, COUNT),
        (b"cuMemcpyAsync", STAGED, COUNT),
        (b"cuMemcpyAsync", STAGED, SMALL),
        (b"cuMemcpyAsync", IPC, COUNT),
        (b"cuEventRecord", STAGED, COUNT),
        (b"cuStreamWaitEvent", STAGED, COUNT),
    ],
)
def test_while_a_contribution_is_queued(ctx, array, stand_in, call, path, count):
    request = made(ctx, array, "Allreduce_init", path, count)
    with held(stand_in, call, ctx.stats):
        request.Start()
    request.Wait()
    request.Free()


@pytest.mark.parametrize(
    ("call", "path", "count"),
    [
        (b"cuMemHostRegister", STAGED, COUNT),
        (b"cuMemcpyAsync", STAGED, COUNT),
        (b"cuMemcpyAsync", STAGED, SMALL),
        (b"cuMemcpyAsync", IPC, COUNT),
        (b"cuEventRecord", STAGED, COUNT),
    ],
)
def test_while_a_result_is_queued(ctx, array, stand_in, call, path, count):
    request = made(ctx, array, "Allreduce_init", path, count)
    request.Start()
    while ctx.stats().rounds == 0:  # for a round a device copies, too, if it has one part
        time.sleep(0.001)
    with held(stand_in, call, ctx.stats):
        request.Wait()
    request.Free()


@pytest.mark.parametrize("path", [STAGED, IPC], ids=["staged", "ipc"])
@pytest.mark.parametrize("what", ["Start", "Wait"])
def test_while_a_model_is_queued(ctx, array, stand_in, path, what):
    request = made(ctx, array, "Preduce_init", path)
    for call in (request.Start, request.Wait):
        if call.__name__ == what:
            with held(stand_in, b"cuMemcpyAsync", ctx.stats):
                call()
        else:
            call()
    request.Free()


def test_another_bounce_buffer(ctx, array, stand_in):
    """One is made when all are on their way."""
    send, out, slow = array(SMALL, "i8"), array(SMALL, "i8"), Stream()
    request = ctx.Allreduce_init(send, out, policy=pp.Full())
    slow.hold(True)
    with held(stand_in, b"cuMemHostAlloc", ctx.stats):
        for _ in range(6):
            request.Start()
            request.Wait(stream=slow)
    slow.hold(False)
    request.Free()
    slow.close()


def test_a_stream_without_room(comm, ctx, array, stand_in):
    """Another handle's contribution comes off its device, and its round is made, meanwhile."""
    send, out = array(COUNT, "i8"), array(COUNT, "i8")
    other, total, full = array(SMALL, "i8"), array(SMALL, "i8"), Stream()
    one = ctx.Allreduce_init(send, out, policy=pp.Full())
    two = ctx.Allreduce_init(other, total, policy=pp.Full())
    other.put(comm.rank)
    other.stream.wait()
    full.hold(True)
    stand_in.fake_room(16)
    try:
        for _ in range(16):
            send.copy(out, full)
        two.Start()

        def make_room():
            stand_in.fake_room(1024)

        with waiting(stand_in, b"cuEventRecord", lambda: two.Wait(timeout=LIMIT_S), make_room):
            one.Start(stream=full)
    finally:
        make_room()
        full.hold(False)
    one.Wait()
    assert total.get().tolist() == [sum(range(comm.size))] * SMALL
    one.Free()
    two.Free()
    full.close()


def test_a_free_that_waits_for_its_device(comm, ctx, array, stand_in):
    """The work that is queued there ends when another rank has had its result of another handle.

    NCCL's kernels are such work. A rank that frees a handle keeps its part of the other one.
    """
    other, total = array(comm.size, "i8"), array(comm.size, "i8")
    stuck = made(ctx, array, "Allreduce_init", STAGED)
    once(stuck, array(1))
    request = ctx.Allreduce_init(other, total, policy=pp.Full())
    own = np.eye(comm.size, dtype="i8")[comm.rank]
    kernel, slow = Stream(), Stream()
    private = comm.Dup()
    slow.hold(True)
    other.put(own, slow)
    request.Start(stream=slow)  # its contribution has yet to come off the device
    kernel.hold(True)
    other.copy(other, kernel)

    def others_have_it():
        while not stand_in.fake_held_calls(b"cuMemFreeHost"):
            time.sleep(0.001)
        slow.hold(False)
        private.Barrier()
        kernel.hold(False)

    if comm.rank == 0:
        watcher = threading.Thread(target=others_have_it)
        watcher.start()
        stuck.Free()  # its driver waits for the kernel
        watcher.join()
        request.Wait(timeout=LIMIT_S)
    else:
        slow.hold(False)
        kernel.hold(False)
        stuck.Free()
        request.Wait(timeout=LIMIT_S)
        private.Barrier()
    assert total.get().tolist() == [1] * comm.size
    request.Free()
    private.Free()
    kernel.close()
    slow.close()


def test_the_library_s_streams_come_first(ctx, array, stand_in):
    """Kernels of the application wait for those for which other ranks wait."""
    before = stand_in.fake_calls(b"cuStreamCreateWithPriority")
    request = made(ctx, array, "Allreduce_init", IPC)
    assert stand_in.fake_calls(b"cuStreamCreateWithPriority") == before + 3
    request.Free()
