"""`bench overhead`: options, the stopwatch, what is subtracted, ratios, table, a whole run."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import numpy as np
import pytest
from support import tables

from pypartial.bench import clock, contenders, overhead, overhead_table
from pypartial.bench.contenders import Pair
from pypartial.bench.options import Buffers, OverheadOptions
from pypartial.bench.results import OverheadMeta, OverheadRow, Report
from pypartial.policy import Full
from pypartial.statistics import Spread


def options(**changes: Any) -> OverheadOptions:
    values: dict[str, Any] = {
        "policy": Full(),
        "buffers": tuple(Buffers),
        "size": 8,
        "loops": 3,
        "calls": 5,
    }
    return OverheadOptions(**(values | changes))


# ---- the stopwatch -------------------------------------------------------------------------------


@pytest.fixture
def time_passes(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let time pass by 10 ns with each look at the clock, and otherwise as it is told."""
    moment = [0]

    def now() -> int:
        moment[0] += 10
        return moment[0]

    def let_pass(ns: int) -> None:
        moment[0] += ns

    monkeypatch.setattr(time, "monotonic_ns", now)
    return let_pass


def test_halves_are_told_apart(time_passes: Any) -> None:
    found = clock.timed_halves(lambda: time_passes(100), lambda: time_passes(7) or True, 4)
    assert found == (110, 17)
    assert clock.clock_cost(4) == 10


def test_a_half_that_is_not_done_is_repeated_untimed(time_passes: Any) -> None:
    answers = iter([False, False, True, True])

    def test() -> bool:
        time_passes(7)
        return next(answers)

    assert clock.timed_halves(lambda: None, test, 2) == (10, 17)
    assert not list(answers)


def test_a_lap_is_timed_by_both_clocks() -> None:
    lap = clock.timed(lambda: time.sleep(0.02))
    assert lap.ns >= 20_000_000
    assert lap.cpu_ns < lap.ns


# ---- meters --------------------------------------------------------------------------------------


def meter(reads_clock: bool, write: float = 1.0) -> overhead._Meter:
    pair = Pair(np.ones(2, "f4"), np.empty(2, "f4"))

    def loop(_calls: int) -> tuple[float, ...]:
        pair.receive.fill(write)
        return 130.0, 90.0

    return overhead._Meter(("Start", "Wait"), "pypartial", Buffers.NUMPY, pair, loop, reads_clock)


def test_the_clock_is_subtracted_where_it_was_read() -> None:
    for reads_clock, expected in ((True, [100, 60]), (False, [130, 90])):
        one = meter(reads_clock)
        one.turn(5)
        rows = one.rows(clock_ns=30.0)
        assert [row.call for row in rows] == ["Start", "Wait"]
        assert [row.ns.median for row in rows] == expected
        assert all(row.verified for row in rows)


def test_a_loop_with_a_wrong_sum_is_noticed() -> None:
    one = meter(True, write=2.0)
    one.turn(5)
    assert one.wrong == 1
    assert not any(row.verified for row in one.rows(30.0))


# ---- a whole run ---------------------------------------------------------------------------------


def test_a_run() -> None:
    told: list[str] = []
    outcome = overhead.measure(options(), told.append)
    assert outcome.failures == []
    assert len(told) == overhead.turns(options()) == 3
    rows = outcome.report.rows
    ours = ["Start", "Wait", "Start+Wait", "Test"]
    assert [row.call for row in rows[:8]] == ours * 2
    assert [row.buffers for row in rows[:8]] == ["library"] * 4 + ["numpy"] * 4
    assert {(row.call, row.of) for row in rows[8:]} >= {("Allreduce", "mpi4py")}
    assert (rows[-1].call, rows[-1].of) == ("Wait(timeout=0.005)", "pypartial")
    assert rows[-1].ns.p10 >= 5_000_000
    assert all(row.ns.median > 0 and row.verified and row.ratio_to_mpi for row in rows)
    start, wait, both, _ = (row.ns.median for row in rows[:4])
    assert 0.2 * both < start + wait < 5 * both


def test_a_call_that_is_not_right_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contenders._Mpi, "call", lambda self: self._pair.receive.fill(9))
    outcome = overhead.measure(options(), lambda _text: None)
    assert [row.call for row in outcome.report.rows if not row.verified] == ["Allreduce"]
    assert outcome.failures == ["mpi4py, numpy buffers, Allreduce: 4 loops ended with a wrong sum"]


def test_an_mpi_without_persistent_collectives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overhead, "has_persistent", lambda _comm: False)
    report = overhead.measure(options(loops=1), lambda _text: None).report
    assert [row.call for row in report.rows if row.of == "mpi4py"] == ["Allreduce"]
    assert report.rows[0].ratio_to_mpi_persistent is None
    assert "Not measured, because this MPI does not have it: mpi4py's persistent" in printed(report)


# ---- reports -------------------------------------------------------------------------------------


def row(call: str, of: str, median: float) -> OverheadRow:
    spread = Spread(median, median * 0.9, median * 1.3)
    return OverheadRow(call, of, "numpy", 8, spread, None, None, True)


ROWS = [
    row("Start+Wait", "pypartial", 500),
    row("Allreduce", "mpi4py", 1000),
    row("Start+Wait", "mpi4py", 250),
]
META = OverheadMeta(
    mpi="Open MPI 5.0.11",
    version="1.0",
    python="3.11.7",
    policy="full",
    loops=101,
    calls=200,
    clock_ns=31.4,
    lacking=[],
)


printed = partial(tables.printed, overhead_table.print_report)


def test_ratios_are_to_both_calls_of_mpi4py() -> None:
    rows = overhead.with_overhead_ratios(ROWS)
    assert [row.ratio_to_mpi for row in rows] == [0.5, 1, 0.25]
    assert [row.ratio_to_mpi_persistent for row in rows] == [2, 4, 1]


def test_the_table_fits_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    longest = row("Wait(timeout=0.005)", "pypartial", 5_246_674)
    tables.assert_fits(printed(Report(META, overhead.with_overhead_ratios([*ROWS, longest]))))


def test_the_table_shows_every_row() -> None:
    text = printed(Report(META, overhead.with_overhead_ratios(ROWS)))
    for words in ("Start+Wait", "Allreduce", "1,000", "2.00", "31 ns are subtracted", "8 B, full"):
        assert words in text
    assert max(map(len, text.splitlines())) <= 130
