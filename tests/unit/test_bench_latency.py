"""`bench latency` without a launcher: options, ledgers of loops, turns, ratios, table, plot."""

from __future__ import annotations

import copy
import dataclasses
import importlib
import types
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI
from support import tables

from pypartial.bench import contenders, latency, latency_table, pace, trials
from pypartial.bench.ledger import LoopLedger, Seen
from pypartial.bench.options import (
    Buffers,
    DType,
    LatencyOptions,
    Rival,
    Way,
)
from pypartial.bench.pattern import Pattern, Tally
from pypartial.bench.results import LatencyMeta, LatencyRow, Report, with_ratios
from pypartial.policy import FirstOf, Full, Majority, Quorum, Solo
from pypartial.statistics import Active, Latency

SOLO = Solo()


def options(**changes: Any) -> LatencyOptions:
    values: dict[str, Any] = {
        "policies": (SOLO,),
        "sizes": (64,),
        "buffers": tuple(Buffers),
        "skew_ns": 0,
        "budget_ns": 10**7,
    }
    return LatencyOptions(**(values | changes))


# ---- ledger --------------------------------------------------------------------------------------

PATTERN = Pattern(2, 4, DType.FLOAT32, bits_needed=4)
# Rank 0 calls three times and triggers a round each time; rank 1 is late twice, then in time for a
# round of which rank 0 does not wait for the result, and its last contribution is flushed.
ROUNDS = {0: [1, 0], 1: [1, 1], 2: [1, 1], 3: [0, 1]}
GIVEN = {0: [0, 1, 2], 1: [0, 1, 2]}
INCLUDED = {0: [True, True, True], 1: [False, False, False]}
CALLS = 3


def sum_of(counts: list[int]) -> np.ndarray[Any, Any]:
    total = np.zeros(PATTERN.count, dtype=PATTERN.dtype.value)
    for rank, count in enumerate(counts):
        total += count * PATTERN.contribution(rank)
    return total


def status_of(round_: int, counts: list[int], included: bool, **changes: Any) -> Any:
    values: dict[str, Any] = {
        "round": round_,
        "included": included,
        "active": 1,
        "contributors": tuple(rank for rank, count in enumerate(counts) if count),
        "contributions": sum(counts),
        "cause": "policy",
        "initiator": 0,
    }
    return types.SimpleNamespace(**(values | changes))


def played(
    rounds: dict[int, list[int]] = ROUNDS,
    given: dict[int, list[int]] = GIVEN,
    included: dict[int, list[bool]] = INCLUDED,
    first: int = 0,
) -> list[LoopLedger]:
    """The ledgers of both ranks after a block."""
    ledgers = [LoopLedger(PATTERN, SOLO, rank) for rank in range(2)]
    last = max(rounds)
    for ledger in ledgers:
        for call, round_ in enumerate(given[ledger.rank], 1):
            counts = rounds[round_]
            fresh = included[ledger.rank][call - 1]
            ledger.enter(sum_of(counts), status_of(first + round_, counts, fresh), call)
        counts = rounds[last]
        status = status_of(first + last, counts, True, active=2, cause="flush")
        ledger.flush(sum_of(counts), status, CALLS)
    return ledgers


def audited(ledgers: list[LoopLedger]) -> list[str]:
    """What both ranks find wrong when they are told what the other was given."""
    seen = [ledger.take() for ledger in ledgers]
    for ledger in ledgers:
        ledger.audit(seen, CALLS)
    return [failure for ledger in ledgers for failure in ledger.failures]


def test_a_right_block_is_accepted() -> None:
    assert audited(played()) == []
    assert audited(played(first=40)) == []


def test_ranks_need_not_be_given_the_same_rounds() -> None:
    rounds = {0: [1, 0], 1: [1, 0], 2: [1, 2], 3: [0, 1]}
    given = {0: [0, 1, 2], 1: [1, 1, 2]}
    assert audited(played(rounds, given)) == []


def test_a_contribution_that_is_lost_is_noticed() -> None:
    failures = audited(played(ROUNDS | {3: [0, 0]}))
    assert "5 contributions delivered, not 6" in failures[0]
    assert "contributions by rank: [3, 2], not 3 each" in failures[1]


def test_a_contribution_that_comes_twice_is_noticed() -> None:
    failures = audited(played(ROUNDS | {3: [0, 2]}))
    assert "7 contributions delivered, not 6" in failures[0]


def test_contributions_that_are_exchanged_are_noticed() -> None:
    failures = audited(played(ROUNDS | {3: [1, 0]}))
    assert "contributions by rank: [4, 2], not 3 each" in failures[0]


def test_a_round_that_nobody_was_given_is_noticed() -> None:
    rounds = {0: [1, 0], 1: [1, 1], 3: [1, 1], 4: [0, 1]}
    failures = audited(played(rounds, {0: [0, 1, 3], 1: [0, 1, 3]}))
    assert "no rank was given some of those between [0, 1, 3, 4]" in failures[0]


def test_ranks_that_were_given_different_results_are_noticed() -> None:
    ledgers = played()
    seen = [ledger.take() for ledger in ledgers]
    changed = copy.copy(seen[1][1])
    object.__setattr__(changed, "digest", changed.digest ^ 1)
    seen[1][1] = changed
    ledgers[0].compare(seen)
    assert ledgers[0].failures == [
        "solo, 4 x float32, rank 0, round 1: rank 1 was given something else"
    ]


def test_a_wrong_inclusion_is_noticed() -> None:
    failures = audited(played(included=INCLUDED | {1: [False, True, False]}))
    assert len(failures) == 1
    assert "call 2, round 1: included is True, the sums say False" in failures[0]


def test_a_flush_that_does_not_follow_is_noticed() -> None:
    ledger = played()[0]
    ledger.flush(sum_of([0, 1]), status_of(3, [0, 1], True), CALLS)
    assert "round 3 does not follow round 3" in ledger.failures[-1]


def entered(way: Way, counts: list[int], status: Any = None) -> list[str]:
    """What rank 1 finds wrong with the result of one call."""
    ledger = LoopLedger(PATTERN, way, rank=1)
    ledger.enter(sum_of(counts), status, 1)
    return ledger.failures


def test_full_and_mpi_take_every_rank_once() -> None:
    assert entered(Rival.MPI, [1, 1]) == []
    assert "not one contribution of every rank" in entered(Rival.MPI_PERSISTENT, [1, 0])[0]
    full = status_of(0, [2, 1], True, active=2)
    assert "not one contribution of every rank" in entered(Full(), [2, 1], full)[0]


def test_a_quorum_may_be_missed_only_where_ranks_have_departed() -> None:
    way = Quorum(2)
    for cause, failures in (("policy", 1), ("departed", 0)):
        ledger = LoopLedger(PATTERN, way, rank=0)
        ledger.enter(sum_of([1, 0]), status_of(0, [1, 0], True, cause=cause), 1)
        assert len(ledger.failures) == failures


def test_a_copy_is_of_the_own_buffer() -> None:
    assert entered(Rival.COPY, [0, 1]) == []
    assert "not a copy of the own contribution" in entered(Rival.COPY, [1, 0])[0]


def test_totals_are_audited_where_ranks_cannot_be_told_apart() -> None:
    pattern = Pattern(64, 2, DType.FLOAT32, bits_needed=4)
    assert not pattern.named
    ledger = LoopLedger(pattern, Rival.MPI, rank=0)
    ledger.enter(np.full(2, 64, dtype="float32"), None, 1)
    ledger.audit([ledger.take()], 1)
    assert ledger.failures == []
    ledger.audit([[Seen(0, Tally(None, 63), digest=0, calls=1, included=None)]], 1)
    assert "63 contributions delivered, not 64" in ledger.failures[0]
    copied = LoopLedger(pattern, Rival.COPY, rank=0)
    copied.enter(np.full(2, 2, dtype="float32"), None, 1)
    assert "not a copy of the own contribution" in copied.failures[0]


# ---- turns ---------------------------------------------------------------------------------------


class FakeContender(contenders.Contender):
    """Delivers the sum of both ranks, or something wrong; notes what is asked of it."""

    def __init__(self, receive: Any, said: list[str], result: list[int] | None = None) -> None:
        self.receive = receive
        self.said = said
        self.result = sum_of(result or [1, 1])
        self.rounds = 0

    def call(self) -> None:
        self.said.append("call")
        self.receive[:] = self.result

    def repeat(self, calls: int) -> None:
        self.said.append(f"{calls} calls")
        self.receive[:] = self.result
        self.rounds += calls

    def status(self) -> Any:
        return status_of(self.rounds - 1, [1, 1], True, active=2)

    def flush(self) -> Any:
        self.said.append("flush")
        self.receive[:] = 0
        self.rounds += 1
        return status_of(self.rounds - 1, [0, 0], True, active=2)

    def free(self) -> None:
        self.said.append("free")


class FakePace:
    def __init__(self, said: list[str]) -> None:
        self.said = said

    def begin(self) -> int:
        self.said.append("begin")
        return 0

    def settle(self, _begin: int) -> None:
        self.said.append("settle")


def loop_of(way: Way, result: list[int] | None = None) -> tuple[trials.Loop, list[str]]:
    said: list[str] = []
    receive = np.empty(PATTERN.count, "float32")
    ledger = LoopLedger(PATTERN, way, 0)
    contender = FakeContender(receive, said, result)
    pace: Any = FakePace(said)
    return trials.Loop(way, contender, pace, MPI.COMM_SELF, receive, ledger), said


def test_a_turn_is_led_in_and_timed_from_a_common_beginning() -> None:
    loop, said = loop_of(Solo())
    loop.turn(7)
    assert said == ["1 calls", "begin", "7 calls", "settle", "flush"]
    assert (loop.calls, len(loop.turn_ns), loop.ledger.failures) == (7, 1, [])
    loop.finish()
    assert loop.active == [2]
    loop.forget()
    assert (loop.calls, loop.turn_ns, loop.active) == (0, [], [])


@pytest.mark.parametrize("way", [Majority(), FirstOf(1), Quorum(1), Full(deadline=0.1)])
def test_a_rank_that_is_waited_for_leaves_before_it_waits(way: Way) -> None:
    loop, said = loop_of(way)
    loop.turn(7)
    assert said == ["1 calls", "begin", "7 calls", "flush"]
    assert loop.ledger.failures == []


@pytest.mark.parametrize("way", [Solo(), Majority()])
def test_a_wrong_last_result_of_a_turn_is_noticed(way: Way) -> None:
    loop, _ = loop_of(way, [1, 2])
    loop.turn(7)
    assert "3 contributions, the status says 2" in loop.ledger.failures[0]


def test_a_turn_that_does_not_write_is_noticed() -> None:
    loop, _ = loop_of(Solo())
    loop.contender.repeat = lambda _calls: None  # type: ignore[method-assign]
    loop.turn(7)
    assert "not a sum of contributions" in loop.ledger.failures[0]


def test_turns_are_interleaved_and_their_order_rotates() -> None:
    taken: list[tuple[str, int]] = []

    def trial(name: str) -> Any:
        return types.SimpleNamespace(
            turn=lambda calls: taken.append((name, calls)),
            way=SOLO,
            receive=np.empty(8, "f4"),
        )

    told: list[str] = []
    trials.take_turns([(trial("a"), [1, 2]), (trial("b"), [3, 4])], told.append)
    assert taken == [("a", 1), ("b", 3), ("b", 4), ("a", 2)]
    assert told == ["solo, 32 B"] * 4


class TimedTrial:
    """Takes so many nanoseconds a call."""

    def __init__(self, ns: float) -> None:
        self.ns = ns
        self.turns: list[int] = []

    def turn(self, calls: int) -> float:
        self.turns.append(calls)
        return self.ns


def repetitions(*ns: float, **changes: Any) -> tuple[list[int], int]:
    timed: list[Any] = [TimedTrial(each) for each in ns]
    found = latency._repetitions(timed, options(**changes), MPI.COMM_SELF)
    for trial in timed:  # to find that out costs less than a measurement
        assert sum(trial.turns) * trial.ns <= max(options(**changes).budget_ns, trial.ns)
    return found


def test_calls_are_as_many_as_the_budget_allows() -> None:
    assert repetitions(1000, 10_000, budget_ns=9 * 10**6) == ([1000, 100], 9)
    assert repetitions(10, budget_ns=9 * 10**6) == ([latency._MOST_CALLS], 9)


def test_long_calls_have_fewer_blocks() -> None:
    assert repetitions(10**6, 10**9, budget_ns=6 * 10**9) == ([666, 1], 6)
    assert repetitions(10**9, budget_ns=10**6) == ([1], 5)


def test_blocks_and_calls_may_be_chosen() -> None:
    assert repetitions(10**9, budget_ns=10**6, blocks=3) == ([1], 3)
    assert repetitions(1000, 2000, calls=7) == ([7, 7], 9)
    assert repetitions(1000, calls=7, blocks=2) == ([7], 2)


# ---- contenders ----------------------------------------------------------------------------------


def test_an_mpi_without_persistent_collectives_is_noticed() -> None:
    def lacking(*_arguments: Any) -> None:
        raise NotImplementedError("MPI_Allreduce_init is not there")

    comm: Any = types.SimpleNamespace(Allreduce_init=lacking)
    assert not contenders.has_persistent(comm)
    ways = latency._ways(options(), persistent=False)
    assert [str(way) for way, _ in ways] == [
        "solo",
        "solo",
        "mpi",
        "mpi-nonblocking",
        "memcpy",
    ]


# ---- a whole run ---------------------------------------------------------------------------------


def measured(**changes: Any) -> Any:
    values = {"budget_ns": 10**6, "blocks": 2, "calls": 3} | changes
    return latency.measure(options(**values), MPI.COMM_SELF, lambda _text: None)


@pytest.mark.parametrize("skew_ns", [0, 10**5], ids=["balanced", "skewed"])
def test_a_run_on_one_rank(skew_ns: int) -> None:
    outcome = measured(skew_ns=skew_ns, sizes=(8, 4096))
    assert outcome.failures == []
    assert outcome.report.verified
    rows = outcome.report.rows
    ways = [(row.policy, row.buffers) for row in rows if row.bytes == 8]
    assert ways[:2] == [("solo", "library"), ("solo", "numpy")]
    assert {policy for policy, _ in ways[2:]} >= {"mpi", "mpi-nonblocking", "memcpy"}
    assert all((row.blocks, row.calls, row.rounds) == (2, 3, 6) for row in rows)
    assert all(row.ratio_to_mpi > 0 and row.ratio_to_memcpy > 0 for row in rows)


@pytest.mark.parametrize(("skew_ns", "share"), [(0, 0.0), (10**5, 1.0)], ids=["balanced", "skewed"])
def test_the_share_of_late_calls_is_of_those_that_can_be_late(
    skew_ns: int, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy of a buffer is timed without skew."""
    monkeypatch.setattr(pace.Pace, "approach", lambda _self, _begin: False)
    assert measured(skew_ns=skew_ns).report.meta.late_calls == share


def test_what_finds_the_number_of_calls_does_not_count() -> None:
    rows = measured(calls=None).report.rows
    assert all((row.blocks, row.rounds) == (2, 2 * row.calls) for row in rows)
    assert max(row.calls for row in rows) > 10


WRONG: list[tuple[str, Callable[[Any], None]]] = [
    ("_Mpi", lambda self: self._pair.receive.fill(3)),
    ("_MpiNonblocking", lambda _self: None),
    ("_Copy", lambda self: self._pair.receive.fill(0)),
]


@pytest.mark.parametrize("skew_ns", [0, 10**5], ids=["balanced", "skewed"])
@pytest.mark.parametrize(("name", "call"), WRONG, ids=[name for name, _ in WRONG])
def test_a_wrong_contender_is_noticed(
    name: str, call: Any, skew_ns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(getattr(contenders, name), "call", call)
    outcome = measured(skew_ns=skew_ns)
    wrong = [row.policy for row in outcome.report.rows if not row.verified]
    assert len(wrong) == 1
    assert outcome.failures[0].startswith(wrong[0])
    assert not outcome.report.verified


def test_a_block_counts_with_its_slowest_rank() -> None:
    here, there = (
        ([1000.0, 3000.0, 8000.0], [500, 500, 900]),
        ([2000.0, 2000.0, 4000.0], [1500] * 3),
    )
    trial: Any = types.SimpleNamespace(
        way=SOLO,
        receive=np.empty(16, "f4"),
        ledger=types.SimpleNamespace(failures=[]),
        finish=lambda: None,
        turn_ns=here[0],
        turn_cpu_ns=here[1],
        active=[1, 2, 2],
        calls=30,
    )
    comm: Any = types.SimpleNamespace(
        size=2, allreduce=lambda number: number, gather=lambda mine: [mine, there]
    )
    (found,) = latency._rows(latency._Entry(Buffers.NUMPY, trial), comm, options())
    assert (found.latency_us.p50, found.latency_us.max, found.latency_us.mean) == (3, 8, 13 / 3)
    assert (found.best_us, found.mean_of_ranks_us) == (2, 2.5)
    assert (found.blocks, found.calls, found.rounds) == (3, 10, 30)
    assert found.cpu_us_per_round == pytest.approx(0.1)
    assert found.gb_per_s == pytest.approx(64 / 3000)
    assert (found.active.min, found.active.max) == (1, 2)
    assert found.active_expected is None


# ---- reports -------------------------------------------------------------------------------------


def row(policy: str, buffers: str, size: int, median: float, **changes: Any) -> LatencyRow:
    values: dict[str, Any] = {
        "policy": policy,
        "bytes": size,
        "ranks": 2,
        "rounds": 900,
        "latency_us": Latency(median + 100, median, median * 150, median * 200),
        "speedup_vs_mpi": None,
        "active": Active(2.0, 2, 2, (2.0, 2.0)),
        "active_expected": None,
        "cpu_us_per_round": 12.5,
        "verified": True,
        "buffers": buffers,
        "blocks": 9,
        "calls": 10_000,
        "best_us": median * 0.8,
        "mean_of_ranks_us": median * 0.9,
        "gb_per_s": size / 1e3 / median,
        "ratio_to_mpi": None,
        "ratio_to_memcpy": None,
    }
    return LatencyRow(**(values | changes))


META = LatencyMeta(
    mpi="Open MPI 5.0.11",
    ranks=2,
    cores=2,
    version="1.0",
    skew_us=0.0,
    work="sleep",
    transport="auto",
    nodes=1,
    python="3.11.7",
    dtype="float32",
    seed=0,
    first_round_s=2.5,
    late_calls=0.0,
    lacking=[],
)
ROWS = [
    row(policy, buffers, size, median * (1 + size / 2**10))
    for size in (64, 64 << 10, 64 << 20)
    for policy, buffers, median in (
        ("full", "library", 1.5),
        ("full", "numpy", 3.0),
        ("mpi", "numpy", 2.0),
        ("mpi-nonblocking", "numpy", 2.5),
        ("mpi-persistent", "numpy", 2.25),
        ("memcpy", "numpy", 0.5),
    )
]


def test_ratios_are_of_medians_at_a_size() -> None:
    rows = with_ratios(ROWS)
    assert rows[0].ratio_to_mpi == pytest.approx(0.75)
    assert rows[0].speedup_vs_mpi == pytest.approx(4 / 3)
    assert rows[0].ratio_to_memcpy == pytest.approx(3)
    assert rows[8].ratio_to_mpi == 1
    alone = with_ratios(ROWS[:2])[0]
    assert (alone.ratio_to_mpi, alone.speedup_vs_mpi, alone.ratio_to_memcpy) == (None, None, None)


def test_the_time_of_a_benchmark_is_that_of_its_budgets() -> None:
    """One policy with two kinds of buffers, three ways of MPI, and a copy, at each size."""
    asked = options(budget_ns=250_000_000, sizes=(8, 64))
    assert latency.about_seconds(asked) == 2 * (2 + 4) * 0.25
    assert latency.about_seconds(dataclasses.replace(asked, calls=3)) is None


printed = partial(tables.printed, latency_table.print_report)


def test_the_table_fits_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    tables.assert_fits(printed(Report(META, with_ratios(ROWS))))


def test_the_table_shows_every_row() -> None:
    text = printed(Report(META, with_ratios(ROWS)))
    for words in ("64 MB", "mpi-nonblocking", "library", "0.75", "9 x 10000", "balanced"):
        assert words in text
    assert text.count("yes") == len(ROWS)
    assert "NO" not in text
    assert "…" not in text
    assert "Not measured" not in text
    assert max(map(len, text.splitlines())) <= 130


def test_the_table_shows_what_is_wrong_and_what_is_lacking() -> None:
    meta = copy.copy(META)
    object.__setattr__(meta, "lacking", ["MPI_Allreduce_init"])
    text = printed(Report(meta, [row("solo", "numpy", 64, 8.0, verified=False)]))
    assert "NO" in text
    assert "Not measured, because this MPI does not have it: MPI_Allreduce_init." in text


def test_the_plot_is_a_picture(tmp_path: Any) -> None:
    plot = importlib.import_module("pypartial.bench.plot")
    path = tmp_path / "latency.png"
    plot.save_latency_plot(Report(META, with_ratios(ROWS)), path)
    assert path.read_bytes().startswith(b"\x89PNG")
    plot.save_latency_plot(Report(META, with_ratios(ROWS[:1])), path)
