"""Simulated ranks of one node, which make their rounds in its memory."""

from __future__ import annotations

import pytest

from pypartial._core import ffi, lib
from pypartial.sim.oracles import check
from pypartial.sim.scenario import Phase, Scenario
from pypartial.sim.world import Options, World

# What was wrong once, as the fuzzer found it.
FOUND = {
    # Who had claimed a round went into a Drain of another handle, and nobody woke the waiters, who
    # were asleep, to move the data.
    "nobody moves the data": """{"ranks":7,"seed":3486737084,"handles":[{"count":15,"dtype":
        "float32","policy":"quorum","k":7,"deliver":"each","max_lag":0,"pieces":2},{"count":4300,
        "dtype":"float64","average":"size"}],"phases":[{"steps":[3,4,4]},{"steps":[6],"hold":true}],
        "opened":2,"window":1,"timing":"skew","scale":2000,"together":true,"memory":[1000,
        20000]}""",
    # More Starts were late, one after the other, than a rank has parts.
    "all parts are pending": """{"ranks":8,"seed":1526801510,"handles":[{"count":29,"dtype":
        "float32","op":"max","policy":"quorum","k":8,"deliver":"each","max_lag":0},{"count":16,
        "dtype":"float32","op":"max","k":4,"max_lag":0}],"phases":[{"steps":[7,0,7]},{"steps":
        [9,4,6,9],"then":["free 1"]},{"steps":[6],"hold":true},{"steps":[5,6,3],
        "then":["flush 0"]}],
        "opened":2,"window":1,"timing":"heavy","together":true,"last_flush":false,
        "memory":[1000,100]}""",
    # A rank that had not noticed the end of its Flush was counted as inside the next one.
    "a flush that is over": """{"ranks":2,"seed":5,"handles":[{"count":4}],"phases":[{"steps":[0,
        4]},
        {"steps":[0,2,0,0]}],"latency":[1000,1000],"timing":"zero","scale":0,"memory":[50,
        20000]}""",
    # What it was ready for was forgotten when its request was dropped by a Flush.
    "ready and gone": """{"ranks":2,"seed":342477086,"handles":[{"count":4,"k":2}],"phases":[
        {"steps":[1,2,0],"hold":true}],"latency":[1000,1000],"timing":"zero","scale":0,
        "memory":[1000,20000]}""",
    # Rounds while it was inside a Flush of another handle were counted as missed.
    "missed while it had left": """{"ranks":3,"seed":4,"handles":[{"count":6},{"count":6,"policy":
        "quorum","k":3,"deliver":"sum","max_lag":0}],"phases":[{"steps":[0,0,1]},{"steps":[0],
        "then":["flush 0"]},{"steps":[1]}],"opened":2,"latency":[1000,1000],"timing":"zero",
        "scale":0,
        "memory":[1000,20000]}""",
}


@pytest.mark.parametrize("name", FOUND)
def test_what_was_wrong_once(name):
    check(Scenario.from_text(FOUND[name]))


def scenario(ranks, **options):
    return Scenario(
        ranks=ranks,
        seed=ranks,
        handles=(Options(count=3 * ranks, **options),),
        phases=(Phase((9, 3, 5)), Phase((0, 4), ("flush 0",)) if not options else Phase((0, 4))),
        scale=2000,
        memory=(500, 2000),
    )


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 8, 9])
@pytest.mark.parametrize("deliver", ["latest", "sum", "each"])
def test_rounds_are_made_in_memory(ranks, deliver):
    """And ranks take turns inside their calls."""
    lag = {} if deliver == "latest" else {"deliver": deliver, "max_lag": 3}
    outcome = check(scenario(ranks, k=1, **lag))
    assert outcome.rounds > 5
    assert outcome.coverage["turns"] > 100


def test_no_message_carries_a_round():
    """Handles that ask for a schedule go by messages all the same."""
    messages = {}
    for algorithm in ("auto", "ring"):
        world = World(3, memory=(200, 500))
        options = Options(count=3, k=3, algorithm=algorithm)

        def program(options=options):
            handle = yield ("init", options)
            for _ in range(20):
                yield ("start", handle)
                yield ("wait", handle)
            yield ("free", handle)
            yield ("ctx_free",)

        world.run([program() for _ in range(3)])
        stats = [world.stats(rank) for rank in range(3)]
        messages[algorithm] = stats[0].messages_sent
        shared = stats[0].shared_rounds
        assert (shared == stats[0].rounds) == (algorithm == "auto")
    assert messages["auto"] < messages["ring"] // 2


@pytest.mark.parametrize(
    ("ranks", "memory"), [(2, (1001, 0)), (2, (5, -1)), (2, (5,)), (2, (1, 2, 3))]
)
def test_memory_that_makes_no_sense(ranks, memory):
    with pytest.raises(ValueError, match="memory"):
        Scenario.from_text(
            Scenario(ranks=ranks, seed=0, handles=(Options(),), phases=(), memory=memory).to_text()
        )


def test_too_many_ranks_for_one_memory():
    config = ffi.new("pp_sim_config_t *")
    config.ranks, config.shares_memory, config.ctx.window = 1025, 1, 4
    config.network.node_ranks = 1
    sim = ffi.new("pp_sim_t **")
    assert lib.pp_sim_open(config, sim) == lib.PP_ERR_ARGUMENT
    assert "1025" in ffi.string(lib.pp_error_text()).decode()
