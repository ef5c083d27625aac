"""Methods of training with wrong arguments, calls at the wrong time, and ranks that disagree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.methods import KINDS, METHODS, Training, same

import pypartial as pp
from pypartial.methods import EagerSGD, PartialReduce, Ripples, Synchronous
from pypartial.methods.meeting import Meeting

pytestmark = [pytest.mark.mpi, pytest.mark.sizes(1, 2, 3)]


def read_only() -> np.ndarray[Any, Any]:
    x = np.zeros(4)
    x.flags.writeable = False
    return x


def ignore(gradient):
    """Change nothing."""


# Wrong arguments of one rank: the model, the options, and words of the error.
WRONG: dict[str, tuple[Callable[[], Any], dict[str, Any], str]] = {
    "list": (lambda: [0.0] * 4, {}, "x must be a NumPy array, not a list"),
    "matrix": (lambda: np.zeros((2, 2)), {}, r"one-dimensional.*\(2, 2\)"),
    "stride": (lambda: np.zeros(8)[::2], {}, "contiguous"),
    "read-only": (read_only, {}, "read-only"),
    "integers": (lambda: np.zeros(4, "i8"), {}, "float32 or float64, not int64"),
    "half": (lambda: np.zeros(4, "f2"), {}, "float32 or float64, not float16"),
    "big-endian": (lambda: np.zeros(4, ">f8"), {}, "float32 or float64, not >f8"),
    "negative extra": (lambda: np.zeros(4), {"extra": -1}, "extra must be in 0"),
    "text extra": (lambda: np.zeros(4), {"extra": "1"}, "extra must be an integer"),
    "state": (lambda: np.zeros(4), {"state": []}, "state must be a function"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_argument_of_one_rank_is_an_error_on_all(comm, ctx, monkeypatch, wrong):
    """The rank whose argument it is says what is wrong, and the others are told."""
    model, options, words = WRONG[wrong]
    closed = []
    close = Meeting.close
    monkeypatch.setattr(Meeting, "close", lambda meeting: (closed.append(meeting), close(meeting)))
    last = comm.size - 1
    if comm.rank == last:
        with pytest.raises(pp.ArgumentError, match=words):
            EagerSGD().worker(ctx, model(), **options)
    else:
        with pytest.raises(pp.MismatchError, match=f"rank {last}: .*{words}"):
            EagerSGD().worker(ctx, np.zeros(4))
    assert len(closed) == 1, "a communicator is left"
    Training(comm, ctx, EagerSGD()).finish()  # the context goes on


@pytest.mark.sizes(2, 3)
@pytest.mark.parametrize(
    ("method", "size", "dtype", "options", "words"),
    [
        (Synchronous(), 5, "f4", {}, "5 float32.*6 float32"),
        (Synchronous(), 6, "f8", {}, "6 float64.*6 float32"),
        (Synchronous(), 6, "f4", {"extra": 2}, "extra 2.*extra 0"),
        (Synchronous(), 6, "f4", {"state": list}, "with state"),
        (EagerSGD(), 6, "f4", {}, r"EagerSGD.*Synchronous\(\)"),
    ],
    ids=["length", "type", "extra", "state", "method"],
)
def test_workers_that_differ(comm, ctx, method, size, dtype, options, words):
    """Both values are named, on every rank."""
    with pytest.raises(pp.MismatchError, match=f"rank 0 has.*{words}"):
        if comm.rank == 0:
            method.worker(ctx, np.zeros(size, dtype), **options)
        else:
            Synchronous().worker(ctx, np.zeros(6, "f4"))
    Training(comm, ctx, Synchronous()).finish()


@pytest.mark.parametrize(
    ("method", "words"),
    [
        (lambda ranks: EagerSGD(pp.Quorum(ranks + 1)), "has only"),
        (lambda ranks: PartialReduce(ranks + 1), "size must be at least 2"),
        (lambda ranks: Ripples(pp.groups.Smart(ranks + 1)), "size must be at least 2"),
        (lambda ranks: Ripples(pp.groups.Table([[[ranks]]])), "of the table has rank"),
    ],
    ids=["quorum", "controller", "smart", "table"],
)
def test_a_method_for_more_ranks_than_there_are(comm, ctx, method, words):
    if comm.size == 1 and "size" in words:
        pytest.skip("any size counts as 1")
    with pytest.raises(pp.ArgumentError, match=words):
        method(comm.size).worker(ctx, np.zeros(4))
    Training(comm, ctx, EagerSGD()).finish()


def test_a_worker_needs_a_live_context(comm):
    with pytest.raises(pp.ArgumentError, match=r"ctx must be a pypartial.Context"):
        EagerSGD().worker(comm, np.zeros(4))
    with pp.Context(comm) as ctx:
        pass
    with pytest.raises(pp.Error, match="freed"):
        EagerSGD().worker(ctx, np.zeros(4))


@pytest.mark.parametrize("name", KINDS)
def test_a_wrong_argument_of_a_step_communicates_nothing(comm, ctx, name):
    training = Training(comm, ctx, METHODS[name](comm.size))
    worker = training.worker
    size = worker.gradient.size
    for gradient, words in [
        (np.zeros(size + 1), f"an array of {size} float64.*not an array of shape"),
        (np.zeros((size, 1)), f"shape .{size}, 1."),
        (np.zeros(size, "f4"), "type float32"),
        ([0.0] * size, "not a list"),
    ]:
        with pytest.raises(pp.ArgumentError, match=f"gradient must be .*{words}"):
            worker.step(gradient, training.update)
    for call in (
        lambda: worker.step(None, None),
        lambda: worker.step(None, 3),
        lambda: worker.flush(3),
        lambda: worker.finish([]),
    ):
        with pytest.raises(pp.ArgumentError, match="update must be a function"):
            call()
    training.step(1)
    training.finish()
    assert same(comm, training.x)
    if name in ("synchronous", "majority-each", "majority-sum"):
        assert training.x[: comm.size].tolist() == [1.0] * comm.size


@pytest.mark.parametrize("name", KINDS)
def test_a_worker_that_has_finished(comm, ctx, name):
    training = Training(comm, ctx, METHODS[name](comm.size))
    training.step(1)
    training.finish()
    worker = training.worker
    for call in (
        lambda: worker.step(None, ignore),
        lambda: worker.flush(ignore),
        lambda: worker.finish(ignore),
        worker.away,
        lambda: worker.load_state_dict(worker.state_dict()),
    ):
        with pytest.raises(pp.Error, match="has finished"):
            call()
    assert worker.x is training.x
    assert worker.status is not None
    assert worker.state_dict()["rounds"] == worker.rounds


@pytest.mark.parametrize("name", ["synchronous", "majority-each", "majority-sum", "solo-latest"])
def test_a_rank_without_a_step_has_no_update_to_finish_with(comm, ctx, name):
    """It says so before it communicates, and can then call again."""
    worker = METHODS[name](comm.size).worker(ctx, np.zeros(4))
    if comm.rank == 0:
        for call in (worker.flush, worker.finish):
            with pytest.raises(pp.ArgumentError, match="update is needed"):
                call()
    else:
        worker.step(None, ignore)
    worker.finish(ignore if comm.rank == 0 else None)


@pytest.mark.parametrize("name", ["synchronous", "majority-sum"])
def test_states_that_cannot_be_loaded(comm, ctx, name):
    worker = METHODS[name](comm.size).worker(ctx, np.zeros(4))
    good = worker.state_dict()
    with pytest.raises(pp.ArgumentError, match=r"is of EagerSGD\(.*this worker has"):
        worker.load_state_dict(good | {"method": repr(EagerSGD(pp.Solo()))})
    for bad in (None, [], {}, {"method": good["method"], "rounds": 3}):
        with pytest.raises(pp.ArgumentError, match=r"what state_dict\(\) returned"):
            worker.load_state_dict(bad)
    for rounds in (-1, 1.5, "3"):
        with pytest.raises(pp.ArgumentError, match="rounds must be"):
            worker.load_state_dict(good | {"rounds": rounds})
    assert worker.rounds == 0
    worker.load_state_dict(good | {"rounds": 8})
    worker.step(None, ignore)
    worker.finish()
    assert worker.rounds >= 9


# ---- what is averaged ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["majority-sum", "ripples-static"])
@pytest.mark.parametrize(
    ("state", "words"),
    [
        (lambda: [[1.0]], r"state\(\)\[0\] is not a NumPy array"),
        (lambda: [np.zeros(2), np.zeros(2, "i4")], r"state\(\)\[1\] has the type int32"),
        (lambda: [np.zeros(2, "g")], r"state\(\)\[0\] has the type float128"),
        (lambda: [read_only()], r"state\(\)\[0\] is read-only"),
        (lambda: 1 // 0, "division"),
    ],
    ids=["list", "integers", "long double", "read-only", "raises"],
)
def test_a_state_that_cannot_be_averaged(comm, ctx, name, state, words):
    """The other ranks learn of it, and the worker can go on with a state that is right."""
    last, bad = comm.size - 1, True

    def mine():
        return state() if bad and comm.rank == last else [np.zeros(2)]

    worker = METHODS[name](comm.size).worker(ctx, np.zeros(4), state=mine)
    kind = pp.MismatchError
    text = f"rank {last}.*{words}"
    if comm.rank == last:
        kind, text = (ZeroDivisionError if words == "division" else pp.ArgumentError), words
    with pytest.raises(kind, match=text):
        worker.flush(ignore)
    bad = False
    worker.finish(ignore)


@pytest.mark.sizes(2, 3)
@pytest.mark.parametrize(
    ("first", "other", "words"),
    [
        ([(2, "f8")], [(2, "f8"), (1, "f4")], "rank 0 has 1 arrays, and rank 1 2"),
        ([(2, "f8")], [(3, "f8")], r"array 0 has shape \(2,\).*float64 on rank 0, and \(3,\)"),
        ([(2, "f8")], [(2, "f4")], "float64 on rank 0, and .*float32 on rank 1"),
    ],
    ids=["number", "shape", "type"],
)
def test_states_that_differ(comm, ctx, first, other, words):
    """Both are named on every rank, before anything is averaged."""
    x = np.full(4, comm.rank, "f8")
    worker = EagerSGD(deliver="sum").worker(
        ctx, x, state=lambda: [np.zeros(*shape) for shape in (other if comm.rank else first)]
    )
    x += comm.rank
    with pytest.raises(pp.MismatchError, match=f"states differ: .*{words}"):
        worker.flush(ignore)
    assert x.tolist() == [comm.rank] * 4
    other = first
    worker.finish(ignore)
    assert same(comm, x)


@pytest.mark.sizes(2, 3)
@pytest.mark.parametrize("error", [MemoryError, pp.Error])
def test_a_handle_for_which_a_rank_has_no_memory(comm, ctx, monkeypatch, error):
    """All ranks raise, and close the meeting together."""
    last = comm.size - 1
    made = pp.Context.Preduce_init

    def refused(ctx, *rest, **options):
        made(ctx, *rest, **options).Free()  # all have been there
        raise error("none is left") if comm.rank == last else pp.MismatchError(f"rank {last}: none")

    monkeypatch.setattr(pp.Context, "Preduce_init", refused)
    with pytest.raises(error if comm.rank == last else pp.MismatchError, match="none"):
        PartialReduce(min(2, comm.size)).worker(ctx, np.zeros(4))
    monkeypatch.undo()
    Training(comm, ctx, EagerSGD()).finish()
