"""What keeps programs alive: patience, away, elsewhere; and deadlines, graces, timeouts."""

from __future__ import annotations

import pytest
from programs import finish, flushed, name

from pypartial._core_sim import lib
from pypartial.policy import Full, Majority, Quorum, Solo
from pypartial.sim.allreduce_handle import Options
from pypartial.sim.world import Deadlock, World

US, MS = 1_000, 1_000_000
FAST = (500, 1000)
SIZE = 3
WAYS = pytest.mark.parametrize("memory", [(), (300, 1000), (300, 1000, 2)])


def seed_that_draws(rank, rounds=1):
    """A seed with which this rank is drawn first for the first rounds of handle 1."""
    return next(
        seed
        for seed in range(10_000)
        if all(lib.pp_sim_drawn(seed, 1, r, SIZE, 0) == rank for r in range(rounds))
    )


def run(programs, *, memory=(), **kind):
    world = World(SIZE, latency=FAST, memory=memory, **kind)
    world.run([programs(world, rank) for rank in range(SIZE)])
    return world


def once(handle, rank):
    name(handle, rank)
    yield ("start", handle)
    return (yield ("wait", handle))


def one_round(memory, patience, policy, busy, *, polls=False, deliver="latest"):
    """The last rank is drawn and computes, or polls, so long; what the first was given, when."""
    seen = {}

    def program(world, rank):
        options = Options(count=SIZE, policy=policy, deliver=deliver, max_lag=3)
        handle = yield ("init", options)
        begun = world.now
        while rank == SIZE - 1 and polls and world.now < begun + busy:
            yield 100 * US
            assert (yield ("more", handle)) is None or world.now > begun + MS
        if rank == SIZE - 1 and not polls:
            yield busy
        result = yield from once(handle, rank)
        seen[rank] = result, world.now - begun
        yield from finish(handle)

    world = run(program, memory=memory, patience=patience, seed=seed_that_draws(SIZE - 1))
    return (*seen[0], world)


@WAYS
def test_a_drawn_rank_that_computes_for_longer_than_its_patience_leaves(memory):
    result, after, world = one_round(memory, MS, Majority(), 50 * MS)
    assert (result.round, result.cause) == (0, "departed")
    assert MS < after < 3 * MS
    assert world.coverage()["asides"] > 0


@WAYS
@pytest.mark.parametrize("patience", [None, 100 * MS, -1])
def test_without_patience_or_with_more_of_it_the_round_waits(memory, patience):
    result, after, world = one_round(memory, patience, Majority(), 50 * MS)
    assert (result.round, result.cause) == (0, "policy")
    assert after >= 50 * MS
    assert world.coverage()["asides"] == 0


@WAYS
@pytest.mark.parametrize("patience", [None, 100 * MS, -1])
@pytest.mark.parametrize("policy", [Majority(), Quorum(SIZE), Full()])
def test_a_rank_that_steps_aside_has_left_at_once(memory, patience, policy):
    """Until it is back; but Full waits for it."""
    seen = {}

    def program(world, rank):
        handle = yield ("init", Options(count=SIZE, policy=policy, deliver="sum", max_lag=3))
        if rank == SIZE - 1:
            yield ("aside",)
        begun = world.now
        yield (50 if rank == SIZE - 1 else 1) * MS
        if rank == SIZE - 1:
            yield ("beside",)
        first = yield from once(handle, rank)
        took = world.now - begun
        yield ("barrier",)
        seen[rank] = first, took, (yield from once(handle, rank))
        yield from finish(handle)

    world = run(program, memory=memory, patience=patience, seed=seed_that_draws(SIZE - 1, 3))
    first, took, second = seen[0]
    full = policy in (Full(), Quorum(SIZE))
    assert first.cause == ("policy" if full else "departed")
    assert (first.active == SIZE) == full
    assert (took < 3 * MS) != full
    assert world.coverage()["asides"] == 0  # those are by patience
    assert (second.cause, SIZE - 1 in second.contributors) == ("policy", True)


def test_a_rank_that_steps_aside_and_does_not_lead():
    """Two nodes of two ranks; nobody of its node waits, and no alarm has the leader look."""
    size, seen = 4, {}
    draws = (size - 1, 0)  # first the one that steps aside
    seed = next(
        seed
        for seed in range(10_000)
        if all(lib.pp_sim_drawn(seed, 1, 0, size, at) == draws[at] for at in (0, 1))
    )

    def program(world, rank):
        handle = yield ("init", Options(count=size, policy=Majority()))
        begun = world.now
        yield MS  # the leader has looked at the round
        if rank == size - 1:
            yield ("aside",)
        yield (1 if rank < 2 else 50) * MS
        if rank == size - 1:
            yield ("beside",)
        seen[rank] = (yield from once(handle, rank)), world.now - begun
        yield from finish(handle)

    world = World(size, latency=FAST, memory=(300, 1000, 2), patience=None, seed=seed)
    world.run([program(world, rank) for rank in range(size)])
    result, took = seen[0]
    assert (result.round, result.cause) == (0, "departed")
    assert took < 4 * MS


@WAYS
def test_polling_does_not_restart_the_clock(memory):
    result, after, _ = one_round(memory, MS, Majority(), 50 * MS, polls=True, deliver="each")
    assert (result.round, result.cause) == (0, "departed")
    assert after < 3 * MS


@WAYS
def test_a_new_handle_is_as_patient_as_the_others(memory):
    """Where patience is automatic, and a rank knows how long it usually computes."""
    seen = []

    def program(world, rank):
        options = Options(count=SIZE, policy=Quorum(2))
        usual = yield ("init", options)
        for _ in range(5):
            yield 100 * MS
            yield from once(usual, rank)
        handle = yield ("init", options)
        begun = world.now
        if rank > 0:
            yield 20_000 * MS
        else:
            result = yield from once(handle, rank)
            seen.append((result.cause, (world.now - begun) // (1500 * MS)))
        yield from flushed(handle)
        yield ("free", handle)
        yield from finish(usual)

    run(program, memory=memory, patience=-1)
    assert seen == [("departed", 0)]  # after a second; where nothing is known it is 2


@pytest.mark.parametrize("memory", [(), (300, 1000), (300, 1000, 4)])
def test_ranks_that_sit_in_one_call_cost_one_patience(memory):
    """Each hands the draw on to the next; but their clocks run together."""
    size, seen = 9, {}
    last = next(seed for seed in range(10_000) if lib.pp_sim_drawn(seed, 1, 0, size, size - 1) == 0)

    def program(world, rank):
        handle = yield ("init", Options(count=size))
        begun = world.now
        if rank > 0:
            yield 500 * MS
        else:
            seen[rank] = (yield from once(handle, rank)), world.now - begun
        yield from finish(handle)

    world = World(size, latency=FAST, memory=memory, patience=MS, seed=last)
    world.run([program(world, rank) for rank in range(size)])
    result, after = seen[0]
    assert (result.round, result.cause, result.initiator) == (0, "departed", 0)
    assert MS <= after < 2 * MS


CALLS = {
    "another handle": lambda handle: ("init", Options(count=SIZE)),
    "Flush": lambda handle: ("flush", handle),
    "away": lambda handle: ("away",),
}


@WAYS
@pytest.mark.parametrize("call", CALLS)
def test_a_draw_is_only_lent_for_the_time_of_a_collective_call(memory, call):
    """The round waits for the drawn rank, although a collective call came before it."""
    seen = {}

    def program(world, rank):
        handle = yield ("init", Options(count=SIZE))
        made = yield CALLS[call](handle)
        if call == "away":
            yield ("barrier",)
            yield ("back",)
        yield ("barrier",)
        if rank == SIZE - 1:
            yield 50 * MS
        seen[rank] = yield from once(handle, rank)
        if call == "another handle":
            yield ("free", made)
        yield from finish(handle)

    run(program, memory=memory, seed=seed_that_draws(SIZE - 1, 2))
    assert (seen[0].cause, seen[0].initiator) == ("policy", SIZE - 1)


@WAYS
def test_full_waits_as_mpi_does(memory):
    result, after, world = one_round(memory, MS, Full(), 50 * MS)
    assert (result.cause, result.active) == ("policy", SIZE)
    assert after >= 50 * MS
    assert world.coverage()["asides"] == 0


def test_a_start_ends_it():
    aside = []

    def program(world, rank):
        handle = yield ("init", Options(count=SIZE))
        if rank == SIZE - 1:
            yield 10 * MS
            aside.append(world.state(rank, handle).aside)
            yield ("test", handle)
            aside.append(world.state(rank, handle).aside)
            yield from once(handle, rank)
            aside.append(world.state(rank, handle).aside)
        else:
            yield from once(handle, rank)
        yield ("at", 20 * MS)
        yield from finish(handle)

    run(program, patience=MS, seed=seed_that_draws(SIZE - 1))
    assert aside == [1, 1, 0]


def away_for(memory, patience):
    """All go away; the last rank, drawn, stays for 50 ms after the others are back."""
    seen = {}

    def program(world, rank):
        handle = yield ("init", Options(count=SIZE))
        yield ("away",)
        yield ("barrier",)
        begun = world.now
        if rank == SIZE - 1:
            yield 50 * MS
        yield ("back",)
        seen[rank] = (yield from once(handle, rank)), world.now - begun
        yield from finish(handle)

    run(program, memory=memory, patience=patience, seed=seed_that_draws(SIZE - 1))
    return seen[0]


@WAYS
def test_away_is_void_towards_those_who_are_back(memory):
    result, after = away_for(memory, None)
    assert result.round == 0
    assert after >= 50 * MS


@WAYS
def test_and_then_holds_up_like_any_other(memory):
    result, after = away_for(memory, MS)
    assert (result.round, result.cause) == (0, "departed")
    assert after < 5 * MS


@WAYS
def test_inside_away_nobody_waits_for_a_rank(memory):
    """The others' own blocking call needs rank 0, which makes its rounds before it comes."""

    def program(world, rank):
        handle = yield ("init", Options(count=SIZE))
        for _ in range(5 if rank == 0 else 0):
            yield from once(handle, rank)
        yield ("away",)
        yield ("barrier",)
        yield ("back",)
        yield from finish(handle)

    run(program, memory=memory, seed=seed_that_draws(SIZE - 1, 3))


@WAYS
@pytest.mark.parametrize("contexts", [1, 2])
def test_who_waits_on_another_handle_is_exempt_from_max_lag(memory, contexts):
    """Of whatever context; and a rank that only computes is not."""

    def program(world, rank, elsewhere=True):
        first = yield ("init", Options(count=SIZE, policy=Solo(), max_lag=0), 0)
        second = yield ("init", Options(count=SIZE, policy=Full()), contexts - 1)
        for _ in range(4 if rank == 0 else 0):
            yield from once(first, rank)
        if not elsewhere:
            yield ("barrier",)
        yield from once(second, rank)
        for handle in (first, second):
            yield ("flush", handle)
            yield ("free", handle)
        for context in range(contexts):
            yield ("ctx_free", context)

    run(program, memory=memory, contexts=contexts)
    with pytest.raises(Deadlock):
        run(lambda *of: program(*of, elsewhere=False), memory=memory, contexts=contexts)


@WAYS
@pytest.mark.parametrize("deliver", ["each", "sum", "latest"])
def test_patience_lifts_max_lag(memory, deliver):
    ended = {}

    def program(world, rank):
        options = Options(count=SIZE, policy=Solo(), deliver=deliver, max_lag=0)
        handle = yield ("init", options)
        begun = world.now
        for _ in range(3):
            if rank == SIZE - 1:
                yield 50 * MS
            yield from once(handle, rank)
        ended[rank] = world.now - begun
        yield from finish(handle)

    run(program, memory=memory, patience=MS)
    assert ended[0] < 50 * MS


@pytest.mark.parametrize("memory", [(), (300, 1000), (300, 1000, 4)])
def test_ranks_that_come_to_one_call_one_after_the_other_cost_one_patience(memory):
    """A rank that waited, with others, for one that sits in a call comes there itself next."""
    size, patience, waited = 9, 100 * MS, {}

    def program(world, rank):
        handle = yield ("init", Options(count=size, deliver="each", max_lag=3))
        for metric in range(3):
            for _ in range(4):
                yield (3 if rank == size - 1 else 1) * MS
                yield from once(handle, rank)
                while (yield ("more", handle)):
                    pass
            begun = world.now
            yield ("barrier",)
            waited[metric, rank] = world.now - begun
        yield from finish(handle)

    world = World(size, latency=FAST, memory=memory, patience=patience, seed=3)
    world.run([program(world, rank) for rank in range(size)])
    for metric in range(3):
        assert max(waited[metric, rank] for rank in range(size)) < 1.5 * patience


@WAYS
def test_a_full_backlog_withholds_until_the_rank_takes_its_rounds(memory):
    """Patience lifts max_lag up to there: the window's rounds, if it is smaller."""
    vector, window, backlog = 8 * SIZE, 4, 20
    seen = {}

    def program(world, rank):
        options = Options(count=SIZE, policy=Solo(), deliver="each", max_lag=3)
        handle = yield ("init", options)
        if rank == SIZE - 1:
            yield ("at", 500 * MS)
            seen["rounds"] = seen[0]
            taken = 0
            yield from once(handle, rank)
            while (yield ("more", handle)):
                taken += 1
            seen["taken"] = 1 + taken
        else:
            for step in range(60):
                yield from once(handle, rank)
                while (yield ("more", handle)):
                    pass
                seen[rank] = step
        yield from finish(handle)

    run(program, memory=memory, patience=MS, backlog=backlog * vector, window=window)
    assert backlog <= seen["rounds"] <= backlog + 3 * window
    assert seen["taken"] >= backlog


@WAYS
def test_another_thread_goes_on_beside_a_call_that_steps_aside(memory):
    """Its Starts and Waits count as ever, and what completes meanwhile is not missed."""
    if memory:
        pytest.skip("a simulated rank that shares memory has one thread")
    seen = []

    def steps(handle, rank):
        for _ in range(5):
            yield MS
            result = yield from once(handle, rank)
            seen.append((result.missed, result.contributions > 0))

    def call(rank):
        yield ("aside",)
        yield ("aside",)
        yield (1 + 5 * rank) * MS
        yield ("beside",)
        yield ("beside",)

    def program(world, rank):
        handle = yield ("init", Options(count=SIZE, policy=Majority(), max_lag=0, deliver="each"))
        yield ("threads", [steps(handle, rank), call(rank)])
        yield from finish(handle)

    run(program, memory=memory)
    assert len(seen) == 5 * SIZE
    assert set(seen) == {(0, True)}


@WAYS
def test_a_deadline_triggers_once_for_each_round(memory):
    seen = []

    def program(world, rank):
        handle = yield ("init", Options(count=SIZE, policy=Majority(deadline=5e-3)))
        begun = world.now
        if rank == SIZE - 1:
            yield 50 * MS
        for _ in range(2 if rank == 0 else 0):
            result = yield from once(handle, rank)
            seen.append((result.round, result.cause, (world.now - begun) // MS))
        yield ("at", begun + 60 * MS)
        yield from finish(handle)

    run(program, memory=memory, seed=seed_that_draws(SIZE - 1, 2))
    assert seen == [(0, "deadline", 5), (1, "deadline", 10)]


@WAYS
@pytest.mark.parametrize(("grace", "active"), [(0.0, 1), (1e-3, SIZE)])
def test_a_grace_delays_the_taking(memory, grace, active):
    seen = {}

    def program(world, rank):
        handle = yield ("init", Options(count=SIZE, policy=Solo(grace=grace)))
        yield ("at", 10 * MS + rank * 200 * US)
        seen[rank] = yield from once(handle, rank)
        yield ("at", 20 * MS)
        yield from finish(handle)

    run(program, memory=memory)
    assert (seen[0].round, seen[0].active, seen[0].initiator) == (0, active, 0)


@pytest.mark.parametrize("memory", [(), (0, 0), (0, 0, 2)])
@pytest.mark.parametrize("grace_us", [20, 200, 1000])
@pytest.mark.parametrize("policy", [Solo, Majority, Quorum])
def test_a_grace_is_over_in_time(memory, policy, grace_us):
    """The round is taken without the ranks that come much later, when its grace is over.

    Then there are two messages one after the other, if any; no rank is interrupted.
    """
    ended, number = {}, {"k": 1} if policy is Quorum else {}

    def program(world, rank):
        options = Options(count=SIZE, policy=policy(**number, grace=grace_us * 1e-6))
        handle = yield ("init", options)
        for step in range(1, 4):
            start = 100 * MS * step
            yield ("at", start + 50 * MS * (rank > 0))
            result = yield from once(handle, rank)
            if rank == 0:
                ended[step] = world.now - start, result.active
            yield ("at", start + 90 * MS)
            yield from flushed(handle)
        yield from finish(handle)

    run(program, memory=memory, seed=seed_that_draws(0, 6))
    for took, active in ended.values():
        assert active == 1
        assert grace_us * US <= took <= grace_us * US + 2 * FAST[1]


@WAYS
def test_after_a_timeout_a_start_adds_to_what_is_pending(memory):
    seen = {}

    def program(world, rank):
        handle = yield ("init", Options(count=SIZE))
        begun = world.now
        if rank == 0:
            name(handle, rank)
            yield ("start", handle)
            assert (yield ("wait_for", handle, MS)) is None
            assert MS <= world.now - begun < 2 * MS
            yield ("timed_out", handle)
        else:
            yield 5 * MS
        seen[rank] = yield from once(handle, rank)
        yield from finish(handle)

    run(program, memory=memory, seed=seed_that_draws(SIZE - 1))
    result = seen[0]
    assert (result.round, result.cause) == (0, "policy")
    assert result.contributions == len(result.contributors) + 1


@WAYS
@pytest.mark.parametrize(
    ("policy", "patience", "cause"),
    [(Majority(deadline=5e-3), None, "deadline"), (Quorum(2), 5 * MS, "departed")],
)
def test_starts_after_timeouts_restart_no_clock(memory, policy, patience, cause):
    """A rank that waits for a millisecond each time waits as long as one that waits once."""
    seen = []

    def program(world, rank):
        handle = yield ("init", Options(count=SIZE, policy=policy))
        begun, result = world.now, None
        while rank == 0 and result is None:
            name(handle, rank)
            yield ("start", handle)
            result = yield ("wait_for", handle, MS)
            if result is None:
                yield ("timed_out", handle)
            else:
                seen.append((result.round, result.cause, (world.now - begun) // (8 * MS)))
        yield ("at", begun + 50 * MS)
        yield from finish(handle)

    run(program, memory=memory, patience=patience, seed=seed_that_draws(SIZE - 1))
    assert seen == [(0, cause, 0)]


@WAYS
@pytest.mark.parametrize("call", ["more", "wait"])
def test_what_a_rank_takes_without_a_start_lets_the_others_go_on_at_once(memory, call):
    """Its bound has kept the second round back, and it computes for long afterwards."""
    ended = []

    def program(world, rank):
        options = Options(count=SIZE, policy=Solo(), deliver="each", max_lag=1)
        handle = yield ("init", options)
        begun = world.now
        for _ in range(2 if rank == 0 else 0):
            yield from once(handle, rank)
            ended.append((world.now - begun) // MS)
        if rank > 0:
            yield 10 * MS
            assert (yield (call, handle)).round == 0
            yield 100 * MS
        yield from finish(handle)

    run(program, memory=memory)
    assert ended == [0, 10]


@WAYS
def test_a_test_after_a_timeout_changes_nothing(memory):
    def program(world, rank):
        handle = yield ("init", Options(count=SIZE, policy=Full()))
        name(handle, rank)
        if rank == 0:
            yield ("start", handle)
            assert (yield ("wait_for", handle, MS)) is None
            yield ("timed_out", handle)
            assert (yield ("test", handle)) is None
        else:
            yield 5 * MS
        result = yield from once(handle, rank)
        assert result.round == 0 and result.contributions >= SIZE
        yield from finish(handle)

    run(program, memory=memory)


def test_threads_of_a_rank_are_elsewhere_for_each_other():
    """Each rank's threads wait on a handle each, in orders that no order of handles allows."""

    def thread(handle, rank, pause):
        for _ in range(3):
            yield pause
            yield from once(handle, rank)

    def program(world, rank):
        handles = []
        for _ in range(2):
            handles.append((yield ("init", Options(count=SIZE))))
        pauses = (rank * US, (SIZE - rank) * US)
        yield ("threads", [thread(h, rank, p) for h, p in zip(handles, pauses, strict=True)])
        for handle in handles:
            yield ("flush", handle)
            yield ("free", handle)
        yield ("ctx_free",)

    for seed in range(20):
        run(program, seed=seed, patience=MS)


@WAYS
@pytest.mark.parametrize("policy", [Solo(), Majority(), Quorum(2), Full()])
def test_a_rank_that_is_a_call_ahead_serves_one_that_has_not_come_to_that_call(memory, policy):
    """Nobody waits in away(): the others are in the Flush after it while rank 0 makes rounds."""
    made = {}

    def program(world, rank):
        handle = yield ("init", Options(count=SIZE, policy=policy))
        results = []
        for _ in range(5 if rank == 0 else 0):
            results.append((yield from once(handle, rank)))
        yield ("away",)
        yield ("back",)
        made[rank] = [(r.round, r.contributors) for r in results]
        yield from finish(handle)

    for seed in range(SIZE):
        run(program, memory=memory, seed=seed)
        assert made[0] == [(number, (0,)) for number in range(5)]
