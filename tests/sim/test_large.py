"""Vectors above 64 KiB, which are copied with the context's lock released.

Every scenario is judged by all oracles; its ranks overwrite both buffers right after
Start, and fill the receive buffer with nonsense before.
"""

import numpy as np
import pytest
from fuzz.oracles import check
from fuzz.scenario import Phase, Scenario
from programs import finish, name

from pypartial._core_sim import ffi, lib
from pypartial._names import algorithms
from pypartial.policy import FirstOf, Quorum, Solo
from pypartial.sim.allreduce_handle import Options
from pypartial.sim.world import World

COUNT = 9000  # int64: 70 KiB


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("deliver", ["latest", "sum", "each"])
@pytest.mark.parametrize("algorithm", algorithms(ffi, lib))
def test_late_and_overtaken_starts(in_place, deliver, algorithm):
    """The dangerous Starts happen, and all oracles hold."""
    late = overtaken = stale = 0
    for seed in range(4):
        scenario = Scenario(
            ranks=4,
            seed=seed,
            handles=(
                Options(
                    count=COUNT,
                    policy=FirstOf(4 if seed % 2 else 2),
                    deliver=deliver,
                    max_lag=-1 if deliver == "latest" else 3,
                    in_place=in_place,
                    algorithm=algorithm,
                ),
            ),
            phases=(Phase((6, 9, 7), ("flush 0",), hold=True), Phase((5,), hold=True)),
            latency=(5000, 60_000),
            timing="heavy",
            scale=60_000,
            blocking=bool(seed % 2),
            last_flush=seed != 3,
        )
        for log in check(scenario).logs[0]:
            given = -1
            for record in log.records:
                result = record.result
                if record.kind == "wait" and record.at is not None:
                    late += record.at > given + 1
                    overtaken += record.at == given + 1 and not result.included
                stale += result.staleness > 0
                given = result.round
    assert late > 3
    assert overtaken > 2
    assert stale > 3


@pytest.mark.parametrize("in_place", [False, True])
# The first that calls triggers.
@pytest.mark.parametrize("policy", [Quorum(1), Solo()])
def test_a_late_start_leaves_its_result_alone(in_place, policy):
    """The result of a late request and its own, pending contribution are different memory."""
    world = World(2, latency=(500, 1000))
    options = Options(count=COUNT, policy=policy, in_place=in_place)

    def value(result):
        vector = np.frombuffer(result.data, "int64")
        assert (vector == vector[0]).all()
        return int(vector[0])

    def early():
        handle = yield ("init", options)
        for time, own, expected in ((100_000, 3, 3), (500_000, 4, 14)):
            yield ("at", time)
            handle.send[:] = own
            yield ("start", handle)
            handle.send[:] = 50
            handle.recv[:] = 51
            result = yield ("wait", handle)
            assert value(result) == expected
        yield from finish(handle)

    def late():
        handle = yield ("init", options)
        yield ("at", 300_000)
        handle.send[:] = 10
        yield ("start", handle)
        handle.send[:] = 60
        result = yield ("wait", handle)
        assert value(result) == 3
        assert not result.included
        handle.send[:] = 70
        handle.recv[:] = 80  # although the contribution is still pending
        yield ("at", 700_000)
        result = yield ("wait", handle)
        assert value(result) == 14
        assert result.staleness == 1
        yield from finish(handle)

    world.run([early(), late()])


@pytest.mark.parametrize("in_place", [False, True])
def test_a_start_while_its_round_is_taken_goes_to_the_next(in_place):
    """Rank 1 calls when round 0 has taken its part, which was null, and is not done yet."""
    world = World(2, latency=(50_000, 50_000))
    options = Options(count=COUNT, policy=FirstOf(2), in_place=in_place)
    seen = {}

    def program(rank):
        handle = yield ("init", options)
        yield ("at", 1_000_000 + 75_000 * rank)
        name(handle, rank)
        handle.send[2:] = 10 + rank
        yield ("start", handle)
        handle.send[:] = 99
        seen[rank] = yield ("wait", handle)
        handle.recv[:] = 77
        flush = yield ("flush", handle)
        vector = np.frombuffer(flush.data, "int64")
        assert vector[:2].tolist() == [0, 1]
        assert (vector[2:] == 11).all()
        yield from finish(handle)

    world.run([program(r) for r in range(2)])
    assert seen[0].common() == seen[1].common()
    assert seen[0].included
    assert not seen[1].included
    vector = np.frombuffer(seen[0].data, "int64")
    assert vector[:2].tolist() == [1, 0]
    assert (vector[2:] == 10).all()
