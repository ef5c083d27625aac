"""Who is waited for, as the rank that waits can tell: rounds and calls that stand still."""

from __future__ import annotations

import pytest
from programs import name

from pypartial._core_sim import ffi, lib
from pypartial.policy import FirstOf, Full, Quorum, Solo
from pypartial.sim.allreduce_handle import Handle, Options
from pypartial.sim.world import Deadlock, World

MESSAGES, BOARD, NODES = (), (300, 1000), (300, 1000, 2)
WAYS = pytest.mark.parametrize("memory", [MESSAGES, BOARD, NODES])


def seed_that_draws(rank: int, size: int) -> int:
    return next(s for s in range(10_000) if lib.pp_sim_drawn(s, 1, 0, size, 0) == rank)


def obstacles(world: World, handle: Handle | None) -> str:
    """What keeps the handle, or the call that rank 0 is in, from going on; the lines joined."""
    text = ffi.new("char **")
    if handle is None:
        assert lib.pp_ctx_obstacles(world.contexts[0][0], text) == 0
    else:
        assert lib.pp_handle_obstacles(handle.coll, text) == 0
    lines = ffi.string(text[0]).decode().splitlines()
    lib.pp_text_free(text[0])
    return "; ".join(lines)


def stuck(size, memory, policy, call="wait", others=None, *, seed=0, **options) -> str:
    """Rank 0 is in a call; some ranks are in another, and the rest compute for ever."""
    others, handles = others or {}, {}
    options = Options(count=size, policy=policy, **options)

    def program(rank):
        handle = handles[rank] = yield ("init", options)
        which = call if rank == 0 else others.get(rank)
        if which == "init":
            yield ("init", options)
        elif which == "wait":
            name(handle, rank)
            yield ("start", handle)
            yield ("wait", handle)
        elif which:
            yield (which, handle)
        yield ("barrier",)

    world = World(size, latency=(500, 1000), memory=memory, seed=seed)
    with pytest.raises(Deadlock):
        world.run([program(rank) for rank in range(size)])
    return obstacles(world, handles[0] if call == "wait" else None)


def test_full_names_who_is_not_ready_and_what_they_do():
    assert stuck(4, BOARD, Full(), others={2: "flush", 3: "wait"}) == (
        "round 0 is not activated: 2 of 4 ranks are ready; not ready: rank 1 (computing); "
        "not ready, but not waited for because they have left: rank 2 (inside Flush of this handle)"
    )


def test_full_by_messages_names_whose_message_is_missing():
    text = stuck(3, MESSAGES, Full())
    assert text == "round 0 waits for messages from rank 1, which may wait for others"


def test_full_on_nodes_names_who_keeps_the_part_of_a_node():
    assert stuck(4, NODES, Full()) == (
        "round 0 is activated: 1 of 2 ranks of this node are ready; not ready: rank 1 (computing); "
        "rank 0 leads this node in round 0"
    )
    text = stuck(4, NODES, Full(), others={1: "wait"})
    assert text == (
        "round 0 is being reduced between nodes; rank 0 leads this node in round 0; "
        "this rank waits for messages from rank 2, which may wait for others"
    )


def test_a_quorum_says_how_many_are_missing():
    assert stuck(4, BOARD, Quorum(3), others={2: "wait"}) == (
        "round 0 is not activated: 2 of 4 ranks are ready, and its policy needs 3; "
        "not ready: rank 1 (computing), rank 3 (computing)"
    )
    assert stuck(4, MESSAGES, Quorum(3), others={2: "wait", 3: "flush"}) == (
        "round 0 is not activated, though this rank is ready: 2 of 4 ranks are known to be ready, "
        "and its policy needs 3; not known to be ready: rank 1, rank 3 (has left)"
    )


def test_a_quorum_by_messages_names_ranks_that_count_others():
    text = stuck(20, MESSAGES, Quorum(20 - 1), others=dict.fromkeys(range(1, 18), "wait"))
    assert text.endswith("not known to be ready: rank 1 (or ranks that it counts)")
    text = stuck(20, MESSAGES, Quorum(20 - 1), others=dict.fromkeys([1, *range(16, 20)], "wait"))
    assert "ready: rank 2, rank 3, rank 4" in text


@pytest.mark.parametrize(
    ("memory", "drawn"),
    [
        (BOARD, "; drawn to trigger it: rank 2 (computing)"),
        (NODES, "; drawn to trigger it: rank 2 (on another node); rank 0 leads this node in"),
        (MESSAGES, "ready: drawn to trigger it, or to hand the draw on: rank 2"),
    ],
)
def test_a_draw_names_the_rank_at_which_it_ends(memory, drawn):
    text = stuck(4, memory, FirstOf(1), seed=seed_that_draws(2, 4))
    assert text.startswith("round 0 is not activated")
    assert drawn in text


def test_a_draw_is_followed_to_where_it_was_handed_on_to():
    seed = next(
        s
        for s in range(10_000)
        if [lib.pp_sim_drawn(s, 1, 0, 3, place) for place in range(3)] == [2, 1, 0]
    )
    text = stuck(3, BOARD, FirstOf(1), others={2: "flush"}, seed=seed)
    assert text == "round 0 is not activated; drawn to trigger it: rank 1 (computing)"


@pytest.mark.parametrize("call", ["flush", "drain", "free"])
def test_a_call_that_ends_rounds_names_who_is_not_in_it(call):
    each = {"deliver": "each", "max_lag": 3} if call == "drain" else {}
    others = {1: call, 3: "wait"}
    text = stuck(4, BOARD, Quorum(4), call, others, **each)
    assert text == "not in the call: rank 2 (computing), rank 3 (waiting for the round)"
    text = stuck(4, NODES, Full(), call, {1: call}, **each)
    assert text == (
        "all ranks of this node are in the call; rank 0 leads this node in round 0; "
        "this rank waits for messages from rank 2, which may wait for others"
    )
    text = stuck(3, MESSAGES, Full(), call, **each)
    assert text == "round 0 waits for messages from rank 1, which may wait for others"


def test_the_making_of_a_handle_names_who_is_missing():
    messages = "the call waits for messages from rank 1, which may wait for others"
    assert stuck(3, MESSAGES, Full(), "init") == messages
    text = stuck(3, BOARD, Full(), "init", {1: "init"})
    assert text.startswith("not in the call: rank 2; the call waits for messages from rank ")


def test_ranks_that_max_lag_keeps_back_are_named():
    """They compute, while the first goes from round to round."""
    handles = {}

    def program(rank):
        handle = handles[rank] = yield ("init", Options(count=3, policy=Solo(), max_lag=0))
        for _ in range(4 if rank == 0 else 0):
            name(handle, rank)
            yield ("start", handle)
            yield ("wait", handle)
        if rank > 0:
            yield ("barrier",)

    world = World(3, latency=(500, 1000), memory=BOARD)
    with pytest.raises(Deadlock):
        world.run([program(rank) for rank in range(3)])
    kept = "; withheld from it by max_lag: rank 1 (computing), rank 2 (computing)"
    assert obstacles(world, handles[0]).endswith(f"is due{kept}")


@WAYS
def test_many_ranks_are_not_all_named(memory):
    if memory == NODES:
        memory = (300, 1000, 12)
    text = stuck(24, memory, Quorum(20))
    if memory and len(memory) == 2:
        assert text.endswith("rank 8 (computing) and 15 more")
    assert text.count("rank ") <= 10, text
    assert " more" in text, text
