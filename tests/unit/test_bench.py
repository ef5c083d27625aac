"""The pure parts of the benchmarks: values, patterns, ledgers, statistics, table, plot."""

from __future__ import annotations

import dataclasses
import importlib
import math
import types
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import tables

from pypartial import _launch as launch
from pypartial.bench import conditions, table
from pypartial.bench.ledger import Ledger
from pypartial.bench.options import (
    DType,
    Rival,
    SkewOptions,
    expected_active,
    parse_way,
)
from pypartial.bench.pattern import Pattern
from pypartial.bench.results import Report, Row, SkewMeta, with_speedups
from pypartial.policy import Full, Solo
from pypartial.statistics import Active, Latency, confidence_interval, student_quantile

# ---- values --------------------------------------------------------------------------------------


# Named, because pytest-mpi takes a test called "mpi" for one of its own.
@pytest.mark.parametrize(
    "label", ["solo", "first:2", "quorum:3,deadline=5ms", pytest.param("mpi", id="MPI_Allreduce")]
)
def test_policies_are_read_and_written(label: str) -> None:
    assert str(parse_way(label)) == label


def test_active_ranks_in_theory() -> None:
    expected = [expected_active(parse_way(text), 8) for text in ("solo", "majority", "full")]
    assert expected == [1, 4.5, 8]
    assert expected_active(parse_way("quorum:5"), 8) == 5
    assert expected_active(parse_way("mpi"), 8) is None


def options(**changes: Any) -> SkewOptions:
    values: dict[str, Any] = {
        "policies": (Solo(),),
        "sizes": (64,),
        "skew_ns": 10**6,
        "rounds": 10,
        "warmup": 1,
    }
    return SkewOptions(**(values | changes))


# ---- launcher ------------------------------------------------------------------------------------


def test_the_launcher_is_seen_from_the_environment() -> None:
    assert launch.launched_size({}) is None
    open_mpi = {"OMPI_COMM_WORLD_SIZE": "8", "OMPI_COMM_WORLD_RANK": "3"}
    assert (launch.launched_size(open_mpi), launch.launched_rank(open_mpi)) == (8, 3)
    assert launch.launched_size({"PMI_SIZE": "4"}) == 4
    assert launch.launched_size({"PMI_SIZE": "none"}) is None
    assert launch.launched_size({"SLURM_NTASKS": "4", "SLURM_PROCID": "0"}) is None


def test_the_age_of_the_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*launch._SIZES, *launch._RANKS):
        monkeypatch.delenv(name, raising=False)
    assert launch.seconds_since_launch() is None
    monkeypatch.setenv("PMI_SIZE", "1")
    age = launch.seconds_since_launch()
    assert age is None or age > 0


# ---- memory --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("measuring", "fits"), [((True, True), False), ((True, False), True), ((False, True), True)]
)
def test_only_ranks_that_measure_need_memory(
    measuring: tuple[bool, bool], fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two ranks of a node, one of which is asked here."""
    memory = {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 3 << 8}  # 3 MB
    monkeypatch.setattr(conditions.os, "sysconf", memory.__getitem__)
    allocated: list[int] = []
    monkeypatch.setattr(conditions.np, "empty", lambda size, _type: allocated.append(size))
    node = types.SimpleNamespace(size=2, allreduce=lambda _mine: sum(measuring), Free=lambda: None)
    comm: Any = types.SimpleNamespace(
        rank=0, Split_type=lambda _kind: node, allgather=lambda mine: [mine]
    )
    said = conditions.shortage(1 << 20, 1, comm, measures=measuring[0])
    assert (said is None) == fits
    assert len(allocated) == (2 if fits and measuring[0] else 0)
    if said is not None:
        assert "--size 1 MB: the send and receive buffers" in said


# ---- patterns ------------------------------------------------------------------------------------


@st.composite
def sums(draw: st.DrawFn) -> tuple[Pattern, list[int]]:
    pattern = Pattern(
        draw(st.integers(1, 40)), draw(st.integers(1, 100)), draw(st.sampled_from(DType))
    )
    return pattern, draw(
        st.lists(st.integers(0, 3), min_size=pattern.ranks, max_size=pattern.ranks)
    )


def sum_of(pattern: Pattern, counts: list[int]) -> np.ndarray[Any, Any]:
    total = np.zeros(pattern.count, dtype=pattern.dtype.value)
    for rank, count in enumerate(counts):
        for _ in range(count):
            total += pattern.contribution(rank)
    return total


@given(sums())
def test_a_sum_names_its_contributors(case: tuple[Pattern, list[int]]) -> None:
    pattern, counts = case
    tally = pattern.read(sum_of(pattern, counts))
    assert tally is not None
    assert tally.total == sum(counts)
    assert (tally.counts is not None) == pattern.named
    if tally.counts is not None:
        assert tally.counts.tolist() == counts


@given(sums(), st.data())
def test_a_damaged_sum_is_noticed(case: tuple[Pattern, list[int]], data: st.DataObject) -> None:
    pattern, counts = case
    total = sum_of(pattern, counts)
    total[data.draw(st.integers(0, pattern.count - 1))] += 1
    tally = pattern.read(total)
    damaged = tally is None or tally.total != sum(counts)
    assert damaged or (tally is not None and tally.counts is not None)
    if tally is not None and tally.counts is not None:
        assert tally.counts.tolist() != counts


@pytest.mark.parametrize("value", [-1, 0.5, math.nan, math.inf])
def test_what_is_no_count_is_noticed(value: float) -> None:
    pattern = Pattern(2, 8, DType.FLOAT32)
    assert pattern.read(np.full(8, value, dtype="float32")) is None


def test_patterns_that_the_benchmark_uses_name_the_ranks() -> None:
    assert Pattern(32, 16, DType.FLOAT32).named  # 64 bytes, 32 ranks
    assert Pattern(1, 1, DType.FLOAT32).named
    assert not Pattern(32, 1, DType.FLOAT32).named


# ---- ledger --------------------------------------------------------------------------------------

PATTERN = Pattern(3, 6, DType.FLOAT32)
SOLO = Solo()


def status_of(round_: int, counts: list[int], rank: int, **changes: Any) -> Any:
    values: dict[str, Any] = {
        "round": round_,
        "included": True,
        "active": 1,
        "contributors": tuple(rank for rank, count in enumerate(counts) if count),
        "contributions": sum(counts),
        "cause": "policy",
        "initiator": 0,
    }
    return types.SimpleNamespace(**(values | changes))


# Contributions by rank in two rounds, whether each is included for rank 2, and the flush.
ROUNDS = [([1, 0, 0], False), ([1, 2, 1], False), ([1, 1, 2], True)]
FLUSH = [0, 0, 0]


def play(ledger: Ledger, **changes: Any) -> None:
    for number, (counts, included) in enumerate(ROUNDS):
        status = status_of(number, counts, 2, included=included, **changes)
        ledger.enter(sum_of(PATTERN, counts), status)


def test_a_right_run_is_accepted() -> None:
    ledger = Ledger(PATTERN, SOLO, rank=2)
    play(ledger)
    ledger.flush(sum_of(PATTERN, FLUSH), status_of(3, FLUSH, 2, active=3, cause="flush"))
    assert ledger.failures == []
    assert ledger.digests.size == 4
    ledger.compare([ledger.digests, ledger.digests])
    assert ledger.failures == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"contributions": 7}, "contributions, the status says 7"),
        ({"contributors": (1,)}, "the status says (1,)"),
        ({"active": 5}, "5 active ranks"),
        ({"active": 0}, "0 active ranks"),
        ({"round": 4}, "follows round 4"),
    ],
)
def test_a_wrong_status_is_noticed(changes: dict[str, Any], words: str) -> None:
    ledger = Ledger(PATTERN, SOLO, rank=2)
    play(ledger, **changes)
    assert any(words in failure for failure in ledger.failures)
    assert "rank 2" in ledger.failures[0]


def test_a_wrong_inclusion_is_noticed() -> None:
    ledger = Ledger(PATTERN, SOLO, rank=0)
    ledger.enter(sum_of(PATTERN, [1, 0, 0]), status_of(0, [1, 0, 0], 0, included=False))
    assert "included is False" in ledger.failures[0]


def test_a_contribution_that_comes_twice_is_noticed() -> None:
    ledger = Ledger(PATTERN, SOLO, rank=0)
    ledger.enter(sum_of(PATTERN, [2, 0, 0]), status_of(0, [2, 0, 0], 0))
    assert "delivered twice" in ledger.failures[0]


def test_a_contribution_that_is_lost_is_noticed() -> None:
    ledger = Ledger(PATTERN, SOLO, rank=0)
    ledger.enter(sum_of(PATTERN, [1, 0, 1]), status_of(0, [1, 0, 1], 0))
    ledger.flush(sum_of(PATTERN, [0, 0, 0]), status_of(1, [0, 0, 0], 0))
    assert "2 contributions delivered after the flush, not 3" in ledger.failures[0]
    assert "by rank: [1, 0, 1]" in ledger.failures[1]


def test_a_buffer_left_as_it_was_is_noticed() -> None:
    ledger = Ledger(PATTERN, SOLO, rank=0)
    ledger.enter(np.full(6, -1, dtype="float32"), status_of(0, [1, 0, 0], 0))
    assert "not a sum of contributions" in ledger.failures[0]


def test_ranks_that_saw_different_rounds_are_noticed() -> None:
    one, other = (Ledger(PATTERN, SOLO, rank=rank) for rank in (0, 1))
    one.enter(sum_of(PATTERN, [1, 1, 0]), status_of(0, [1, 1, 0], 0))
    other.enter(sum_of(PATTERN, [1, 1, 0]), status_of(0, [1, 1, 0], 1, active=2))
    one.compare([one.digests, other.digests])
    assert "differ from those of rank 1" in one.failures[0]


def test_full_and_mpi_take_every_rank_once() -> None:
    full = Ledger(PATTERN, Full(), rank=0)
    full.enter(sum_of(PATTERN, [1, 1, 1]), status_of(0, [1, 1, 1], 0, active=3))
    full.enter(sum_of(PATTERN, [1, 1, 0]), status_of(1, [1, 1, 0], 0, active=2))
    assert len(full.failures) == 2
    mpi = Ledger(PATTERN, Rival.MPI, rank=0)
    mpi.enter(sum_of(PATTERN, [1, 1, 1]), None)
    assert mpi.failures == []
    mpi.enter(sum_of(PATTERN, [1, 1, 2]), None)
    assert "not one contribution of every rank" in mpi.failures[-1]


def test_full_with_a_deadline_may_take_a_rank_twice() -> None:
    """In the round after one that the deadline cut short, whose cause is the policy again."""
    for policy, wrong in ((Full(deadline=0.005), 0), (Full(), 2)):
        ledger = Ledger(PATTERN, policy, rank=0)
        cause = "deadline" if policy.deadline else "policy"
        counts = [1, 1, 0]
        ledger.enter(
            sum_of(PATTERN, counts), status_of(0, counts, 0, active=2 + wrong // 2, cause=cause)
        )
        counts = [1, 1, 2]
        ledger.enter(sum_of(PATTERN, counts), status_of(1, counts, 0, active=3))
        assert len(ledger.failures) >= wrong
        assert bool(ledger.failures) == bool(wrong), ledger.failures


# ---- memory --------------------------------------------------------------------------------------


def test_a_lack_of_memory_names_the_size() -> None:
    with (
        pytest.raises(MemoryError, match=r"^--size 64 KB: no room$"),
        conditions.named_in_memory_errors(64 << 10),
    ):
        raise MemoryError("no room")


# ---- statistics ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("freedom", "quantile"),
    [  # scipy.special.stdtrit(freedom, 0.975)
        (1, 12.706204736),
        (2, 4.302652730),
        (5, 2.570581836),
        (6, 2.446911851),
        (9, 2.262157163),
        (10, 2.228138852),
        (29, 2.045229642),
        (199, 1.971956544),
    ],
)
def test_quantiles_of_student(freedom: int, quantile: float) -> None:
    assert student_quantile(freedom) == pytest.approx(quantile, rel=1e-4)


def test_quantiles_of_student_fall() -> None:
    """Where the table ends and the expansion begins, too."""
    quantiles = [student_quantile(freedom) for freedom in range(1, 300)]
    assert quantiles == sorted(quantiles, reverse=True)
    assert quantiles[-1] > 1.959964


def test_confidence_intervals() -> None:
    assert confidence_interval([3]) is None
    assert confidence_interval([1, 1, 1]) == (1, 1)
    low, high = confidence_interval(range(1, 11)) or (0, 0)
    assert (low, high) == pytest.approx((5.5 - 2.166, 5.5 + 2.166), abs=0.005)


def test_latencies_are_summarised_over_everything() -> None:
    latency = Latency.of([[1000, 2000], [3000, 6000]])
    assert (latency.mean, latency.p50, latency.max) == (3, 2.5, 6)
    assert 5.5 < latency.p99 < 6


def test_the_interval_of_a_mean_latency_is_over_the_rounds() -> None:
    """Two ranks that are always 2 us apart: what varies from round to round is what counts."""
    rounds = np.array([1000.0, 2000, 3000, 4000, 5000, 6000, 7000])
    apart = Latency.of([rounds, rounds + 2000])
    assert apart.ci95 == pytest.approx(confidence_interval(rounds / 1e3 + 1))
    assert Latency.of(rounds).ci95 == confidence_interval(rounds / 1e3)
    assert Latency.of([[1000], [3000]]).ci95 is None


def test_active_ranks_agree_with_theory_or_not() -> None:
    assert Active.of([1] * 20).agrees_with(1)
    assert not Active.of([1] * 20).agrees_with(1.5)
    assert Active.of([4, 5] * 20).agrees_with(4.5)
    assert Active.of([2]).ci95 is None


# ---- reports -------------------------------------------------------------------------------------


def row(policy: str, size: int, mean: float, **changes: Any) -> Row:
    expected = expected_active(parse_way(policy), 8)
    values: dict[str, Any] = {
        "policy": policy,
        "bytes": size,
        "ranks": 8,
        "rounds": 200,
        "latency_us": Latency(mean, mean, mean * 1.5, mean * 2),
        "speedup_vs_mpi": None,
        "active": Active(expected or 8, 1, 8, (0.5, 8.5)),
        "active_expected": expected,
        "cpu_us_per_round": 12.5,
        "verified": True,
    }
    return Row(**(values | changes))


META = SkewMeta(
    mpi="Open MPI 5.0.11",
    ranks=8,
    cores=2,
    version="1.0",
    skew_us=1000.0,
    work="sleep",
    transport="auto",
    nodes=1,
    python="3.11.7",
    dtype="float32",
    seed=0,
    warmup=10,
    first_round_s=2.5,
    late_calls=0.0,
)
ROWS = [
    row(policy, size, mean * (1 + size / 2**18))
    for size in (64, 64 << 10, 1 << 20)
    for policy, mean in (("solo", 80), ("majority", 2400), ("full", 4200), ("mpi", 4100))
]


def test_speedups_are_ratios_of_means_at_a_size() -> None:
    rows = with_speedups(ROWS)
    assert rows[0].speedup_vs_mpi == pytest.approx(4100 / 80)
    assert rows[3].speedup_vs_mpi == 1
    assert with_speedups(ROWS[:3])[0].speedup_vs_mpi is None


printed = partial(tables.printed, table.print_report)


def test_the_table_fits_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    tables.assert_fits(printed(Report(META, with_speedups(ROWS))))


def test_the_table_shows_every_row() -> None:
    text = printed(Report(META, with_speedups(ROWS)))
    for words in ("64 KB", "majority", "4.5 ok", "51.2", "8 ranks on 2 cores", "Open MPI 5.0.11"):
        assert words in text
    assert "NO" not in text
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= 130


def test_the_table_shows_what_is_wrong() -> None:
    rows = [row("solo", 64, 80, verified=False, active=Active(2.0, 1, 3, (1.9, 2.1)))]
    report = Report(dataclasses.replace(META, late_calls=0.25), rows)
    text = printed(report)
    assert not report.verified
    assert "NO" in text
    assert "1 off" in text
    assert "25% of the calls began more than half a skew late" in text


def test_the_balanced_case_is_said() -> None:
    assert "balanced" in table.title(dataclasses.replace(META, skew_us=0.0))
    assert "computes" in table.title(dataclasses.replace(META, work="compute"))


def test_the_plot_shows_percentiles_intervals_and_active_ranks(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    plot = importlib.import_module("pypartial.bench.plot")
    drawn = []
    monkeypatch.setattr(plot.plt, "close", drawn.append)
    latency = Latency(400.0, 300.0, 2000.0, 3000.0, (350.0, 450.0))
    plot.save_plot(Report(META, [row("majority", 64, 400, latency_us=latency)]), tmp_path / "x.svg")
    above, below = drawn[0].axes
    spans = [
        tuple(path.vertices[:, 1])
        for axes in (above, below)
        for lines in axes.collections
        for path in lines.get_paths()
    ]
    assert spans == [(300, 2000), (350, 450), (0.5, 8.5)]
    heights = [[float(y) for y in line.get_ydata()] for line in above.lines]
    assert heights == [[400], [300], [2000]]
    assert [list(line.get_ydata()) for line in below.lines] == [[4.5], [4.5]]
    texts = [text.get_text() for axes in (above, below) for text in axes.get_legend().get_texts()]
    assert texts[:3] == ["mean and its 95 % interval", "median", "99th percentile"]
    assert above.get_ylim()[1] > 2000
    assert below.get_ylim()[1] > 8


@pytest.mark.parametrize("sizes", [(64,), (64, 128), (64, 96, 4096), (64, 64 << 10, 1 << 20)])
@pytest.mark.parametrize("ways", [1, 2, 4, 7, 16])
def test_the_marks_of_each_way_are_inside_and_nearest_to_their_size(
    ways: int, sizes: tuple[int, ...], tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    plot = importlib.import_module("pypartial.bench.plot")
    drawn: list[Any] = []
    close = plot.plt.close
    monkeypatch.setattr(plot.plt, "close", drawn.append)
    monkeypatch.setattr(plot.plt.Figure, "savefig", lambda *_words, **_options: None)
    kinds = [(f"first:{n % 8 + 1}", ("numpy", "library")[n // 8]) for n in range(ways)]
    rows = [row(policy, size, 400, buffers=kind) for size in sizes for policy, kind in kinds]
    plot.save_plot(Report(META, rows), tmp_path / "x.svg")
    for axes in drawn[0].axes:
        low, high = axes.get_xlim()
        marks = np.array([line.get_xdata() for line in axes.lines if len(line.get_xdata())])
        assert len(np.unique(marks)) == ways * len(sizes)
        assert (low * 1.1 < marks).all()
        assert (marks < high / 1.1).all()
        places = np.log2(np.unique(marks)).reshape(len(sizes), ways)
        within = np.diff(places, axis=1).max(initial=0)
        between = places[1:, 0] - places[:-1, -1]
        assert (between > 1.5 * within).all()
    close(drawn[0])


def test_the_least_time_of_a_benchmark() -> None:
    """Every round lasts until the last of 8 ranks is due: 7 ms; every turn of ten has one more."""
    skew = importlib.import_module("pypartial.bench.skew")
    rounds = 5 + 30 + 3
    asked = options(policies=(Solo(), Full()), sizes=(64, 128), rounds=30, warmup=5)
    assert skew.least_seconds(asked, 8) == pytest.approx(2 * 2 * rounds * 0.007)
    assert skew.least_seconds(options(skew_ns=0), 8) == 0


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_labels_keep_their_distance_and_order(positions: list[float]) -> None:
    plot = importlib.import_module("pypartial.bench.plot")
    moved = plot.spread(positions, 0.1)
    order = np.argsort(positions, kind="stable")
    gaps = np.diff(np.array(moved)[order])
    assert np.all(gaps >= 0.1 - 1e-9)
    assert np.mean(moved) == pytest.approx(np.mean(positions))
