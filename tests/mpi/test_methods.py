"""Every method of training on real ranks: what all promise, and what makes each of them special."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

import numpy as np
import pytest
from support.methods import (
    GOSSIP,
    GROUPS,
    KINDS,
    LOCKSTEP,
    METHODS,
    QUEUES,
    ROUNDS,
    Training,
    same,
)

import pypartial as pp
from pypartial.methods import ADPSGD, EagerSGD, PartialReduce, Synchronous
from pypartial.methods.meeting import Meeting

pytestmark = [pytest.mark.mpi, pytest.mark.sizes(1, 2, 3, 4, 5)]

SLOW_S = 2e-3  # a step of the slow rank; the others compute nothing


@pytest.fixture(scope="module")
def ctx(comm) -> Iterator[pp.Context]:
    """A context for many workers. The runs of these tests differ in their transports."""
    with pp.Context(comm, seed=7) as context:
        yield context


@pytest.fixture
def make(comm, request):
    """The method of a name on so many ranks."""
    return METHODS[request.param](comm.size)


# ---- every method -------------------------------------------------------------------------------


@pytest.mark.parametrize("make", METHODS, indirect=True)
def test_a_training_of_ranks_that_differ(comm, ctx, make, request):
    """One rank makes no step, one is slow, numbers of steps differ, and some have no gradient."""
    name = request.node.callspec.params["make"]
    draw = random.Random(f"{name} {comm.rank}")
    idle = sum(map(ord, name)) % comm.size  # makes no step, if it is not alone
    steps = 0 if comm.rank == idle and comm.size > 1 else 8 + 4 * comm.rank
    training = Training(comm, ctx, make)
    worker = training.worker
    assert worker.x is training.x
    assert not training.x.any(), "the model is not rank 0's"
    statuses = []
    for _ in range(steps):
        if comm.rank == (idle + 1) % comm.size:
            time.sleep(SLOW_S)
        if draw.random() < 0.2:
            training.idle()
        else:
            training.step(draw.randint(1, 9), copy=draw.random() < 0.5)
        statuses.append(worker.status)
    own = training.x.copy()
    training.finish()

    assert same(comm, training.x, worker.state_dict()["seed"])
    assert not training.x[comm.size :].any()
    given, made = (np.array(comm.allgather(n), float) for n in (training.given, training.steps))
    model, total = training.x[: comm.size], training.total()
    if name in GOSSIP:  # others have changed the models behind these steps
        np.testing.assert_allclose(model, given, rtol=1e-12)
        assert len(training.applied) == training.steps
    elif name in QUEUES:  # what a rank sends with its last step the others may have averaged
        assert (model >= 0).all()
        assert (model <= given * comm.size).all()
        assert (model > 0).tolist() == (given > 0).tolist()
        assert len(training.applied) == training.steps
    elif name not in ROUNDS:
        assert all(comm.rank in status.group for status in statuses)
        assert len(training.applied) == training.steps
        models, counts = np.array(comm.allgather(own)), np.array(comm.allgather(steps))
        if "dynamic" not in name:  # a group's average preserves the sum over the ranks
            np.testing.assert_allclose(models.mean(0)[: comm.size], given, rtol=1e-12)
        mean = models.mean(0) if "equal" in name else counts @ models / counts.sum()
        np.testing.assert_allclose(training.x, mean, rtol=1e-12)
    elif "latest" in name:
        assert (total[: comm.size] <= given).all()
        assert (model <= given).all()
    else:  # every gradient counts once, on every rank
        assert np.array_equal(model, given)
        assert np.array_equal(total[: comm.size], given)
        assert total[-1] == made.sum()
    if name in QUEUES:
        numbers = [status.iteration for status in statuses]
        assert numbers == sorted(set(numbers))
        return
    numbers = [status.round for status in statuses]
    if name not in ROUNDS:
        numbers = [number for number in numbers if number]  # 0: it was alone
    assert numbers == sorted(numbers)
    if name == "synchronous" or "each" in name:
        assert same(comm, worker.rounds, np.array(training.applied))


@pytest.mark.parametrize("make", [*KINDS, *GOSSIP, *QUEUES], indirect=True)
def test_a_flush_makes_models_equal_and_the_training_goes_on(comm, ctx, make):
    """Also while a rank that has finished takes part in the others' flushes."""
    training = Training(comm, ctx, make)
    for _ in range(3):
        for _ in range(1 + comm.rank):
            training.step(1)
        training.count(lambda: training.worker.flush())
        assert same(comm, training.x)
    if comm.rank != comm.size - 1:
        for _ in range(5):
            training.step(2, copy=True)
            training.worker.flush()
    training.finish()
    assert same(comm, training.x)


@pytest.mark.parametrize("make", [*KINDS, *GOSSIP, *QUEUES], indirect=True)
def test_nobody_makes_a_step(comm, ctx, make):
    training = Training(comm, ctx, make)
    training.finish()
    assert not training.x.any()
    assert (training.applied, training.worker.rounds) == ([], 0)
    worker = make.worker(ctx, training.x.astype("f4"))  # and with ordinary memory
    worker.flush(training.update)
    worker.finish(training.update)
    assert training.applied == []


def interrupt(*rest):
    raise KeyboardInterrupt


def fail(gradient):
    raise KeyError("mine")


@pytest.mark.parametrize("make", [*GROUPS, *GOSSIP, *QUEUES], indirect=True)
def test_an_update_of_a_group_that_raises(comm, ctx, make):
    """The exception passes on, and communicates nothing: the next step works."""
    training = Training(comm, ctx, make)
    training.step(1)
    before = training.worker.rounds
    for _ in range(2):
        with pytest.raises(KeyError, match="mine"):
            training.worker.step(training.gradient(1, training.worker.gradient), fail)
    assert training.worker.rounds == before
    training.step(1)
    training.finish()
    assert training.worker.rounds == len(training.applied) == 2


@pytest.mark.parametrize("call", ["step", "flush", "finish", "away", "state_dict"])
@pytest.mark.parametrize("make", ["synchronous", "majority-each", "solo-sum"], indirect=True)
def test_an_update_of_a_round_that_raises(comm, make, call):
    """The model lacks a round from there on: no further call works, which says why."""
    lacks = r"an update raised KeyError\('mine'\), so that the model of this rank lacks round \d+"
    with pytest.raises(pp.Error, match=lacks), pp.Context(comm) as ctx:
        training = Training(comm, ctx, make)
        training.step(1)
        with pytest.raises(KeyError, match="mine"):
            training.worker.step(training.gradient(1, training.worker.gradient), fail)
        assert training.worker.rounds == len(training.applied)
        ctx.comm.Barrier()  # this rank gives up the context below
        if call == "step":
            training.step(1)
        getattr(training.worker, call)()


@pytest.mark.parametrize("call", ["step", "flush", "finish", "state_dict"])
@pytest.mark.parametrize("where", ["Wait", "flush"])
@pytest.mark.parametrize("make", ["synchronous", "solo-sum"], indirect=True)
def test_an_interrupt_behind_a_round(comm, make, where, call, monkeypatch):
    """As by Ctrl-C in the slice of a wait in which the round is collected."""
    lacks = r"a step was ended by KeyboardInterrupt\(\), so that the model of this rank lacks round"
    with pytest.raises(pp.Error, match=lacks), pp.Context(comm) as ctx:
        training = Training(comm, ctx, make)
        training.step(1)
        request = training.worker._request
        if where == "Wait":
            wait = request._pp_wait
            request._pp_wait = lambda *rest: interrupt() if wait(*rest) == 0 else 1
            with pytest.raises(KeyboardInterrupt):
                training.step(1)
            request._pp_wait = wait
        else:
            flush = type(request)._collect_call
            patch = lambda *rest: interrupt(flush(*rest))  # noqa: E731
            monkeypatch.setattr(type(request), "_collect_call", patch)
            with pytest.raises(KeyboardInterrupt):
                training.worker.flush()
            monkeypatch.undo()
        ctx.comm.Barrier()  # this rank gives up the context below
        if call == "step":
            training.step(1)
        getattr(training.worker, call)()


@pytest.mark.parametrize("make", ["synchronous", "majority-each", "solo-sum"], indirect=True)
def test_an_interrupt_before_a_round_loses_nothing(comm, ctx, make):
    """The request is outstanding, and a flush applies its round."""
    training = Training(comm, ctx, make)
    training.step(1)
    request = training.worker._request
    wait = request._pp_wait
    request._pp_wait = interrupt
    with pytest.raises(KeyboardInterrupt):
        training.step(1)
    request._pp_wait = wait
    training.worker.flush()
    training.step(1)
    training.finish()
    assert same(comm, training.x)
    assert training.x[: comm.size].tolist() == pytest.approx([3.0] * comm.size)


@pytest.mark.parametrize("copy", [True, False], ids=["copy", "in place"])
@pytest.mark.parametrize("make", ["synchronous", "full-sum"], indirect=True)
def test_a_step_behind_an_interrupt_leaves_what_is_on_its_way(comm, make, copy):
    """It is refused before it writes to the gradient that other ranks have not read yet."""
    with pp.Context(comm) as ctx:
        training = Training(comm, ctx, make)
        worker, request = training.worker, training.worker._request
        first = comm.rank == 0
        if first:
            wait, request._pp_wait = request._pp_wait, interrupt
            with pytest.raises(KeyboardInterrupt):
                training.step(1)
            request._pp_wait = wait
            before = worker.gradient.copy()
            for gradient in (np.full_like(before, 100), None):
                with pytest.raises(pp.Error, match=r"on its way: call flush\(\) or finish\(\)"):
                    worker.step(gradient, training.update)
            if comm.size > 1:  # else its round is complete
                assert np.array_equal(worker.gradient, before)
            with pytest.raises(pp.Error, match="1 steps were made since"):
                worker.state_dict()
        comm.Barrier()
        if not first:
            training.step(1, copy=copy)
        worker.flush(training.update)
        training.step(1)
        training.finish()
        assert same(comm, training.x)
        assert training.x[: comm.size].tolist() == pytest.approx([2.0] * comm.size)


@pytest.mark.parametrize(
    "make",
    ["synchronous", "majority-each", "solo-sum", "solo-latest", *GROUPS, *GOSSIP, *QUEUES],
    indirect=True,
)
def test_a_checkpoint(comm, make):
    """What is loaded is what was saved, and the numbers go on from there."""
    with pp.Context(comm, seed=11) as ctx:
        training = Training(comm, ctx, make)
        assert training.worker.state_dict() == {"method": repr(make), "rounds": 0, "seed": 11}
        for _ in range(3 + comm.rank):
            training.step(2)
        with pytest.raises(pp.Error, match=f"{3 + comm.rank} steps were made since"):
            training.worker.state_dict()
        training.worker.flush()
        saved = training.worker.state_dict()
        assert saved["rounds"] == training.worker.rounds == len(training.applied)
        assert saved["seed"] != 11
        model = training.x.copy()
        assert same(comm, saved["seed"], model)
        training.finish()
        assert training.worker.state_dict()["rounds"] == saved["rounds"]
    saved = comm.bcast(saved)
    with pp.Context(comm, seed=saved["seed"]) as ctx:
        x = model if comm.rank == 0 else np.zeros_like(model)
        worker = make.worker(ctx, x)
        worker.load_state_dict(saved)
        assert worker.state_dict() == saved
        assert same(comm, x, model)
        applied = worker.step(None, lambda gradient: None)
        with pytest.raises(pp.Error, match="before the first step"):
            worker.load_state_dict(saved)
        applied += worker.finish()
        assert worker.rounds == saved["rounds"] + applied
        with pytest.raises(pp.Error, match="has finished"):
            worker.load_state_dict(saved)


# ---- optimizers with a state ---------------------------------------------------------------------


class Momentum:
    """Gradient descent with momentum: a lump of gradients is not the same as one after the other.

    Parameters
    ----------
    x : numpy.ndarray
    keep : float
        How much of the velocity a step keeps.
    """

    def __init__(self, x, keep=0.5):
        self.x, self.velocity, self.keep, self.asked = x, np.zeros_like(x), keep, 0

    def update(self, gradient):
        self.velocity *= self.keep
        self.velocity += gradient[: self.x.size]
        self.x -= self.velocity

    def state(self):
        self.asked += 1
        return [self.velocity]


@pytest.mark.parametrize(("policy", "dtype"), [(pp.Solo(), "f4"), (pp.Majority(), "f8")])
def test_replicas_stay_equal_bit_for_bit_with_each(comm, ctx, policy, dtype):
    """At every flush, momentum included, although one rank is slow and others make more steps."""
    random_ = np.random.default_rng(comm.rank)
    x = random_.standard_normal(50).astype(dtype)
    optimizer = Momentum(x, 0.9)
    worker = EagerSGD(policy).worker(ctx, x, state=optimizer.state)
    for epoch in range(4):
        for _ in range(3 + (comm.rank + epoch) % 3):
            if comm.rank == comm.size - 1:
                time.sleep(SLOW_S)
            worker.gradient[:] = random_.standard_normal(50)
            worker.step(worker.gradient, optimizer.update)
        worker.flush()
        assert same(comm, x, optimizer.velocity, worker.rounds)
    worker.finish()
    assert optimizer.asked == 0, "nothing is averaged"


def three_rounds_of_rank_0(comm, worker, optimizer, last):
    """Rank 0 makes three rounds; then `last` makes one step, and is late."""

    def step(value):
        worker.gradient[:] = value * comm.size
        return worker.step(worker.gradient, optimizer.update)

    comm.barrier()
    if comm.rank == 0:
        for value in (1, 2, 4):
            step(value)
    comm.barrier()
    times = step(8) if comm.rank == last else 0
    comm.barrier()
    return times


@pytest.mark.sizes(2, 3, 4)
@pytest.mark.parametrize(("keep", "drifts"), [(0.0, False), (0.5, True)])
def test_sum_drifts_with_momentum_until_it_is_averaged(comm, ctx, keep, drifts):
    """Rank 0 steps three times; another rank takes the sum of these gradients at once."""
    x = np.zeros(4)
    optimizer = Momentum(x, keep)
    worker = EagerSGD(pp.Solo(), "sum").worker(ctx, x, state=optimizer.state)
    times = three_rounds_of_rank_0(comm, worker, optimizer, comm.size - 1)
    assert times == (1 if comm.rank == comm.size - 1 else 0)
    models = comm.allgather((x, optimizer.velocity))
    assert np.array_equal(models[0][0], models[-1][0]) is not drifts
    worker.finish(optimizer.update)
    assert same(comm, x, optimizer.velocity)
    assert optimizer.asked > 0


@pytest.mark.sizes(2, 3, 4)
def test_each_does_not_drift(comm, ctx):
    """The same with `each`: the late rank takes the three rounds one by one, in its one step."""
    x = np.zeros(4)
    optimizer = Momentum(x)
    worker = EagerSGD(pp.Solo()).worker(ctx, x)
    times = three_rounds_of_rank_0(comm, worker, optimizer, comm.size - 1)
    assert times == (3 if comm.rank == comm.size - 1 else 0)
    models = comm.allgather((x, optimizer.velocity))
    assert np.array_equal(models[0], models[-1])
    worker.finish(optimizer.update)
    assert same(comm, x, optimizer.velocity, worker.rounds)


@pytest.mark.sizes(2, 3, 4)
def test_latest_gives_the_newest_round_only(comm, ctx):
    x = np.zeros(4)
    optimizer = Momentum(x, 0.0)
    worker = EagerSGD(pp.Solo(), "latest").worker(ctx, x)
    three_rounds_of_rank_0(comm, worker, optimizer, comm.size - 1)
    models = comm.allgather(x)
    assert (models[0][0], models[-1][0]) == (-7, -4)
    worker.finish(optimizer.update)
    assert same(comm, x)


@pytest.mark.sizes(2, 3, 4, 5)
@pytest.mark.parametrize(
    ("policy", "deliver"), [(pp.Solo(), "sum"), (pp.Majority(), "latest")], ids=str
)
def test_sync_every_averages_models_and_states(comm, ctx, deliver, policy):
    """Inside steps, at the same meetings on all ranks, although their steps are not the same."""
    random_ = np.random.default_rng(comm.rank)
    x = np.zeros(20)
    optimizer = Momentum(x, 0.9)
    worker = EagerSGD(policy, deliver, 5).worker(ctx, x, state=optimizer.state)
    met = []
    for _ in range(30 + 10 * comm.rank):
        asked = optimizer.asked
        worker.gradient[:] = random_.standard_normal(20)
        worker.step(worker.gradient, optimizer.update)
        if optimizer.asked > asked:
            met.append((x.tobytes(), optimizer.velocity.tobytes()))
    worker.finish()
    everybody = comm.allgather(met)
    fewest = min(map(len, everybody))
    assert fewest >= 2
    assert all(theirs[:fewest] == met[:fewest] for theirs in everybody)
    assert same(comm, x, optimizer.velocity)


@pytest.mark.sizes(2, 3, 4)
def test_a_rank_without_a_state_is_left_out_of_the_average(comm, ctx):
    """With `latest`, a rank that makes no step may have no update, and no state, until the end."""
    x = np.zeros(2)
    optimizer, updates = Momentum(x), []

    def update(gradient):
        updates.append(gradient)
        optimizer.update(gradient)

    def state():
        half = optimizer.velocity.astype("f2")
        return [optimizer.velocity, half.reshape(2, 1)] if updates else []

    worker = EagerSGD(pp.Solo(), "latest").worker(ctx, x, state=state)
    if comm.rank == 0:
        worker.gradient[:] = comm.size
        worker.step(worker.gradient, update)
    comm.barrier()
    worker.finish(update)
    assert len(updates) == (comm.rank == 0)
    assert optimizer.velocity.tolist() == [float(comm.rank == 0)] * 2
    assert same(comm, x)


# ---- models of groups, where all ranks meet ------------------------------------------------------


@pytest.mark.sizes(2, 3, 5)
@pytest.mark.parametrize("make", GROUPS, indirect=True)
def test_a_model_counts_by_the_steps_of_its_rank(comm, ctx, make):
    """Since the last meeting; a state by those with a gradient, because no group averages it.

    With ``final="equal"`` all count the same.

    A rank without a step takes over the others'.
    """
    draw = np.random.default_rng(comm.rank)
    x = ctx.alloc(40, "f8")
    optimizer = Momentum(x, 0.9)
    worker = make.worker(ctx, x, state=optimizer.state)

    def train(steps):
        for step in range(steps):
            gradient = draw.standard_normal(40) if step % 3 != 1 else None
            worker.step(gradient, optimizer.update)
        taught = sum(step % 3 != 1 for step in range(steps))
        own = steps, taught, x.copy(), optimizer.velocity.copy()
        worker.flush()
        return own

    for period in range(4):
        own = train(2 + 3 * ((comm.rank + period) % comm.size) if comm.rank != period else 0)
        with ctx.away():
            steps, taught, *before = zip(*comm.allgather(own), strict=True)
            assert same(comm, x, optimizer.velocity)
        counted = zip((x, optimizer.velocity), before, (steps, taught), strict=True)
        for after, theirs, counts in counted:
            expected = np.average(theirs, 0, weights=counts if make.final == "steps" else None)
            np.testing.assert_allclose(after, expected, rtol=1e-12, atol=1e-12)
    # The last rank comes to its end, and counts nothing in what the others do.
    if comm.rank != comm.size - 1:
        for _ in range(2):
            _, _, own, _ = train(1 + comm.rank)
            assert comm.size != 2 or make.final == "equal" or np.array_equal(x, own)
    worker.finish()
    assert same(comm, x, optimizer.velocity)
    assert worker._own is None, "a copy of the model stays"


@pytest.mark.sizes(2, 3)
def test_an_update_that_raises_is_no_step(comm, ctx):
    """The step that repeats it counts once, in a flush that counts models by steps."""
    x = np.zeros(4)
    worker = PartialReduce(comm.size).worker(ctx, x)
    if comm.rank == 0:
        with pytest.raises(ZeroDivisionError):
            worker.step(np.ones(4), lambda gradient: 1 / 0)
    worker.step(np.ones(4), lambda gradient: None)
    x[:] = comm.rank
    worker.flush()
    assert x.tolist() == [(comm.size - 1) / 2] * 4
    worker.finish()


@pytest.mark.sizes(2, 3, 5)
@pytest.mark.parametrize("steps", [0, 3])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_models_count_the_same_after_as_many_steps(comm, ctx, dtype, steps):
    """The average has the bits of the request's flush."""
    draw = np.random.default_rng(comm.rank)
    x, y = ctx.alloc(40, dtype), np.empty(40, dtype)
    worker = PartialReduce(2).worker(ctx, x)
    for _ in range(steps):
        worker.step(draw.standard_normal(40).astype(dtype), lambda g: np.add(x, g, out=x))
    y[:] = x
    worker.flush()
    request, meeting = ctx.Preduce_init(y, pp.groups.Controller(2)), Meeting(ctx)
    request.Flush()
    meeting.average(y)
    meeting.close()
    request.Free()
    assert np.array_equal(x, y)
    worker.finish()


@pytest.mark.sizes(2, 3, 4)
@pytest.mark.parametrize(
    ("make", "goes_on"),
    [("partial-reduce", False), ("ripples-smart", False), ("partial-reduce", True)],
    indirect=["make"],
)
def test_a_rank_with_few_batches_does_not_undo_what_others_learn(comm, ctx, make, goes_on):
    draw = np.random.default_rng(comm.rank)
    truth, x = np.arange(8.0), np.zeros(8)
    worker = make.worker(ctx, x)

    def update(gradient):
        np.subtract(x, 0.1 * gradient, out=x)

    def step():
        data = draw.standard_normal((32, 8))
        worker.step(data.T @ (data @ (x - truth)) / 32, update)

    last = comm.size - 1
    if comm.rank == last:
        for _ in range(5):
            step()
        while goes_on and abs(x - truth).max() > 1e-4:
            worker.step(None, update)
        for rank in range(last):
            comm.send("through", rank)
    else:
        # A group with that rank's model behind the last steps would undo them.
        while not comm.iprobe(last):
            step()
        comm.recv(source=last)
        for _ in range(300):
            step()
    worker.finish()
    assert same(comm, x)
    # It begins with an error of 7, and learns little.
    assert abs(x - truth).max() < (1e-3 if goes_on else 7 * 5 / 300)


@pytest.mark.sizes(3)
@pytest.mark.parametrize("backend", ["auto", "schedule", "comm"])
def test_versions_that_no_member_has_count_for_the_initial_model(comm, backend):
    """Rank 2 makes its first step with rank 0's third one: the second one's share is missing."""
    with pp.Context(comm, patience=None) as ctx:
        x = np.full(2, 100.0 + comm.rank)  # rank 0's is the initial model of all
        method = PartialReduce(2, "dynamic", missing="initial", history=5, backend=backend)
        worker = method.worker(ctx, x)
        assert backend in ("auto", worker._request.backend)
        assert worker._request.generator == pp.groups.Controller(2, history=5)

        def add(gradient):
            np.add(x, gradient, out=x)

        comm.Barrier()  # nobody is in a call of the context any more, and so out of all groups
        for pair in ((0, 1), (0, 1), (0, 2)):
            if comm.rank in pair:
                worker.step(np.ones(2), add)
                assert worker.status.group == pair
            comm.Barrier()
        if comm.rank != 1:
            assert worker.status.initial == pytest.approx(2 / 7)
            assert x.tolist() == pytest.approx([(4 * 103 + 2 * 100 + 101) / 7] * 2)
        worker.finish()


def step_interrupted(comm, training, where):
    """Make a step in groups that is interrupted on rank 0, before its wait or behind it."""
    request = training.worker._request
    wait = request._pp_wait_slice
    if comm.rank == 0:
        request._pp_wait_slice = lambda *rest: interrupt(where == "before" or wait(*rest))
        with pytest.raises(KeyboardInterrupt):
            training.step(1)
        request._pp_wait_slice = wait
    else:
        training.step(1)


@pytest.mark.sizes(2, 3, 4)
@pytest.mark.parametrize("where", ["before", "behind"])
def test_an_interrupt_of_a_step_of_groups(comm, where):
    """A flush collects the group, if it is not collected. The step counts."""
    with pp.Context(comm, seed=7, patience=None) as ctx:
        training = Training(comm, ctx, PartialReduce(comm.size))
        step_interrupted(comm, training, where)
        for _ in range(comm.rank):
            training.step(1)  # alone, when the others are in their flush
        own = training.x[: comm.size].copy()
        training.worker.flush()
        with ctx.away():
            models = comm.allgather(own)
        models[0] = np.ones(comm.size)  # of a group of all ranks
        expected = np.average(models, 0, weights=range(1, 1 + comm.size))
        np.testing.assert_allclose(training.x[: comm.size], expected, rtol=1e-12)
        training.finish()
        assert same(comm, training.x)


@pytest.mark.sizes(2, 3, 4)
@pytest.mark.parametrize("where", ["before", "behind"])
def test_a_step_behind_an_interrupt_of_one_of_groups(comm, ctx, where):
    """It collects the group of that step, if it is not collected, before it changes the model."""
    training = Training(comm, ctx, PartialReduce(comm.size))
    step_interrupted(comm, training, where)
    training.step(1)
    assert training.x[: comm.size].tolist() == pytest.approx([2.0] * comm.size)
    training.finish()
    assert same(comm, training.x)


# ---- models averaged with a neighbour ------------------------------------------------------------


@pytest.mark.parametrize("make", GOSSIP, indirect=True)
def test_models_and_states_count_the_same_in_gossip(comm, ctx, make):
    """Whatever the numbers of steps; and momentum stays a rank's own until a flush."""
    x = ctx.alloc(4, "f8")
    optimizer = Momentum(x)
    worker = make.worker(ctx, x, state=optimizer.state)
    for period in range(3):
        before, velocity, down = x.copy(), optimizer.velocity.copy(), 0
        for _ in range(2 + 3 * comm.rank * (period % 2)):
            worker.step(np.full(4, 1.0 + comm.rank), optimizer.update)
            velocity = 0.5 * velocity + 1 + comm.rank
            down += velocity
            assert np.array_equal(optimizer.velocity, velocity)
        worker.flush()
        assert same(comm, x, optimizer.velocity)
        with ctx.away():
            models, velocities = zip(*comm.allgather((before - down, velocity)), strict=True)
        np.testing.assert_allclose(x, np.mean(models, 0), rtol=1e-12)
        np.testing.assert_allclose(optimizer.velocity, np.mean(velocities, 0), rtol=1e-12)
    worker.finish()
    assert same(comm, x)


@pytest.mark.parametrize("make", [*GOSSIP, *LOCKSTEP], indirect=True)
def test_what_a_program_writes_to_the_model_counts(comm, ctx, make):
    """Between steps, before a flush, and in an update that raises."""
    x = np.zeros(3)
    worker = make.worker(ctx, x)

    def add(gradient):
        np.add(x, gradient, out=x)

    def fail_late(gradient):
        add(gradient)
        raise KeyError("late")

    worker.step(np.full(3, 1.0), add)
    x += 2
    worker.step(None, add)
    with pytest.raises(KeyError, match="late"):
        worker.step(np.full(3, 4.0), fail_late)
    worker.step(None, add)
    x += 8 * comm.rank
    worker.flush()
    np.testing.assert_allclose(x, 7 + 4 * (comm.size - 1), rtol=1e-12)
    x[:] = 5  # as a checkpoint that is loaded on all ranks
    worker.finish()
    np.testing.assert_allclose(x, 5, rtol=1e-12)


@pytest.mark.parametrize("make", QUEUES, indirect=True)
def test_a_model_that_all_ranks_load_after_a_flush_is_what_they_go_on_with(comm, ctx, make):
    """With old models, too: no model of before is averaged with it."""
    x = np.zeros(3)
    worker = make.worker(ctx, x)
    for loaded in (100.0, 40.0):
        x[:] = loaded
        for _ in range(6):
            worker.step(None, lambda gradient: None)
            np.testing.assert_allclose(x, loaded, rtol=1e-12)
        worker.flush()
        np.testing.assert_allclose(x, loaded, rtol=1e-12)
    worker.finish()


@pytest.mark.parametrize("where", ["before", "behind", "flush"])
@pytest.mark.parametrize("make", [*GOSSIP, *LOCKSTEP], indirect=True)
def test_an_interrupt_in_gossip_loses_nothing(comm, make, where, monkeypatch):
    """As by Ctrl-C before a wait, behind it, or behind a flush; nothing counts twice, too."""
    with pp.Context(comm, seed=7, patience=None) as ctx:
        training = Training(comm, ctx, make)
        training.step(1)
        if where != "flush":
            step_interrupted(comm, training, where)
        else:
            flush = type(training.worker._request)._collect_call
            patch = lambda *rest: interrupt(flush(*rest))  # noqa: E731
            monkeypatch.setattr(type(training.worker._request), "_collect_call", patch)
            with pytest.raises(KeyboardInterrupt):
                training.worker.flush()
            monkeypatch.undo()
            training.step(1)
        training.step(1)
        training.finish()
        assert same(comm, training.x)
        np.testing.assert_allclose(training.x[: comm.size], 3, rtol=1e-12)


@pytest.mark.sizes(2, 3, 5)
def test_a_rank_that_computes_holds_nobody_up(comm, ctx):
    """The others make their steps while rank 0 is in an update, and average with it."""
    x = ctx.alloc(1, "f8")
    worker = ADPSGD("complete").worker(ctx, x)

    def update(gradient):
        if comm.rank == 0:
            for rank in range(1, comm.size):
                comm.recv(source=rank)

    if comm.rank:
        for _ in range(20):
            worker.step(np.zeros(1), update)
        comm.send(None, 0)
    else:
        worker.step(np.zeros(1), update)
    worker.finish()


@pytest.mark.sizes(2, 3, 5)
def test_gossip_that_the_ranks_do_not_allow(comm, ctx):
    for method, words in [
        (ADPSGD("torus:4x4"), "number of ranks must be 16"),
        (ADPSGD("complete", "active"), "odd cycle"),
    ]:
        if comm.size > 2 or "torus" in repr(method):
            with pytest.raises(pp.ArgumentError, match=words):
                method.worker(ctx, np.zeros(2))
    method = ADPSGD("star" if comm.rank else "complete")
    if comm.size > 2:
        with pytest.raises(pp.MismatchError, match=r"workers differ.*complete.*star"):
            method.worker(ctx, np.zeros(2))
    Training(comm, ctx, ADPSGD("complete")).finish()


def test_what_counts_nothing_does_not_matter(comm, ctx):
    meeting = Meeting(ctx)
    weights = [rank % 3 for rank in range(comm.size - 1)] + [2]
    x = np.full(5, comm.rank if weights[comm.rank] else np.nan, "f4")
    meeting.average(x, weights)
    np.testing.assert_allclose(x, np.average(range(comm.size), weights=weights), rtol=1e-6)
    assert same(comm, x)
    meeting.close()


# ---- ranks that wait -----------------------------------------------------------------------------


@pytest.mark.sizes(2, 3, 4)
def test_a_step_ends_although_other_ranks_make_rounds_faster(comm, ctx):
    """Rank 0 makes a round during each update of rank 1, which is not kept in its step by that."""
    x, most = np.zeros(1), 12
    worker = EagerSGD(pp.Solo()).worker(ctx, x)
    updates = 0

    def ignore(gradient):
        pass

    def update(gradient):
        nonlocal updates
        updates += 1
        assert updates <= most, "the step does not end"
        comm.send("make a round", 0)
        comm.recv(source=0)

    if comm.rank == 0:
        worker.step(None, ignore)
        worker.step(None, ignore)
    comm.barrier()
    if comm.rank == 0:
        while comm.recv(source=1):
            worker.step(None, ignore)
            comm.send(None, 1)
    elif comm.rank == 1:
        worker.step(None, update)
        comm.send("", 0)
    worker.finish(ignore)
    assert updates <= most
    assert same(comm, worker.rounds)


@pytest.mark.sizes(2, 3, 4)
def test_a_rank_that_is_away_meets_one_that_synchronises(comm, ctx):
    """Rank 0 crosses `sync_every` while the last rank, which has not, wants to be away."""
    training = Training(comm, ctx, EagerSGD(pp.Solo(), "sum", 2))
    if comm.rank == comm.size - 1:
        training.step(1)
    comm.barrier()
    if comm.rank == 0:
        training.step(1)
        training.step(1)
    with training.worker.away(training.update):
        assert comm.allreduce(1) == comm.size
    training.step(1)
    training.finish()
    assert training.x.tolist()[: comm.size] == [3.0, *[1.0] * (comm.size - 2), 2.0]


@pytest.mark.parametrize("make", [*KINDS, *GOSSIP, *QUEUES], indirect=True)
def test_calls_of_the_application_while_away(comm, ctx, make):
    training = Training(comm, ctx, make)
    for step in range(12):
        if comm.rank == comm.size - 1:
            time.sleep(SLOW_S)
        training.step(1)
        if step % 4 == 3:
            with training.worker.away():
                assert comm.allreduce(1) == comm.size
    training.finish()
    assert same(comm, training.x)
    with pytest.raises(pp.Error, match="has finished"):
        training.worker.away()


# ---- large models -------------------------------------------------------------------------------


def test_large_models_go_in_parts(comm, ctx, monkeypatch):
    """Lengths that MPI cannot count are cut; here they are short."""
    monkeypatch.setattr("pypartial.methods.meeting._ELEMENTS_MOST", 7)
    x = np.arange(20.0) * (comm.rank == 0)
    optimizer = Momentum(x)
    worker = EagerSGD(pp.Full(), "sum").worker(ctx, x, state=lambda: [optimizer.velocity])
    assert x.tolist() == list(range(20))
    x += comm.rank
    optimizer.velocity[:] = np.arange(20.0) * comm.rank
    worker.finish(optimizer.update)
    mean = (comm.size - 1) / 2
    np.testing.assert_allclose(x, np.arange(20.0) + mean)
    np.testing.assert_allclose(optimizer.velocity, np.arange(20.0) * mean)


def test_synchronous_goes_on_as_if_it_had_not_stopped(comm):
    """A training that was stopped at a flush, and one that was not, end with the same bits."""

    def train(ctx, x, steps, state=None):
        worker = Synchronous().worker(ctx, x)
        if state:
            worker.load_state_dict(state)
        for step in steps:
            gradient = np.random.default_rng([step, comm.rank]).standard_normal(x.size) - x
            worker.step(gradient, lambda g: np.subtract(x, 0.1 * g, out=x))
        worker.finish(lambda g: None)
        return worker.state_dict()

    with pp.Context(comm) as ctx:
        unbroken = np.ones(30)
        last = train(ctx, unbroken, range(20))
        broken = np.ones(30)
        state = train(ctx, broken, range(8))
    with pp.Context(comm, seed=state["seed"]) as ctx:
        assert train(ctx, broken, range(8, 20), state)["rounds"] == last["rounds"] == 20
    assert np.array_equal(broken, unbroken)
    assert same(comm, broken)


def test_groups_average_ordinary_memory_too(comm, ctx):
    x = np.zeros(6, "f4")
    worker = PartialReduce(comm.size).worker(ctx, x, extra=2)
    assert (worker.gradient.size, worker.gradient.dtype) == (8, np.float32)
    worker.gradient[:] = comm.rank
    worker.step(worker.gradient, lambda gradient: np.add(x, gradient[:6], out=x))
    worker.finish()
    np.testing.assert_allclose(x, (comm.size - 1) / 2)


def test_what_numpy_raises_for_the_application_leaves_no_rank_in_an_average(comm, ctx):
    """Models and states whose mean is subnormal and not exact, on a rank that has NumPy raise."""
    least, least_half = 5e-324, np.float16(6e-8)
    x, halves = np.full(3, 3 * least), np.zeros(2, "f2")
    state = [np.zeros(2), halves]  # of two types, which are averaged one after the other
    worker = EagerSGD(pp.Full(), deliver="sum").worker(ctx, x, state=lambda: state[::-1])
    with np.errstate(all="raise" if comm.rank == 0 else "ignore"):
        worker.step(np.zeros(3), lambda gradient: None)
        x[:] = comm.rank * least
        halves[:] = least_half * (comm.rank == 0)
        worker.finish(lambda gradient: None)
    with np.errstate(all="ignore"):
        assert (x == sum(range(comm.size)) * least / comm.size).all()
        assert (halves == (np.float32(least_half) / comm.size).astype("f2")).all()


@pytest.mark.sizes(2, 3)
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_a_weighted_average_of_finite_numbers_is_finite(comm, ctx, dtype):
    """Whatever their weights; and a power of two times as large it has the same bits."""
    most = np.finfo(dtype).max
    weights = [7 if rank else 1000 for rank in range(comm.size)]
    x = np.array([most / 4, -most / 4, 1.0, 3.0 + comm.rank], dtype)
    expected = x.copy()
    expected[3] = np.average(3.0 + np.arange(comm.size), weights=weights)
    y, meeting = x * 2.0**-60, Meeting(ctx)
    meeting.average(x, weights)
    meeting.average(y, weights)
    meeting.close()
    np.testing.assert_allclose(x, expected, rtol=4 * np.finfo(dtype).eps)
    assert np.array_equal(x, y * 2.0**60)
