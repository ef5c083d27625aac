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
from pathlib import Path

import numpy as np
import pytest
from support.device import Stream
from support.on_device import soon

import pypartial as pp
from pypartial._explain import Question

pytestmark = pytest.mark.mpi

COUNT, SMALL, LARGE = 3000, 8, 1 << 20
LIMIT_S = 20.0
NO_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY
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


several_ranks = pytest.mark.sizes(
    2, 3, 4, 5
)  # a rank alone asks nobody, and maps no memory of others

TAKE = (b"cuMemAlloc", b"cuMemHostAlloc", b"cuIpcOpenMemHandle", b"cuModuleLoadData")
GIVE = (b"cuMemFree", b"cuMemFreeHost", b"cuIpcCloseMemHandle", b"cuModuleUnload")
MAKING = [
    (b"cuMemHostAlloc", STAGED),
    (b"cuMemAlloc", IPC),
    (b"cuModuleLoadData", IPC),
    pytest.param(b"cuIpcOpenMemHandle", IPC, marks=several_ranks),
]


@pytest.mark.parametrize("init", ["Allreduce_init", "Preduce_init"])
@pytest.mark.parametrize(("call", "path"), MAKING)
def test_while_a_handle_is_made(ctx, array, stand_in, init, call, path):
    make = maker(ctx, array, init, path)
    with held(stand_in, call, ctx.stats):
        request = make()
    assert request.device_path == path["device_path"]
    request.Free()


@pytest.mark.parametrize("init", ["Allreduce_init", "Preduce_init"])
@pytest.mark.parametrize("path", [STAGED, IPC], ids=["staged", "ipc"])
def test_what_a_handle_had_is_used_again(ctx, array, stand_in, init, path):
    """Free gives nothing back, and the next handle takes no more."""
    make, result = maker(ctx, array, init, path), array(1)
    for _ in range(2):
        calls = [stand_in.fake_calls(name) for name in (*TAKE, *GIVE)]
        request = make()
        once(request, result)
        request.Free()
        soon(lambda: ctx.stats().pooled_bytes > 0)
        ctx.comm.Barrier()
    assert [stand_in.fake_calls(name) for name in (*TAKE, *GIVE)] == calls


QUEUEING = [
    (b"cuMemHostRegister", STAGED, COUNT),
    (b"cuMemcpyAsync", STAGED, COUNT),
    (b"cuMemcpyAsync", STAGED, SMALL),
    (b"cuMemcpyAsync", IPC, COUNT),
    (b"cuEventRecord", STAGED, COUNT),
]
ORDERING = (b"cuStreamWaitEvent", IPC, COUNT)


@pytest.mark.parametrize(("call", "path", "count"), [*QUEUEING, ORDERING])
def test_while_a_contribution_is_queued(ctx, array, stand_in, call, path, count):
    request = made(ctx, array, "Allreduce_init", path, count)
    with held(stand_in, call, ctx.stats):
        request.Start()
    request.Wait()
    request.Free()


def copies_result(path):
    """Return the call that does, of few bytes."""
    return b"cuMemcpy2DAsync" if path is STAGED else b"cuMemcpyAsync"


RESULTS = [
    (copies_result(path) if call == b"cuMemcpyAsync" else call, path, count)
    for call, path, count in QUEUEING
]


@pytest.mark.parametrize(("call", "path", "count"), RESULTS)
def test_while_a_result_is_queued(ctx, array, stand_in, call, path, count):
    request = made(ctx, array, "Allreduce_init", path, count)
    request.Start()
    soon(lambda: ctx.stats().rounds)  # for a round a device copies, too, if it has one part
    with held(stand_in, call, ctx.stats):
        request.Wait()
    request.Free()


@pytest.mark.parametrize("path", [STAGED, IPC], ids=["staged", "ipc"])
@pytest.mark.parametrize("what", ["Start", "Wait"])
def test_while_a_model_is_queued(ctx, array, stand_in, path, what):
    request = made(ctx, array, "Preduce_init", path)
    copies = {"Start": b"cuMemcpyAsync", "Wait": copies_result(path)}
    for call in (request.Start, request.Wait):
        if call.__name__ == what:
            with held(stand_in, copies[what], ctx.stats):
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

    def make_room():
        stand_in.fake_room(1024)

    try:
        for _ in range(16):
            send.copy(out, full)
        two.Start()
        with waiting(stand_in, b"cuMemcpyAsync", lambda: two.Wait(timeout=LIMIT_S), make_room):
            one.Start(stream=full)
    finally:
        make_room()
        full.hold(False)
    one.Wait()
    assert total.get().tolist() == [sum(range(comm.size))] * SMALL
    one.Free()
    two.Free()
    full.close()


@pytest.mark.parametrize("path", [STAGED, IPC], ids=["staged", "ipc"])
def test_free_does_not_wait_for_its_device(comm, ctx, array, stand_in, path):
    """Other handles go on meanwhile, where a driver that waits lets no other call begin."""
    mine, total = np.ones(comm.size), np.empty(comm.size)
    host = ctx.Allreduce_init(mine, total, policy=pp.Full())
    request, others = (made(ctx, array, "Allreduce_init", path) for _ in range(2))
    once(request, array(1))
    kernel, word = Stream(), array(1, "i8")
    kernel.hold(True)
    word.copy(word, kernel)
    stand_in.fake_exclusive(True)
    try:
        request.Free()
        for _ in range(3):
            once(others, array(1))
            host.Start()
            host.Wait(timeout=LIMIT_S)
        assert total.tolist() == [comm.size] * comm.size
        others.Free()
    finally:
        stand_in.fake_exclusive(False)
        kernel.hold(False)
    kernel.wait()
    host.Free()
    kernel.close()


@pytest.mark.sizes(1, 3)
@pytest.mark.parametrize("path", [STAGED, IPC], ids=["staged", "ipc"])
def test_the_end_of_a_context_waits_two_seconds(comm, array, stand_in, path):
    """What a device that is stuck does not give up then is given back later."""
    kernel, word = Stream(), array(1, "i8")
    with pp.Context(comm) as ctx:
        request = made(ctx, array, "Allreduce_init", path)
        once(request, array(1))
        request.Free()
        kernel.hold(True)
        word.copy(word, kernel)
        began = time.monotonic()
    assert 2 <= time.monotonic() - began < LIMIT_S
    assert stand_in.fake_held_calls(b"") == 1
    comm.Barrier()
    kernel.hold(False)
    kernel.wait()
    kernel.close()


@pytest.mark.sizes(3)
def test_a_contribution_that_is_combined(comm, array, stand_in):
    """The device adds it to the pending one, whatever its size."""
    send, looked = array(SMALL, "i8"), threading.Event()
    send.put(1)
    with pp.Context(comm, seed=7, patience=None) as ctx:
        request = ctx.Allreduce_init(send, array(SMALL, "i8"), policy=pp.Quorum(2), **IPC)
        if comm.rank == 0:
            look = held(stand_in, b"cuStreamSynchronize", lambda: (ctx.stats(), looked.set()))
            with look:
                for _ in range(10):
                    request.Start()
                    with pytest.raises(pp.TimeoutError):
                        request.Wait(timeout=0)
                soon(looked.is_set)
        comm.Barrier()
        if comm.rank > 0:
            request.Start()
        request.Wait()
        request.Flush()
        request.Free()


def test_a_wait_that_pins_memory(comm, ctx, array, stand_in):
    """Its rank is served meanwhile: another handle's contribution comes off its device."""
    big, sum_of_big = array(LARGE, "f4"), array(LARGE, "f4")
    small, total, slow = array(SMALL, "i8"), array(SMALL, "i8"), Stream()
    one = ctx.Allreduce_init(big, sum_of_big, policy=pp.Full())
    two = ctx.Allreduce_init(small, total, policy=pp.Full())
    private = comm.Dup()
    slow.hold(True)
    small.put(1, slow)
    two.Start(stream=slow)
    big.put(1)
    one.Start()
    if comm.rank == 0:

        def look():
            slow.hold(False)
            private.Barrier()  # the others have the sum

        with held(stand_in, b"cuMemHostRegister", look):
            one.Wait()
        two.Wait()
    else:
        slow.hold(False)
        one.Wait()
        two.Wait(timeout=LIMIT_S)
        private.Barrier()
    assert total.get().tolist() == [comm.size] * SMALL
    assert sum_of_big.get()[-1] == comm.size
    for request in (one, two):
        request.Free()
    slow.close()
    private.Free()


@several_ranks
@pytest.mark.parametrize("call", [b"cuMemAlloc", b"cuModuleLoadData", b"cuIpcOpenMemHandle"])
def test_a_rank_that_makes_a_handle_is_served(comm, ctx, array, stand_in, call):
    """It answers the questions of the other ranks."""
    make, last = maker(ctx, array, "Allreduce_init", IPC), comm.size - 1
    answered = []

    def ask():
        comm.recv(source=0)
        question = Question(ctx._native, ctx._ctx, comm.size, 0)
        limit = time.monotonic() + LIMIT_S
        while time.monotonic() < limit and not answered:
            answered.extend([True] * all(state.answered for state in question._states))
        question.end()
        comm.send(0, dest=0)

    def let_go():
        try:
            soon(lambda: stand_in.fake_held_calls(call))
        finally:
            comm.send(0, dest=last)
            comm.recv(source=last)
            stand_in.fake_hold_calls(call, False)

    stand_in.fake_hold_calls(call, comm.rank == 0)
    other = threading.Thread(target={0: let_go, last: ask}.get(comm.rank, lambda: None))
    other.start()
    request = make()
    other.join()
    assert answered == [True] * (comm.rank == last)
    request.Free()


@pytest.mark.sizes(2)
def test_a_handle_after_one_of_registered_memory(ctx, array, stand_in):
    """Its maker waits until the driver has given that up, and so can pin the same memory."""
    first = made(ctx, array, "Allreduce_init", STAGED)
    once(first, array(1))
    first.Free()
    make = maker(ctx, array, "Allreduce_init", STAGED)
    with held(stand_in, b"cuMemHostUnregister", ctx.stats):
        second = make()
    for _ in range(5):
        once(second, array(1))
    assert ctx.stats().bounced_bytes == 0
    second.Free()


@pytest.mark.parametrize(
    ("allocate", "free", "path"),
    [(b"cuMemHostAlloc", b"cuMemFreeHost", STAGED), (b"cuMemAlloc", b"cuMemFree", IPC)],
)
def test_a_driver_without_memory(ctx, array, stand_in, allocate, free, path, request):
    """It gets back what freed handles have left, and is asked again."""
    if path is IPC:
        request.getfixturevalue("needs_ipc")
    made(ctx, array, "Allreduce_init", path).Free()
    make = maker(ctx, array, "Allreduce_init", path, 2 * COUNT)
    freed = stand_in.fake_calls(free)
    stand_in.fake_fail(allocate, 1, NO_MEMORY)
    second = make()
    assert second.device_path == path["device_path"]
    assert stand_in.fake_failed() == allocate
    assert stand_in.fake_calls(free) > freed
    second.Free()


def mapped():
    """Return where memory of the node is mapped."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return {line.split()[0] for line in lines if "/memfd:pypartial-node" in line}


@pytest.mark.usefixtures("needs_ipc")  # messages register no memory of the node
def test_memory_that_is_still_registered_stays_mapped(comm, array, stand_in):
    """Also behind the end of the context: the device may still be told to go there."""
    with pp.Context(comm) as ctx:
        first = made(ctx, array, "Allreduce_init", STAGED)
        once(first, array(1))
        stand_in.fake_hold_calls(b"cuMemHostUnregister", True)
        first.Free()
        before = mapped()
    assert before
    assert mapped() == before
    stand_in.fake_hold_calls(b"cuMemHostUnregister", False)


@several_ranks
@pytest.mark.parametrize("closes", [True, False], ids=["late", "not"])
def test_a_rank_that_closes_at_the_end_of_the_context(comm, array, stand_in, closes):
    """The others have their memory back when it has closed what it had mapped, and not before."""
    last, call = comm.rank == comm.size - 1, b"cuIpcCloseMemHandle"
    result, before = array(1), stand_in.fake_live(b"memory")
    with pp.Context(comm) as ctx:
        request = made(ctx, array, "Allreduce_init", IPC)
        once(request, result)
        request.Free()
        if last and closes:
            stand_in.fake_hold_calls(call, True)
            threading.Timer(0.3, stand_in.fake_hold_calls, [call, False]).start()
        elif last:
            stand_in.fake_fail(call, 0, 999)
    stand_in.fake_fail(call, 0, 0)
    arrays, kinds = 2, {b"memory": 1, b"contexts": 1, b"mappings": (comm.size - 1) * last}
    soon(lambda: stand_in.fake_live(b"memory") == before + arrays + (not closes))
    for kind, count in kinds.items() if not closes else ():
        for _ in range(count):
            stand_in.fake_take_back(kind)


def test_no_call_begins_while_an_initial_model_is_copied(comm, ctx, array, stand_in):
    other = ctx.Allreduce_init(np.ones(4), np.empty(4), policy=pp.Full())
    model = array(COUNT, "f8")

    def look():
        with pytest.raises(pp.Error, match="still in progress"):
            other.Flush()

    with held(stand_in, b"cuMemcpyAsync", look):
        request = ctx.Preduce_init(model, pp.groups.Static(), weights="dynamic", missing="initial")
    request.Free()
    other.Free()
