"""Messages of elements in memory of devices: MPI gets their addresses, and the bits are the host's.

The MPI is one that takes such addresses: tests/support/cuda_mpi.c, by LD_PRELOAD.
"""

from __future__ import annotations

import ctypes
import threading
import time
from contextlib import contextmanager
from functools import partial

import numpy as np
import pytest
from support.device import Array, Stream, device, driver
from support.explained import CONTRIBUTION, PART, STALL_WARNING_S, explained
from support.on_device import (
    LIMIT_S,
    RESULTS,
    adds_in_place,
    contributes_once,
    devices_that_stay,
    has_bits_of_the_host,
    keeps_results_for_a_slow_consumer,
    one_rank_cannot,
    rounds_instead,
    several_handles_and_contexts,
    soon,
    sums,
    waits_for_no_stream_that_is_held,
)
from support.pairwise import pairwise

import pypartial as pp
from pypartial import _direct

pytestmark = [pytest.mark.mpi, pytest.mark.usefixtures("mpi_of_devices")]

STEPS = 20
COUNT = 1003
ALGORITHMS = ("ring", "rabenseifner", "recursive_doubling")


@pytest.fixture
def ctx(comm, stand_in):
    """A context whose rounds are made of messages."""
    with pp.Context(comm, seed=7, transport="mpi", patience=None) as context:
        yield context


def opened(ctx, *buffers, **options):
    """Make a handle, which must be on this path."""
    request = ctx.Allreduce_init(*buffers, device_path="direct", **options)
    assert (request.device_path, request.device_path_reason) == ("direct", "")
    return request


POLICIES = [
    pp.Solo(),
    pp.Majority(),
    pp.FirstOf(1),
    pp.Quorum(1),
    pp.Quorum(1, deadline=1e-3),
    pp.Full(),
]


@pairwise(
    policy=POLICIES,
    deliver=["latest", "sum", "each"],
    extra={"small": 0, "large": 40_000},
)
def test_the_loop(comm, ctx, array, policy, deliver, extra):
    send, out = (array(comm.size + extra, "i8") for _ in range(2))
    options = {"policy": policy, "deliver": deliver}
    contributes_once(comm, partial(opened, ctx), send, out, STEPS, **options)


@pytest.mark.parametrize("count", [1, COUNT, 30_000])
@pytest.mark.parametrize(("dtype", "op", "average"), RESULTS)
def test_results_have_the_bits_of_the_hosts(comm, ctx, array, dtype, op, average, count):
    on_device, on_host = partial(opened, ctx), ctx.Allreduce_init
    has_bits_of_the_host(comm, on_device, on_host, array, dtype, op, average, count)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("dtype", ["f2", "f8"])
def test_every_algorithm(comm, ctx, array, dtype, algorithm):
    values = (np.random.default_rng(comm.rank).standard_normal(COUNT) * 10).astype(dtype)
    send, out, expected = array(COUNT, dtype), array(COUNT, dtype), np.zeros(COUNT, dtype)
    options = {"policy": pp.Full(), "algorithm": algorithm}
    on_device = opened(ctx, send, out, **options)
    on_host = ctx.Allreduce_init(values, expected, **options)
    send.put(values)
    for request in (on_device, on_host):
        request.Start()
        request.Wait()
    assert out.get().tobytes() == expected.tobytes()
    on_device.Free()
    on_host.Free()


@pytest.mark.parametrize("dtype", ["f2", "f4"])
def test_several_arrays_in_place(comm, ctx, array, dtype):
    adds_in_place(comm, partial(opened, ctx), array, dtype)


def test_what_is_counted_and_kept(comm, ctx, array, stand_in, mpi_of_devices):
    """A loop takes no more memory, and nothing passes the host."""
    send, out = array(COUNT, "i8"), array(COUNT, "i8")
    memory = stand_in.fake_live(b"memory")
    taken = mpi_of_devices.cuda_mpi_taken()
    request = opened(ctx, send, out, policy=pp.Full())
    host = stand_in.fake_live(b"host memory")
    assert sums(comm, request, send, out, 20)
    kept = stand_in.fake_live(b"memory")
    assert kept > memory
    assert stand_in.fake_live(b"host memory") == host
    for _ in range(2):
        assert sums(comm, request, send, out, 20)
    assert stand_in.fake_live(b"memory") <= kept + 2  # as fast as they are
    stats = ctx.stats()
    assert (stats.staged_bytes, stats.ipc_bytes) == (0, 0)
    assert stats.direct_bytes == mpi_of_devices.cuda_mpi_taken() - taken
    assert (stats.direct_bytes > 0) == (comm.size > 1)
    request.Free()


def test_several_handles_and_contexts(comm, array):
    with (
        pp.Context(comm, seed=1, transport="mpi") as one,
        pp.Context(comm, seed=2, transport="mpi", progress="caller") as two,
    ):
        several_handles_and_contexts(comm, one, two, opened, array, COUNT)


def test_one_handle_after_the_other(comm, ctx, array):
    send, out, kept = array(COUNT, "i8"), array(COUNT, "i8"), None
    for step in range(40):
        request = opened(ctx, send, out, policy=pp.Full())
        assert sums(comm, request, send, out, 1)
        if step == 20:
            kept = request
        else:
            request.Free()
    assert sums(comm, kept, send, out, 1)
    kept.Free()


@pytest.fixture
def devices(stand_in):
    """Two arrays on each of two devices, with the stream of their own."""
    made = []
    for number in (0, 1):
        with device(number):
            home = Stream()
            made.append([Array(50_000, "i8", home), Array(50_000, "i8", home)])
    yield made
    for number in (0, 1):
        with device(number):
            for one in made[number]:
                one.close()
            made[number][0].stream.close()


def current():
    """The calling thread's context."""
    context = ctypes.c_void_p()
    driver().cuCtxGetCurrent(ctypes.byref(context))
    return context.value


@pytest.mark.parametrize("progress", ["thread", "caller"])
def test_another_device(comm, devices, progress):
    """It is current while MPI has its addresses; the thread's own is so before and after."""
    before, (send, out) = current(), devices[1]
    with pp.Context(comm, seed=7, transport="mpi", progress=progress) as ctx:
        request = opened(ctx, send, out, policy=pp.Full())
        assert request.device == 1
        for _ in range(5):
            with device(1):
                send.put(comm.rank)
            request.Start(stream=send.stream)
            request.Wait(stream=out.stream)
            assert current() == before
            with device(1):
                assert (out.get() == sum(range(comm.size))).all()
        request.Free()


@pytest.mark.parametrize("newest", [0, 1])
def test_two_devices(comm, ctx, devices, newest, mpi_of_devices):
    """MPI gets an address while its own device is current."""
    mpi_of_devices.several_devices = True
    numbers = (1 - newest, newest)
    requests = [opened(ctx, *devices[number], policy=pp.Full()) for number in numbers]
    for _ in range(5):
        for number, request in zip(numbers, requests, strict=True):
            send, out = devices[number]
            with device(number):
                send.put(comm.rank)
                request.Start(stream=send.stream)
        for number, request in zip(numbers, requests, strict=True):
            out = devices[number][1]
            request.Wait(stream=out.stream)
            with device(number):
                assert (out.get() == sum(range(comm.size))).all()
    for request in requests:
        request.Free()


def test_beside_handles_of_other_paths(comm, ctx, array):
    send, out, ones, total = array(COUNT, "i8"), array(COUNT, "i8"), np.ones(3), np.zeros(3)
    direct = opened(ctx, send, out, policy=pp.Full())
    staged = ctx.Allreduce_init(send, out, policy=pp.Full())
    host = ctx.Allreduce_init(ones, total, policy=pp.Full())
    for _ in range(3):
        assert sums(comm, direct, send, out, 1)
        assert sums(comm, staged, send, out, 1)
        host.Start()
        host.Wait()
        assert total.tolist() == [comm.size] * 3
    for request in (staged, direct, host):
        request.Free()


def test_nothing_waits_for_a_stream_that_is_held(comm, array, stream):
    with pp.Context(comm, seed=7, transport="mpi", window=16) as ctx:
        waits_for_no_stream_that_is_held(comm, partial(opened, ctx), array, stream)


@pytest.mark.sizes(2, 3, 5)
@pytest.mark.parametrize("progress", ["thread", "caller"])
@pytest.mark.parametrize("count", [8, 30_000])
def test_nothing_waits_for_the_operations_of_a_round(comm, array, stand_in, progress, count):
    """While a device comes to none of them, its rank's other handles go on, and calls time out."""
    send, out, ones, total = array(count, "i8"), array(count, "i8"), np.ones(3), np.zeros(3)
    with pp.Context(comm, seed=7, transport="mpi", progress=progress, patience=None) as ctx:
        host = ctx.Allreduce_init(ones, total, policy=pp.Full())
        request = opened(ctx, send, out, policy=pp.Full())
        of_rounds = stand_in.fake_newest_stream()
        for step in range(3):
            stand_in.fake_hold(of_rounds, comm.rank == 0)
            send.put(step + comm.rank)
            request.Start()
            for _ in range(3):
                host.Start()
                host.Wait()
                assert total.tolist() == [comm.size] * 3
            with pytest.raises(pp.TimeoutError):
                request.Wait(timeout=0.01)
            comm.Barrier()
            stand_in.fake_hold(of_rounds, False)
            request.Wait()
            assert (out.get() == comm.size * step + sum(range(comm.size))).all()
        request.Free()
        host.Free()


@pytest.mark.sizes(2, 3, 5)
def test_a_wait_names_the_rank_whose_device_is_waited_for(comm, array, stand_in):
    """The others wait for its messages."""
    send, out, last = array(COUNT), array(COUNT), comm.size - 1
    options = {"transport": "mpi", "patience": None, "stall_warning": STALL_WARNING_S}
    with pp.Context(comm, seed=7, **options) as ctx:
        request = opened(ctx, send, out, policy=pp.Full())
        stand_in.fake_hold(of_rounds := stand_in.fake_newest_stream(), comm.rank == last)
        send.put(1)
        request.Start()
        right = [PART] if comm.rank == last else [], {CONTRIBUTION: [], PART: [last]}
        explained(request, lambda found: found == right)
        comm.Barrier()
        stand_in.fake_hold(of_rounds, False)
        request.Wait()
        assert (out.get() == comm.size).all()
        request.Free()


@pytest.mark.sizes(2, 3, 5)
@pytest.mark.parametrize("waits", [False, True])
def test_threads_look_for_what_is_held(comm, array, stand_in, waits):
    """It moves only while one looks; after all else a thread sleeps 100 ms."""
    send, out = array(COUNT, "i8"), array(COUNT, "i8")
    with pp.Context(comm, seed=7, transport="mpi", patience=None) as ctx:
        request = opened(ctx, send, out, policy=pp.Full())
        stand_in.fake_hold(of_rounds := stand_in.fake_newest_stream(), comm.rank == 0)
        send.put(1)
        comm.Barrier()
        request.Start()
        waiter = threading.Thread(target=request.Wait)
        if waits:
            waiter.start()
        if comm.rank == 0:
            assert np.median(gaps_of_looks(stand_in)) < 0.05
        comm.Barrier()
        stand_in.fake_hold(of_rounds, False)
        if waits:
            waiter.join()
        else:
            request.Wait()
        assert (out.get() == comm.size).all()
        request.Free()


def gaps_of_looks(stand_in):
    """Time how long events are not asked for, fifty times, when threads sleep as long as they do.

    It is 1.5 ms, mostly; a busy machine makes some of them any longer.
    """
    began, before, at = time.monotonic(), 0, []
    while len(at) <= 50:
        looks, after = stand_in.fake_calls(b"cuEventQuery"), time.monotonic() - began
        assert after < LIMIT_S, "there are hardly any looks"
        if looks > before and after > 0.5:
            at.append(after)
        before = looks
    return np.diff(at)


@pytest.mark.sizes(2, 3, 5)
def test_contributions_stay_until_they_are_read(comm, array, stand_in):
    """What later Starts copy off their buffer goes elsewhere."""
    send, out, last = array(COUNT, "i8"), array(COUNT, "i8"), comm.size - 1
    with pp.Context(comm, seed=7, transport="mpi", patience=None) as ctx:
        request = opened(ctx, send, out, policy=pp.Full())
        of_rounds = stand_in.fake_newest_stream()
        stand_in.fake_hold(of_rounds, True)
        for step in range(5 if comm.rank == last else 0):
            send.put(10**step)
            request.Start()
            request._land("Start", None, results=False)  # links
            with pytest.raises(pp.TimeoutError):
                request.Wait(timeout=0)
        comm.Barrier()
        stand_in.fake_hold(of_rounds, False)
        if comm.rank != last:
            send.put(0)
            request.Start()
        request.Wait()
        total = out.get()
        request.Flush()
        assert (total + out.get() == 11111).all()
        request.Free()


@pytest.mark.sizes(2, 3, 5)
def test_a_queue_that_is_full_stops_nobody(comm, array, stand_in):
    """Contributions wait until the device has come further."""
    send, out, ones, total = array(COUNT, "i8"), array(COUNT, "i8"), np.ones(3), np.zeros(3)
    room, starts = 512, 400
    with pp.Context(comm, seed=7, transport="mpi", patience=None) as ctx:
        host = ctx.Allreduce_init(ones, total, policy=pp.Full())
        request = opened(ctx, send, out, policy=pp.Full())
        stand_in.fake_hold(of_rounds := stand_in.fake_newest_stream(), comm.rank == 0)
        stand_in.fake_room(room if comm.rank == 0 else 1024)
        send.put(comm.rank == 0)
        with devices_that_stay(stand_in):
            for _ in range(starts if comm.rank == 0 else 0):
                request.Start()
                with pytest.raises(pp.TimeoutError):
                    request.Wait(timeout=0.001)  # most are combined meanwhile
            host.Start()
            host.Wait()
        assert total.tolist() == [comm.size] * 3
        stand_in.fake_hold(of_rounds, False)
        if comm.rank > 0:
            request.Start()
        request.Wait()
        contributed = out.get()
        request.Flush()
        assert (contributed + out.get() == starts).all()
        request.Free()
        host.Free()
    stand_in.fake_room(1024)


@pytest.mark.sizes(2, 3, 5)
def test_free_does_not_wait_for_the_operations_of_rounds(comm, array, stand_in):
    """Other ranks may make some at any time, until all are in Free."""
    send, out = array(COUNT, "f8"), array(COUNT, "f8")
    with pp.Context(comm, seed=7, transport="mpi", patience=None) as ctx:
        request = opened(ctx, send, out, policy=pp.Solo(), average="size")
        name = f"Free of {request._name()}"
        of_rounds, before = stand_in.fake_newest_stream(), stand_in.fake_calls(b"cuLaunchKernel")
        stand_in.fake_hold(of_rounds, comm.rank == 0)
        send.put(1)
        comm.Barrier()  # else the round may be over before its kernels are counted
        if comm.rank == 1:
            request.Start()
            if comm.size == 2:  # of more, rank 0 may have to send what it has reduced
                request.Wait()
        soon(lambda: comm.rank > 0 or stand_in.fake_calls(b"cuLaunchKernel") > before)
        comm.Barrier()
        if comm.rank == 0:
            with pytest.raises(pp.TimeoutError):
                request.Free(timeout=0.05)
            assert ctx._calls.begun(name) is not None
            stand_in.fake_hold(of_rounds, False)
        comm.Barrier()
        request.Free()


@contextmanager
def no_call_let_in(stand_in):
    """A driver that takes memory back lets no call of another thread in meanwhile."""
    stand_in.fake_exclusive(True)
    try:
        with devices_that_stay(stand_in):
            yield
    finally:
        stand_in.fake_exclusive(False)
        stand_in.fake_let_all_go()


def test_a_free_of_a_handle_on_a_device_that_is_stuck(comm, ctx, array, stand_in):
    """It makes no call that waits, so handles of the host go on, and it ends."""
    ones, total, send, out = np.ones(3), np.zeros(3), array(COUNT), array(COUNT)
    host = ctx.Allreduce_init(ones, total, policy=pp.Full())
    request = opened(ctx, send, out, policy=pp.Full())
    assert sums(comm, request, send, out)
    kernel, word = Stream(), array(1)
    kernel.hold(True)
    word.copy(word, kernel)
    with no_call_let_in(stand_in):
        request.Free()
        for _ in range(3):
            host.Start()
            host.Wait()
        assert total.tolist() == [comm.size] * 3
    host.Free()
    kernel.close()


@pytest.mark.sizes(2)
def test_a_free_behind_its_own_operations(comm, ctx, array, stand_in):
    """They wait for no other rank: this one divides, for a round that is complete there."""
    send, out = array(COUNT, "f8"), array(COUNT, "f8")
    request = opened(ctx, send, out, policy=pp.Solo(), average="size")
    of_rounds, before = stand_in.fake_newest_stream(), stand_in.fake_calls(b"cuLaunchKernel")
    stand_in.fake_hold(of_rounds, comm.rank == 0)
    send.put(1)
    comm.Barrier()  # else the round may be over before its kernels are counted
    if comm.rank == 1:
        request.Start()
        request.Wait()
    soon(lambda: comm.rank > 0 or stand_in.fake_calls(b"cuLaunchKernel") > before)
    comm.Barrier()
    with no_call_let_in(stand_in):
        request.Free()


def test_results_come_after_the_operations_of_their_round(array, stand_in):
    """A rank alone: its rounds are made of nothing else."""
    from mpi4py import MPI

    send, out, consumer = array(COUNT, "i8"), array(COUNT, "i8"), Stream()
    seen = [array(COUNT, "i8") for _ in range(5)]
    with pp.Context(MPI.COMM_SELF, transport="mpi") as ctx:
        request = opened(ctx, send, out)
        of_rounds = stand_in.fake_newest_stream()
        stand_in.fake_hold(of_rounds, True)
        for step in range(5):
            send.put(step)
            request.Start()
            request.Wait(stream=consumer)
            seen[step].copy(out, consumer)
        with pytest.raises(pp.TimeoutError):
            request.Free(timeout=0.05)
        stand_in.fake_hold(of_rounds, False)
        assert [one.get(consumer)[-1] for one in seen] == list(range(5))
        request.Free()
    consumer.close()


def test_a_slow_consumer_keeps_its_results(comm, ctx, array):
    keeps_results_for_a_slow_consumer(comm, partial(opened, ctx), array, COUNT)


def test_starts_that_fail(comm, ctx, array, stand_in):
    send, out = array(COUNT, "i8"), array(COUNT, "i8")
    request = opened(ctx, send, out, policy=pp.Full())
    for _ in range(12 if comm.rank == 0 else 0):
        stand_in.fake_fail(b"cuMemcpyAsync", 1, 999)
        with pytest.raises(pp.Error, match="cuMemcpyAsync failed"):
            request.Start()
        stand_in.fake_fail(b"cuMemcpyAsync", 0, 0)
    assert sums(comm, request, send, out)
    request.Free()


# ---- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["cuModuleLoadData", "cuMemAlloc"])
@pytest.mark.filterwarnings("error")
def test_one_rank_cannot(comm, ctx, array, stand_in, call):
    """All ranks have the other path, and nothing is left."""
    made = array(1)
    assert made.count == 1  # allocated before the failure
    one_rank_cannot(comm, stand_in, call, partial(rounds_instead, comm, ctx, array, "direct"))


def test_one_rank_of_a_node_tries_mpi(comm, ctx, array, monkeypatch):
    tried = []
    monkeypatch.setattr(_direct, "self_test", tried.append)
    opened(ctx, array(1), array(1)).Free()
    assert comm.allgather(len(tried)) == [1] + [0] * (comm.size - 1)


def test_rounds_in_memory_that_ranks_share(comm, array, stand_in):
    with pp.Context(comm, seed=7) as ctx:
        rounds_instead(comm, ctx, array, "direct", "made in memory that the ranks of a node share")


@pytest.mark.filterwarnings("ignore:device_path:RuntimeWarning")
def test_no_elements(comm, ctx, array):
    request = ctx.Allreduce_init(array(0), array(0), device_path="direct")
    assert request.device_path_reason == "rank 0: there are no elements"
    request.Start()
    request.Wait()
    request.Free()


# ---- bad input -----------------------------------------------------------------------------------


def test_buffers_of_the_host(comm, ctx):
    with pytest.raises(pp.ArgumentError, match="device_path='direct' is for buffers in the memory"):
        ctx.Allreduce_init(np.ones(3), np.ones(3), device_path="direct")


def test_ranks_with_different_paths(comm, ctx, array):
    if comm.size == 1:
        pytest.skip("a rank alone does not differ")
    path = "direct" if comm.rank == 0 else "auto"
    with pytest.raises(pp.MismatchError, match="device_path=direct"):
        ctx.Allreduce_init(array(3), array(3), device_path=path)


def test_one_rank_has_a_wrong_argument(comm, ctx, array):
    """The others let go what they have made for this path."""
    last = comm.rank == comm.size - 1
    error, average = (pp.ArgumentError, "size") if last else (pp.MismatchError, None)
    with pytest.raises(error, match="average='size' is for"):
        ctx.Allreduce_init(array(3, "i4"), array(3, "i4"), average=average, device_path="direct")
