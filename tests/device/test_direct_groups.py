"""Groups on communicators of models that stay on their device: MPI gets their addresses.

The MPI is one that takes such addresses: tests/support/cuda_mpi.c, by LD_PRELOAD.
"""

from __future__ import annotations

import ctypes
import threading
import time
from contextlib import nullcontext
from functools import partial
from zlib import crc32

import ml_dtypes
import numpy as np
import pytest
from support.device import Array, Stream, device, driver
from support.on_device import averages, groups_instead, one_rank_cannot, whole
from support.oracles import check_groups
from support.pairwise import pairwise

import pypartial as pp
from pypartial import _direct
from pypartial._group_elements import Share

pytestmark = [pytest.mark.mpi, pytest.mark.usefixtures("mpi_of_devices")]

STEPS = 12
COUNT = 1003
LIMIT_S = 20.0
OUT_OF_MEMORY = 2
RATHER = "device_path='direct' is not possible"
DYNAMIC = {"weights": "dynamic", "missing": "initial"}


def opened(ctx, model, groups, **options):
    """Make a handle, which must be on this path."""
    request = ctx.Preduce_init(model, groups, backend="comm", device_path="direct", **options)
    assert (request.backend, request.device_path) == ("comm", "direct")
    assert request.device_path_reason == ""
    return request


# ---- averages -----------------------------------------------------------------------------------


@pytest.mark.parametrize("transport", ["auto", "mpi"])
@pytest.mark.parametrize("name", ["static", "table", "random", "smart", "controller"])
def test_the_mean_is_kept_and_members_agree(comm, array, transport, name):
    """A request may be in several groups: also in those that others have drawn it into."""
    if name in ("random", "smart", "controller") and comm.size == 1:
        pytest.skip("a rank alone has no groups of this kind")
    ranks = range(comm.size)
    few = min(3, comm.size)
    generators = {
        "static": lambda: pp.groups.Static(nodes=1, per_node=comm.size),
        "table": lambda: pp.groups.Table([[ranks], [[rank] for rank in ranks]]),
        "random": lambda: pp.groups.Random(min(2, comm.size)),
        "smart": lambda: pp.groups.Smart(few),
        "controller": lambda: pp.groups.Controller(few),
    }
    initial = np.random.default_rng(comm.rank).normal(size=COUNT)
    mean = np.mean(comm.allgather(initial), axis=0)
    with pp.Context(comm, seed=7, transport=transport) as ctx:
        model, log, status = array(COUNT, "f8"), [], pp.Status()
        model.put(initial)
        request = opened(ctx, model, generators[name]())
        for step in range(STEPS):
            request.Start()
            model.put(-999)  # waits for the copy
            assert request.Wait(status) is True
            assert status.iteration == step
            after = model.get()
            log.append((status.round, status.group, status.weights, crc32(after.tobytes())))
        request.Flush(status)
        assert status.group == tuple(ranks)
        after = model.get()
        assert comm.allgather(after.tobytes()) == [after.tobytes()] * comm.size
        np.testing.assert_allclose(after, mean, rtol=0, atol=1e-12)
        check_groups(comm, log)
        assert request.Free() == 0


def test_sums_name_their_members(comm, ctx, array):
    """Each member's model is in the sum once, and no other rank's."""
    model, status = array(comm.size, "f8"), pp.Status()
    request = opened(ctx, model, pp.groups.Given())
    for members in ([*range(comm.size)], [*range(comm.size)][:2], [*range(comm.size)][-2:]):
        if comm.rank not in members:
            continue
        model.put(np.eye(comm.size)[comm.rank])
        request.Start(group=members)
        request.Wait(status)
        assert status.group == tuple(members)
        named = np.isin(np.arange(comm.size), members)
        assert (model.get() * len(members) == named).all()
        model.settle()
    request.Free()


@pairwise(
    dtype=["f2", "bfloat16", "f4", "f8"],
    weights=["constant", "closest", "initial"],
    count=[1, COUNT, 30_000],
)
def test_averages_have_the_bits_of_the_hosts(comm, ctx, array, dtype, weights, count):
    """The same MPI adds up the same numbers, with every kind of weights; then a flush."""
    if dtype == "bfloat16":
        dtype = ml_dtypes.bfloat16
    rng = np.random.default_rng(comm.rank)
    values, other = ((rng.standard_normal(count) * 10).astype(dtype) for _ in range(2))
    dynamic = {} if weights == "constant" else {"weights": "dynamic", "missing": weights}
    on_device, on_host = array(count, dtype), values.copy()
    on_device.put(values)  # the initial model
    requests = [
        opened(ctx, on_device, pp.groups.Given(), **dynamic),
        ctx.Preduce_init(on_host, pp.groups.Given(), backend="comm", **dynamic),
    ]
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


def test_what_is_counted_and_kept(comm, ctx, array, stand_in, mpi_of_devices):
    """A loop takes no more memory, and nothing passes the host."""
    model = array(COUNT, "f8")
    request = opened(ctx, model, whole(comm.size), **DYNAMIC)
    staged = ctx.stats().staged_bytes
    assert staged == model.nbytes  # of the initial model
    taken, counted = mpi_of_devices.cuda_mpi_taken(), ctx.stats().direct_bytes
    host = stand_in.fake_live(b"host memory")
    assert averages(comm, request, model, 20)
    kept = stand_in.fake_live(b"memory")
    assert averages(comm, request, model, 20)
    assert stand_in.fake_live(b"memory") == kept
    assert stand_in.fake_live(b"host memory") == host
    request.Flush()
    stats = ctx.stats()
    assert (stats.staged_bytes, stats.ipc_bytes) == (staged, 0)
    assert stats.direct_bytes - counted == mpi_of_devices.cuda_mpi_taken() - taken
    groups = 41 if comm.size > 1 else 1  # a rank alone has a flush only
    assert stats.direct_bytes - counted == 2 * groups * model.nbytes
    model.settle()
    request.Free()


@pytest.mark.parametrize("progress", ["thread", "caller"])
def test_beside_handles_of_other_paths(comm, array, progress):
    model, total, on_host = array(COUNT), array(4), np.zeros(4)
    with pp.Context(comm, seed=7, progress=progress, patience=None) as ctx:
        direct = opened(ctx, model, whole(comm.size))
        others = [
            ctx.Preduce_init(on_host, whole(comm.size)),
            ctx.Allreduce_init(None, total, policy=pp.Full()),
            ctx.Preduce_init(array(4), whole(comm.size), backend="comm"),
        ]
        total.put(1)
        for _ in range(3):
            on_host[:] = comm.rank
            assert averages(comm, direct, model, 2)
            for other in others:
                other.Start()
                other.Wait()
            assert (on_host == (comm.size - 1) / 2).all()
        assert (total.get() == comm.size**3).all()
        for request in (others[0], direct, *others[1:]):
            request.Free()


def test_another_device(comm, ctx):
    """It is current while MPI has its addresses; the thread's own is so before and after."""
    current, ours = ctypes.c_void_p(), ctypes.c_void_p()
    with device(1):
        driver().cuCtxGetCurrent(ctypes.byref(ours))
        home = Stream()
        model = Array(COUNT, "f4", home)
        model.put(comm.rank)
    request = opened(ctx, model, whole(comm.size))
    assert request.device == 1
    request.Start(stream=home)
    request.Wait(stream=home)
    request.Flush(stream=home)
    driver().cuCtxGetCurrent(ctypes.byref(current))
    assert current.value != ours.value
    with device(1):
        assert (model.get() == (comm.size - 1) / 2).all()
    request.Free()
    with device(1):
        model.close()
        home.close()


# ---- streams, and calls that are cut off ---------------------------------------------------------


@pytest.mark.sizes(2, 3, 4, 5)  # a rank alone adds nothing up
def test_a_rank_that_waits_for_its_part_of_a_sum(comm, ctx, array, stand_in):
    """Its device makes that; other threads use the context meanwhile."""
    model, looked = array(COUNT), []
    request = opened(ctx, model, whole(comm.size))
    of_groups = stand_in.fake_newest_stream()

    def look():
        limit = time.monotonic() + LIMIT_S
        while not stand_in.fake_held_calls(b"cuStreamSynchronize") and time.monotonic() < limit:
            time.sleep(0.001)
        ctx.stats()
        looked.append(stand_in.fake_held_calls(b"cuStreamSynchronize"))
        stand_in.fake_hold(of_groups, False)

    model.put(comm.rank)
    stand_in.fake_hold(of_groups, True)
    limit = threading.Timer(LIMIT_S, stand_in.fake_hold, [of_groups, False])
    other = threading.Thread(target=look)
    limit.start()
    other.start()
    request.Start()
    request.Wait()
    other.join()
    limit.cancel()
    assert looked == [1]
    assert np.allclose(model.get(), (comm.size - 1) / 2)
    request.Free()


def test_a_slow_consumer_keeps_its_averages(comm, ctx, array):
    slow, model = Stream(), array(100)
    seen = [array(100) for _ in range(7)]
    request = opened(ctx, model, whole(comm.size))
    slow.hold(True)
    for step in range(7):
        model.put(step)
        request.Start()
        request.Wait(stream=slow)
        seen[step].copy(model, slow)
    slow.hold(False)
    slow.wait()
    assert [one.get().tolist() for one in seen] == [[step] * 100 for step in range(7)]
    request.Free()
    slow.close()


@pytest.mark.parametrize("moment", ["before", "after"])
def test_an_interrupt_beside_an_average(comm, ctx, array, monkeypatch, moment):
    """What the rank has given is still there, or the group does not run again."""
    if comm.size == 1:
        pytest.skip("a rank alone runs no group")
    model = array(4, "f8")
    request = opened(ctx, model, whole(comm.size))
    elements, run = request._by_comm._elements, request._by_comm.run
    average, averaged = elements.average, []

    def count(*arguments):
        averaged.append(arguments)
        average(*arguments)

    def cut_off(*arguments):
        if moment == "after":
            count(*arguments)
        raise KeyboardInterrupt

    def run_twice(group, kept):
        monkeypatch.setattr(elements, "average", cut_off)
        with pytest.raises(KeyboardInterrupt):
            run(group, kept)
        monkeypatch.setattr(elements, "average", count)
        run(group, kept)

    monkeypatch.setattr(request._by_comm, "run", run_twice)
    model.put(comm.rank)
    request.Start()
    request.Wait()
    assert len(averaged) == 1
    assert model.get().tolist() == [(comm.size - 1) / 2] * 4
    request.Free()


@pytest.mark.parametrize("path", ["direct", "staged"])
@pytest.mark.parametrize("moment", ["before", "after"])
def test_an_interrupt_beside_the_delivery(comm, ctx, array, monkeypatch, moment, path):
    """The average is delivered, or a repeated Wait delivers it; the next request has a new one."""
    model = array(4, "f8")
    request = ctx.Preduce_init(model, whole(comm.size), backend="comm", device_path=path)
    assert request.device_path == path
    elements = request._by_comm._elements
    deliver = elements.deliver

    def cut_off():
        if moment == "after":
            deliver()
        raise KeyboardInterrupt

    for step in range(3):
        model.put(comm.rank + step)
        request.Start()
        with monkeypatch.context() as patch:
            patch.setattr(elements, "deliver", cut_off)
            with pytest.raises(KeyboardInterrupt):
                request.Wait()
        if moment == "before":
            for call in (request.Start, request.Flush, request.Free):
                with pytest.raises(pp.Error, match=r"not collected|outstanding"):
                    call()
            request.Wait()
        else:
            with pytest.raises(pp.Error, match="nothing was started"):
                request.Wait()
        assert model.get().tolist() == [step + (comm.size - 1) / 2] * 4
        model.settle()
    request.Free()


def test_an_mpi_that_fails(comm, ctx, array, monkeypatch):
    """The model is as it was, what was given and also an average, and can be averaged again."""
    from mpi4py import MPI

    model = array(4, "f8")
    request = opened(ctx, model, whole(comm.size))
    elements = request._by_comm._elements
    average = elements.average

    def fail(group):
        for _ in range(3):
            with pytest.raises(pp.Error, match="an allreduce over the members of a group failed"):
                average(MPI.COMM_NULL, group, Share(weight=0.25))

    def fail_around(on, group, share):
        fail(group)
        assert elements.averaged != group
        average(on, group, share)
        fail(group + 1)
        assert elements.averaged == group

    monkeypatch.setattr(elements, "average", fail_around)
    for step in range(2):
        model.put(comm.rank + step)
        request.Start()
        request.Wait()
        request.Flush()
        assert model.get().tolist() == [(comm.size - 1) / 2 + step] * 4
        model.settle()
    request.Free()


def test_what_the_core_refuses(comm, ctx, array):
    """Models of other paths come to the host; one that is direct does not."""
    native = ctx._native
    lib, elements = native.lib, native.ffi.new("void **")
    direct = opened(ctx, array(4), whole(comm.size))
    staged = ctx.Preduce_init(array(4), whole(comm.size), backend="comm")
    nothing = native.ffi.NULL, 1, 1, 0, 1
    for call, why in (
        (lambda: lib.pp_preduce_host(direct._handle, elements), "the model stays on its device"),
        (lambda: lib.pp_preduce_average(staged._handle, *nothing), "the model comes to the host"),
        (lambda: lib.pp_preduce_average(direct._handle, *nothing), "call Start and Wait first"),
        (lambda: lib.pp_preduce_deliver(direct._handle), "call Start and Wait first"),
    ):
        status = call()
        assert status == lib.PP_ERR_STATE
        with pytest.raises(pp.Error, match=why):
            native.check(status)
    for request in (direct, staged):
        request.Free()


# ---- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize("weights", [{}, DYNAMIC], ids=["constant", "initial"])
@pytest.mark.parametrize(
    ("call", "nth"),
    [
        ("cuModuleLoadData", 1),
        ("cuStreamCreateWithPriority", 2),
        *(("cuMemAlloc", n) for n in (1, 2, 3, 4)),
    ],
)
@pytest.mark.filterwarnings("error")
def test_one_rank_cannot(comm, ctx, array, stand_in, call, nth, weights):
    """All ranks have the other path, and nothing is left."""
    if (call, nth, weights) == ("cuMemAlloc", 4, {}):
        pytest.skip("without an initial model there is no fourth piece of memory")
    instead = partial(groups_instead, comm, ctx, array, "direct", backend="comm", **weights)
    one_rank_cannot(comm, stand_in, call, instead, nth)


def test_one_rank_has_an_mpi_that_knows_no_devices(comm, ctx, array, stand_in, monkeypatch):
    """The reason is that of the first rank that cannot."""
    if comm.rank > 0 or comm.size == 1:
        monkeypatch.setattr(_direct, "mpi_says", lambda native: (False, f"not on {comm.rank}"))
    why = "rank 0: not on 0" if comm.size == 1 else "rank 1: not on 1"
    groups_instead(comm, ctx, array, "direct", why, backend="comm")


@pytest.mark.parametrize("backend", ["auto", "schedule"])
def test_other_backends(comm, ctx, array, stand_in, monkeypatch, backend):
    """Nobody makes kernels for them, or tries MPI."""
    if backend == "schedule" and comm.size == 1:
        pytest.skip("a rank alone sends no messages")
    monkeypatch.setattr(_direct, "why_not", lambda *_: pytest.fail("it was tried"))
    why = 'groups give MPI addresses of devices with backend="comm" only'
    groups_instead(comm, ctx, array, "direct", why, backend=backend)


@pytest.mark.parametrize("transport", ["auto", "mpi"])
def test_no_elements(comm, array, transport):
    with pp.Context(comm, transport=transport) as ctx:
        with pytest.warns(RuntimeWarning, match=RATHER) if comm.rank == 0 else nullcontext():
            request = ctx.Preduce_init(
                array(0), whole(comm.size), backend="comm", device_path="direct"
            )
        assert request.device_path_reason == "rank 0: there are no elements"
        request.Start()
        request.Wait()
        request.Flush()
        request.Free()


def test_one_rank_has_a_wrong_argument(comm, ctx, array):
    """The others let go what they have made for this path."""
    last = comm.rank == comm.size - 1
    error, alpha = (pp.ArgumentError, 2.0) if last else (pp.MismatchError, 0.5)
    model, options = array(3), {"backend": "comm", "device_path": "direct", "alpha": alpha}
    with pytest.raises(error, match="alpha must be"):
        ctx.Preduce_init(model, whole(comm.size), **options, **DYNAMIC)


def test_auto_stays_staged(comm, ctx, array):
    request = ctx.Preduce_init(array(3), whole(comm.size), backend="comm")
    assert (request.device_path, request.device_path_reason) == ("staged", "")
    request.Free()


# ---- a driver that fails ------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["cuMemcpyAsync", "cuStreamWaitEvent", "cuEventRecord"])
def test_a_driver_that_refuses_a_start(comm, ctx, array, stand_in, call):
    """Nothing was started, and the next Start is as the first one."""
    model = array(4)
    request = opened(ctx, model, whole(comm.size))
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


def test_no_more_memory(comm, ctx, array, stand_in):
    """A Start that needs another bounce buffer raises, and can be repeated.

    Before that the driver gets back what freed handles have left, when the stream is over.
    """
    model, slow = array(4), Stream()
    request = opened(ctx, model, whole(comm.size))
    slow.hold(True)
    model.put(comm.rank)
    request.Start()
    request.Wait(stream=slow)  # keeps its bounce buffer
    stand_in.fake_fail(b"cuMemAlloc", 0, OUT_OF_MEMORY)
    threading.Timer(0.2, slow.hold, [False]).start()
    with pytest.raises(MemoryError, match="cuMemAlloc"):
        request.Start()
    stand_in.fake_fail(b"cuMemAlloc", 0, 0)
    slow.wait()
    assert averages(comm, request, model)
    request.Free()
    slow.close()
