"""Queues (Hop) on real ranks: averages with neighbours."""

from __future__ import annotations

import random
import time
import warnings
from contextlib import nullcontext

import numpy as np
import pytest

import pypartial as pp

pytestmark = pytest.mark.mpi

MODES = {
    "standard": {},
    "max_ig=1": {"max_ig": 1},
    "topology": {"weights": "topology"},
    "backup": {"backup": 1},
    "staleness": {"staleness": 2},
    "staleness=5": {"staleness": 5, "max_ig": 8},
    "hybrid": {"staleness": 2, "backup": 1},
    "skip": {"backup": 1, "skip": 3, "skip_trigger": 1},
    "skip+staleness": {"staleness": 3, "skip": 3, "skip_trigger": 1},
    "notify-ack": {"protocol": "notify-ack"},
    "none": {"protocol": "none"},
    "none+staleness": {"protocol": "none", "staleness": 1},
}
EXACT = ["standard", "max_ig=1", "topology", "notify-ack", "none"]


@pytest.fixture
def ctx(comm):
    """A context."""
    with pp.Context(comm, seed=7) as context:
        yield context


def options_on(mode, graph):
    """The options of a mode, without more backup than the graph has neighbours for."""
    options = dict(MODES[mode])
    if "backup" in options:
        options["backup"] = [min(1, max(0, len(ins) - 1)) for ins in graph.in_neighbours]
        if not any(options["backup"]):
            for name in ("skip", "backup") if "staleness" not in options else ("backup",):
                options.pop(name, None)
    return options


def topologies(size):
    """Topologies that fit so many ranks."""
    found = [pp.topology.ring(), pp.topology.complete(), pp.topology.star()]
    return [*found, pp.topology.exponential(directed=True)] if size > 2 else found


def arrays(ctx, count, dtype, library):
    """A model that is NumPy's, or the library's."""
    return ctx.alloc(count, dtype) if library else np.empty(count, dtype)


@pytest.mark.parametrize("library", [False, True], ids=["numpy", "alloc"])
@pytest.mark.parametrize("mode", EXACT)
def test_exact_modes_are_replayed_bit_for_bit(ctx, mode, library):
    for topology in topologies(ctx.size):
        for count in (1, 1001, 131072):
            graph = topology.on(ctx.size)
            draw = np.random.default_rng(count)
            models = [draw.standard_normal(count) for _ in range(ctx.size)]
            model = arrays(ctx, count, "f8", library)
            model[:] = models[ctx.rank]
            request = ctx.Queue_init(model, topology, **options_on(mode, graph))
            status = pp.Status()
            steps = 12 if count < 1e5 else 4
            for step in range(steps):
                request.Start()
                request.Wait(status)
                assert status.iteration == step + 1
                assert status.received == len(graph.in_neighbours[ctx.rank])
                models = [replayed(graph, rank, models, mode) for rank in range(ctx.size)]
                assert np.array_equal(model, models[ctx.rank]), (topology, step)
            request.Flush(status)
            mean = sum(models) / ctx.size
            assert np.allclose(model, mean, rtol=0, atol=1e-12)
            assert request.Free() == 0


def replayed(graph, rank, models, mode):
    """The average of a rank: the own model first, then neighbours in their order."""
    ins = graph.in_neighbours[rank]
    weights = [1 / (len(ins) + 1)] * (len(ins) + 1)
    if mode == "topology":
        given = [float(graph.weights[i, rank]) for i in ins]
        total = 0.0
        for weight in given:
            total += weight
        own = 1 - total
        weights = [weight / (own + total) for weight in (own, *given)]
    result = models[rank] * weights[0]
    for weight, i in zip(weights[1:], ins, strict=True):
        result = result + weight * models[i]
    return result


@pytest.mark.parametrize("count", [1, 125, 131072], ids=["8B", "1KB", "1MB"])
@pytest.mark.parametrize("mode", MODES)
def test_modes_with_uneven_ranks(ctx, mode, count):
    topology = pp.topology.ring() if ctx.size > 1 else pp.topology.complete()
    graph = topology.on(ctx.size)
    options = options_on(mode, graph)
    draw = random.Random(ctx.rank)
    model = np.full(count, float(ctx.rank))
    with pytest.warns(RuntimeWarning) if warns(options) else nullcontext():
        request = ctx.Queue_init(model, topology, **options)
    status, before = pp.Status(), 0
    for _ in range(30):
        request.Start()
        seen = model.copy()
        if draw.random() < 0.2:
            time.sleep(draw.random() * 0.002)
        assert np.array_equal(model, seen)  # the buffers are the application's
        request.Wait(status)
        assert model.min() == model.max(), "a model is torn"
        assert 0 <= model[0] <= ctx.size - 1
        assert status.iteration == before + 1 + status.skipped
        assert status.staleness <= (options.get("staleness") or 0)
        assert request.queue_size() >= 0
        before = status.iteration
    request.Flush()
    everybody = ctx.comm.allgather(float(model[0]))
    assert len(set(everybody)) == 1
    assert request.Free() == 0


def warns(options):
    bound = options.get("staleness")
    tokens = options.get("protocol", "tokens") == "tokens"
    return tokens and bound is not None and bound >= options.get("max_ig", bound + 1)


@pytest.mark.parametrize("max_ig", [None, 1])
def test_a_warning_points_at_the_program(ctx, max_ig):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        worker = pp.methods.Hop("complete", max_ig, staleness=4).worker(ctx, np.zeros(3))
    assert [one.filename for one in caught] == [__file__] * (max_ig is not None)
    worker.finish()


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "g"])
def test_types_and_pieces(ctx, dtype):
    topology = pp.topology.complete()
    pieces = [np.full(size, float(ctx.rank), dtype) for size in (3, 5000, 1)]
    request = ctx.Queue_init(pieces, topology)
    request.Start()
    request.Wait()
    mean = (ctx.size - 1) / 2
    for piece in pieces:
        assert np.allclose(piece.astype("f8"), mean, rtol=1e-3)
    request.Free()


def test_flush_of_outstanding_requests(ctx):
    model = np.full(100, float(ctx.rank))
    request = ctx.Queue_init(model, pp.topology.complete())
    for step in range(5):
        model[:] = ctx.rank + step
        if ctx.rank % 2 == 0:
            request.Start()
        request.Flush()
        assert np.allclose(model, (ctx.size - 1) / 2 + step)
        request.Start()
        request.Wait()
        assert np.allclose(model, (ctx.size - 1) / 2 + step)
    request.Start()
    assert request.Free() == 1


def test_a_rank_that_is_away_holds_nobody_up(ctx):
    model = np.full(100, float(ctx.rank))
    request = ctx.Queue_init(model, pp.topology.complete())
    status = pp.Status()
    steps_done = ctx.comm.Dup()
    if ctx.rank > 0:
        for _ in range(20):
            request.Start()
            request.Wait(status)
            assert model.min() == model.max()
        come = steps_done.Ibarrier()
    with ctx.away():
        if ctx.rank == 0:
            come = steps_done.Ibarrier()
        while not come.Test():
            time.sleep(0.001)
    for _ in range(10):
        request.Start()
        request.Wait(status)
    request.Flush()
    assert len(set(ctx.comm.allgather(model.tobytes()))) == 1
    steps_done.Free()
    request.Free()


@pytest.mark.parametrize("beside", ["full", "majority", "given", "context"])
def test_ranks_that_are_in_step_elsewhere_skip_nothing(comm, ctx, beside):
    """The slow rank would be ahead in one and not in the other: all would wait in a circle."""
    status = pp.Status()
    with pp.Context(comm) if beside == "context" else nullcontext(ctx) as other:
        both = np.zeros(4), np.zeros(4)
        if beside == "context":
            second = other.Queue_init(both[1], "complete", max_ig=6, staleness=5)
        elif beside == "given":
            second = ctx.Preduce_init(both[1], groups=pp.groups.Given())
        else:
            policy = pp.Full() if beside == "full" else pp.Majority()
            second = ctx.Allreduce_init(None, both[1], policy=policy)
        everybody = {"group": range(ctx.size)} if beside == "given" else {}
        options = {"max_ig": 6, "staleness": 5, "skip": 6, "skip_trigger": 1}
        with ctx.Queue_init(both[0], "complete", **options) as request:
            for step in range(32):
                if ctx.rank == ctx.size - 1:
                    time.sleep(0.002)
                request.Start()
                request.Wait(status)
                assert status.skipped == 0
                if step % 8 == 7:
                    second.Start(**everybody)
                    second.Wait(timeout=60)
        second.Free()


def test_test_and_timeout(ctx):
    ready = ctx.comm.Dup()
    model = np.zeros(10)
    request = ctx.Queue_init(model, pp.topology.complete())
    if ctx.rank == 0 and ctx.size > 1:
        request.Start()
        with pytest.raises(pp.TimeoutError, match="waits for the update of rank 1 of iteration 0"):
            request.Wait(timeout=0.2)
        assert not request.Test()
        with pytest.raises(pp.Error, match="an iteration has one update"):
            request.Start()
    come = ready.Ibarrier()
    if ctx.rank > 0 or ctx.size == 1:
        while not come.Test():  # in a blocking call it would have left
            time.sleep(0.001)
        request.Start()
    while not request.Test():
        time.sleep(0.001)
    come.Wait()
    ready.Free()
    request.Free()


BAD = [
    ({"max_ig": 0}, "max_ig=0"),
    ({"max_ig": 1.5}, "max_ig must be an integer"),
    ({"backup": 1_000_001}, "backup=1000001"),
    ({"backup": -1}, "backup=-1"),
    ({"backup": "no"}, "backup must be a list"),
    ({"staleness": -1}, "staleness=-1"),
    ({"skip": 2}, "skip=2 needs backup or staleness"),
    ({"skip": 1, "staleness": 1}, "skip=1"),
    ({"skip": 0, "staleness": 1}, "skip=0 is not in 2"),
    ({"skip": 2, "staleness": 1, "skip_trigger": 4}, "skip_trigger=4"),
    ({"protocol": "notify-ack", "staleness": 1}, "does not go with staleness"),
    ({"protocol": "nothing"}, "protocol must be one of"),
    ({"weights": "equal"}, "weights must be"),
    ({"weights": "topology", "staleness": 1}, "does not go with staleness"),
]


@pytest.mark.parametrize(("options", "text"), BAD)
def test_bad_options(ctx, options, text):
    with pytest.raises(pp.ArgumentError, match=text):
        ctx.Queue_init(np.zeros(3), pp.topology.complete(), **options)
    ctx.Queue_init(np.zeros(3), pp.topology.complete()).Free()


@pytest.mark.sizes(1, 2, 3, 5)
def test_as_many_backup_workers_as_neighbours(comm, ctx):
    """One rank trains alone with any number."""
    options = {"backup": max(1, comm.size - 1), "skip": 2, "skip_trigger": 1}
    if comm.size > 1:
        with pytest.raises(pp.ArgumentError, match="below the number of in-neighbours"):
            ctx.Queue_init(np.zeros(3), "complete", **options)
        return
    model = np.ones(3)
    with ctx.Queue_init(model, "complete", **options) as request:
        for _ in range(5):
            request.Start()
            request.Wait()
            assert (model == 1).all()


def test_bad_buffers_and_topologies(ctx):
    with pytest.raises(pp.ArgumentError, match="floating"):
        ctx.Queue_init(np.zeros(3, int), pp.topology.complete())
    with pytest.raises(pp.ArgumentError, match="topology must be a topology"):
        ctx.Queue_init(np.zeros(3), 3)
    with pytest.raises(pp.ArgumentError, match="'rung' is not a topology"):
        ctx.Queue_init(np.zeros(3), "rung")
    ctx.Queue_init(np.zeros(3), "complete").Free()
    with pytest.raises(pp.ArgumentError):
        ctx.Queue_init(np.zeros(3), pp.topology.torus(9, 9))


def test_ranks_that_differ(ctx):
    if ctx.size == 1:
        pytest.skip("needs two ranks")
    with pytest.raises(pp.MismatchError):
        ctx.Queue_init(np.zeros(3 + ctx.rank % 2), pp.topology.complete())
    with pytest.raises(pp.MismatchError):
        ctx.Queue_init(np.zeros(3), pp.topology.complete(), max_ig=4 + ctx.rank % 2)
    with pytest.raises(pp.MismatchError, match=r"shapes \(2, 3\), .*\(2, 3\) in Fortran order, "):
        ctx.Queue_init(np.zeros((2, 3), order="CF"[ctx.rank % 2]), pp.topology.complete())
    with pytest.raises(pp.MismatchError, match="float32"):
        ctx.Queue_init(np.zeros(3, ("f4", "f8")[ctx.rank % 2]), pp.topology.complete())
    if ctx.size > 2:
        backup = [0] * ctx.size
        backup[ctx.rank] = 1
        with pytest.raises(pp.MismatchError, match="topology complete"):
            ctx.Queue_init(np.zeros(3), pp.topology.complete(), backup=backup)
    if ctx.size > 3:
        topology = pp.topology.ring() if ctx.rank else pp.topology.complete()
        with pytest.raises(pp.MismatchError):
            ctx.Queue_init(np.zeros(3), topology)


def test_models_that_the_memory_has_no_room_for_go_by_messages(ctx):
    model = np.full(10**5, float(ctx.rank))
    request = ctx.Queue_init(model, pp.topology.complete(), max_ig=10**6)
    for _ in range(3):
        request.Start()
        request.Wait()
    assert np.allclose(model, (ctx.size - 1) / 2)
    request.Free()


@pytest.mark.parametrize("protocol", ["tokens", "notify-ack"])
def test_without_a_progress_thread(comm, protocol):
    with pp.Context(comm, progress="caller") as context:
        model = np.full(1000, float(comm.rank))
        request = context.Queue_init(model, "complete", protocol=protocol)
        for _ in range(20):
            request.Start()
            request.Wait()
        assert np.allclose(model, (comm.size - 1) / 2)
        request.Flush()
        request.Free()


def test_senders_and_the_text_of_a_request(ctx):
    request = ctx.Queue_init(np.zeros(3), pp.topology.complete())
    with pytest.raises(pp.ArgumentError):
        request.queue_size(sender=ctx.rank)
    assert "complete" in repr(request)
    request.Free()


# ---- D-PSGD --------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.sizes(2, 3, 5)
def test_gossip_in_step_averages_by_the_weights_of_the_graph(comm, ctx, order):
    """The models of all ranks follow x <- W x + add, and their mean moves by what is added only."""
    topology = pp.topology.ring() if comm.size > 2 else pp.topology.complete()
    weights = topology.on(comm.size).weights
    draw = np.random.default_rng(5)
    model = np.asarray(draw.normal(size=(comm.size, 3, 4)))
    bufs = [np.array(model[comm.rank, :2], order=order), np.array(model[comm.rank, 2:].ravel())]
    request = ctx.Gossip_init(bufs, topology, "sync")
    for _ in range(8):
        add = draw.normal(size=model.shape)
        own = [np.array(add[comm.rank, :2], order=order), add[comm.rank, 2:].ravel()]
        request.Start(add=own)
        model += add
        np.testing.assert_allclose(bufs[0], model[comm.rank, :2], rtol=1e-12)
        with pytest.raises(pp.Error, match="was not collected"):
            request.Start(add=own)
        np.testing.assert_allclose(bufs[1], model[comm.rank, 2:].ravel(), rtol=1e-12)
        request.Wait()
        model = np.tensordot(weights.T, model, 1)
        np.testing.assert_allclose(bufs[0], model[comm.rank, :2], rtol=1e-12)
        np.testing.assert_allclose(bufs[1], model[comm.rank, 2:].ravel(), rtol=1e-12)
    for wrong, words in [(own[:1], "add has 1 buffers"), ([own[1], own[1]], r"add\[0\] has shape")]:
        with pytest.raises(pp.ArgumentError, match=words):
            request.Start(add=wrong)
    request.Flush()
    np.testing.assert_allclose(bufs[0], model[:, :2].mean(0), rtol=1e-12)
    request.Free()


def test_gossip_in_step_does_not_choose_who_asks(comm, ctx):
    with pytest.raises(pp.ArgumentError, match="goes with mode='async'"):
        ctx.Gossip_init(np.zeros(2), "complete", mode="sync", initiators="active")


@pytest.mark.sizes(3, 5)
def test_gossip_in_step_comes_together_at_the_rate_of_the_graph(comm, ctx):
    """After k averages models are at most sigma_2^k as far from their mean as at first."""
    graph = pp.topology.ring().on(comm.size)
    rate = np.sort(np.linalg.svd(graph.weights, compute_uv=False))[-2]
    models = np.random.default_rng(3).normal(size=(comm.size, 6))
    buf, mean = models[comm.rank].copy(), models.mean(0)
    first = np.linalg.norm(models - mean)
    with ctx.Gossip_init(buf, "ring", "sync") as request:
        for step in range(12):
            request.Start()
            request.Wait()
            with ctx.away():
                square = comm.allreduce(np.sum((buf - mean) ** 2))
            assert square**0.5 <= first * rate ** (step + 1) * (1 + 1e-9) + 1e-12
