"""Mistakes of the application: each is told, and spoils nothing."""

import numpy as np
import pytest
from programs import finish, name
from test_collective_calls import attempt, usable

from pypartial._core_sim import ffi, lib
from pypartial.policy import Quorum, Solo
from pypartial.sim.allreduce_handle import Handle, Options
from pypartial.sim.handle import CoreError
from pypartial.sim.world import World

SIZE = 3
LATEST = Options(count=SIZE, policy=Solo())
EACH = Options(count=SIZE, policy=Solo(), deliver="each", max_lag=3)
SUM = Options(count=SIZE, policy=Solo(), deliver="sum", max_lag=3)


def expect(status, text, request):
    """Yields a request that must fail so."""
    try:
        yield request
    except CoreError as error:
        assert error.status == status, error
        assert text in error.text, error
        return
    raise AssertionError(f"{request} was accepted")


def state_error(text, *request):
    yield from expect(lib.PP_ERR_STATE, text, request)


def run(program, *, size=SIZE, contexts=1):
    world = World(size, contexts=contexts)
    ended = []

    def whole(rank):
        yield from program(world, rank)
        ended.append(rank)

    world.run([whole(r) for r in range(size)])
    assert sorted(ended) == list(range(size))


def one_round(handle, rank, contributions=1):
    name(handle, rank)
    yield ("start", handle)
    result = yield ("wait", handle)
    assert 1 <= result.contributions <= SIZE * contributions
    return result


@pytest.mark.parametrize("options", [LATEST, SUM, EACH])
def test_start_on_a_request_that_was_not_collected(options):
    def program(world, rank):
        handle = yield ("init", options)
        name(handle, rank)
        yield ("start", handle)
        yield from state_error("not collected", "start", handle)
        yield 100_000  # complete by now
        yield from state_error("not collected", "start", handle)
        first = yield ("wait", handle)
        assert np.frombuffer(first.data, "int64").max() == 1  # the refused ones added nothing
        yield from one_round(handle, rank)
        yield from finish(handle)

    run(program)


@pytest.mark.parametrize("options", [LATEST, SUM, EACH])
@pytest.mark.parametrize("kind", ["wait", "test"])
def test_wait_with_nothing_started_and_nothing_to_give(options, kind):
    def program(world, rank):
        handle = yield ("init", options)
        yield from state_error("nothing was started", kind, handle)
        first = yield from one_round(handle, rank)
        yield 1_000_000
        try:  # what others did meanwhile is given, once, and in order
            while True:
                later = yield (kind, handle)
                assert later.round > first.round
                assert not later.included
                first = later
        except CoreError as error:
            assert "nothing to give" in error.text
        yield from finish(handle)

    run(program)


def test_flush_is_not_for_each_and_drain_only_for_it():
    def program(world, rank):
        each = yield ("init", EACH)
        latest = yield ("init", LATEST)
        total = yield ("init", SUM)
        yield from state_error("use Drain", "flush", each)
        yield from state_error("use Flush", "drain", latest)
        yield from state_error("use Flush", "drain", total)
        for handle in (each, latest, total):
            yield from one_round(handle, rank)
        for handle in (each, latest, total):
            yield ("free", handle)
        yield ("ctx_free",)

    run(program)


@pytest.mark.parametrize("call", ["flush", "init", "free", "ctx_free"])
def test_start_and_calls_inside_a_collective_call(call):
    def program(world, rank):
        handle = yield ("init", LATEST)
        other = yield ("init", SUM)
        name(handle, rank)
        yield ("start", handle)
        yield ("wait", handle)
        yield 1000 * rank
        if call == "ctx_free":
            yield ("free", handle)
            yield ("free", other)
        inside = {
            "flush": ("flush", handle),
            "init": ("init", EACH),
            "free": ("free", handle),
            "ctx_free": ("ctx_free",),
        }[call]
        yield ("begin", inside)
        if call != "ctx_free":
            yield from state_error("inside a collective call", "start", other)
            yield from state_error("still in progress", "flush", other)
            yield from state_error("still in progress", "init", LATEST)
            yield from state_error("still in progress", "free", other)
        yield from state_error("still in progress", "ctx_free")
        result = yield ("finish",)
        if call == "flush":
            assert result.cause == "flush"
        if call in ("flush", "init"):
            yield from one_round(handle, rank)
            yield ("free", handle)
        if call == "init":
            yield ("free", result)
        if call != "ctx_free":
            assert (yield ("free", other)) == 0
            yield ("ctx_free",)

    run(program)


def test_waiting_for_a_call_that_was_not_begun():
    def program(world, rank):
        context = world.contexts[0][rank]
        assert lib.pp_call_wait(context, 0) == lib.PP_ERR_STATE
        assert b"no collective call" in ffi.string(lib.pp_error_text())
        handle = yield ("init", LATEST)
        assert lib.pp_collect(handle.coll, handle.result) == lib.PP_ERR_STATE
        assert b"no result to collect" in ffi.string(lib.pp_error_text())
        name(handle, rank)
        yield ("start", handle)
        if rank == 0:  # outstanding is not complete, even if the result never comes
            assert lib.pp_collect(handle.coll, handle.result) == lib.PP_ERR_STATE
        yield ("wait", handle)
        yield from finish(handle)

    run(program)


def test_a_handle_that_is_not_there_yet():
    def program(world, rank):
        context = world.contexts[0][rank]
        out = ffi.new("pp_handle_t **")
        handle = Handle(LATEST)
        assert lib.pp_allreduce_init_begin(context, handle.config(SIZE), ffi.NULL, out) == lib.PP_OK
        assert lib.pp_start(out[0]) == lib.PP_ERR_STATE
        assert lib.pp_test(out[0], ffi.NULL) == lib.PP_ERR_STATE
        assert b"has not finished" in ffi.string(lib.pp_error_text())
        while lib.pp_call_wait(context, 0) == lib.PP_PENDING:
            yield 1000
        handle.coll = out[0]
        yield from one_round(handle, rank)
        yield from finish(handle)

    run(program)


def test_the_context_is_not_freed_while_handles_live():
    def program(world, rank):
        handle = yield ("init", LATEST)
        second = yield ("init", EACH)
        yield from state_error("2 live handles", "ctx_free")
        yield ("free", second)
        yield from state_error("1 live handle:", "ctx_free")
        yield from one_round(handle, rank)
        yield from finish(handle)

    run(program)


BAD = {
    "k is 0": ({"raw": (("policy_k", 0),)}, "k=0 of the policy is not in 1..3"),
    "k is negative": ({"raw": (("policy_k", -1),)}, "k=-1 of the policy"),
    "k above P": ({"raw": (("policy_k", 4),)}, "k=4 of the policy is not in 1..3"),
    "quorum above P": (
        {"policy": Quorum(1), "raw": (("policy_k", 4),)},
        "k=4 of the policy is not in 1..3",
    ),
    "max_lag": ({"max_lag": 4}, "max_lag=4 needs a window of at least 5, but the context"),
    "each": ({"deliver": "each"}, 'only deliver="latest" can be unbounded'),
    "sum": ({"deliver": "sum", "max_lag": -3}, "max_lag=-3: only"),
    "type": ({"raw": (("type", lib.PP_TYPE_COUNT),)}, "is not defined on"),
    "type below": ({"raw": (("type", -1),)}, "is not defined on"),
    "op": ({"raw": (("op", lib.PP_OP_COUNT),)}, "is not defined on"),
    "op below": ({"raw": (("op", -1),)}, "is not defined on"),
    "policy": ({"raw": (("policy", 2),)}, "policy=2 is not a pp_policy_t"),
    "policy below": ({"raw": (("policy", -1),)}, "policy=-1 is not a pp_policy_t"),
    "deliver": ({"raw": (("deliver", 3),), "max_lag": 1}, "deliver=3 is not a pp_deliver_t"),
    "average": ({"raw": (("average", 4),), "dtype": "float32"}, "average=4 is not a pp_average_t"),
    "average below": ({"raw": (("average", -1),), "dtype": "float32"}, "average=-1 is not a"),
    "average of integers": ({"average": "size"}, "an average needs SUM of a floating type, not"),
    "average of max": (
        {"average": "size", "op": "max", "dtype": "float64"},
        "an average needs SUM of a floating type, not MAX",
    ),
    "memory": ({"raw": (("memory", 2),)}, "memory=2 is not a kind of memory"),
    "memory below": ({"raw": (("memory", -1),)}, "memory=-1 is not a kind of memory"),
    "algorithm": ({"raw": (("algorithm", 4),)}, "algorithm=4 is not the number of an algorithm"),
    "bits of floats": ({"op": "bor", "dtype": "float32"}, "BOR is not defined on float32"),
}


@pytest.mark.parametrize("name_", BAD)
@pytest.mark.parametrize("culprits", [(0,), (2,), (0, 1, 2)])
def test_a_bad_argument_of_some_is_an_error_of_all(name_, culprits):
    """The culprit has an argument error, the others a mismatch that names rank and complaint."""
    arguments, text = BAD[name_]
    bad = Options(**{"count": SIZE, **arguments})
    errors = {}

    def program(world, rank):
        yield 500 * rank
        yield from attempt(errors, rank, ("init", bad if rank in culprits else LATEST))
        yield from usable(rank, SIZE)

    run(program)
    assert sorted(errors) == list(range(SIZE))
    for rank, error in errors.items():
        expected = lib.PP_ERR_ARGUMENT if rank in culprits else lib.PP_ERR_MISMATCH
        assert error.status == expected, (rank, error)
        assert error.text.startswith(f"rank {min(culprits)}: "), error
        assert text in error.text, error


def test_a_complaint_of_the_caller_is_told_to_everybody():
    errors = {}

    def program(world, rank):
        request = "the buffer is read-only" if rank == 1 else LATEST
        yield from attempt(errors, rank, ("init", request))
        yield from usable(rank, SIZE)

    run(program)
    assert {e.text for e in errors.values()} == {"rank 1: the buffer is read-only"}
    assert errors[1].status == lib.PP_ERR_ARGUMENT


def test_free_against_flush_is_a_mismatch():
    """Different collective calls on the same handle: everybody is told, instead of a deadlock."""
    errors = {}

    def program(world, rank):
        handle = yield ("init", LATEST)
        yield from attempt(errors, rank, ("free" if rank == 1 else "flush", handle))

    run(program)
    assert sorted(errors) == list(range(SIZE))
    assert {e.status for e in errors.values()} == {lib.PP_ERR_MISMATCH}
    assert all("same order on all ranks" in e.text for e in errors.values())


def test_mistakes_in_one_context_do_not_concern_another():
    def program(world, rank):
        good = yield ("init", LATEST, 1)
        errors = {}
        yield from attempt(errors, rank, ("init", Options(count=rank), 0))
        assert errors[rank].status == lib.PP_ERR_MISMATCH
        yield from one_round(good, rank)
        yield from state_error("1 live handle", "ctx_free", 1)
        yield ("ctx_free", 0)
        yield ("free", good)
        yield ("ctx_free", 1)

    run(program, contexts=2)
