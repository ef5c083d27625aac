"""``bench skew`` on one rank: what late ranks compute, and how much slower that becomes."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from pypartial.bench import skew, table
from pypartial.bench.contenders import Contender
from pypartial.bench.ledger import Ledger
from pypartial.bench.options import DType, Rival, SkewOptions, Work
from pypartial.bench.pace import Pace
from pypartial.bench.pattern import Pattern
from pypartial.bench.results import Report
from pypartial.bench.trials import Silence
from pypartial.policy import Solo

SOLO = Solo()


def options(**changes: Any) -> SkewOptions:
    values: dict[str, Any] = {
        "policies": (SOLO, Rival.MPI),
        "sizes": (64,),
        "skew_ns": 10**6,
        "rounds": 3,
        "warmup": 2,
        "work": Work.COMPUTE,
    }
    return SkewOptions(**(values | changes))


class Caller(Contender):
    """Says when it is called."""

    def __init__(self, said: list[str]) -> None:
        self.said = said

    def call(self) -> None:
        self.said.append("call")


class CountedPace:
    """Says that each approach took 30 ns, in which 3 passes were computed."""

    def __init__(self, said: list[str]) -> None:
        self.said = said
        self.computed_ns = self.passes = 0

    def begin(self) -> int:
        self.said.append("begin")
        return 0

    def approach(self, _begin: int) -> bool:
        self.computed_ns += 30
        self.passes += 3
        return True

    def settle(self, _begin: int) -> None:
        self.said.append("settle")


@pytest.mark.parametrize(("work", "computes"), [(Work.SLEEP, False), (Work.COMPUTE, True)])
def test_a_pace_counts_what_was_computed(work: Work, computes: bool) -> None:
    pace = Pace(MPI.COMM_SELF, options(work=work))
    before = time.monotonic_ns()
    pace.approach(before + 100_000_000)
    took = time.monotonic_ns() - before
    assert took >= 100_000_000
    assert (pace.passes > 0) == computes
    assert 0 < pace.computed_ns <= took if computes else pace.computed_ns == 0
    pace.free()


def silence_of() -> tuple[Silence, list[str]]:
    said: list[str] = []
    pattern = Pattern(1, 4, DType.FLOAT32)
    pace: Any = CountedPace(said)
    ledger = Ledger(pattern, SOLO, 0)
    receive = np.empty(4, "float32")
    return Silence(SOLO, Caller(said), pace, MPI.COMM_SELF, receive, ledger), said


def test_what_is_computed_in_silence_is_counted_of_measured_rounds() -> None:
    silence, said = silence_of()
    silence.rehearse(2)
    silence.turn(5)
    assert said == ["begin", "settle", "call"] * 8  # 2, the one that leads in, and 5
    assert (silence.calls, silence.passes, silence.computed_ns) == (5, 15, 150)
    assert skew._ns_a_pass(silence, MPI.COMM_SELF) == 10
    silence.finish()


def test_nothing_computed_is_no_pace() -> None:
    silence, _ = silence_of()
    assert skew._ns_a_pass(silence, MPI.COMM_SELF) is None


@pytest.mark.parametrize(("work", "computes"), [(Work.SLEEP, False), (Work.COMPUTE, True)])
def test_the_slowdown_is_reported_where_ranks_compute(work: Work, computes: bool) -> None:
    told: list[str] = []
    wanted = options(work=work)
    outcome = skew.measure(wanted, MPI.COMM_SELF, told.append)
    assert outcome is not None
    assert outcome.failures == []
    assert len(told) == skew.turns(wanted) == 2 + computes
    rows = outcome.report.rows
    assert [row.policy for row in rows] == ["solo", "mpi"]
    assert [row.slowdown is not None for row in rows] == [computes, computes]
    assert all(row.slowdown is None or row.slowdown > -1 for row in rows)


def test_the_table_shows_the_slowdown(capsys: pytest.CaptureFixture[str]) -> None:
    outcome = skew.measure(options(), MPI.COMM_SELF, lambda _text: None)
    assert outcome is not None
    table.print_report(outcome.report)
    text = capsys.readouterr().out
    assert "slowdown" in text
    assert "Slowdown: of the computation of late ranks" in text
    assert max(map(len, text.splitlines())) <= 130
    without = skew.measure(options(work=Work.SLEEP), MPI.COMM_SELF, lambda _text: None)
    assert without is not None
    table.print_report(Report(without.report.meta, without.report.rows))
    assert "lowdown" not in capsys.readouterr().out
