"""P-Reduce of buffers on a device: groups, streams, and what it must not do."""

from __future__ import annotations

import ctypes
import os
import sys
import time
from zlib import crc32

import numpy as np
import pytest
from support.device import Array, Stream, device
from support.on_device import let_go_when_waiting, whole
from support.oracles import check_groups
from support.pairwise import pairwise

import pypartial as pp

pytestmark = [
    pytest.mark.mpi,
    pytest.mark.filterwarnings("ignore:device_path='ipc' is not possible:RuntimeWarning"),
]

STEPS = 12
BACKENDS = ["auto", "schedule", "comm"]
KERNELS = "PYPARTIAL_CUDA_KERNELS"
OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY


@pytest.fixture(autouse=True, params=["staged", "ipc", "direct"])
def path(request, monkeypatch):
    """How models get from rank to rank, where a test does not say, and where that is possible."""
    if request.param == "ipc" and KERNELS not in os.environ:
        pytest.skip(f"{KERNELS} names no kernels: a C++ compiler makes them")
    case = getattr(request.node, "callspec", None)
    options = set(case.params.values()) if case else set()
    if request.param == "ipc" and options & {"schedule", "comm", "mpi"}:
        pytest.skip("models that go by messages are staged")
    if request.param == "direct":
        if "comm" not in options:
            pytest.skip("MPI gets addresses of groups on communicators only")
        request.getfixturevalue("mpi_of_devices")
    make = pp.Context.Preduce_init

    def init(ctx, buffer, groups, **options):
        first = buffer[0] if isinstance(buffer, list) else buffer
        if isinstance(first, np.ndarray) or "device_path" in options:
            return make(ctx, buffer, groups, **options)
        made = make(ctx, buffer, groups, device_path=request.param, **options)
        is_there = made.backend == {"ipc": "node", "direct": "comm"}.get(request.param)
        assert made.device_path == (request.param if is_there else "staged")
        return made

    monkeypatch.setattr(pp.Context, "Preduce_init", init)
    return request.param


def generator(name, size):
    """The generator of this name; the test is skipped where it has more ranks than there are."""
    kind, _, most = name.partition(":")
    if most and int(most) > size:
        pytest.skip(f"no groups of {name} among {size} ranks")
    return {
        "static": lambda: pp.groups.Static(nodes=1, per_node=size),
        "table": lambda: pp.groups.Table([[range(size)], [[rank] for rank in range(size)]]),
        "given": pp.groups.Given,
        "random": lambda: pp.groups.Random(int(most)),
        "smart": lambda: pp.groups.Smart(int(most)),
        "controller": lambda: pp.groups.Controller(int(most)),
    }[kind]()


# ---- averages -----------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [7, 20_000], ids=["small", "large"])
@pytest.mark.parametrize(
    "name", ["static", "table", "random:2", "smart:2", "controller:2", "controller:3"]
)
def test_the_mean_is_kept_and_members_agree(comm, array, transport, name, count):
    """Averages of equal weight keep the mean; the members of a group have the same bits."""
    initial = np.random.default_rng(comm.rank).normal(size=count)
    mean = np.mean(comm.allgather(initial), axis=0)
    with pp.Context(comm, seed=7, transport=transport) as ctx:
        model, log, status = array(count, "f8"), [], pp.Status()
        model.put(initial)
        request = ctx.Preduce_init(model, generator(name, comm.size))
        assert isinstance(request, pp.DevicePreduceRequest)
        assert request.device == 0
        for step in range(STEPS):
            request.Start()
            model.put(-999)  # waits for the copy
            assert request.Wait(status) is True
            assert status.iteration == step
            after = model.get()
            log.append((status.round, status.group, status.weights, crc32(after.tobytes())))
        request.Flush(status)
        assert status.group == tuple(range(comm.size))
        after = model.get()
        assert comm.allgather(after.tobytes()) == [after.tobytes()] * comm.size
        np.testing.assert_allclose(after, mean, rtol=0, atol=1e-12)
        check_groups(comm, log)
        assert request.Free() == 0


@pairwise(dtype=["f2", "f4", "f8"], weights=["constant", "closest", "initial"], backend=BACKENDS)
def test_results_have_the_bits_of_the_hosts(comm, ctx, array, dtype, weights, backend):
    """With every kind of weights, and whatever adds up the models."""
    if backend == "schedule" and comm.size == 1:
        pytest.skip("a rank alone sends no messages")
    rng = np.random.default_rng(comm.rank)
    values, other = ((rng.standard_normal(1001) * 10).astype(dtype) for _ in range(2))
    dynamic = {} if weights == "constant" else {"weights": "dynamic", "missing": weights}
    on_device, on_host = array(1001, dtype), values.copy()
    on_device.put(values)  # the initial model
    requests = [
        ctx.Preduce_init(buffer, pp.groups.Given(), backend=backend, **dynamic)
        for buffer in (on_device, on_host)
    ]
    assert requests[0].backend == requests[1].backend
    on_device.put(other)
    on_host[:] = other
    status, expected = pp.Status(), pp.Status()
    iterations = [(comm.rank + 1) % comm.size, None, 2 * comm.size + comm.rank]
    groups = [range(comm.size), range(max(1, comm.size - 1)), range(comm.size)]
    for iteration, group in zip(iterations, groups, strict=True):
        if comm.rank not in group:
            continue
        requests[0].Start(iteration, group)
        on_device.put(-999)
        requests[0].Wait(status)
        requests[1].Start(iteration, group)
        requests[1].Wait(expected)
        assert (status.group, status.weights) == (expected.group, expected.weights)
        assert (status.initial, status.iteration) == (expected.initial, expected.iteration)
        assert on_device.get().tobytes() == on_host.tobytes()
    for request in requests:
        request.Flush(status)
    assert on_device.get().tobytes() == on_host.tobytes()
    for request in requests:
        assert request.Free() == 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_several_arrays(comm, ctx, array, backend):
    """A list of arrays is one vector, whatever adds them up."""
    if backend == "schedule" and comm.size == 1:
        pytest.skip("a rank alone sends no messages")
    first, second, none = array(3), array(5), array(0)
    request = ctx.Preduce_init([first, none, second], whole(comm.size), backend=backend)
    assert (request.count, request.dtype) == (8, np.dtype("f4"))
    first.put([comm.rank, 1, 2])
    second.put(np.arange(5) * comm.rank)
    request.Start()
    request.Wait()
    mean = (comm.size - 1) / 2
    assert first.get().tolist() == [mean, 1, 2]
    assert second.get().tolist() == [mean * i for i in range(5)]
    request.Free()


@pytest.mark.parametrize("backend", ["auto", "comm"])
def test_a_rank_that_is_alone_has_its_own_model(comm, ctx, array, backend):
    """As it was at Start, whatever was queued afterwards."""
    model, status = array(5), pp.Status()
    model.put(comm.rank + 1)
    idle = pp.groups.Table([[[rank] for rank in range(comm.size)]])
    request = ctx.Preduce_init(model, idle, backend=backend)
    request.Start()
    model.put(-1)
    request.Wait(status)
    assert status.group == (comm.rank,)
    assert model.get().tolist() == [comm.rank + 1] * 5
    request.Free()


@pytest.mark.parametrize("progress", ["thread", "caller"])
def test_several_handles(comm, array, progress):
    """Groups on a device, groups on the host and an allreduce on a device, each once a step."""
    with pp.Context(comm, seed=7, progress=progress, patience=None) as ctx:
        model, total, on_host = array(4), array(4), np.full(4, float(comm.rank))
        model.put(comm.rank)
        total.put(1)
        requests = [
            ctx.Preduce_init(model, pp.groups.Random(min(2, comm.size)))
            if comm.size > 1
            else ctx.Preduce_init(model, whole(1)),
            ctx.Preduce_init(on_host, whole(comm.size)),
            ctx.Allreduce_init(None, total, policy=pp.Full()),
        ]
        for _ in range(STEPS):
            for request in requests:
                request.Start()
                request.Wait()
        requests[0].Flush()
        np.testing.assert_allclose(model.get(), (comm.size - 1) / 2, rtol=1e-6)
        assert (on_host == (comm.size - 1) / 2).all()
        assert (total.get() == comm.size**STEPS).all()
        for request in requests:
            request.Free()


# ---- streams ------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["auto", "comm"])
def test_a_model_is_what_was_queued_before_start(comm, ctx, array, backend):
    """A side stream writes the buffer, and Start is given that stream; Wait is given another."""
    side, third = Stream(), Stream()
    model = array(1000)
    request = ctx.Preduce_init(model, whole(comm.size), backend=backend)
    for step in range(20):
        side.hold(True)
        model.put(step + comm.rank, side)
        request.Start(stream=side)
        model.put(-1, side)
        side.hold(False)
        side.wait()
        request.Wait(stream=third)
        mean = model.get(third)
        assert (mean == step + (comm.size - 1) / 2).all(), (step, mean[:3])
        model.settle()
    request.Free()
    side.close()
    third.close()


@pytest.mark.sizes(1, 2, 3)
def test_nobody_waits_for_a_stream_that_is_held(comm, array, stream, transport):
    """Start returns, the others' groups go on without this rank, and Flush waits for its model."""
    last = comm.rank == comm.size - 1
    model, status = array(3, "f8"), pp.Status()
    with pp.Context(comm, seed=7, transport=transport) as ctx:
        model.put(comm.rank)
        stream.wait()
        groups = pp.groups.Controller(2) if comm.size > 2 else whole(comm.size)
        request = ctx.Preduce_init(model, groups)
        stream.hold(last)
        request.Start()
        for _ in range(0 if last or comm.size < 3 else 5):
            request.Wait(status)
            assert status.group == (0, 1)
            request.Start()
        if last:
            assert request.Test() is False
            with pytest.raises(pp.TimeoutError, match="is on its way from its device"):
                request.Wait(timeout=0.05)
            with pytest.raises(pp.Error, match="was not collected"):
                request.Start()
        comm.Barrier()
        if last:
            with pytest.raises(
                pp.TimeoutError,
                match="have not come to or from their device",
            ):
                request.Flush(timeout=0.05)
            stream.hold(False)
        request.Flush(status)
        assert status.group == tuple(range(comm.size))
        np.testing.assert_allclose(model.get(), (comm.size - 1) / 2)
        request.Free()


@pytest.mark.sizes(2, 3)
def test_a_rank_asks_for_its_group_when_its_copy_is_over(comm, array, stream, transport):
    """Until then it says nothing; nobody waits for it, so there is nothing else to say."""
    model, status, last = array(2), pp.Status(), comm.size - 1
    with pp.Context(comm, transport=transport, patience=None) as ctx:
        request = ctx.Preduce_init(model, pp.groups.Smart(comm.size))
        comm.Barrier()
        sent = ctx.stats().messages_sent
        if comm.rank == last:
            stream.wait()
            stream.hold(True)
            request.Start()
            assert not request.Test()
            assert ctx.stats().messages_sent == sent
            stream.hold(False)
        comm.Barrier()
        if comm.rank < last:
            request.Start()
        request.Wait(status)
        assert status.group == tuple(range(comm.size))
        assert comm.rank == 0 or transport == "auto" or ctx.stats().messages_sent > sent
        request.Free()


@pytest.mark.sizes(3)
def test_a_rank_whose_copy_is_on_its_way_computes(comm, array, stream, transport):
    """It holds its group up for its patience only, and is in the next one again."""
    model, status = array(2), pp.Status()
    with pp.Context(comm, transport=transport, patience=0.2) as ctx:
        request = ctx.Preduce_init(model, pp.groups.Smart(3))
        stream.wait()
        stream.hold(comm.rank == 2)
        request.Start()
        if comm.rank < 2:
            request.Wait(status, timeout=30)
            assert 2 not in status.group
        comm.Barrier()
        stream.hold(False)
        if comm.rank == 2:
            request.Wait(status, timeout=30)
        request.Flush(status)
        assert status.group == (0, 1, 2)
        request.Free()


@pytest.mark.sizes(3)
@pytest.mark.parametrize("call", ["away", "init"])
def test_a_copy_is_over_before_a_collective_call(comm, array, stream, transport, call):
    """The rank leaves then, as one whose model is in memory of the host."""
    model, status = array(2, "f8"), pp.Status()
    model.put(comm.rank)
    with pp.Context(comm, transport=transport, patience=None) as ctx:
        request = ctx.Preduce_init(model, pp.groups.Controller(2))
        stream.wait()
        late = comm.rank == 2
        if late:
            stream.hold(True)
            request.Start()
            with let_go_when_waiting(ctx, lambda: stream.hold(False)) as released, ctx.away():
                assert released.is_set()
                comm.Barrier()
                comm.Barrier()
        else:
            comm.Barrier()
            for _ in range(3):
                request.Start()
                request.Wait(status, timeout=30)
            comm.Barrier()
            with ctx.away():
                pass
        if call == "init":
            ctx.Allreduce_init(np.zeros(1), np.zeros(1)).Free()
        if late:
            request.Wait(status, timeout=30)
        request.Flush(status)
        np.testing.assert_allclose(model.get(), 1)
        assert request.Free() == 0


@pytest.mark.sizes(2, 3, 4, 5)
@pytest.mark.parametrize("path", ["staged", "ipc"])
@pytest.mark.parametrize("count", [3, 700])
def test_a_flush_that_times_out_goes_on(comm, array, path, count, needs_ipc):
    """It has taken what the buffers held, and takes nothing more."""
    model, timed_out = array(count, "f8"), 0
    with pp.Context(comm, seed=5, patience=None) as ctx:
        request = ctx.Preduce_init(model, pp.groups.Random(2), device_path=path)
        assert request.device_path == path
        for _ in range(50):
            model.put(comm.rank)
            while True:
                try:
                    request.Flush(timeout=0)
                    break
                except pp.TimeoutError:
                    timed_out += 1
            assert (model.get() == (comm.size - 1) / 2).all()
            model.settle()
        request.Free()
    assert timed_out > 0


@pytest.mark.parametrize("steps", [7, 9], ids=["some", "many"])
def test_a_slow_consumer_keeps_its_results(comm, ctx, array, steps):
    """Averages that wait for their stream are not overwritten; the ninth waits for the first."""
    slow, model = Stream(), array(100)
    seen = [array(100) for _ in range(steps)]
    request = ctx.Preduce_init(model, whole(comm.size))
    slow.hold(True)
    for step in range(steps):
        model.put(step)
        request.Start()
        if step == 8:
            with pytest.raises(pp.TimeoutError):
                request.Wait(timeout=0.05, stream=slow)
            assert not request.Test(stream=slow)
            comm.Barrier()
            slow.hold(False)
        request.Wait(stream=slow)
        seen[step].copy(model, slow)
    slow.hold(False)
    slow.wait()
    assert [one.get().tolist() for one in seen] == [[step] * 100 for step in range(steps)]
    request.Free()
    slow.close()


def test_calls_of_the_driver(comm, ctx, array, stream, stand_in, path):
    """A loop takes no more memory; a handle that is idle makes no call at all."""
    model = array(1000)
    request = ctx.Preduce_init(model, whole(comm.size))

    def turn():
        request.Start()
        request.Wait()
        stream.wait()

    for _ in range(3):
        turn()
    comm.Barrier()
    before = ctx.stats()
    kinds = (b"host memory", b"memory", b"events")
    taken = [stand_in.fake_live(kind) for kind in kinds]
    for _ in range(20):
        turn()
    assert [stand_in.fake_live(kind) for kind in kinds] == taken
    stats, moved = ctx.stats(), 20 * 2 * model.nbytes
    assert stats.staged_bytes - before.staged_bytes == (moved if path == "staged" else 0)
    assert stats.ipc_bytes - before.ipc_bytes == (moved if path == "ipc" else 0)
    averaged = comm.allreduce(stats.device_rounds - before.device_rounds)
    assert averaged == (20 if path == "ipc" and comm.size > 1 else 0)
    on_host = ctx.Preduce_init(np.ones(1), whole(comm.size))
    calls = stand_in.fake_calls(b"")
    for _ in range(20):
        on_host.Start()
        on_host.Wait()
    sleeps = ctx.stats().sleeps
    time.sleep(0.3)
    assert ctx.stats().sleeps - sleeps < 50  # with copies on their way it would be 200 and more
    comm.Barrier()
    assert stand_in.fake_calls(b"") == calls
    on_host.Free()
    request.Free()


# ---- the initial model --------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["auto", "comm"])
def test_the_initial_model_is_waited_for(comm, ctx, array, stream, backend):
    """Preduce_init waits for what is queued, no longer than its timeout, and then goes on."""
    model, status = array(20_000), pp.Status()
    options = {"weights": "dynamic", "missing": "initial", "backend": backend}
    stream.hold(True)
    model.put(100)
    for _ in range(2):
        with pytest.raises(
            pp.TimeoutError, match=r"(?s)Preduce_init.*is on its way from their device"
        ):
            ctx.Preduce_init(model, pp.groups.Given(), timeout=0.05, **options)
    stream.hold(False)
    request = ctx.Preduce_init(model, pp.groups.Given(), **options)
    model.put(comm.rank)
    request.Start(iteration=2 * comm.rank, group=range(comm.size))
    request.Wait(status)
    if comm.size > 1:
        assert status.initial > 0
    expected = status.initial * 100 + np.dot(status.weights, status.group)
    np.testing.assert_allclose(model.get(), expected, rtol=1e-6)
    request.Free()


def test_a_handle_that_cannot_be_made_now(comm, ctx, array, stream):
    """Its initial model is not copied: nothing would be left to free the memory when it comes."""
    stream.hold(True)
    with ctx.away(), pytest.raises(pp.Error, match=r"making a handle inside ctx.away\(\)"):
        ctx.Preduce_init(array(4), whole(comm.size), weights="dynamic", missing="initial")
    stream.hold(False)
    assert ctx.stats().staged_bytes == 0


# ---- collective calls ---------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["auto", "comm"])
def test_a_flush_goes_on_with_its_copy(comm, ctx, array, stream, backend):
    """Until it has begun other calls are possible, and a Start makes it copy anew."""
    model, status = array(4, "f8"), pp.Status()
    request = ctx.Preduce_init(model, whole(comm.size), backend=backend)
    model.put(comm.rank)
    stream.hold(True)
    for _ in range(3):
        with pytest.raises(
            pp.TimeoutError,
            match="have not come to or from their device",
        ):
            request.Flush(timeout=0.02)
    model.put(-1)  # after the copy
    stream.hold(False)
    request.Flush(status)
    assert model.get().tolist() == [(comm.size - 1) / 2] * 4
    stream.hold(True)
    with pytest.raises(
        pp.TimeoutError,
        match="have not come to or from their device",
    ):
        request.Flush(timeout=0.02)
    model.put(2 * comm.rank)
    request.Start()
    stream.hold(False)
    request.Wait(status)
    assert model.get().tolist() == [comm.size - 1] * 4
    model.put(3 * comm.rank)
    request.Flush(status)
    assert model.get().tolist() == [1.5 * (comm.size - 1)] * 4
    assert request.Free() == 0


@pytest.mark.parametrize("backend", ["auto", "comm"])
@pytest.mark.parametrize("moment", ["on its way", "come off", "before it begins"])
def test_a_flush_after_an_interrupted_one_copies_anew(
    comm, ctx, array, stream, backend, moment, monkeypatch
):
    """The application has left the first one by an exception, and has new values since."""
    model, status, comes_off = array(4, "f8"), pp.Status(), moment != "on its way"
    request = ctx.Preduce_init(model, whole(comm.size), backend=backend)

    def interrupt(text, timeout, wait):
        while wait(1000) == ctx._native.lib.PP_PENDING and comes_off:
            continue
        raise KeyboardInterrupt

    def interrupt_later(name, timeout):
        raise KeyboardInterrupt

    model.put(-1)
    stream.wait()
    stream.hold(not comes_off)
    with monkeypatch.context() as patch:
        if moment == "before it begins":
            patch.setattr(ctx._calls, "before", interrupt_later)
        else:
            patch.setattr(ctx._calls, "_await_device", interrupt)
        with pytest.raises(KeyboardInterrupt):
            request.Flush()
    model.put(comm.rank)
    stream.hold(False)
    request.Flush(status)
    assert model.get().tolist() == [(comm.size - 1) / 2] * 4
    comm.Barrier()
    sleeps = ctx.stats().sleeps
    time.sleep(0.3)
    assert ctx.stats().sleeps - sleeps < 50  # the first one's copy is not looked for any more
    assert request.Free() == 0


def test_a_flush_gives_what_a_request_has(comm, ctx, array, stream):
    """Also if the copy was on its way when Flush was called."""
    model = array(4, "f8")
    request = ctx.Preduce_init(model, pp.groups.Given())
    for held in (False, True):
        model.put(comm.rank + held)
        stream.wait()
        stream.hold(held)
        # Nobody else starts this group.
        group = [0, 1] if comm.size > 1 else [0]
        if comm.rank == 0:
            request.Start(group=group)
            model.put(-1)
        stream.hold(False)
        request.Flush()
        assert model.get().tolist() == [(comm.size - 1) / 2 + held] * 4
    request.Free()


def test_free_without_flush(comm, array, stream, transport):
    """A request is discarded, also one whose copy is on its way: Free waits for that."""
    model, asks = array(4), comm.rank == 0 and comm.size > 1
    with pp.Context(comm, transport=transport) as ctx:
        request = ctx.Preduce_init(model, pp.groups.Given())
        if asks:
            stream.hold(True)
            request.Start(group=[0, 1])
            with pytest.raises(
                pp.TimeoutError,
                match="have not come to or from their device",
            ):
                request.Free(timeout=0.05)
            stream.hold(False)
            stream.wait()
            with pytest.raises(pp.TimeoutError, match="not complete after"):
                request.Free(timeout=0.2)
        comm.Barrier()
        assert request.Free() == asks
        with pytest.raises(pp.Error, match="was freed"):
            request.Start(group=[comm.rank])


def test_buffers_are_let_go_by_free(comm, ctx, array):
    model = array(4)
    before = sys.getrefcount(model)
    request = ctx.Preduce_init(model, whole(comm.size))
    assert sys.getrefcount(model) > before
    request.Free()
    assert sys.getrefcount(model) == before


# ---- groups on communicators --------------------------------------------------------------------


def test_a_flush_waits_for_groups_on_communicators(comm, ctx, array, stream):
    """A request that is outstanding is waited for before Flush and Free; there is no Test."""
    model = array(4)
    model.put(comm.rank)
    request = ctx.Preduce_init(model, whole(comm.size), backend="comm")
    stream.wait()
    stream.hold(True)
    request.Start()
    for call in (request.Flush, request.Free):
        with pytest.raises(pp.Error, match="the request is outstanding"):
            call()
    stream.hold(False)
    with pytest.raises(pp.Error, match="has no Test"):
        request.Test()
    request.Wait()
    assert model.get().tolist() == [(comm.size - 1) / 2] * 4
    lib = ctx._native.lib
    assert lib.pp_preduce_deliver(request._handle) == lib.PP_ERR_STATE  # once
    request.Free()


def test_what_only_the_caller_of_groups_may_do(comm, ctx, array):
    """The core hands out the memory of a handle whose groups the caller runs, and no other's."""
    on_device = ctx.Preduce_init(array(4), whole(comm.size))
    on_host = ctx.Preduce_init(np.zeros(4), whole(comm.size), backend="comm")
    native, elements = ctx._native, ctx._native.ffi.new("void **")
    for status in (
        native.lib.pp_preduce_host(on_device._handle, elements),
        native.lib.pp_preduce_host(on_host._handle, elements),
        native.lib.pp_preduce_deliver(on_device._handle),
    ):
        assert status == native.lib.PP_ERR_STATE
        with pytest.raises(pp.Error, match="the caller runs no groups of this handle"):
            native.check(status)
    for request in (on_device, on_host):
        request.Free()


# ---- bad input ----------------------------------------------------------------------------------


def test_device_and_host_do_not_mix(comm, ctx, array):
    with pytest.raises(
        pp.ArgumentError, match=r"buf\[1\] is in device memory and buf\[0\] in host"
    ):
        ctx.Preduce_init([np.zeros(4, "f4"), array(4)], whole(comm.size))
    buffer = np.full(4, 1, "f4") if comm.rank % 2 else array(4)
    if comm.size > 1:
        with pytest.raises(pp.MismatchError, match="in the memory of a device"):
            ctx.Preduce_init(buffer, whole(comm.size))


@pytest.mark.parametrize("backend", BACKENDS)
def test_device_and_host_mix_if_that_is_asked_for(comm, ctx, array, backend):
    if backend == "schedule" and comm.size == 1:
        pytest.skip("a rank alone sends no messages")
    model = array(4)
    buffer = np.full(4, comm.rank, "f4") if comm.rank % 2 else model
    model.put(comm.rank)
    request = ctx.Preduce_init(buffer, whole(comm.size), backend=backend, device_path="staged")
    assert comm.rank % 2 or (request.device_path, request.device_path_reason) == ("staged", "")
    request.Start()
    request.Wait()
    assert ((buffer if comm.rank % 2 else model.get()) == (comm.size - 1) / 2).all()
    request.Free()


def test_paths_that_cannot_be(comm, ctx, array):
    with pytest.raises(pp.ArgumentError, match="device_path must be"):
        ctx.Preduce_init(array(4), whole(comm.size), device_path="nvlink")
    with pytest.raises(pp.ArgumentError, match="in the host's: leave it out"):
        ctx.Preduce_init(np.ones(4), whole(comm.size), device_path="ipc")
    if comm.size > 1:
        path = "ipc" if comm.rank else "staged"
        with pytest.raises(pp.MismatchError, match="device_path=ipc"):
            ctx.Preduce_init(array(4), whole(comm.size), device_path=path)


@pytest.mark.parametrize(
    ("dtype", "pattern"),
    [("i4", "int32, but P-Reduce averages"), ("c8", "complex64, but P-Reduce averages")],
)
def test_types_that_have_no_average(comm, ctx, array, dtype, pattern):
    with pytest.raises(pp.ArgumentError, match=pattern):
        ctx.Preduce_init(array(4, dtype), whole(comm.size))


@pytest.mark.parametrize("call", ["Start", "Wait", "Test", "Flush"])
def test_streams_that_cannot_be_used(comm, ctx, array, stream, call):
    """The call has done nothing."""
    model = array(4)
    model.put(comm.rank)
    request = ctx.Preduce_init(model, whole(comm.size))
    bad = Stream()
    bad.capture(True)
    if call in ("Wait", "Test"):
        request.Start()
    with pytest.raises(pp.ArgumentError, match="is being captured"):
        getattr(request, call)(stream=bad)
    bad.capture(False)
    bad.close()
    with pytest.raises(pp.ArgumentError, match="was destroyed"):
        getattr(request, call)(stream=bad)
    with pytest.raises(pp.ArgumentError, match="stream"):
        getattr(request, call)(stream=0)
    if call in ("Start", "Flush"):
        request.Start()
    request.Wait()
    assert (model.get() == (comm.size - 1) / 2).all()
    request.Free()


def test_the_stream_of_the_initial_model(comm, ctx, array, stream):
    """One that is being captured is a wrong argument, which all ranks hear of."""
    model, bad = array(4), comm.rank == comm.size - 1
    options = {"weights": "dynamic", "missing": "initial"}
    stream.capture(bad)
    with pytest.raises(
        pp.ArgumentError if bad else pp.MismatchError, match="is being captured into a graph"
    ):
        ctx.Preduce_init(model, whole(comm.size), **options)
    stream.capture(False)
    ctx.Preduce_init(model, whole(comm.size), **options).Free()


def test_two_devices(comm, ctx, array, stream):
    """In one handle they are refused; ranks may use different ones."""
    with device(1):
        stream_of_1 = Stream()
        ours = Array(4, "f4", stream_of_1)
    with pytest.raises(pp.ArgumentError, match=r"is on device 1 and .* on device 0"):
        ctx.Preduce_init([ours, array(4)], whole(comm.size))
    model = ours if comm.rank % 2 else array(4)
    request = ctx.Preduce_init(model, whole(comm.size))
    assert request.device == comm.rank % 2
    with device(request.device):
        model.put(comm.rank)
        request.Start()
        request.Wait()
        assert (model.get() == (comm.size - 1) / 2).all()
    request.Free()
    with device(1):
        ours.close()
        stream_of_1.close()


@pytest.mark.parametrize("call", ["cuMemcpyAsync", "cuEventRecord"])
def test_a_driver_that_refuses_a_start(comm, ctx, array, stand_in, call):
    """Nothing was started, and the next Start is as the first one."""
    model = array(4)
    request = ctx.Preduce_init(model, whole(comm.size))
    for step in range(2):
        model.put(comm.rank + step)
        for _ in range(5):
            stand_in.fake_fail(call.encode(), 1, OUT_OF_MEMORY)
            with pytest.raises(MemoryError, match=call):
                request.Start()
        request.Start()
        request.Wait()
        assert model.get().tolist() == [(comm.size - 1) / 2 + step] * 4
    request.Free()


def test_wrong_starts(comm, ctx, array):
    """As with buffers of the host; nothing was copied."""
    request = ctx.Preduce_init(array(4), pp.groups.Given())
    staged = ctx.stats().staged_bytes
    with pytest.raises(pp.ArgumentError, match="each Start names its group"):
        request.Start()
    with pytest.raises(pp.ArgumentError, match="iteration"):
        request.Start(iteration=-1, group=[comm.rank])
    with pytest.raises(pp.Error, match="call Start first"):
        request.Wait()
    assert ctx.stats().staged_bytes == staged
    request.Start(group=[comm.rank])
    with pytest.raises(pp.Error, match="not collected"):
        request.Start(group=[comm.rank])
    request.Wait()
    for call in (request.View, request.More, request.Drain):
        with pytest.raises(pp.Error, match="averages have no"):
            call()
    request.Free()


def test_a_call_that_goes_on_has_the_same_buffers(comm, ctx, array, stream):
    """A device's buffers and the host's are different arguments, whatever their addresses."""
    if comm.size == 1:
        pytest.skip("a rank alone waits for no other")
    model = array(4)
    if comm.rank == 0:
        with pytest.raises(pp.TimeoutError):
            ctx.Preduce_init(model, pp.groups.Given(), timeout=0.02)
        memory = (ctypes.c_char * model.nbytes).from_address(model.address)
        for other in (array(4), np.frombuffer(memory, "f4")):
            with pytest.raises(pp.ArgumentError, match="pass the same arguments"):
                ctx.Preduce_init(other, pp.groups.Given())
    comm.Barrier()
    ctx.Preduce_init(model, pp.groups.Given()).Free()


@pytest.mark.parametrize("path", ["staged", "ipc"])
def test_a_flush_that_is_refused_does_nothing(comm, ctx, array, path, needs_ipc):
    """Nothing has come off the device for it."""
    model = array(3, "f8")
    request = ctx.Preduce_init(model, whole(comm.size), device_path=path)
    model.put(comm.rank)
    with ctx.away(), pytest.raises(pp.Error, match=r"Flush inside ctx.away\(\)"):
        request.Flush()
    request.Flush()
    np.testing.assert_allclose(model.get(), (comm.size - 1) / 2)
    request.Free()


def test_free_waits_for_the_copy_of_a_start_that_failed(
    comm, ctx, array, stream, stand_in, needs_ipc
):
    """Its memory is not given back before; and then all of it is, on all ranks."""
    model, last = array(1003, "f8"), comm.rank == comm.size - 1
    request = ctx.Preduce_init(model, whole(comm.size), device_path="ipc")
    model.put(1)
    stream.hold(last)
    if last:
        stand_in.fake_fail(b"cuStreamWaitEvent", 2, 719)
        with pytest.raises(pp.Error, match="cuStreamWaitEvent failed with 719"):
            request.Start()
        with pytest.raises(pp.TimeoutError, match="have not come to or from their device"):
            request.Free(timeout=0.05)
        stream.hold(False)
    request.Free()
