"""``bench groups`` without a launcher: options, what is checked, ratios, tables, plot."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import shlex
import types
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import tables

from pypartial.bench import group_table, groups
from pypartial.bench.contenders import Contender
from pypartial.bench.group_options import (
    Backend,
    BenchGroupsOptions,
    GroupGenerator,
    Part,
    parse_group_size,
)
from pypartial.bench.group_trials import Course, CourseTrial, GroupTrial, Stage
from pypartial.bench.group_ways import Cast, GroupWay, Shares, generator
from pypartial.bench.options import Buffers, DType, Transport
from pypartial.bench.results import (
    GroupLatencyRow,
    GroupsMeta,
    GroupsReport,
    IterationRow,
    IterationSide,
    with_group_ratios,
)
from pypartial.cli import app
from pypartial.groups import Controller, Given, Random, Smart, Table
from pypartial.sim.arrivals import parse_arrivals
from pypartial.statistics import Latency, Spread

# ---- options -------------------------------------------------------------------------------------


def read(*words: str, ranks: int = 8) -> Any:
    return app.parse(["bench", "groups", *words], ranks)


def test_defaults() -> None:
    options = read()
    assert isinstance(options, BenchGroupsOptions)
    assert options.parts == tuple(Part)
    assert options.sizes == (8, 64 << 10, 1 << 20, 4 << 20)
    assert options.group_sizes == (2, 4)
    assert [str(one) for one in options.generators] == ["static", "random", "smart", "controller"]
    assert (options.backends, options.buffers) == ((Backend.AUTO,), (Buffers.LIBRARY,))
    assert (options.budget_ns, options.blocks, options.calls) == (250 * 10**6, None, None)
    assert (options.arrivals, options.base_ns) == ("slow:0:6x", 10**7)
    assert (options.iterations, options.runs, options.seed) == (60, 5, 0)
    assert (options.transport, options.dtype) == (Transport.AUTO, DType.FLOAT32)
    assert (options.json, options.plot) == (None, None)


def test_default_sizes_are_those_that_there_are_ranks_for() -> None:
    assert read(ranks=3).group_sizes == (2,)


def test_every_option(tmp_path: Path) -> None:
    words = shlex.split("""
        --part latency --size 8,64K --size 1M --group-size 2,3 --group-size 4
        --generator given,Smart --generator controller --backend node,comm
        --buffers numpy --buffers library --budget 10ms --blocks 3 --calls 70 --arrivals random:5ms
        --base 2ms --iterations 4 --runs 6 --dtype float64 --seed 5
    """)
    files = tmp_path / "groups.json", tmp_path / "groups.svg"
    options = read(*words, "--json", str(files[0]), "--plot", str(files[1]))
    assert options.parts == (Part.LATENCY,)
    assert (options.sizes, options.group_sizes) == ((8, 64 << 10, 1 << 20), (2, 3, 4))
    assert options.generators == (
        GroupGenerator.GIVEN,
        GroupGenerator.SMART,
        GroupGenerator.CONTROLLER,
    )
    assert options.backends == (Backend.NODE, Backend.COMM)
    assert options.buffers == (Buffers.NUMPY, Buffers.LIBRARY)
    assert (options.budget_ns, options.blocks, options.calls) == (10**7, 3, 70)
    assert (options.arrivals, options.base_ns) == ("random:5ms", 2 * 10**6)
    assert (options.iterations, options.runs, options.seed) == (4, 6, 5)
    assert options.dtype is DType.FLOAT64
    assert (options.json, options.plot) == files


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--size 66", "--size 66: not a multiple of 4 bytes"),
        ("--size 8,x", "'x' is not a size"),
        ("--size 8,8", "--size: the same value is given twice"),
        ("--group-size 9", "--group-size 9: there are only 8 ranks; start more, with mpirun -n 9"),
        ("--group-size 1", "'1' is not a size of groups: write 2 or more ranks"),
        ("--group-size 2,x", "'x' is not a size of groups"),
        ("--group-size 2,2", "--group-size: the same value is given twice"),
        ("--generator smart:3", "'smart:3' is not one of given, static, random"),
        ("--generator smart,smart", "--generator: the same value is given twice"),
        ("--part iterations --generator static,given", "--generator given: it is for latencies"),
        ("--backend fast", "'fast' is not one of auto, node, schedule, comm"),
        ("--backend node --transport mpi", "--backend node: with --transport mpi ranks share no"),
        ("--buffers mpi", "--buffers"),
        ("--part all", "--part"),
        ("--dtype int32", "--dtype int32: groups average float32 or float64"),
        ("--budget 0", "--budget 0: no call fits into it"),
        ("--arrivals slow:8:6x", "--arrivals: 'slow:8:6x': '8' is not one of 8 ranks"),
        ("--arrivals never", "--arrivals: 'never' is not an arrival model"),
        ("--base 0", "--base 0: choose a time above 0"),
        ("--runs 0", "--runs"),
        ("--seed 18446744073709551616", "is not in 0..2**64 - 1"),
        ("--json no-such-folder/x.json", "there is no folder no-such-folder"),
        ("--plot x.txt", "must end in .png, .pdf or .svg"),
    ],
)
def test_usage_errors(words: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert read(*words.split()) == 2
    said = " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert message in said


def test_one_rank_has_no_groups(capsys: pytest.CaptureFixture[str]) -> None:
    assert read(ranks=1) == 2
    said = " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert "start several, with mpirun -n 8 pypartial bench groups" in said


def test_a_trace_that_is_too_short_names_the_option(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "trace"
    trace.write_text("1ms 2ms\n" * 5)
    assert read("--arrivals", f"trace:{trace}", "--group-size", "2", ranks=2) == 2
    said = " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert "use --iterations 5" in said


def test_sizes_of_groups() -> None:
    assert parse_group_size(" 12 ") == 12
    for text in ("", "0", "1", "-2", "2.0", "two", "1" * 5000):
        with pytest.raises(ValueError, match="is not a size of groups"):
            parse_group_size(text)


# ---- cases and ways ------------------------------------------------------------------------------


def options(**changes: Any) -> BenchGroupsOptions:
    values: dict[str, Any] = {
        "sizes": (8, 64),
        "group_sizes": (2, 3),
        "generators": (GroupGenerator.GIVEN, GroupGenerator.STATIC, GroupGenerator.SMART),
        "budget_ns": 10**8,
    }
    return BenchGroupsOptions(**(values | changes))


def test_cases() -> None:
    """A size of which there is one group is one case."""
    found = groups.casts(options(group_sizes=(2, 4, 5)), 8, 6)
    assert [(cast.size, cast.groups) for cast in found] == [(2, 1), (2, 4), (4, 1), (4, 2), (5, 1)]
    assert [cast.takes_part for cast in found] == [False, True, False, True, False]


def test_who_is_in_which_group() -> None:
    cast = Cast(size=3, groups=2, rank=4)
    assert (cast.members, cast.number, cast.takes_part) == (6, 1, True)
    assert cast.fixed == [[0, 1, 2], [3, 4, 5]]
    assert not Cast(size=3, groups=2, rank=6).takes_part


def test_split_is_measured_where_nobody_sleeps() -> None:
    one, all_at_once = groups.casts(options(group_sizes=(2,)), 4, 0)
    kinds = (GroupGenerator.GIVEN, GroupGenerator.FULL)
    asked = options(generators=kinds, buffers=tuple(Buffers), backends=(Backend.NODE, Backend.COMM))
    ways = [str(way) for way in groups._ways(asked, one)]
    assert ways[:4] == ["given, node", "given, node", "given, comm", "given, comm"]
    assert ways[4:] == ["full", "full", "mpi", "mpi-create-group"]
    assert [str(way) for way in groups._ways(asked, all_at_once)][-1] == "mpi-split"


def test_generators_have_the_size_of_the_case() -> None:
    cast = Cast(size=2, groups=2, rank=0)
    assert generator("given", cast) == Given()
    assert generator("static", cast) == Table([[[0, 1], [2, 3]]])
    assert generator("random", cast) == Random(2)
    assert generator("controller", cast) == Controller(2)
    smart = generator("smart", cast)
    assert isinstance(smart, Smart)
    assert (smart.size, smart.foresight) == (2, 0)


def test_iterations_have_generators_as_they_are_by_default() -> None:
    asked = options(generators=tuple(GroupGenerator), backends=(Backend.NODE, Backend.COMM))
    names = [(name, size) for name, size, backend in groups._courses(asked) if backend != "comm"]
    sized = [(name, size) for name in ("random", "smart", "controller") for size in (2, 3)]
    assert names == [("full", 0), ("static", 0), *sized]
    assert groups._generator("smart", 3) == Smart(3)


def test_how_long_it_takes() -> None:
    """Each case and size has its ways; runs are made with and without the slow rank."""
    asked = options(group_sizes=(2,), parts=(Part.LATENCY,))
    ways = 2 * ((3 + 2) + (3 + 3))
    assert groups.turns(asked, 4) == ways * 9
    assert groups.about_seconds(asked, 4) == pytest.approx(ways * 0.1)
    assert groups.about_seconds(dataclasses.replace(asked, calls=3), 4) is None
    asked = dataclasses.replace(asked, parts=(Part.ITERATIONS,), base_ns=10**7, iterations=20)
    assert groups.turns(asked, 4) == 3 * 2 * 5
    assert groups.about_seconds(asked, 4) == pytest.approx(3 * 2 * 5 * 0.2)
    assert groups.turns(dataclasses.replace(asked, arrivals="cloud"), 4) == 3 * 5


# ---- what is checked -----------------------------------------------------------------------------

SHARES = Shares(4, 40, DType.FLOAT32)


def test_shares_tell_whose_average_it_is() -> None:
    one, other = SHARES.of(0), SHARES.of(1)
    average = (one + other) / 2
    head = SHARES.head(average, 1e-6)
    assert head is not None
    np.testing.assert_array_equal(head, SHARES.average([1, 0]))
    assert not np.allclose(head, SHARES.average([0, 2]), rtol=1e-3)
    average[20] += 1
    assert SHARES.head(average, 1e-6) is None
    assert Shares(3, 2, DType.FLOAT64).of(2).shape == (2,)


class FakeComm:
    """Rank 0 of some ranks, which knows what the others say."""

    def __init__(self, others: Callable[[Any], list[Any]]) -> None:
        self.others = others

    def Barrier(self) -> None:
        pass

    def Ibarrier(self) -> Any:
        return types.SimpleNamespace(Test=lambda: True)

    def allgather(self, mine: Any) -> list[Any]:
        return [mine, *self.others(mine)]


class FakeContext:
    @contextlib.contextmanager
    def away(self) -> Iterator[None]:
        yield


class FakeContender(Contender):
    """Leaves something in the buffer, and says in which group it was."""

    def __init__(self, buffer: Any, result: Any, group: tuple[int, ...]) -> None:
        self.buffer, self.result = buffer, result
        self.told: Any = types.SimpleNamespace(round=1, group=group)
        self.flushes = 0

    def call(self) -> None:
        self.buffer[:] = self.result

    def repeat(self, calls: int) -> None:
        self.call()

    def status(self) -> Any:
        return self.told

    def flush(self) -> None:
        self.flushes += 1


PAIR = (SHARES.of(0) + SHARES.of(1)) / 2


def trial_of(
    name: str = "controller",
    result: Any = PAIR,
    group: tuple[int, ...] = (0, 1),
    other: Any = None,
    size: int = 2,
) -> GroupTrial:
    """A trial on rank 0 of two; rank 1 has the same result, or another one."""
    buffer = np.zeros(SHARES.count, "float32")

    def said(mine: Any) -> list[Any]:
        if isinstance(mine, list):  # the groups that rank 1 was told of
            return [mine]
        return [(SHARES.head(result if other is None else other, 1e-5), len(group) > 1)]

    comm: Any = FakeComm(said)
    ctx: Any = FakeContext()
    stage = Stage(ctx, comm, Cast(size, 2 // size, 0), SHARES)
    way = GroupWay(name, Backend.NODE, Buffers.LIBRARY)
    return GroupTrial(way, FakeContender(buffer, result, group), buffer, stage)


@pytest.mark.parametrize("name", ["controller", "random", "static"])
def test_right_averages_are_accepted(name: str) -> None:
    trial = trial_of(name)
    trial.rehearse(2)
    assert trial.turn(7) > 0
    assert trial.failures == []
    assert (trial.calls, len(trial.turn_ns), set(trial.group_sizes)) == (7, 1, {2})
    trial.forget()
    assert (trial.calls, trial.turn_ns) == (0, [])
    assert trial.group_sizes


def test_cpu_time_is_that_of_the_timed_calls() -> None:
    """What the library's thread does in the call before, and until all ranks are done, is not."""
    spent = [0]
    trial = trial_of()
    contender: Any = trial.contender
    ctx: Any = trial.stage.ctx
    repeat = contender.repeat

    def work(calls: int) -> None:
        spent[0] += 10**15 if calls == 1 else 7 * 10**12
        repeat(calls)

    @contextlib.contextmanager
    def away() -> Iterator[None]:
        spent[0] += 10**15
        yield

    contender.repeat, contender.cpu_ns = work, lambda: spent[0]
    ctx.away = away
    trial.turn(7)
    assert 7 * 10**12 <= trial.turn_cpu_ns[0] < 8 * 10**12


def test_an_average_over_other_ranks_is_noticed() -> None:
    wrong = (SHARES.of(0) + SHARES.of(2)) / 2
    trial = trial_of(result=wrong)
    trial.rehearse(1)
    assert "the mean over ranks [0, 1] is" in trial.failures[0]
    assert "controller, node, 40 x float32, rank 0, call 1: " in trial.failures[0]
    assert "is not the average over [0, 1]" in trial.failures[1]


def test_a_loop_that_does_nothing_is_noticed() -> None:
    """The mean over the ranks is kept then, too."""
    trial = trial_of(result=SHARES.of(0), other=SHARES.of(1))
    trial.turn(5)
    assert len(trial.failures) == 2
    assert "after 6 calls: ranks [0, 1] differ as much as before the calls" in trial.failures[0]
    assert "is not the average over [0, 1]" in trial.failures[1]


@pytest.mark.parametrize(
    ("group", "together", "noticed"),
    [((0, 1), True, True), ((0,), True, True), ((0,), False, False)],
)
def test_calls_that_do_nothing_are_noticed_if_a_rank_was_in_a_group_with_others(
    group: tuple[int, ...], together: bool, noticed: bool
) -> None:
    """`together` says so of rank 1, `group` is that of rank 0's last call."""
    trial = trial_of("random", SHARES.of(0), group)
    comm: Any = trial.stage.comm
    comm.others = lambda mine: [(SHARES.head(SHARES.of(1), 1e-5), together)]
    trial.turn(5)
    found = any("differ as much as before the calls" in text for text in trial.failures)
    assert found == noticed


def test_values_come_closer_with_each_average() -> None:
    own = [SHARES.of(rank)[:13] for rank in range(4)]
    assert not SHARES.closer(own, range(4))
    pair = (own[1] + own[2]) / 2
    assert SHARES.closer([own[0], pair, pair, own[3]], range(4))
    assert not SHARES.closer(own[::-1], range(4))
    assert not SHARES.closer([2 * each for each in own], range(4))
    assert SHARES.closer([own[0]], [0])  # one rank cannot differ


def test_a_part_that_is_left_out_is_noticed() -> None:
    wrong = PAIR.copy()
    wrong[30:] = SHARES.of(0)[30:]
    trial = trial_of(result=wrong, other=PAIR)
    trial.turn(5)
    assert "parts of the buffer were treated differently" in trial.failures[0]


def test_a_model_that_is_lost_is_noticed() -> None:
    trial = trial_of("random", result=SHARES.of(0), group=(0,))
    trial.turn(5)
    assert "the mean over ranks [0, 1] is" in trial.failures[0]


def test_ranks_that_were_alone_have_their_own_model() -> None:
    trial = trial_of(result=SHARES.of(0), other=SHARES.of(1), group=(0,))
    head = SHARES.head(SHARES.of(0), 1e-5)
    trial._check_last("call 1", head, 1e-5, alone=True)
    assert trial.failures == []
    trial._check_last("call 1", SHARES.head(PAIR, 1e-5), 1e-5, alone=True)
    assert "is not the average over [0]" in trial.failures[0]


def test_a_group_with_a_rank_that_sleeps_is_noticed() -> None:
    trial = trial_of(group=(0, 3))
    trial._check_last("call 1", SHARES.head(PAIR, 1e-5), 1e-5, alone=False)
    assert "group [0, 3], of ranks [0, 1]" in trial.failures[0]


def test_fixed_groups_that_are_smaller_are_noticed() -> None:
    trial = trial_of("static", result=SHARES.of(0), other=SHARES.of(1), group=(0,))
    comm: Any = trial.stage.comm
    right = comm.others
    comm.others = lambda mine: [[(0, (1,))]] if isinstance(mine, list) else right(mine)
    trial._count_groups(5)
    assert "they usually had 1 ranks, not 2" in trial.failures[-1]


def test_ranks_that_differ_about_a_group_are_noticed() -> None:
    trial = trial_of()
    comm: Any = trial.stage.comm
    right = comm.others
    comm.others = lambda mine: [[(1, (1,))]] if isinstance(mine, list) else right(mine)
    trial._count_groups(5)
    assert "group 1: rank 1 was told (1,)" in trial.failures[0]


def test_ranks_that_sleep_do_not_call() -> None:
    trial = trial_of()
    sleeps = Cast(2, 1, 3)
    comm: Any = FakeComm(lambda mine: [])
    trial.stage = dataclasses.replace(trial.stage, cast=sleeps, comm=comm)
    assert trial.turn(5) == 0
    np.testing.assert_array_equal(trial.receive, SHARES.of(3))
    assert trial.failures == []


def test_a_course_sleeps_and_calls_until_its_time_is_over() -> None:
    base = trial_of(group=(0, 1))
    arrivals = parse_arrivals("slow:1:2x", 2, 10, seed=3, base_ns=10**6)
    course = Course(arrivals, 200 * 10**6)
    trial = CourseTrial(base.way, base.contender, base.receive, base.stage, course=course)
    trial.turn()
    trial.turn()
    assert trial.failures == []
    assert len(trial.iteration_ns) == 2
    assert all(time >= 0.95 * 10**6 for time in trial.iteration_ns)
    contender: Any = trial.contender
    assert contender.flushes == 2


@pytest.mark.parametrize(
    ("result", "other", "words"),
    [
        (SHARES.of(0), SHARES.of(1), "a run: ranks [0, 1] differ as much as before the calls"),
        (PAIR + SHARES.of(2), PAIR - SHARES.of(2), "is not the average over [0, 1]"),
    ],
)
def test_a_course_whose_calls_are_wrong_is_noticed(result: Any, other: Any, words: str) -> None:
    """The mean over the ranks is kept by both."""
    base = trial_of("smart:2", result, other=other)
    course = Course(parse_arrivals("linear:1ms", 2, 10, seed=3), 5 * 10**6)
    trial = CourseTrial(base.way, base.contender, base.receive, base.stage, course=course)
    trial.turn()
    assert any(words in text for text in trial.failures)


def test_a_course_has_an_iteration_in_any_time() -> None:
    """The rank may be stopped between a look at the clock and the next one."""
    base = trial_of()
    arrivals = parse_arrivals("slow:1:2x", 2, 10, seed=3, base_ns=1000)
    course = Course(arrivals, run_ns=0)
    trial = CourseTrial(base.way, base.contender, base.receive, base.stage, course=course)
    trial.turn()
    assert len(trial.iteration_ns) == 1
    assert trial.failures == []


def test_each_run_begins_a_trace_anew(tmp_path: Path) -> None:
    """A run has as many iterations as fit into its time, which may be more than there are lines."""
    (tmp_path / "times").write_text("0.001 0\n0.002 0\n0.003 0\n")
    arrivals = parse_arrivals(f"trace:{tmp_path / 'times'}", 2, 2, seed=3, base_ns=10**6)
    course = Course(arrivals, 40 * 10**6, lines=2)
    assert [course.sleep_ns(100, done, 0) for done in range(4)] == [10**6, 2 * 10**6] * 2
    base = trial_of()
    trial = CourseTrial(base.way, base.contender, base.receive, base.stage, course=course)
    trial.turn()
    trial.turn()
    assert trial.failures == []
    assert len(trial.iteration_ns) == 2
    other = parse_arrivals("slow:1:2x", 2, 2, seed=3, base_ns=10**6)
    drawn = {Course(other, 1).sleep_ns(before, 0, 0) for before in range(9)}
    assert len(drawn) == 9  # other models go on


def test_a_course_in_which_each_rank_was_alone_may_leave_the_models_as_they_were() -> None:
    base = trial_of("smart:2", SHARES.of(0), (0,), other=SHARES.of(1))
    course = Course(parse_arrivals("linear:1ms", 2, 10, seed=3), 5 * 10**6)
    trial = CourseTrial(base.way, base.contender, base.receive, base.stage, course=course)
    trial.turn()
    assert trial.failures == []


# ---- results -------------------------------------------------------------------------------------


def row(way: str, backend: str | None, us: float, **changes: Any) -> GroupLatencyRow:
    values: dict[str, Any] = {
        "way": way,
        "backend": backend,
        "buffers": "numpy" if backend is None else "library",
        "bytes": 8,
        "ranks": 8,
        "size": 2,
        "groups": 4,
        "members": 2.0,
        "latency_us": Latency(us, us, us, 2 * us, (us, us)),
        "best_us": us,
        "mean_of_ranks_us": us,
        "cpu_us_per_call": us,
        "blocks": 9,
        "calls": 100,
        "ratio_to_mpi": None,
        "ratio_to_create_group": None,
        "ratio_to_split": None,
        "verified": True,
    }
    return GroupLatencyRow(**(values | changes))


ROWS = [
    row(way, backend, us * (1 + size / 2**16), bytes=size, groups=groups_)
    for groups_ in (1, 4)
    for size in (8, 64 << 10)
    for way, backend, us in (
        ("static", "node", 2.0),
        ("smart", "node", 3.0),
        ("mpi", None, 4.0),
        ("mpi-create-group", None, 80.0),
        *([("mpi-split", None, 100.0)] if groups_ > 1 else []),
    )
]
META = GroupsMeta(
    mpi="Open MPI 5.0.11",
    version="1.0",
    python="3.11.7",
    ranks=8,
    cores=2,
    transport="auto",
    nodes=1,
    dtype="float32",
    seed=0,
    arrivals="slow:0:6x",
    base_us=10_000.0,
    run_us=300_000.0,
)


def side(name: str, us: float, ratio: float | None) -> IterationSide:
    if ratio is None:
        return IterationSide(name, Spread(us, us, us), None, None)
    undisturbed = us / ratio
    ratios = Spread(ratio, 0.9 * ratio, 1.2 * ratio)
    return IterationSide(
        name, Spread(us, us, us), Spread(undisturbed, undisturbed, undisturbed), ratios
    )


def iteration(name: str, size: int, *sides: IterationSide, verified: bool = True) -> IterationRow:
    backend = None if name == "full" else "node"
    return IterationRow(name, size, backend, 8, 8, 5, list(sides), verified)


ITERATIONS = [
    iteration("full", 0, side("fast", 60_000, 5.9), side("slow", 60_000, 6.0)),
    iteration("smart", 3, side("fast", 10_500, 1.05), side("slow", 60_000, 6.0)),
]
REPORT = GroupsReport(META, with_group_ratios(ROWS), ITERATIONS)


def test_ratios_are_those_of_the_same_case() -> None:
    first = REPORT.rows[0]
    assert (first.ratio_to_mpi, first.ratio_to_create_group) == (0.5, 2 / 80)
    assert first.ratio_to_split is None
    assert REPORT.rows[-5].ratio_to_split == pytest.approx(0.02)
    assert with_group_ratios([row("smart", "node", 3.0)])[0].ratio_to_mpi is None


def test_all_of_a_report_is_verified_or_not() -> None:
    assert REPORT.verified
    wrong = iteration("smart", 3, side("all", 10_000, None), verified=False)
    assert not GroupsReport(META, REPORT.rows, [wrong]).verified
    rows = [row("smart", "node", 3.0, verified=False)]
    assert not GroupsReport(META, rows, []).verified
    assert set(REPORT.as_dict()) >= {"meta", "rows", "iterations"}


printed = partial(tables.printed, group_table.print_report)


def test_the_table_fits_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    tables.assert_fits(printed(REPORT))


def test_the_tables_show_every_row() -> None:
    text = printed(REPORT)
    for words in ("4 x 2", "64 KB", "smart, node", "mpi-split", "0.50", "9 x 100", "smart:3"):
        assert words in text
    for words in ("60 ms", "1.05", "5.90", "8 ranks on 2 cores", "slow:0:6x, base 10 ms"):
        assert words in text
    assert "NO" not in text
    assert "buffers" not in text.partition("groups:")[0]  # one kind needs no column
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 130


def test_the_tables_show_what_is_wrong() -> None:
    rows = [row("random", "comm", 3.0, verified=False), row("random", "comm", 3, buffers="numpy")]
    wrong = iteration("static", 0, side("all", 10_000, None), verified=False)
    text = printed(GroupsReport(META, rows, [wrong]))
    assert text.count(" NO ") == 2
    assert "buffers" in text
    assert "library" in text
    assert "a Wait also runs groups that other ranks drew" in text


def test_a_table_that_was_not_asked_for_is_not_printed() -> None:
    assert "Iterations" not in printed(GroupsReport(META, REPORT.rows, []))
    assert "Groups:" not in printed(GroupsReport(META, [], ITERATIONS))


def test_the_plot_has_a_picture_for_each_case(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plot = importlib.import_module("pypartial.bench.plot")
    drawn: list[Any] = []
    monkeypatch.setattr(plot.plt, "close", drawn.append)
    path = tmp_path / "groups.png"
    plot.save_groups_plot(REPORT, path)
    assert path.read_bytes().startswith(b"\x89PNG")
    one, several, bars = drawn[0].axes
    titles = [axes.get_title(loc="left") for axes in drawn[0].axes]
    assert titles[:2] == ["One group of 2 ranks", "4 groups of 2 ranks at once"]
    assert (len(one.lines), len(several.lines)) == (4, 5)
    assert list(several.lines[0].get_ydata()) == [row.latency_us.p50 for row in ROWS[8::5]]
    assert [bar.get_height() for bar in bars.patches] == [5.9, 1.05, 6.0, 6.0]
    assert bars.get_ylabel() == "times longer than undisturbed"
    plot.save_groups_plot(GroupsReport(META, REPORT.rows[:1], []), path)
    alone = [iteration("full", 0, side("all", 60_000, None))]
    plot.save_groups_plot(GroupsReport(META, [], alone), path)
    assert drawn[2].axes[0].get_ylabel() == "iteration, µs"
