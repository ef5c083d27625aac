"""What an allreduce must do whose vectors are in memory of devices, on any path, and P-Reduce.

`opened` makes the handle, of its buffers and options, and is sure that it is on that path.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import pypartial as pp

from .device import Stream
from .oracles import Log, judge

__all__ = [
    "LIMIT_S",
    "RESULTS",
    "adds_in_place",
    "averages",
    "contributes_once",
    "devices_that_stay",
    "first_refuses_what_last_has_opened",
    "groups_instead",
    "has_bits_of_the_host",
    "keeps_results_for_a_slow_consumer",
    "let_go_when_waiting",
    "one_rank_cannot",
    "rounds_instead",
    "several_handles_and_contexts",
    "soon",
    "sums",
    "waits_for_no_stream_that_is_held",
    "whole",
]

Opened = Callable[..., Any]
Fail = Callable[[], None]
LIMIT_S = 20
NOT_SUPPORTED = 801

# Types, operations and averages, each of which vectors hold, or kernels do, in another way.
RESULTS = [
    ("f2", "SUM", None),
    ("f2", "SUM", "contributors"),
    ("f2", "MAX", None),
    ("f4", "SUM", "size"),
    ("f4", "PROD", None),
    ("f8", "SUM", "contributions"),
    ("f8", "MIN", None),
    ("c8", "PROD", None),
    ("c16", "SUM", "size"),
    ("i1", "SUM", None),
    ("u2", "MAX", None),
    ("i4", "LAND", None),
    ("i8", "BXOR", None),
    ("?", "LOR", None),
    ("?", "LXOR", None),
]


def sums(comm: MPI.Comm, request: Any, send: Any, out: Any, steps: int = 5) -> bool:
    """Whether rounds give the sums that they should."""
    for step in range(steps):
        send.put(np.arange(send.count) + step)
        request.Start()
        request.Wait()
        if not (out.get() == comm.size * (np.arange(send.count) + step)).all():
            return False
        send.settle()
    return True


def contributes_once(
    comm: MPI.Comm,
    opened: Opened,
    send: Any,
    out: Any,
    steps: int,
    **options: Any,
) -> None:
    """Every contribution enters one round, and all ranks have the same results.

    There are 8-byte integers for each rank, and some more. What is sent is overwritten behind its
    copy.
    """
    values = np.arange(send.count, dtype="i8")
    values[: comm.size] = np.eye(comm.size, dtype="i8")[comm.rank]
    status = pp.Status()
    request = opened(send, out, **options)
    log = Log(comm.size, 8 * steps * comm.size)
    for _ in range(steps):
        send.put(values)
        request.Start()
        send.put(-999)
        log.started()
        request.Wait(status)
        log.given(status, out.get())
        send.settle()
    if options.get("deliver") == "each":
        for drained in request.Drain():
            log.given(drained, out.get())
    else:
        request.Flush(status)
        log.given(status, out.get())
    judge(comm, log, request)
    request.Free()


def has_bits_of_the_host(
    comm: MPI.Comm,
    opened: Opened,
    opened_on_host: Opened,
    array: Any,
    dtype: str,
    op: str,
    average: str | None,
    count: int,
) -> None:
    """A result has the bits of a handle's with buffers of the host, also that of nothing."""
    rng = np.random.default_rng(comm.rank)
    options = {"policy": pp.Full(), "op": getattr(MPI, op), "average": average}
    values = (rng.standard_normal(count) * 10).astype(dtype)
    if op in ("MIN", "MAX") and values.dtype.kind == "f":
        values[::3] = np.copysign(0, values[::3])  # zeros of both signs
    send, out, expected = array(count, dtype), array(count, dtype), np.zeros(count, dtype)
    on_device = opened(send, out, **options)
    on_host = opened_on_host(values.copy(), expected, **options)
    send.put(values)
    for request in (on_device, on_host):
        request.Start()
        request.Wait()
    assert out.get().tobytes() == expected.tobytes()
    on_device.Flush()  # of nothing: the identity
    on_host.Flush()
    assert out.get().tobytes() == expected.tobytes()
    on_device.Free()
    on_host.Free()


def adds_in_place(comm: MPI.Comm, opened: Opened, array: Any, dtype: str) -> None:
    """Several arrays are one vector, and one of them may be empty."""
    first, second, empty = array(3, dtype), array(5, dtype), array(0, dtype)
    first.put([comm.rank, 1, 2])
    second.put(np.arange(5))
    request = opened(None, [first, empty, second], policy=pp.Full())
    request.Start()
    request.Wait()
    ranks = sum(range(comm.size))
    assert first.get().tolist() == [ranks, comm.size, 2 * comm.size]
    assert second.get().tolist() == [comm.size * i for i in range(5)]
    request.Free()


def waits_for_no_stream_that_is_held(
    comm: MPI.Comm, opened: Opened, array: Any, stream: Stream
) -> None:
    """Start returns, the other ranks' rounds complete, and Flush waits for the contribution.

    The context has a window of 16 rounds.
    """
    send, out = array(comm.size), array(comm.size)
    send.put(np.eye(comm.size, dtype="f4")[comm.rank])
    stream.wait()
    last, total = comm.rank == comm.size - 1, np.zeros(comm.size, "f4")
    request = opened(send, out, policy=pp.Solo())
    stream.hold(last)
    request.Start()
    for _ in range(0 if last else 5):
        request.Wait()
        total += out.get()
        request.Start()
    comm.Barrier()
    if last:
        with pytest.raises(pp.TimeoutError, match="have not come to or from their device"):
            request.Flush(timeout=0.05)
        stream.hold(False)
    request.Flush()
    total += out.get()
    assert total.tolist() == [6] * (comm.size - 1) + [1]
    request.Free()


def keeps_results_for_a_slow_consumer(
    comm: MPI.Comm, opened: Opened, array: Any, count: int
) -> None:
    """Results that wait for their stream are not overwritten."""
    send, out, slow = array(count, "i8"), array(count, "i8"), Stream()
    request = opened(send, out, policy=pp.Full())
    for _ in range(3):
        seen = [array(count, "i8") for _ in range(7)]
        slow.hold(True)
        for step in range(7):
            send.put(step)
            request.Start()
            request.Wait(stream=slow)
            seen[step].copy(out, slow)
        slow.hold(False)
        slow.wait()
        assert [one.get()[-1] for one in seen] == [step * comm.size for step in range(7)]
    request.Free()
    slow.close()


def several_handles_and_contexts(
    comm: MPI.Comm, one: pp.Context, two: pp.Context, opened: Opened, array: Any, count: int
) -> None:
    """Each handle of two contexts has its own memory, and gives it back in any order."""
    buffers = [(array(count, "i8"), array(count, "i8")) for _ in range(4)]
    requests = [
        opened(ctx, *pair, policy=pp.Full())
        for ctx, pair in zip([one, two, two, one], buffers, strict=True)
    ]
    for request, pair in zip(requests, buffers, strict=True):
        assert sums(comm, request, *pair)
    for at in (2, 0, 1, 3):
        requests[at].Free()


# ---- groups -------------------------------------------------------------------------------------


def whole(size: int) -> pp.groups.Table:
    """Each phase is one group of all ranks."""
    return pp.groups.Table([[range(size)]])


def averages(comm: MPI.Comm, request: Any, model: Any, steps: int = 5) -> bool:
    """Whether groups of all ranks have the averages that they should."""
    for step in range(steps):
        model.put(np.arange(model.count) + step + comm.rank)
        request.Start()
        request.Wait()
        expected = np.arange(model.count) + step + (comm.size - 1) / 2
        if not np.allclose(model.get(), expected, rtol=1e-6):
            return False
        model.settle()
    return True


# ---- a path that is not possible ----------------------------------------------------------------


def _is_staged(
    comm: MPI.Comm, make: Callable[[], Any], path: str, why: str, is_right: Callable[[Any], bool]
) -> None:
    """A handle that cannot be on a path, on any rank, works on the other one; one warns, once."""
    rather = f"device_path={path!r} is not possible"
    with pytest.warns(RuntimeWarning, match=rather) if comm.rank == 0 else nullcontext():
        request = make()
    assert request.device_path == "staged"
    assert why in request.device_path_reason
    assert len(set(comm.allgather(request.device_path_reason))) == 1
    assert is_right(request)
    again = make()  # does not warn
    for one in (request, again):
        one.Free()


def rounds_instead(
    comm: MPI.Comm,
    ctx: pp.Context,
    array: Any,
    path: str,
    why: str,
    fail: Fail = lambda: None,
) -> None:
    """Rounds are staged instead, after what `fail` does before a handle is made."""
    send, out = array(1003, "i8"), array(1003, "i8")

    def make() -> Any:
        fail()
        return ctx.Allreduce_init(send, out, policy=pp.Full(), device_path=path)

    _is_staged(comm, make, path, why, lambda request: sums(comm, request, send, out))


def groups_instead(
    comm: MPI.Comm,
    ctx: pp.Context,
    array: Any,
    path: str,
    why: str,
    fail: Fail = lambda: None,
    **options: Any,
) -> None:
    """The same, for groups with these options."""
    model = array(1003)
    model.put(5)

    def make() -> Any:
        fail()
        return ctx.Preduce_init(model, whole(comm.size), device_path=path, **options)

    _is_staged(comm, make, path, why, lambda request: averages(comm, request, model))


def one_rank_cannot(
    comm: MPI.Comm, stand_in: Any, call: str, instead: Callable[[str, Fail], None], nth: int = 1
) -> None:
    """The last rank's driver refuses a call: `instead` is given the reason, and what has it fail.

    It is told to before each handle.
    """
    last = comm.size - 1

    def fail() -> None:
        if comm.rank == last:
            stand_in.fake_fail(call.encode(), nth, NOT_SUPPORTED)

    try:
        instead(f"rank {last}: CUDA reports an error: {call} failed", fail)
    finally:
        stand_in.fake_fail(call.encode(), 0, 0)


# ---- waiting ------------------------------------------------------------------------------------


def soon(condition: Callable[[], Any], limit_s: float = LIMIT_S) -> None:
    """Wait until it holds; fail if that takes long."""
    limit = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < limit, "what the test waits for has not come"
        time.sleep(0.001)


@contextmanager
def first_refuses_what_last_has_opened(comm: MPI.Comm, stand_in: Any) -> Iterator[None]:
    """Have rank 0 fail to open memory of others, when the last rank has begun to open some.

    A rank that knows of a refusal opens nothing.
    """
    call, last = b"cuIpcOpenMemHandle", comm.size - 1
    opened = stand_in.fake_calls(call)

    def tell() -> None:
        try:
            soon(lambda: stand_in.fake_calls(call) > opened)
        finally:
            comm.send(None, dest=0)

    def let_go() -> None:
        comm.recv(source=last)
        stand_in.fake_hold_calls(call, False)

    if comm.rank == 0:
        stand_in.fake_hold_calls(call, True)
        stand_in.fake_fail(call, 1, 801)
    other = threading.Thread(target={0: let_go, last: tell}.get(comm.rank, lambda: None))
    other.start()
    try:
        yield
    finally:
        other.join()
        stand_in.fake_fail(call, 0, 0)


@contextmanager
def let_go_when_waiting(ctx: pp.Context, let_go: Callable[[], None]) -> Iterator[threading.Event]:
    """Have another thread let something go when a call of the block waits for a device.

    The event says that it has.
    """
    waits, gone = threading.Event(), threading.Event()
    calls: Any = ctx._calls
    await_device = calls.await_device

    def note(*arguments: Any) -> Any:
        waits.set()
        return await_device(*arguments)

    def watch() -> None:
        if waits.wait(LIMIT_S):
            gone.set()
        let_go()

    calls.await_device = note
    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield gone
    finally:
        watcher.join()
        calls.await_device = await_device
    assert gone.is_set(), "no call has waited for the device"


@contextmanager
def devices_that_stay(stand_in: Any) -> Iterator[None]:
    """Fail if the block ends only when what it has held goes on; else such a test would hang."""
    limit = threading.Timer(LIMIT_S, stand_in.fake_let_all_go)
    limit.start()
    try:
        yield
        assert limit.is_alive(), "the device had to go on"
    finally:
        limit.cancel()
