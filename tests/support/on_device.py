"""What an allreduce must do whose vectors are in memory of devices, on any path.

`opened` makes the handle, of its buffers and options, and is sure that it is on that path.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from mpi4py import MPI

import pypartial as pp

from .oracles import Log, judge

__all__ = [
    "LIMIT_S",
    "RESULTS",
    "adds_in_place",
    "contributes_once",
    "devices_that_stay",
    "first_refuses_what_last_has_opened",
    "has_bits_of_the_host",
    "let_go_when_waiting",
    "soon",
    "sums",
]

Opened = Callable[..., Any]
LIMIT_S = 20

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
