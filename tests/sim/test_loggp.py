"""What the simulated network charges: textbook costs, to the nanosecond."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from pypartial.policy import FirstOf, Solo
from pypartial.sim.allreduce_handle import Options
from pypartial.sim.handle import CoreError
from pypartial.sim.network import Link, Network
from pypartial.sim.options import ACTIVATION
from pypartial.sim.schedule import execute
from pypartial.sim.world import Deadlock, World

NS = 1000  # picoseconds
LINK = Link(latency_ns=2000, overhead_ns=500, gap_ns=300, byte_ps=NS // 4, rendezvous_bytes=None)
FREE = Network("test", LINK, headers_free=True)
PAID = Network("test", LINK)


def with_link(network: Network, **changes: int | None) -> Network:
    return dataclasses.replace(network, between=dataclasses.replace(network.between, **changes))


def message(size: int, link: Link = LINK) -> int:
    """L + 2o + (s - 1) G, the last to the nearest nanosecond."""
    return link.latency_ns + 2 * link.overhead_ns + wire(size, link)


def wire(size: int, link: Link = LINK) -> int:
    return (link.byte_ps * (size - 1) + 500) // NS


def header(ranks: int) -> int:
    """Prefix and tally, and two words' worth of masks at a time, in units of 16 bytes."""
    words = (ranks + 63) // 64 if ranks <= 1024 else 0
    return (64 + 8 * words + 15) // 16 * 16


# ---- schedules ------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [1, 2, 4, 8, 64, 256, 2048])
def test_activation_costs_a_message_a_dimension(ranks: int) -> None:
    dimensions = (ranks - 1).bit_length()
    finished = execute(ACTIVATION, ranks, 64, PAID).finished_ns
    assert finished.max() == dimensions * message(32)
    finished = execute(ACTIVATION, ranks, 64, FREE).finished_ns
    assert finished.max() == dimensions * message(1)
    assert finished[0] == 0
    assert (finished[1:] >= message(1)).all()


@pytest.mark.parametrize("ranks", [3, 5, 6, 7, 9, 100, 1000])
def test_activation_of_other_numbers_is_no_slower_than_the_next_power_of_two(ranks: int) -> None:
    finished = execute(ACTIVATION, ranks, 64, FREE).finished_ns
    assert finished.max() <= (ranks - 1).bit_length() * message(1)


@pytest.mark.parametrize("ranks", [2, 4, 8, 64, 256, 2048])
@pytest.mark.parametrize("size", [1, 8, 4096, 16384])
def test_recursive_doubling(ranks: int, size: int) -> None:
    dimensions = (ranks - 1).bit_length()
    paid = execute("recursive_doubling", ranks, size, PAID)
    assert (paid.finished_ns == dimensions * message(header(ranks) + size)).all()
    assert paid.bytes == paid.messages * (header(ranks) + size)
    free = execute("recursive_doubling", ranks, size, FREE)
    assert (free.finished_ns == dimensions * message(size)).all()


@pytest.mark.parametrize("ranks", [3, 5, 6, 7, 9])
def test_recursive_doubling_folds_the_surplus_in_and_out(ranks: int) -> None:
    """The path from a spare's data to the last rank; folding out overlaps with it in part."""
    exchanges = int(math.log2(ranks))
    finished = execute("recursive_doubling", ranks, 64, FREE).finished_ns
    assert (exchanges + 1) * message(64) <= finished.max() <= (exchanges + 2) * message(64)


@pytest.mark.parametrize("ranks", [2, 4, 8, 32])
def test_rabenseifner(ranks: int) -> None:
    size = 16384  # halves travel inline
    halves = [size >> i for i in range(1, (ranks - 1).bit_length() + 1)]
    finished = execute("rabenseifner", ranks, size, FREE).finished_ns
    assert (finished == 2 * sum(message(half) for half in halves)).all()
    finished = execute("rabenseifner", ranks, size, PAID).finished_ns
    assert (finished == 2 * sum(message(header(ranks) + half) for half in halves)).all()


@pytest.mark.parametrize("ranks", [2, 3, 4, 7, 16])
def test_ring(ranks: int) -> None:
    finished = execute("ring", ranks, 1024 * ranks, FREE).finished_ns
    assert (finished == 2 * (ranks - 1) * message(1024)).all()


@pytest.mark.parametrize("schedule", ["recursive_doubling", "rabenseifner", "ring"])
def test_segments_overlap_transfers_with_reductions(schedule: str) -> None:
    network = dataclasses.replace(PAID, reduce_ps=NS // 4)
    one, two, four, default = (
        execute(schedule, 2, 16 << 20, network, segments=segments).finished_ns.max()
        for segments in (1, 2, 4, 0)
    )
    assert max(two, four) < one
    assert default == four


@pytest.mark.parametrize("segments", [-1, 5])
def test_numbers_of_segments_that_there_are_not(segments: int) -> None:
    with pytest.raises(CoreError, match=f"segments={segments}"):
        execute("ring", 2, 1 << 20, PAID, segments=segments)


@pytest.mark.parametrize("ranks", [2, 8])
@pytest.mark.parametrize("threshold", [None, 65536, 65535])
def test_payloads_beyond_the_inline_limit(ranks: int, threshold: int | None) -> None:
    """A header, then the payload; above S the request behind the header, and a clear-to-send."""
    size = 65536
    network = with_link(PAID, rendezvous_bytes=threshold)
    behind = max(LINK.overhead_ns, LINK.gap_ns + wire(header(ranks)))
    one = behind + message(size)
    if threshold == 65535:
        request = max(LINK.overhead_ns, LINK.gap_ns, behind - wire(header(ranks)))
        one = message(header(ranks)) + request + message(1) + message(size)
    finished = execute("recursive_doubling", ranks, size, network).finished_ns
    assert (finished == (ranks - 1).bit_length() * one).all()


def test_a_gap_longer_than_the_overhead_keeps_sends_apart() -> None:
    """Rank 0 of 4 tells 2 and 1: the second a gap later, where o would have allowed it earlier."""
    gap = 1700
    finished = execute(ACTIVATION, 4, 1, with_link(FREE, gap_ns=gap)).finished_ns
    assert finished.tolist() == [0, gap + message(1), message(1), 2 * message(1)]


def test_receives_are_apart_as_well() -> None:
    """Both neighbours of rank 0 send to it at once, and the second is served a gap later."""
    gap = 1700
    network = with_link(FREE, gap_ns=gap)
    times = [execute("recursive_doubling", ranks, 1, network).finished_ns.max() for ranks in (2, 4)]
    # The second exchange begins when the first is over, 2000 + 2 * 500 > 1700: nobody waits.
    assert times == [message(1), 2 * message(1)]
    slow = with_link(FREE, gap_ns=5000)
    times = [execute("recursive_doubling", ranks, 1, slow).finished_ns.max() for ranks in (2, 4)]
    # The second send leaves at 5000 and arrives at 5000 + o + L; the port is free from 7500 on.
    assert times == [message(1), 5000 + message(1)]


def test_two_levels() -> None:
    """Of 8 ranks on 2 nodes, two exchanges stay inside a node and one does not."""
    within = Link(300, 100, 0, NS // 10, None)
    network = Network("test", LINK, within, node_ranks=4, headers_free=True)
    finished = execute("recursive_doubling", 8, 1000, network).finished_ns
    assert (finished == 2 * message(1000, within) + message(1000)).all()


def test_reductions_cost_nothing_unless_a_rate_is_given() -> None:
    rate = dataclasses.replace(FREE, reduce_ps=2 * NS)
    finished = execute("recursive_doubling", 4, 1000, rate).finished_ns
    assert (finished == 2 * (message(1000) + 2 * 1000)).all()


def test_noise_has_its_mean_and_belongs_to_ranks() -> None:
    """Exchanges of two ranks: sender and receiver are each delayed, by what the seed decides."""
    noisy = dataclasses.replace(FREE, noise_ns=1000)
    seeds = range(400)
    times = [
        execute("recursive_doubling", 2, 1, noisy, seed).finished_ns - message(1) for seed in seeds
    ]
    delays = np.array(times)
    assert (delays >= 0).all()
    # Each rank's message is delayed by the sender's and by the receiver's noise: 2 means of 1000.
    assert abs(delays.mean() - 2000) < 4 * 1000 * math.sqrt(2 / delays.size)
    again = execute("recursive_doubling", 2, 1, noisy, 7).finished_ns - message(1)
    assert (again == times[7]).all()
    assert len({tuple(t) for t in times}) > 390


# ---- the order of messages ------------------------------------------------------------------


@pytest.mark.parametrize(
    "network",
    [
        Network("jitter", Link(1000, 0, 0, 0, 0, jitter_ns=50_000)),
        Network("noise", Link(1000, 100, 0, NS, None), noise_ns=20_000),
        Network("zero", Link(0, 0, 0, 0, None)),
        Network("two levels", LINK, Link(10, 1, 0, 0, 4096), node_ranks=3, noise_ns=500),
        Network("reducing", LINK, reduce_ps=50 * NS),
    ],
    ids=lambda network: network.name,
)
@pytest.mark.parametrize("size", [16, 40_000])
def test_every_network_keeps_pairs_in_order(network: Network, size: int) -> None:
    """The engine relies on it; sums are right, and nothing is left under way."""
    for seed in range(3):
        world = World(7, seed=seed, network=network)
        sums: list[int] = []

        def program(rank: int, world: World = world, sums: list[int] = sums):
            handle = yield ("init", Options(count=size, policy=Solo(), deliver="sum", max_lag=3))
            total = 0
            for step in range(6):
                yield 1000 * ((rank + step) % 7)
                handle.send[:] = rank + 1
                yield ("start", handle)
                yield ("wait", handle)
                total += handle.recv.copy()
            yield ("flush", handle)
            total += handle.recv.copy()
            sums.append(total)
            yield ("free", handle)
            yield ("ctx_free",)

        world.run([program(rank) for rank in range(7)])
        assert len(sums) == 7
        assert all((total == 6 * 28).all() for total in sums)
        assert world.quiet()


def test_what_coincides_happens_in_an_order_that_the_seed_chooses() -> None:
    """Four ranks trigger at one time over a network without any time: who is first differs."""

    def initiators(seed: int) -> tuple[int, ...]:
        world = World(4, seed=seed, network=Network("zero", Link(0, 0, 0, 0, None)))
        found: list[int] = []

        def program(rank: int):
            handle = yield ("init", Options(policy=FirstOf(4)))
            yield ("at", 1000)
            yield ("start", handle)
            result = yield ("wait", handle)
            if rank == 0:
                found.append(result.active)
                found.append(result.initiator)
            yield ("flush", handle)
            yield ("free", handle)
            yield ("ctx_free",)

        world.run([program(rank) for rank in range(4)])
        return tuple(found)

    outcomes = {initiators(seed) for seed in range(40)}
    assert len(outcomes) > 1
    assert initiators(5) == initiators(5)


# ---- death ----------------------------------------------------------------------------------


def looping(rank: int, failures: dict[int, str]):
    handle = yield ("init", Options(policy=FirstOf(1)))
    try:
        for _ in range(20):
            yield 10_000 * (rank + 1)
            yield ("start", handle)
            yield ("wait", handle)
    except CoreError as error:
        failures[rank] = error.text


def test_a_death_that_is_told_fails_the_others() -> None:
    failures: dict[int, str] = {}
    world = World(5, network=PAID)
    world.kill(3, 300_000, 20_000)
    world.run([looping(rank, failures) for rank in range(5)])
    assert sorted(failures) == [0, 1, 2, 4]
    assert all("rank 3" in text for text in failures.values()), failures
    assert world.now >= 320_000


def test_a_death_that_nobody_is_told_of_is_a_deadlock_with_its_reason() -> None:
    world = World(5, network=PAID)
    world.kill(3, 300_000)
    with pytest.raises(Deadlock) as caught:
        world.run([looping(rank, {}) for rank in range(5)])
    text = str(caught.value)
    assert "waits for messages from rank 3" in text
    assert "rank 3 in" not in text


def test_a_dead_rank_sends_nothing_more() -> None:
    world = World(2, network=PAID)
    world.kill(1, 0)
    with pytest.raises(Deadlock):
        world.run([looping(rank, {}) for rank in range(2)])
    assert world.stats(1).messages_sent == 0


# ---- bad networks ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"latency_ns": 2**60}, "L=1152921504606846976"),
        ({"byte_ps": 2**61}, "G=2305843009213693952"),
    ],
)
def test_networks_that_would_overflow_are_refused(changes: dict[str, int], named: str) -> None:
    with pytest.raises(CoreError, match=named):
        execute(ACTIVATION, 2, 1, with_link(PAID, **changes))
