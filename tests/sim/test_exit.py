"""Ranks whose scripts end, or that give the context up, right after a collective call.

What they say about that may come to a rank before the rest of the call does: ranks complete an
agreement at different times. A call that every rank has voted in is completed all the same.
"""

import pytest
from test_collective_calls import attempt

from pypartial._core_sim import lib
from pypartial.policy import Full, Majority, Quorum, Solo
from pypartial.sim.allreduce_handle import Options
from pypartial.sim.preduce_handle import PreduceOptions
from pypartial.sim.world import World

LATENCIES = (500, 200_000)  # messages of different ranks overtake each other by far
SIZES = [2, 3, 4, 5, 8, 13]


# In messages, on one node, on nodes of two ranks.
WAYS = {"messages": (), "memory": (300, 3000), "nodes": (300, 3000, 2)}


def run(size, seed, program, memory=()):
    """Run a program with the ranks' errors, the last of each, as its second argument."""
    errors = {}
    world = World(size, seed=seed, latency=LATENCIES, memory=memory)
    world.run([program(r, errors) for r in range(size)])
    return errors


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("size", SIZES)
def test_a_script_may_end_as_soon_as_its_init_is_over(size, seed):
    rounds = {}

    def program(rank, _errors):
        handle = yield ("init", Options(policy=Solo()))
        if rank % 3:
            yield ("start", handle)
            rounds[rank] = yield ("wait", handle)
            yield ("flush", handle)
            yield ("free", handle)
        yield ("end_script",)

    run(size, seed, program)
    assert sorted(rounds) == [rank for rank in range(size) if rank % 3]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("size", SIZES)
def test_a_script_that_ends_before_a_call_fails_it_on_every_rank(size, seed):
    def program(rank, errors):
        first = yield from attempt(errors, rank, ("init", Options(policy=Solo())))
        if first and rank != seed % size:
            yield from attempt(errors, rank, ("init", Options(policy=Full())))
        yield ("end_script",)

    errors = run(size, seed, program)
    assert sorted(errors) == [rank for rank in range(size) if rank != seed % size]
    assert {error.status for error in errors.values()} == {lib.PP_ERR_PEER_FAILED}
    assert all("without freeing the context" in error.text for error in errors.values())


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("call", ["init", "ctx_free"])
def test_an_error_of_all_is_told_to_all_although_they_end_by_it(size, seed, call):
    def program(rank, errors):
        first = yield ("init", Options(policy=Solo()))
        culprit = rank == seed % size
        if call == "init":
            bad = Options(raw=(("policy_k", 99),), policy=Quorum(1))
            request = ("init", bad if culprit else Options())
        else:
            yield ("free", first)
            first = yield ("init", Options(policy=Solo()))
            request = ("ctx_free",)
        yield from attempt(errors, rank, request)
        yield ("abandon",)
        yield ("end_script",)

    errors = run(size, seed, program)
    assert sorted(errors) == list(range(size))
    told = lib.PP_ERR_MISMATCH if call == "init" else lib.PP_ERR_STATE
    for rank, error in errors.items():
        own = call == "init" and rank == seed % size
        assert error.status == (lib.PP_ERR_ARGUMENT if own else told), (rank, error)
        assert ("k=99" if call == "init" else "1 live handle") in error.text, (rank, error)


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("size", SIZES)
def test_a_rank_that_gives_up_after_an_init_is_told_of_when_that_is_over(size, seed):
    def program(rank, errors):
        if rank == seed % size:
            yield ("init", Options(policy=Full()))
            yield ("abandon",)
            yield ("end_script",)
        else:  # none of these tells another
            handle = yield from attempt(errors, rank, ("init", Options(policy=Full())))
            if handle is not None:
                yield from attempt(errors, rank, ("start", handle))
                yield from attempt(errors, rank, ("wait", handle))

    errors = run(size, seed, program)
    assert sorted(errors) == [rank for rank in range(size) if rank != seed % size]
    assert {error.status for error in errors.values()} == {lib.PP_ERR_PEER_FAILED}
    assert all(f"rank {seed % size} gave the context up" in e.text for e in errors.values())


@pytest.mark.parametrize("seed", range(24))
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["rounds", "given", "table"])
def test_what_is_complete_where_a_rank_gives_up_is_complete_elsewhere(kind, size, seed, way):
    """Rounds or groups, and a Flush; then every call fails, also where other ranks fail first."""
    results = {rank: [] for rank in range(size)}
    everybody, leaver, last = tuple(range(size)), seed % size, 1 + seed % 4

    def make():
        algorithm = ("auto", "ring", "rabenseifner")[seed % 3] if way == "messages" else "auto"
        if kind == "rounds":
            return ("init", Options(count=40, policy=Full(), algorithm=algorithm))
        return ("groups_init", PreduceOptions(kind, count=40, table=((everybody,),)))

    def start(handle):
        if kind == "rounds":
            return ("start", handle)
        return ("groups_start", handle, 0, everybody if kind == "given" else None)

    def program(rank, errors):
        handle = yield make()
        (handle.send if kind == "rounds" else handle.recv)[:] = rank
        for step in range(100):
            calls = [start(handle), ("wait", handle)]
            if step == last:
                calls[:0] = [("flush", handle)] if seed % 2 else []
            for call in calls:
                if rank == leaver and step == last and call[0] != "flush":
                    yield ("abandon",)
                    return
                got = yield from attempt(errors, rank, call)
                if rank in errors:
                    return
                if got is not None:
                    results[rank].append((got.round, got.data))

    errors = run(size, seed, program, WAYS[way])
    assert sorted(errors) == [rank for rank in range(size) if rank != leaver]
    assert {error.status for error in errors.values()} == {lib.PP_ERR_PEER_FAILED}
    assert all(f"rank {leaver} gave the context up" in e.text for e in errors.values())
    assert all(seen == results[leaver] for seen in results.values()), results


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("way", WAYS)
def test_ranks_that_give_up_one_after_the_other_leave_nobody_waiting(size, seed, way):
    """Under Solo some rounds may complete without them, which the last ranks must not wait for."""
    policy = (Solo(), Majority(), Quorum(max(1, size - 1)))[seed % 3]

    def program(rank, errors):
        handle = yield from attempt(errors, rank, ("init", Options(policy=policy)))
        for _ in range((rank * 7 + seed) % (size + 2)):
            if rank not in errors:
                yield from attempt(errors, rank, ("start", handle))
            if rank in errors:
                break
            yield from attempt(errors, rank, ("wait", handle))
        yield ("abandon",)

    errors = run(size, seed, program, WAYS[way])
    assert {error.status for error in errors.values()} <= {lib.PP_ERR_PEER_FAILED}
