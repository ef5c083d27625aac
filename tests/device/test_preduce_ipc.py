"""Models of groups in the memory of devices that the ranks share; see test_preduce.py as well."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial

import numpy as np
import pytest
from support.device import Stream
from support.on_device import averages, groups_instead, one_rank_cannot, whole
from support.pairwise import pairwise

import pypartial as pp

pytestmark = [pytest.mark.mpi, pytest.mark.usefixtures("kernels")]

COUNT = 1003


def opened(ctx, model, groups, **options):
    """Make a handle, which must be on this path."""
    request = ctx.Preduce_init(model, groups, device_path="ipc", **options)
    assert (request.device_path, request.device_path_reason) == ("ipc", "")
    return request


# ---- averages -----------------------------------------------------------------------------------


@pairwise(
    dtype=["f2", "f4", "f8"],
    weights=["constant", "closest", "initial"],
    count=[1, COUNT, 30_000],
)
def test_averages_have_the_bits_of_the_hosts(comm, ctx, array, dtype, weights, count):
    """Numbers of all sizes, NaN and infinities among them; several groups, and a flush."""
    rng = np.random.default_rng(comm.rank)
    special = np.array([np.nan, -np.nan, np.inf, -np.inf, 0, -0.0], dtype)
    dynamic = {} if weights == "constant" else {"weights": "dynamic", "missing": weights}
    on_device, on_host = array(count, dtype), np.zeros(count, dtype)

    def draw():
        values = (rng.standard_normal(count) * 10.0 ** rng.integers(-3, 4, count)).astype(dtype)
        some = rng.random(count) < 0.02
        values[some] = rng.choice(special, some.sum())
        on_device.put(values)
        on_host[:] = values

    draw()
    requests = [
        opened(ctx, on_device, pp.groups.Given(), **dynamic),
        ctx.Preduce_init(on_host, pp.groups.Given(), **dynamic),
    ]
    status, expected = pp.Status(), pp.Status()
    for iteration, first in ((comm.rank, 0), (2 * comm.size + comm.rank, 1), (5 * comm.size, 0)):
        group = range(first if comm.size > 1 else 0, comm.size)
        if comm.rank not in group:
            continue
        draw()
        requests[0].Start(iteration, group)
        on_device.put(-999)  # waits for the copy
        requests[1].Start(iteration, group)
        requests[0].Wait(status)
        requests[1].Wait(expected)
        assert (status.group, status.weights) == (expected.group, expected.weights)
        assert (status.initial, status.iteration) == (expected.initial, expected.iteration)
        assert on_device.get().tobytes() == on_host.tobytes()
    draw()
    for request in requests:
        request.Flush()
    assert on_device.get().tobytes() == on_host.tobytes()
    for request in requests:
        request.Free()


def test_models_of_the_initial_average(comm, ctx, array, stream):
    """The initial models are those of Preduce_init, whatever the buffers hold afterwards."""
    model, status = array(COUNT, "f2"), pp.Status()
    model.put(100 + comm.rank)
    request = opened(ctx, model, pp.groups.Given(), weights="dynamic", missing="initial")
    model.put(comm.rank)
    if comm.rank > 0:
        comm.Barrier()
    request.Start(iteration=2 * comm.rank, group=range(comm.size))
    if comm.rank == 0:  # the first member does not begin the group
        request._land("Start", None, results=False)
        comm.Barrier()
    request.Wait(status)
    assert status.initial > 0 or comm.size == 1
    expected = status.initial * 100 + np.dot(status.weights, status.group)
    np.testing.assert_allclose(model.get(), expected, rtol=1e-3)
    request.Free()


# ---- memory -------------------------------------------------------------------------------------


@pytest.mark.parametrize("missing", ["closest", "initial"])
def test_what_is_kept(comm, ctx, array, stand_in, missing):
    """A loop takes no more memory."""
    model = array(COUNT, "f4")
    model.put(0)
    model.settle()
    memory = stand_in.fake_live(b"memory")
    request = opened(ctx, model, whole(comm.size), weights="dynamic", missing=missing)
    taken, host = stand_in.fake_live(b"memory"), stand_in.fake_live(b"host memory")
    assert taken == memory + (2 if missing == "initial" else 1)  # and a bounce buffer
    assert stand_in.fake_live(b"mappings") == comm.size - 1
    assert averages(comm, request, model, 20)
    assert stand_in.fake_live(b"memory") == taken
    assert stand_in.fake_live(b"host memory") == host
    request.Free()


def test_several_handles_and_contexts(comm, array):
    """Each has its own memory, and gives it back in any order; without Flush as well."""
    models = [array(COUNT, "f8") for _ in range(4)]
    with pp.Context(comm, seed=1) as one, pp.Context(comm, seed=2) as two:
        requests = [
            opened(ctx, model, whole(comm.size))
            for ctx, model in zip([one, two, two, one], models, strict=True)
        ]
        for request, model in zip(requests, models, strict=True):
            assert averages(comm, request, model)
        for at in (2, 0, 1, 3):
            requests[at].Free()


# ---- slow streams -------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["f2", "f4"])
def test_a_result_behind_one_that_is_not_read(comm, ctx, array, dtype):
    """Its stream waits until it is in the bounce buffer, though not for the stream before."""
    model, slow = array(COUNT, dtype), Stream()
    request = opened(ctx, model, whole(comm.size))
    seen = [array(COUNT, dtype) for _ in range(7)]  # eight are the most on their way
    for _ in range(5):
        slow.hold(True)
        request.Start()
        request.Wait(stream=slow)
        for step, kept in enumerate(seen):
            model.put(step + comm.rank)
            request.Start()
            request.Wait()
            kept.copy(model, model.stream)
        model.stream.wait()  # the result that is late goes to the same model
        slow.hold(False)
        slow.wait()
        for step, kept in enumerate(seen):
            assert kept.get().tolist() == [step + (comm.size - 1) / 2] * COUNT
        model.settle()
    request.Free()
    slow.close()


def test_a_device_that_does_not_come_to_a_group(comm, array, stand_in):
    """Nothing else waits for it: another handle's groups complete, and calls time out."""
    model, ones = array(COUNT), np.full(1, float(comm.rank))
    with pp.Context(comm, seed=7) as ctx:
        host = ctx.Preduce_init(ones, whole(comm.size))
        stand_in.fake_hold_new(True)
        request = opened(ctx, model, whole(comm.size))
        stand_in.fake_hold_new(False)
        model.put(comm.rank)
        request.Start()
        with pytest.raises(pp.TimeoutError):
            request.Wait(timeout=0.05)
        host.Start()
        host.Wait()
        assert ones[0] == (comm.size - 1) / 2
        comm.Barrier()
        stand_in.fake_let_all_go()
        request.Wait()
        assert (model.get() == (comm.size - 1) / 2).all()
        request.Free()
        host.Free()


# ---- nobody waits for a rank that computes ------------------------------------------------------


def test_a_rank_that_has_begun_a_group_of_others(comm, array, stream):
    """It leaves, so that the others' group begins; then it blocks outside of the library."""
    model, status, last = array(COUNT, "f8"), pp.Status(), comm.size - 1
    with pp.Context(comm, patience=None) as ctx:
        request = opened(ctx, model, whole(comm.size))
        model.put(comm.rank)
        stream.wait()
        if comm.rank < last:
            request.Start()
            request.Test()
            stream.wait()
            request.Test()
            comm.Barrier()
            request.Wait(status)
            assert status.group == tuple(range(last))
            comm.Barrier()
            with ctx.away():
                pass
        else:
            comm.Barrier()
            averaged = ctx.stats().device_rounds
            with ctx.away():
                comm.Barrier()
            assert ctx.stats().device_rounds == averaged + (comm.size > 2)
        request.Flush()
        mean = (comm.size - 1) / 2
        np.testing.assert_allclose(model.get(), mean, rtol=1e-12)
        request.Free()


@pytest.mark.sizes(2, 3, 4)
def test_the_last_member_computes(comm, ctx, array, stream):
    """Its Start has begun the group; its progress thread finds that the device has averaged it."""
    model, last = array(COUNT, "f8"), comm.size - 1
    request = opened(ctx, model, whole(comm.size))
    for step in range(20):
        model.put(comm.rank + step)
        if comm.rank == last:
            comm.Barrier()
            request.Start()
            comm.Barrier()  # the others have waited for the group
            request.Wait()
        else:
            request.Start()
            comm.Barrier()
            request.Wait()
            comm.Barrier()
        assert (model.get() == step + last / 2).all()
        model.settle()
    request.Free()


# ---- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize("missing", ["closest", "initial"])
@pytest.mark.parametrize(
    "call",
    ["cuModuleLoadData", "cuIpcGetMemHandle", "cuMemAlloc", "cuIpcOpenMemHandle"],
)
@pytest.mark.filterwarnings("error")
def test_one_rank_cannot(comm, ctx, array, stand_in, call, missing):
    """As in a container without a namespace of processes in common, or when memory is short."""
    if comm.size == 1 and call == "cuIpcOpenMemHandle":
        pytest.skip("a rank alone maps no memory of others")
    options = {"weights": "dynamic", "missing": missing}
    instead = partial(groups_instead, comm, ctx, array, "ipc", **options)
    one_rank_cannot(comm, stand_in, call, instead)


@pytest.mark.parametrize(
    ("backend", "path"), [("auto", "ipc"), ("node", "ipc"), ("schedule", "staged")]
)
@pytest.mark.parametrize("bytes_more", [0, 1])
@pytest.mark.filterwarnings("error")
def test_auto_from_a_size(comm, array, monkeypatch, backend, path, bytes_more):
    """As for the allreduce, where ranks share memory; rank 0's environment counts."""
    model = array(COUNT)
    monkeypatch.setenv("PYPARTIAL_IPC_FROM", "7" if comm.rank else str(model.nbytes + bytes_more))
    with pp.Context(comm, seed=7) as ctx:
        request = ctx.Preduce_init(model, whole(comm.size), backend=backend)
        expected = "staged" if bytes_more else path
        assert (request.device_path, request.device_path_reason) == (expected, "")
        assert averages(comm, request, model)
        request.Free()


@pytest.mark.filterwarnings("error")
def test_auto_where_it_is_not_possible(comm, array, monkeypatch):
    """Nobody has asked for it, so nobody is warned."""
    monkeypatch.setenv("PYPARTIAL_IPC_FROM", "0")
    model = array(COUNT)
    with pp.Context(comm, seed=7, transport="mpi") as ctx:
        request = ctx.Preduce_init(model, whole(comm.size))
        assert request.device_path == "staged"
        assert request.device_path_reason != ""
        assert averages(comm, request, model)
        request.Free()


@pytest.mark.parametrize("generator", ["table", "random"])
def test_ranks_that_share_no_memory(comm, array, stand_in, generator):
    """With a machine at rank 0, and with a table that needs none."""
    if comm.size == 1:
        pytest.skip("a rank alone shares memory with all")
    options = {"weights": "dynamic"} if generator == "random" else {}
    with pp.Context(comm, seed=7, transport="mpi") as ctx:
        groups_instead(comm, ctx, array, "ipc", "the groups exchange messages", **options)


def test_communicators(comm, ctx, array, stand_in):
    groups_instead(comm, ctx, array, "ipc", "ranks share no memory of devices", backend="comm")


def test_no_elements(comm, ctx, array):
    with pytest.warns(RuntimeWarning) if comm.rank == 0 else nullcontext():
        request = ctx.Preduce_init(array(0), whole(comm.size), device_path="ipc")
    assert "there are no elements" in request.device_path_reason
    request.Start()
    request.Wait()
    request.Free()
