"""P-Reduce on real ranks: averages over groups, in shared memory and by messages."""

from __future__ import annotations

import random
import time
from contextlib import nullcontext

import numpy as np
import pytest
from support.modes import MODES, WHY_NONE, changed
from support.oracles import check_groups

import pypartial as pp

pytestmark = pytest.mark.mpi

STEPS = 16


@pytest.fixture
def ctx(comm, transport):
    """A context in shared memory, if there is any, and one by messages."""
    with pp.Context(comm, seed=7, transport=transport) as context:
        yield context


@pytest.fixture
def patient(comm, transport):
    """The same, in which no rank that a busy machine holds up is given up."""
    with pp.Context(comm, seed=7, transport=transport, patience=600) as context:
        yield context


def generators(size):
    """All generators that fit so many ranks, by name; in a context of one rank all do."""
    everybody = list(range(size))
    found = {
        "static": pp.groups.Static(nodes=1, per_node=size),
        "table": pp.groups.Table([[everybody], [everybody[: size // 2], everybody[size // 2 :]]])
        if size > 1
        else pp.groups.Table([[[0]]]),
    }
    for group in (2, 3):
        if group <= size or size == 1:
            found[f"random:{group}"] = pp.groups.Random(group)
            found[f"random:{group},reuse"] = pp.groups.Random(group, reuse=True)
            found[f"smart:{group}"] = pp.groups.Smart(group)
            found[f"controller:{group}"] = pp.groups.Controller(group)
    return found


NAMES = [
    "static",
    "table",
    *(f"{kind}:{size}" for kind in ("random", "smart", "controller") for size in (2, 3)),
    "random:2,reuse",
    "random:3,reuse",
]


def generator(name, size):
    """The generator of this name; the test is skipped where it has more ranks than there are."""
    found = generators(size)
    if name not in found:
        pytest.skip(f"no groups of {name} among {size} ranks")
    return found[name]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.sizes(1, 2, 3, 4, 5, 7, 8, 9)
def test_the_mean_is_kept_and_members_agree(comm, ctx, name):
    """Averages of equal weight keep the mean; the members of a group have the same bits."""
    size, draws = comm.size, random.Random(comm.rank)
    model = np.random.default_rng(comm.rank).normal(size=7)
    mean = np.mean(comm.allgather(model), axis=0)
    request = ctx.Preduce_init(model, generator(name, size))
    log, status = [], pp.Status()
    for step in range(STEPS):
        if draws.random() < 0.2:
            time.sleep(draws.uniform(0, 2e-3))
        request.Start()
        assert request.Wait(status) is True
        assert status.iteration == step
        assert status.weights == (1 / len(status.group),) * len(status.group)
        log.append((status.round, status.group, status.weights, model.tobytes()))
    request.Flush(status)
    assert status.group == tuple(range(size))
    assert comm.allgather(model.tobytes()) == [model.tobytes()] * size
    np.testing.assert_allclose(model, mean, rtol=0, atol=1e-12)
    check_groups(comm, log)
    assert request.Free() == 0


@pytest.mark.sizes(3)
def test_a_rank_alone_under_random_has_what_its_earlier_groups_averaged(comm, patient):
    """Rank 1 draws rank 0, which draws rank 2, which leaves: the status is that of the last."""
    model, status, found = np.zeros(1), pp.Status(), False
    request = patient.Preduce_init(model, pp.groups.Random(2))
    for _ in range(60):  # a draw in eight does
        model[:] = comm.rank
        if comm.rank == 1:
            request.Start()
            comm.send(None, 0)
        elif comm.rank == 0:
            comm.recv(source=1)
            request.Start()
            comm.send(None, 2)
        else:
            comm.recv(source=0)
        if comm.rank != 2:
            request.Wait(status)
            if comm.rank == 0 and status.group == (0,):
                assert (status.round, status.weights) == (0, (1.0,))
                assert model[0] in (0, 0.5)
                found |= model[0] == 0.5
        request.Flush()
    assert found or comm.rank != 0
    request.Free()


@pytest.mark.parametrize("name", ["random:2", "smart:2", "controller:2", "controller:3"])
@pytest.mark.sizes(3, 4, 5, 7, 8)
def test_ranks_make_different_numbers_of_calls(comm, ctx, name):
    """A rank in a collective call has left: groups shrink, and nobody waits for it."""
    model = np.full(3, float(comm.rank))
    request = ctx.Preduce_init(model, generator(name, comm.size))
    status, log = pp.Status(), []
    for _ in range(5 + 10 * comm.rank):
        request.Start()
        request.Wait(status)
        log.append((status.round, status.group, status.weights, model.tobytes()))
    request.Flush()
    np.testing.assert_allclose(model, (comm.size - 1) / 2, rtol=0, atol=1e-12)
    check_groups(comm, log)
    request.Start()  # the handle goes on
    request.Wait(status)
    assert request.Free() == 0


@pytest.mark.sizes(2, 3, 4, 5, 7, 8)
def test_given_groups(comm, ctx):
    """The caller's lists: members average, and others are not asked."""
    model = np.full(4, float(comm.rank))
    request = ctx.Preduce_init(model, pp.groups.Given())
    status = pp.Status()
    pair = sorted({comm.rank, comm.rank ^ 1} & set(range(comm.size)))
    request.Start(group=pair[::-1])
    request.Wait(status)
    assert status.group == tuple(pair)
    np.testing.assert_array_equal(model, sum(pair) / len(pair))
    request.Start(group=range(comm.size))
    request.Wait(status)
    assert status.group == tuple(range(comm.size))
    np.testing.assert_allclose(model, (comm.size - 1) / 2, rtol=1e-14)
    request.Free()


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.sizes(2, 4, 8)
def test_the_static_table(comm, ctx, nodes):
    """The k-th request of a rank is phase k mod 4, and a flush begins anew."""
    per_node = comm.size // nodes
    model = np.full(2, float(comm.rank))
    request = ctx.Preduce_init(model, pp.groups.Static(nodes=nodes, per_node=per_node))
    status = pp.Status()
    mine = range(comm.rank // per_node * per_node, (comm.rank // per_node + 1) * per_node)
    for phase in [*range(6), "flush", *range(4)]:
        if phase == "flush":
            request.Flush(status)
            continue
        request.Start()
        request.Wait(status)
        if phase % 2 and per_node > 1:
            assert status.group == tuple(mine)
        elif phase % 4 == 0 and nodes > 1 and comm.rank % per_node == 0:
            assert status.group == tuple(range(0, comm.size, per_node))
    request.Free()


@pytest.mark.sizes(3, 4)
def test_the_communicators_of_a_static_table_do_not_count(comm, ctx):
    """A group that has shrunk keeps its communicator, although whole ones came before it."""
    last, status = comm.size - 1, pp.Status()
    static = pp.groups.Static(nodes=1, per_node=comm.size)
    request = ctx.Preduce_init(np.zeros(2), static, backend="comm", cache=1)
    for _ in range(3):
        request.Start()
        request.Wait(status)
    if comm.rank != last:
        comm.recv(source=last)  # it has left before the last phase, the whole node
        request.Start()
        request.Wait(status)
        assert status.group == tuple(range(last))
    with ctx.away():
        for rank in range(last) if comm.rank == last else ():
            comm.send(None, rank)
        comm.Barrier()
    assert len(request._by_comm._kept) == (comm.rank != last)
    request.Free()


@pytest.mark.parametrize(
    ("missing", "weights", "initial"),
    [("closest", (3 / 7, 3 / 7, 1 / 7), 0.0), ("initial", (2 / 7, 2 / 7, 1 / 7), 2 / 7)],
)
@pytest.mark.sizes(3, 4, 5)
def test_dynamic_weights(comm, ctx, missing, weights, initial):
    """Partial Reduce, section 3.3: the iterations 5, 5, 3 with alpha = 0.5."""
    model = np.full(3, 100.0)
    options = {"weights": "dynamic", "alpha": 0.5, "missing": missing}
    request = ctx.Preduce_init(model, pp.groups.Given(), **options)
    model[:] = comm.rank + 1.0
    status = pp.Status()
    if comm.rank < 3:
        request.Start(iteration=(5, 5, 3)[comm.rank], group=[0, 1, 2])
        request.Wait(status)
        assert status.weights == pytest.approx(weights)
        assert status.initial == pytest.approx(initial)
        assert status.iteration == 5
        expected = initial * 100 + np.dot(status.weights, [1, 2, 3])
        np.testing.assert_allclose(model, expected, rtol=1e-14)
        with pytest.raises(pp.ArgumentError, match="5"):
            request.Start(iteration=5, group=[0, 1, 2])
    request.Free()


@pytest.mark.parametrize(
    ("dtype", "count"),
    [("f4", 300_000), ("f8", 0), ("f8", 1), ("f8", 1000), ("g", 1000), ("f2", 1000)],
)
@pytest.mark.sizes(2, 3, 4)
def test_types_and_sizes(comm, ctx, dtype, count):
    """Large vectors are cut into chunks; half precision is accumulated in float32."""
    rng = np.random.default_rng(comm.rank)
    model = rng.integers(-100, 100, size=count).astype(dtype)
    models = comm.allgather(model.copy())
    request = ctx.Preduce_init(model, pp.groups.Given())
    for _ in range(3):
        model[:] = models[comm.rank]
        request.Start(group=range(comm.size))
        request.Wait()
        wide = "f4" if dtype == "f2" else dtype
        expected = (np.sum(models, axis=0, dtype=wide) / np.array(comm.size, wide)).astype(dtype)
        np.testing.assert_array_equal(model, expected)
    request.Free()


@pytest.mark.sizes(2, 3, 4)
def test_shared_buffers_and_lists(comm, ctx):
    """A buffer of Context.alloc is averaged in place; a list of buffers is one vector."""
    shared = ctx.alloc(50_000, "f4")
    shared[:] = comm.rank
    one = ctx.Preduce_init(shared, pp.groups.Controller(2))
    first, second = np.full((2, 3), float(comm.rank)), np.full(5, 2.0 * comm.rank)
    two = ctx.Preduce_init([first, second], pp.groups.Given())
    status = pp.Status()
    for _ in range(10):
        one.Start()
        one.Wait(status)
        assert len(set(shared.tolist())) == 1
    two.Start(group=[0, 1] if comm.rank < 2 else [comm.rank])
    two.Wait()
    expected = 0.5 if comm.rank < 2 else comm.rank
    assert set(first.ravel().tolist()) == {expected}
    assert set(second.tolist()) == {2 * expected}
    one.Flush()
    np.testing.assert_allclose(shared, (comm.size - 1) / 2, rtol=1e-6)
    one.Free()
    two.Free()


@pytest.mark.parametrize("names", [("random:2", "random:2"), ("controller:3", "controller:2")])
@pytest.mark.sizes(2, 3, 4, 5, 7, 8)
def test_several_handles_in_one_order(comm, ctx, names):
    """Two handles of groups beside an allreduce, each once a step: never a deadlock."""
    draws = random.Random(comm.rank)
    models = [np.full(2, float(comm.rank)) for _ in names]
    requests = [
        ctx.Preduce_init(model, generator(name, comm.size))
        for name, model in zip(names, models, strict=True)
    ]
    total = np.zeros(1)
    beside = ctx.Allreduce_init(None, total)
    for _ in range(STEPS):
        for request in (*requests, beside):
            time.sleep(draws.uniform(0, 3e-4))
            request.Start()
            request.Wait()
    for request, model in zip(requests, models, strict=True):
        request.Flush()
        np.testing.assert_allclose(model, (comm.size - 1) / 2, rtol=0, atol=1e-12)
        request.Free()
    beside.Free()


@pytest.mark.sizes(2, 3)
def test_a_wait_that_times_out_goes_on(comm, ctx):
    """After a timeout the request is as it was; another Start is refused."""
    model = np.full(1, float(comm.rank))
    request = ctx.Preduce_init(model, pp.groups.Given())
    group = range(comm.size)
    if comm.rank == 0:
        request.Start(group=group)
        with pytest.raises(pp.TimeoutError, match=r"rank 1|not formed"):
            request.Wait(timeout=0.05)
        with pytest.raises(pp.Error, match="not collected"):
            request.Start(group=group)
        assert request.Test() is False
    comm.Barrier()
    if comm.rank != 0:
        request.Start(group=group)
    request.Wait()
    assert model[0] == (comm.size - 1) / 2
    request.Free()


@pytest.mark.parametrize("name", ["given", "table", "controller"])
@pytest.mark.sizes(2, 3, 4, 5)
def test_a_call_that_is_over_is_over_for_all(comm, patient, name):
    """After a collective call no rank counts as left that has not noticed yet that it is over."""
    everybody = range(comm.size)
    groups = {
        "given": pp.groups.Given(),
        "table": pp.groups.Table([[everybody]]),
        "controller": pp.groups.Controller(comm.size),
    }[name]
    total, model, status = np.zeros(1), np.full(2, float(comm.rank)), pp.Status()
    before = patient.Allreduce_init(None, total)
    request = patient.Preduce_init(model, groups)
    for step in range(STEPS):
        before.Start()
        before.Wait()
        before.Flush()
        if step % 10 == 9:
            request.Flush(status)
            assert status.group == tuple(everybody)
        request.Start(group=everybody if name == "given" else None)
        request.Wait(status)
        assert status.group == tuple(everybody), step
    before.Free()
    request.Free()


@pytest.mark.parametrize("name", ["random:2", "controller:2"])
@pytest.mark.sizes(2, 3, 4, 5)
def test_patience_in_a_call_that_is_over_elsewhere(comm, transport, name):
    """A rank that is away for longer than another one holds it up for its patience only."""
    last, status = comm.size - 1, pp.Status()
    with pp.Context(comm, transport=transport, patience=0.2) as ctx:
        request = ctx.Preduce_init(np.zeros(2), generator(name, comm.size))
        with ctx.away():
            comm.Barrier()
            if comm.rank != last:
                comm.recv(source=last)
        if comm.rank == last:
            request.Start()
            try:
                request.Wait(status, timeout=30)
            finally:
                for rank in range(last):
                    comm.send(None, rank)
            assert status.group == (last,)
        request.Flush()
        request.Free()


@pytest.mark.parametrize("backend", ["auto", "comm"])
def test_what_the_application_has_numpy_raise_is_not_raised_here(comm, patient, backend):
    """Only on the first rank, which would leave the others waiting inside MPI."""
    odd = np.uint32(0x008D8EB7).view("f4")  # a part of it is a denormal number that is not exact
    model = np.full(5, odd)
    request = patient.Preduce_init(model, pp.groups.Given(), weights="dynamic", backend=backend)
    with np.errstate(all="raise" if comm.rank == 0 else "ignore"):
        for _ in range(2):
            request.Start(group=range(comm.size))
            request.Wait(timeout=None if backend == "comm" else 60)
        request.Flush()
    assert np.allclose(model.astype("f8") * 1e38, float(odd) * 1e38)
    request.Free()


@pytest.mark.skipif(bool(WHY_NONE), reason=WHY_NONE)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("weights", ["constant", "dynamic"])
def test_modes_of_one_rank_change_no_bits(comm, patient, weights, mode):
    """The last rank's application has subnormal numbers flushed, or rounds in another way."""
    values = (np.random.default_rng(comm.rank).standard_normal(999) * 1e-38).astype("f4")
    averages = []
    for changes in (False, True):
        model = values.copy()
        request = patient.Preduce_init(model, pp.groups.Given(), weights=weights)
        with changed(mode) if changes and comm.rank == comm.size - 1 else nullcontext():
            request.Start(group=range(comm.size))
            request.Wait()
        averages.append(model.tobytes())
        assert len(set(comm.allgather(model.tobytes()))) == 1
        request.Free()
    assert averages[0] == averages[1]


@pytest.mark.parametrize("weights", ["constant", "dynamic"])
def test_averages_of_long_doubles_are_the_same_bytes(comm, patient, weights):
    """Their padding, too."""
    model = np.random.default_rng(comm.rank).standard_normal(999).astype("longdouble")
    request = patient.Preduce_init(model, pp.groups.Given(), weights=weights)
    request.Start(group=range(comm.size))
    request.Wait()
    assert len(set(comm.allgather(model.tobytes()))) == 1
    same = np.zeros_like(model)
    same.view(np.uint8)[:] = 0
    same[:] = model
    assert same.tobytes() == model.tobytes()
    request.Free()
