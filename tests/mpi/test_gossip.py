"""Gossip on real ranks: averages of neighbours that compute."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from contextlib import nullcontext

import numpy as np
import pytest

import pypartial as pp

pytestmark = pytest.mark.mpi

SIZES = (1, 2, 3, 5)
STEPS = 30


@pytest.fixture
def ctx(comm):
    """A context."""
    with pp.Context(comm, seed=7) as context:
        yield context


def ring(size):
    return pp.topology.ring() if size > 1 else pp.topology.complete()


@pytest.mark.parametrize(
    ("dtype", "count"),
    [("f8", 0), ("f8", 1), ("f8", 1000), ("f4", 5000), ("f8", 1 << 19), ("g", 100), ("f2", 100)],
)
@pytest.mark.parametrize("shared", [False, True], ids=["numpy", "alloc"])
@pytest.mark.sizes(*SIZES)
def test_the_mean_of_all_models_is_kept_but_for_what_is_added(comm, ctx, dtype, count, shared):
    """Nothing that is added is lost, or counts twice."""
    draws = random.Random(comm.rank)
    buf = ctx.alloc(count, dtype) if shared else np.empty(count, dtype)
    buf[:] = comm.rank
    request = ctx.Gossip_init(buf, pp.topology.complete())
    status, added = pp.Status(), 0
    steps = STEPS if count < 10_000 else 8
    for step in range(steps + 3 * comm.rank):
        if draws.random() < 0.2:
            time.sleep(draws.uniform(0, 1e-3))
        value = draws.choice((None, 1, 2))
        added += value or 0
        request.Start(add=None if value is None else np.full(count, value, dtype))
        assert request.Wait(status) is True
        assert (status.iteration, status.staleness >= 0) == (step, True)
        assert comm.rank in status.group and len(status.group) == min(2, comm.size)
        if count:
            assert buf.min() == buf.max()  # not torn
    request.Flush(status)
    assert status.group == tuple(range(comm.size))
    mean = (sum(range(comm.size)) + comm.allreduce(added)) / comm.size
    bound = {"f2": 5e-2, "f4": 1e-5}.get(dtype, 1e-12)
    np.testing.assert_allclose(buf.astype("f8"), mean, rtol=bound)
    assert comm.allgather(buf.tobytes()) == [buf.tobytes()] * comm.size
    assert request.Free() == 0


@pytest.mark.parametrize("count", [1, 300_000])
@pytest.mark.sizes(2, 3, 5)
def test_a_rank_that_computes_is_averaged_all_the_same(comm, ctx, count):
    """Rank 0 makes no call while the others average with it."""
    buf = np.full(count, float(comm.rank))
    request = ctx.Gossip_init(buf, pp.topology.star())
    status = pp.Status()
    if comm.rank == 0:
        for _ in range(comm.size - 1):
            comm.recv()  # the library does not see this call
        request.Start(add=np.zeros(count))
        request.Wait(status)
        assert status.staleness == 5 * (comm.size - 1)
    else:
        for _ in range(5):
            request.Start()
            request.Wait(status)
            assert status.group == (0, comm.rank)
        comm.send(None, 0)
    request.Flush()
    np.testing.assert_allclose(buf, (comm.size - 1) / 2, rtol=1e-12)
    request.Free()


@pytest.mark.parametrize("count", [10, 300_000])
@pytest.mark.sizes(2, 3)
def test_a_neighbour_that_is_stopped_holds_nobody_up(comm, ctx, count):
    """Who asks averages by itself: in common memory no thread of the other process is needed."""
    if not ctx.stats().shares_memory or ctx.stats().neighbours < comm.size:
        pytest.skip("not all ranks share memory (PYPARTIAL_TRANSPORT, PYPARTIAL_NODE_RANKS)")
    buf = np.full(count, float(comm.rank))
    request = ctx.Gossip_init(buf, pp.topology.star())
    process = comm.bcast(os.getpid())
    comm.Barrier()
    if comm.rank == 1:
        time.sleep(0.1)  # the other ones wait in MPI
        os.kill(process, signal.SIGSTOP)
        try:
            for _ in range(20):
                request.Start(add=np.ones(count))
                request.Wait()
        finally:
            os.kill(process, signal.SIGCONT)
    comm.Barrier()
    request.Flush()
    mean = (sum(range(comm.size)) + 20) / comm.size
    np.testing.assert_allclose(buf, mean, rtol=1e-12)
    request.Free()


@pytest.mark.parametrize("count", [3, 100_000])
@pytest.mark.sizes(*SIZES)
def test_locked_and_read(comm, ctx, count):
    """Who has the model has it alone; a copy is not torn, also of several buffers."""
    first, second = np.zeros((2, 2)), np.zeros(count)
    request = ctx.Gossip_init([first, second], pp.topology.complete())
    out = [np.empty((2, 2)), np.empty(count)]
    for step in range(20):
        request.Start(add=[np.ones((2, 2)), np.ones(count)])
        if step % 3 == 0:
            with request.locked() as (head, tail):
                assert head.shape == (2, 2)
                assert head.min() == head.max() == tail[0] and tail.min() == tail.max()
                head += 1
                tail += 1
        request.Read(out)
        assert out[0].min() == out[0].max() == out[1].min() == out[1].max()
        request.Wait()
        assert first.min() == first.max() == second.min() == second.max()
    request.Flush()
    np.testing.assert_allclose(second, 27, rtol=1e-12)
    request.Free()


@pytest.mark.sizes(*SIZES)
def test_half_precision_is_locked_as_float32(comm, ctx):
    buf, out = np.ones(8, "f2"), np.zeros(8, "f2")
    request = ctx.Gossip_init(buf, "complete")
    with request.locked() as model:
        assert model.dtype == np.float32
        model[:] = 3
    request.Flush()
    request.Read(out)
    assert (buf == 3).all() and (out == 3).all()
    request.Free()


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.sizes(*SIZES)
def test_arrays_keep_their_order(comm, ctx, order):
    buf = np.asarray(np.arange(6.0).reshape(2, 3), order=order)
    first, out = buf.copy(order="K"), np.empty((2, 3), order=order)
    request = ctx.Gossip_init(buf, "complete")
    with request.locked() as model:
        assert np.allclose(model * first[1, 2], first * model[1, 2])
    request.Start(add=first)
    request.Wait()
    request.Flush()
    request.Read(out)
    assert np.allclose(buf, 2 * first) and (out == buf).all()
    request.Free()


@pytest.mark.sizes(2, 3, 5)
def test_without_a_progress_thread(comm):
    """Only large models need one, and only until the next call of a member."""
    with pp.Context(comm, progress="caller") as context:
        for count in (0, 3, 200_000):
            buf = np.full(count, float(comm.rank))
            request = context.Gossip_init(buf, "complete")
            for _ in range(10):
                request.Start(add=np.ones(count))
                request.Wait()
                request.Read(np.empty(count))
            request.Flush()
            np.testing.assert_allclose(buf, (comm.size - 1) / 2 + 10, rtol=1e-12)
            request.Free()


@pytest.mark.sizes(2, 3, 5)
def test_what_is_refused_while_the_model_is_locked(comm, ctx):
    """In this thread; another one goes on."""
    one = ctx.Gossip_init(np.zeros(2), ring(comm.size))
    two = ctx.Gossip_init(np.zeros(2), ring(comm.size))
    other = ctx.Allreduce_init(np.ones(1), np.ones(1), policy=pp.Full())
    two.Start()
    with one.locked():
        for call in (two.Wait, one.Start, one.Flush, other.Free, ctx.Free, ctx.away().__enter__):
            with pytest.raises(pp.Error, match=r"inside locked\(\)"):
                call()
        with pytest.raises(pp.Error, match=r"inside locked\(\)"):
            ctx.Gossip_init(np.zeros(2), ring(comm.size))
        for request in (one, two):
            with pytest.raises(pp.Error, match=r"inside locked\(\)"), request.locked():
                pass
        other.Start()
        thread = threading.Thread(target=other.Wait)
        thread.start()
        thread.join()
    with one.locked():  # while another thread has, and has had, the model of another request
        read = threading.Thread(target=lambda: two.Read(np.zeros(2)))
        read.start()
        read.join()
        with pytest.raises(pp.Error, match=r"Flush inside locked\(\)"):
            one.Flush()
    with pytest.raises(KeyError), one.locked() as model:
        model[:] = 7
        raise KeyError
    out = np.empty(2)
    one.Read(out)  # the exception has ended the block
    two.Wait()
    comm.Barrier()
    one.Flush()
    for request in (one, two, other):
        request.Free()


@pytest.mark.parametrize("delay_s", [0.01, 0.12])
@pytest.mark.sizes(2)
def test_a_call_for_the_model_that_is_interrupted(comm, ctx, delay_s):
    """As by Ctrl-C, also in its first moment: it can be tried again."""

    def interrupt(*_):
        raise KeyboardInterrupt

    request = ctx.Gossip_init(np.zeros(2), "complete")
    with request.locked() if comm.rank else nullcontext():
        comm.Barrier()
        if comm.rank == 0:
            request.Start()  # waits for rank 1
            before = signal.signal(signal.SIGALRM, interrupt)
            signal.setitimer(signal.ITIMER_REAL, delay_s)
            with pytest.raises(KeyboardInterrupt), request.locked():
                pytest.fail("rank 1 has its model")
            signal.signal(signal.SIGALRM, before)
        comm.Barrier()
    if comm.rank == 0:
        request.Wait()
    with request.locked() as model:
        model += 1
    request.Flush()
    request.Free()


@pytest.mark.sizes(2, 3, 5)
def test_passive_ranks(comm, ctx):
    """Of a bipartite graph one side asks; the other's requests are complete at once."""
    size = comm.size
    if size % 2:
        with pytest.raises(pp.Error, match="odd cycle"):
            ctx.Gossip_init(np.zeros(1), pp.topology.complete(), initiators="active")
    buf = np.full(40_000, float(comm.rank))
    request = ctx.Gossip_init(buf, pp.topology.star(), initiators="active")
    status = pp.Status()
    for _ in range(10):
        request.Start(add=np.ones(40_000))
        request.Wait(status)
        assert len(status.group) == 1 + (comm.rank == 0)
        assert (status.round > 0) == (comm.rank == 0)
    request.Flush()
    np.testing.assert_allclose(buf, (size - 1) / 2 + 10, rtol=1e-12)
    request.Free()


@pytest.mark.sizes(*SIZES)
def test_a_timeout_and_what_is_added_after_it(comm, ctx):
    buf = np.zeros(1000)
    request = ctx.Gossip_init(buf, pp.topology.complete())
    if comm.rank == 0 and comm.size > 1:
        comm.Barrier()  # rank 1 has its model
        with pytest.raises(pp.TimeoutError):
            for _ in range(60):  # one of them draws rank 1
                request.Start(add=np.ones(1000))
                request.Wait(timeout=0.1)
        request.Start(add=np.ones(1000))  # only adds
        comm.Barrier()
        request.Wait()
    elif comm.rank == 1:
        with request.locked():
            comm.Barrier()
            comm.Barrier()
    else:
        for _ in range(2 if comm.size > 1 else 0):
            comm.Barrier()
    request.Flush()
    totals = comm.allreduce(buf[0])
    assert totals > 0 or comm.size == 1
    request.Free()


@pytest.mark.sizes(*SIZES)
def test_free_and_exceptions_with_outstanding_requests(comm, ctx):
    request = ctx.Gossip_init(np.zeros(50_000), pp.topology.complete())
    for _ in range(5):
        request.Start()
        request.Wait()
    request.Start()
    assert request.Free() in (0, 1)
    with pytest.raises(pp.Error, match="freed"), request.locked():
        pass
    comm.Barrier()


@pytest.mark.sizes(2, 3, 5)
def test_ranks_that_are_away_stay_neighbours(comm, ctx):
    buf = np.full(2000, float(comm.rank))
    request = ctx.Gossip_init(buf, pp.topology.complete())
    if comm.rank:
        request.Start()  # goes on meanwhile
    with ctx.away():
        if comm.rank == 0:
            time.sleep(0.2)
        comm.Barrier()
    if comm.rank:
        request.Wait()
    other = ctx.Preduce_init(np.zeros(2), pp.groups.Random(2))
    for _ in range(10 * comm.rank):
        request.Start()
        request.Wait()
    request.Flush()
    np.testing.assert_allclose(buf, (comm.size - 1) / 2, rtol=1e-12)
    for handle in (request, other):
        handle.Free()


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ((np.zeros(2, "i4"), "ring"), "floating"),
        ((np.zeros(2), "torus:7x9"), "number of ranks must be 63"),
        ((np.zeros(2), 5), "topology must be"),
        ((np.zeros(2), "ring", "synchronous"), "mode must be one of"),
        ((np.zeros(2), "ring", "async", "some"), "initiators must be one of"),
        ((np.zeros(2), "ring", "async", "all", 2), "continuous must be True or False"),
        (("text", "ring"), "buf is"),
    ],
)
@pytest.mark.sizes(*SIZES)
def test_wrong_arguments(comm, ctx, arguments, why):
    """They are an error on every rank, before anything is communicated."""
    with pytest.raises(pp.ArgumentError, match=why):
        ctx.Gossip_init(*arguments)
    if comm.size > 1:
        wrong = comm.rank == comm.size - 1
        error = pp.ArgumentError if wrong else pp.MismatchError
        with pytest.raises(error):
            ctx.Gossip_init(*arguments if wrong else (np.zeros(2), "ring"))


@pytest.mark.sizes(3, 5)
def test_ranks_with_different_graphs(comm, ctx):
    graph = pp.topology.ring() if comm.rank else pp.topology.star()
    with pytest.raises(pp.MismatchError, match=r"graph star.*graph ring"):
        ctx.Gossip_init(np.zeros(2), graph)


@pytest.mark.sizes(2, 3)
@pytest.mark.parametrize(
    ("first", "other", "text"),
    [
        (
            np.zeros((2, 3)),
            np.zeros((2, 3), order="F"),
            r"shapes \(2, 3\), .* shapes \(2, 3\) in Fortran order, ",
        ),
        (
            [np.zeros(3), np.zeros(2)],
            [np.zeros(2), np.zeros(3)],
            r"shapes \(3,\), \(2,\), .* shapes \(2,\), \(3,\), ",
        ),
    ],
    ids=["order", "shapes"],
)
def test_ranks_whose_elements_are_in_other_places(comm, ctx, first, other, text):
    """Averages are made element by element, so they would mix them."""
    with pytest.raises(pp.MismatchError, match=text):
        ctx.Gossip_init(other if comm.rank else first, "complete")


@pytest.mark.sizes(*SIZES)
def test_what_is_added_must_be_like_the_model(comm, ctx):
    buf = np.zeros((2, 3), "f4")
    request = ctx.Gossip_init(buf, "complete")
    for add, why in (
        (np.zeros((2, 3)), "dtype float64"),
        (np.zeros((3, 2), "f4"), r"shape \(3, 2\)"),
        (np.zeros(6, "f4"), r"shape \(6,\)"),
        (np.zeros((2, 3), "f4", order="F"), "memory order"),
        ([np.zeros((2, 3), "f4")] * 2, "2 buffers"),
        ("text", "add is"),
    ):
        with pytest.raises(pp.ArgumentError, match=why):
            request.Start(add=add)
    frozen = np.zeros((2, 3), "f4")
    frozen.flags.writeable = False
    with pytest.raises(pp.ArgumentError, match="read-only"):
        request.Read(frozen)
    request.Start(add=np.ones((2, 3), "f4"))
    with pytest.raises(pp.Error, match="not collected"):
        request.Start()
    request.Wait()
    request.Flush()
    assert (buf == 1).all()
    request.Free()


# ---- averages that go on by themselves -----------------------------------------------------------


@pytest.mark.parametrize("count", [3, 200_000])
@pytest.mark.parametrize("progress", ["thread", "caller"])
@pytest.mark.sizes(2, 3, 5)
def test_averages_go_on_without_a_start(comm, progress, count):
    """Models approach each other while no rank starts anything; what is added is not lost."""
    with pp.Context(comm, progress=progress, seed=7) as context:
        buf, status = np.full(count, float(comm.rank)), pp.Status()
        request = context.Gossip_init(buf, "complete", continuous=True)
        for _ in range(3):
            request.Start(add=np.ones(count))
            request.Wait(status)
            assert status.group == (comm.rank,)
        mean = (comm.size - 1) / 2 + 3
        deadline = time.monotonic() + 60
        while abs(buf - mean).max() > 1e-3:
            assert time.monotonic() < deadline, f"the model is {buf} and not near {mean}"
            request.Start()
            request.Wait()
        request.Flush()
        np.testing.assert_allclose(buf, mean, rtol=1e-12)
        request.Free()


@pytest.mark.parametrize("kind", ["Gossip", "Queue"])
def test_averages_have_no_view_and_no_more(ctx, kind):
    request = getattr(ctx, f"{kind}_init")(np.zeros(3), "complete")
    assert (request.count, request.dtype) == (3, np.float64)
    for name in ("View", "More", "Drain"):
        with pytest.raises(pp.Error, match=f"averages have no {name}"):
            getattr(request, name)()
    request.Free()
