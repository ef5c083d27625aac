"""The fuzzer: what it draws and covers, how it shrinks, what it tells; that it finds defects."""

from __future__ import annotations

import collections
import ctypes
import dataclasses
import faulthandler
import json
import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from fuzz import fuzzer
from fuzz.__main__ import main
from fuzz.fuzzer import COVERAGE, COVERAGES, PLANTS, WHAT_OF_PLANT, Verdict, draw_scenario, fuzz
from fuzz.kinds import KINDS
from fuzz.oracles import check, judge, replay_command
from fuzz.scenario import TIMINGS, Phase, Scenario, run
from fuzz.shrink import shrink
from hypothesis import given
from strategies import examples, scenarios

from pypartial._names import DELIVER
from pypartial.policy import FirstOf, Full, Majority, Quorum, Solo
from pypartial.sim.allreduce_handle import ALGORITHMS, Options
from pypartial.sim.preduce_handle import PreduceOptions
from pypartial.sim.queue_handle import QueueOptions
from pypartial.sim.world import Deadlock

TESTS = Path(__file__).resolve().parents[1]
PASSED = Verdict(25, (True,) * len(COVERAGE))


# ---- drawing -------------------------------------------------------------------------------------


def test_a_case_is_always_the_same():
    """Also in another process: nothing depends on the hashes of strings."""
    drawn = [draw_scenario(3, index).to_text() for index in range(20)]
    assert drawn == [draw_scenario(3, index).to_text() for index in range(20)]
    assert len(set(drawn)) == 20
    assert drawn[0] != draw_scenario(4, 0).to_text()
    code = "from fuzz.draw import draw_scenario; print(draw_scenario(3, 7).to_text())"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=TESTS, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == drawn[7]


def test_cases_are_of_every_kind():
    drawn = [draw_scenario(0, index) for index in range(4000)]
    assert all(s.complaint() is None for s in drawn)
    ranks = collections.Counter(s.ranks for s in drawn)
    assert set(range(1, 18)) <= set(ranks)
    assert max(ranks) > 50
    assert sum(n for size, n in ranks.items() if 2 <= size <= 9) > 0.85 * len(drawn)
    assert {len(s.handles) for s in drawn} == {1, 2, 3}
    assert {s.timing for s in drawn} == set(TIMINGS)
    assert {s.window for s in drawn} == {1, 2, 3, 4, 5}
    options = [o for s in drawn for o in s.handles]
    assert {o.deliver for o in options} == set(DELIVER)
    assert {o.algorithm for o in options} == set(ALGORITHMS)
    assert {type(o.policy) for o in options} == {Solo, Majority, FirstOf, Quorum, Full}
    for k in ("k < ranks", "k == ranks", "k == 1"):
        triggers = [(o.policy.trigger(s.ranks).ranks, s.ranks) for s in drawn for o in s.handles]
        assert sum(eval(k, {"k": count, "ranks": size}) for count, size in triggers) > 400
    actions = collections.Counter(a.split()[0] for s in drawn for p in s.phases for a in p.then)
    assert all(actions[what] > 200 for what in ("flush", "open", "free"))
    several = [s for s in drawn if sum(a.startswith("flush") for p in s.phases for a in p.then) > 1]
    assert len(several) > 1000


def test_cases_with_groups_are_of_every_kind():
    drawn = [draw_scenario(0, index, "groups") for index in range(2000)]
    assert all(s.complaint() is None for s in drawn)
    assert all(Scenario.from_text(s.to_text()) == s for s in drawn)
    assert all(s.groups for s in drawn)
    assert set(range(1, 18)) <= {s.ranks for s in drawn}
    options = [o for s in drawn for o in s.groups]
    generators = collections.Counter(o.generator.split(":")[0] for o in options)
    assert set(generators) == {"random", "smart", "controller", "table", "given"}
    assert min(generators.values()) > 100
    words = collections.Counter(w for o in options for w in o.generator.split(",")[1:])
    more = ("reuse", "no-division", "inter-intra", "foresight=0", "c-thres=1", "no-unfreeze")
    assert all(words[word] > 30 for word in more)
    assert any(word.startswith("history=") for word in words)
    assert {o.weights for o in options} == {"constant", "closest", "initial"}
    assert {o.dtype for o in options} == {"float64", "float32", "float16"}
    assert set(range(13)) <= {o.count for o in options}
    assert {len(s.memory) for s in drawn} == {0, 2, 4}
    assert {len(s.groups) for s in drawn} == {1, 2}
    assert sum(bool(s.rounds) for s in drawn) > 400


def test_cases_with_neighbours_are_of_every_kind():
    drawn = [draw_scenario(0, index, "neighbours") for index in range(1000)]
    assert all(s.complaint() is None for s in drawn)
    assert all(Scenario.from_text(s.to_text()) == s for s in drawn)
    assert all(s.with_neighbours for s in drawn)
    assert (
        min(sum(bool(of(s)) for s in drawn) for of in (lambda s: s.groups, lambda s: s.rounds))
        > 100
    )
    for options, of in KINDS.items():
        handles = [o for s in drawn for o in s.handles if type(o) is options]
        assert len(handles) > 200
        assert {o.dtype for o in handles} == set(of.dtypes)
        assert {len(s.memory) for s in drawn for o in s.handles if type(o) is options} >= {2, 4}
    modes = {
        (o.protocol, o.backup, o.staleness is None, o.skip is None, o.weighted) for o in handles
    }
    assert len(modes) >= 11


QUEUES = QueueOptions(((1, 2), (0, 2), (0, 1)), count=6)
BESIDE = (QUEUES, Options())


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"ranks": 4}, "is no graph of 4 ranks"),
        ({"handles": (QueueOptions(((1, 2), (0, 2), (0, 1))),), "opened": 1}, "names itself"),
        ({"ask": True, "memory": ()}, "and questions"),
        ({"contexts": 2, "patience": -1}, "queues wait as MPI does"),
        ({"handles": BESIDE, "phases": (Phase((1, 2)),)}, "different numbers of steps"),
        ({"handles": BESIDE, "phases": (Phase((2,), ("aside",)),)}, "away at times of their own"),
        ({"handles": BESIDE, "phases": (Phase((2,), ("apart",)),)}, "away at times of their own"),
        ({"phases": (Phase((1, 2), ("aside",)),)}, "every update wait as MPI does"),
    ],
)
def test_what_queues_do_not_promise_is_refused(changes, why):
    scenario = Scenario(3, 0, (QUEUES, QUEUES), (Phase((2,)),), opened=2, memory=(300, 100))
    assert scenario.complaint() is None
    assert why in dataclasses.replace(scenario, **changes).complaint()


def test_given_groups_are_the_same_at_all_steps_where_ranks_may_be_a_step_apart():
    given, phase = PreduceOptions("given"), Phase((3, 2), ("flush 0",))
    scenario = Scenario(ranks=3, seed=1, handles=(given, given), phases=(phase,), opened=2)
    assert scenario.names_vary()
    assert not dataclasses.replace(scenario, handles=(given, Options())).names_vary()
    for then, hold, unequal in (
        (("flush 0",), True, False),
        (("apart", "flush 0"), False, True),
        (("apart",), False, False),
        ((), False, False),
    ):
        apart = dataclasses.replace(phase, then=then, hold=hold)
        assert dataclasses.replace(scenario, phases=(apart,)).names_vary() == unequal
        equal = dataclasses.replace(apart, steps=(3,))
        assert dataclasses.replace(scenario, phases=(equal,)).names_vary()


def test_a_rank_polls_for_longer_than_any_patience():
    """Ranks poll in different contexts; those without habits have a patience of 2 s."""
    scenario = Scenario(
        ranks=6,
        seed=1,
        handles=(Options(count=12), PreduceOptions("random:2")),
        phases=(Phase((1,)),),
        opened=2,
        latency=(100, 2_000_000),
        timing="zero",
        scale=0,
        blocking=False,
        patience=-1,
        contexts=2,
        shuffle=True,
    )
    outcome = check(scenario)
    waits = [one.ended - one.begun for log in outcome.logs[0] for one in log.records]
    waits += [one.ended - one.begun for log in outcome.logs[1] for one in log.asked]
    assert max(waits) > 2_000_000_000


def test_all_cases_are_a_mixture():
    drawn = [draw_scenario(0, index, "all") for index in range(400)]
    assert 50 < sum(bool(s.groups) for s in drawn) < 150
    assert drawn[0] in (draw_scenario(0, 0, "rounds"), draw_scenario(0, 0, "groups"))


@examples(200)
@given(scenario=scenarios(handles=(1, 3)))
def test_a_scenario_is_the_same_after_it_was_written_and_read(scenario):
    text = scenario.to_text()
    assert "\n" not in text
    assert "'" not in text  # it stands between quotes in a shell's command
    assert Scenario.from_text(text) == scenario


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not a scenario: "),
        ("[]", "the scenario is not an object"),
        ('{"ranks":2}', "the scenario lacks 'seed'"),
        ('{"ranks":"2"}', "the scenario has ranks '2'"),
        ('{"ranks":true}', "the scenario has ranks True"),
        ('{"rank":2}', "the scenario has no 'rank'"),
        (
            '{"ranks":2,"seed":0,"handles":[{"policy":"first:1.5"}],"phases":[]}',
            "'first:1.5' is not a policy",
        ),
        ('{"ranks":2,"seed":0,"handles":[],"phases":[]}', "1 of 0 handles are opened"),
        ('{"ranks":2,"seed":0,"handles":[{}],"phases":[{"steps":[]}]}', "a phase with the steps"),
        (
            '{"ranks":2,"seed":0,"handles":[{}],"phases":[{"steps":[1],"then":["open 1"]}]}',
            "'open 1' is not possible there",
        ),
        (
            '{"ranks":2,"seed":0,"handles":[{}],"phases":[{"steps":[1],"then":["open 0"]}]}',
            "'open 0' is not possible there",
        ),
        (
            '{"ranks":2,"seed":0,"handles":[{},{}],"phases":[{"steps":[1],"then":["flush 1"]}]}',
            "'flush 1' is not possible there",
        ),
        (
            '{"ranks":2,"seed":0,"handles":[{}],"phases":[{"steps":[1],"then":["close 0"]}]}',
            "'close 0' is not a collective call",
        ),
        (
            '{"ranks":2,"seed":0,"handles":[{"op":"min"}],"phases":[]}',
            "'min' is not one of sum, max",
        ),
    ],
)
def test_what_is_no_scenario_is_refused(text, message):
    with pytest.raises(ValueError, match="not a scenario") as refusal:
        Scenario.from_text(text)
    assert message in str(refusal.value)


def test_a_failed_check_says_how_to_replay_it(monkeypatch):
    scenario = draw_scenario(0, 0)

    def fail(_scenario, _logs):
        raise AssertionError("something is wrong")

    monkeypatch.setattr("fuzz.oracles.judge", fail)
    with pytest.raises(AssertionError) as failure:
        check(scenario)
    assert str(failure.value).startswith("something is wrong")
    assert replay_command(scenario) in str(failure.value)


# ---- shrinking -----------------------------------------------------------------------------------

LARGE = Scenario(
    ranks=9,
    seed=123_456_789,
    handles=(
        Options(count=18, policy=Quorum(4), pieces=3),
        Options(count=300, dtype="float32", average="size", deliver="each", max_lag=2),
        Options(count=19, op="max", policy=FirstOf(9), deliver="sum", max_lag=1, in_place=True),
    ),
    phases=(
        Phase((4, 7, 2), ("flush 0", "open 2", "flush 1")),
        Phase((9,), ("free 0", "flush 2"), hold=True),
        Phase((5,), ("flush 1",)),
    ),
    opened=2,
    window=3,
    latency=(1, 200_000),
    timing="heavy",
    scale=60_000,
    together=True,
    blocking=False,
    late=0.5,
    ask=True,
    last_flush=False,
)


def predicate(fails):
    """Find among scenarios as the fuzzer does, without running them; and what was tried."""
    tried = []

    def find(candidates):
        for index, scenario in enumerate(candidates):
            tried.append(scenario)
            if fails(scenario):
                return index
        return None

    return find, tried


def test_shrinking_keeps_what_the_failure_needs_and_nothing_else():
    def fails(s):
        flushed = any(a.startswith("flush") for p in s.phases for a in p.then)
        return s.ranks >= 3 and flushed and any(o.deliver == "each" for o in s.handles)

    find, _ = predicate(fails)
    small = shrink(LARGE, find)
    assert fails(small)
    assert small.ranks == 3
    assert len(small.handles) == 1
    assert small.handles[0] == Options(count=6, deliver="each", max_lag=2)
    assert len(small.phases) == 1
    assert small.phases[0].then == ("flush 0",)
    assert sum(small.phases[0].steps) <= 1
    plain = Scenario(
        3, 0, small.handles, small.phases, latency=(1000, 1000), timing="zero", scale=0
    )
    assert dataclasses.replace(small, seed=0) == plain


def test_shrinking_tries_other_seeds():
    """A smaller scenario that needs another interleaving is found, too."""
    find, _ = predicate(lambda s: s.ranks == 9 or (s.seed == 4 and s.ranks > 1))
    small = shrink(LARGE, find)
    assert (small.ranks, small.seed) == (2, 4)


def test_shrinking_is_bounded_and_may_fail():
    find, tried = predicate(lambda s: True)
    small = shrink(LARGE, find, attempts=10)
    assert small != LARGE
    assert len(tried) == 10
    find, tried = predicate(lambda s: False)
    assert shrink(LARGE, find, attempts=40) == LARGE
    assert len(tried) == 40


GROUPS = Scenario(
    ranks=9,
    seed=123_456_789,
    handles=(
        PreduceOptions("smart:3,inter-intra,foresight=0", count=300, dtype="float32", cache=3),
        Options(count=18, policy=Quorum(4)),
        PreduceOptions("table", table=(((0, 8), (1, 2)), ((3, 4, 5),)), weights="initial"),
    ),
    phases=(Phase((4, 7, 2), ("flush 0", "apart")), Phase((9,), ("flush 2", "away"), hold=True)),
    opened=3,
    memory=(1000, 1000, 5, 1),
    together=True,
    timeout=0.3,
)


def test_shrinking_makes_scenarios_with_groups_small():
    def fails(s):
        found = [o for o in s.groups if o.generator == "table" and o.weights == "initial"]
        return s.ranks > 1 and bool(found)

    assert GROUPS.complaint() is None
    find, tried = predicate(fails)
    small = shrink(GROUPS, find)
    assert (small.ranks, small.phases) == (2, ())
    (options,) = small.handles
    assert options == PreduceOptions("table", table=options.table, weights="initial")
    assert len(options.table) == 1
    assert all(s.complaint() is None for s in tried)


@pytest.mark.parametrize("kind", KINDS)
def test_shrinking_makes_scenarios_with_neighbours_small(kind):
    index = next(
        i
        for i in range(200)
        if any(type(o) is kind for o in draw_scenario(0, i, "neighbours").with_neighbours)
        and draw_scenario(0, i, "neighbours").ranks > 5
    )
    find, tried = predicate(lambda s: s.ranks > 2 and any(type(o) is kind for o in s.handles))
    small = shrink(draw_scenario(0, index, "neighbours"), find)
    (options,) = small.handles
    assert (small.ranks, small.phases) == (3, ())
    assert getattr(options, KINDS[kind].graph) == ((1, 2), (0, 2), (0, 1))
    least = {"count": 2 * small.ranks} if kind is QueueOptions else {}
    assert options == KINDS[kind].on(kind((), **least), ((1, 2), (0, 2), (0, 1)))
    assert all(s.complaint() is None for s in tried)


def test_only_what_can_be_run_is_tried():
    find, tried = predicate(lambda s: False)
    assert shrink(LARGE, find, attempts=10**6) == LARGE
    assert len(tried) > 200
    assert all(s.complaint() is None for s in tried)
    assert all(0 < o.policy.trigger(s.ranks).ranks <= s.ranks for s in tried for o in s.handles)
    # Several handles with a phase that holds: only all Starts before all Waits never deadlocks.
    holding = [s for s in tried if len(s.handles) > 1 and any(p.hold for p in s.phases)]
    assert holding
    assert all(s.together for s in holding)


# ---- running -------------------------------------------------------------------------------------


@pytest.fixture
def attempts(monkeypatch):
    """Replace what a case does; the worker processes inherit it."""

    def replace(attempt):
        monkeypatch.setattr(fuzzer, "attempt", attempt)

    return replace


def same(report):
    return dataclasses.replace(report, seconds=0.0, jobs=0)


def test_the_report_does_not_depend_on_the_number_of_jobs():
    reports = [fuzz(60, seed=5, jobs=jobs) for jobs in (1, 2, 5)]
    assert [report.jobs for report in reports] == [1, 2, 5]
    assert same(reports[0]) == same(reports[1]) == same(reports[2])
    assert (reports[0].cases, reports[0].failure) == (60, None)
    assert reports[0].rounds > 600


def test_the_lowest_failing_case_counts_whichever_is_found_first(attempts):
    """All cases from 30 on fail; what comes before them is counted in full."""
    bad = {draw_scenario(7, index).to_text() for index in range(30, 200)}
    attempts(
        lambda s, plant=None: (
            Verdict(kind="bad", text=f"bad, {s.ranks} ranks") if s.to_text() in bad else PASSED
        )
    )
    for jobs in (1, 4):
        report = fuzz(200, seed=7, jobs=jobs)
        assert (report.cases, report.rounds) == (30, 30 * 25)
        assert set(report.coverage.values()) == {30}
        assert report.failure.index == 30
        assert report.failure.scenario == draw_scenario(7, 30)
        assert not report.passed()


def test_cases_above_the_failing_one_do_not_count(attempts):
    """Although they are all run before it is through."""
    bad, later = draw_scenario(7, 10), [draw_scenario(7, index) for index in range(11, 40)]
    done = multiprocessing.get_context("fork").Semaphore(0)

    def attempt(s, plant=None):
        if s == bad:
            for _ in later:
                done.acquire()
            return Verdict(kind="bad")
        if s in later:
            done.release()
        return PASSED

    attempts(attempt)
    report = fuzz(40, seed=7, jobs=3)
    assert (report.cases, report.rounds, report.failure.index) == (10, 250, 10)


def test_a_failing_case_is_shrunk_while_it_fails_in_the_same_way(attempts):
    def attempt(s, plant=None):
        if s.ranks >= 4:
            return Verdict(kind="many", text=f"{s.ranks} ranks")
        return Verdict(kind="few", text="few") if s.ranks == 2 else PASSED

    attempts(attempt)
    index = next(i for i in range(100) if draw_scenario(0, i).ranks >= 4)
    first = next(i for i in range(100) if draw_scenario(0, i).ranks in (2, *range(4, 65)))
    failure = fuzz(100, seed=0, jobs=2).failure
    assert failure.index == first
    if first == index:
        assert (failure.shrunk.ranks, failure.shrunk_verdict.text) == (4, "4 ranks")
    else:
        assert (failure.shrunk.ranks, failure.shrunk_verdict.text) == (2, "few")
    assert len(failure.shrunk.phases) == 0


@pytest.mark.parametrize("jobs", [1, 3])
def test_a_crash_is_told_with_its_case(attempts, jobs):
    """Nothing is lost: the cases before it are counted, and shrinking survives it."""
    bad = draw_scenario(1, 11)

    def attempt(s, plant=None):
        if s.seed == bad.seed:
            faulthandler.disable()  # its message would be noise here
            os.kill(os.getpid(), signal.SIGSEGV)
        return PASSED

    attempts(attempt)
    report = fuzz(40, seed=1, jobs=jobs)
    assert (report.cases, report.failure.index) == (11, 11)
    assert report.failure.scenario == bad
    assert "SIGSEGV" in report.failure.verdict.text
    assert report.failure.shrunk.seed == bad.seed
    assert report.failure.shrunk.ranks <= 2
    assert "SIGSEGV" in report.failure.shrunk_verdict.text


@pytest.fixture
def endless(attempts, monkeypatch):
    """Case 5 of seed 1, and what is left of it with its seed, never comes back from C."""
    monkeypatch.setattr(fuzzer, "CASE_LIMIT_S", 4.0)  # on a busy machine the others take a while
    for limit in ("SMALLER_LIMIT_S", "SHRINKING_LIMIT_S"):
        monkeypatch.setattr(fuzzer, limit, 1.0)
    bad = draw_scenario(1, 5)

    def attempt(s, plant=None):
        while s.seed == bad.seed:
            ctypes.PyDLL(None).pause()  # with the GIL
        return PASSED

    attempts(attempt)
    return bad


def test_a_case_that_never_ends_is_told(endless):
    report = fuzz(20, seed=1, jobs=2)
    assert (report.cases, report.failure.index, report.failure.verdict.kind) == (5, 5, "hang")
    assert report.failure.scenario == endless
    assert report.failure.shrunk != endless  # as far as the time allows
    assert report.failure.shrunk.seed == endless.seed
    assert "not done after 1 s" in report.failure.shrunk_verdict.text


def test_the_command_fails_if_a_case_never_ends(endless, capsys):
    assert main(["--cases", "20", "--seed", "1", "--jobs", "2"]) == 1
    printed = capsys.readouterr().out
    assert "FAILED: case 5: hang" in printed
    line = next(line for line in printed.splitlines() if line.startswith("replay: "))
    text = line.removeprefix("replay: python -m tests.fuzz --replay '").removesuffix("'")
    assert Scenario.from_text(text).seed == endless.seed


def test_a_process_that_ends_by_itself_is_a_crash_too(attempts):
    attempts(lambda s, plant=None: os._exit(3))
    assert "code 3" in fuzz(5, jobs=1).failure.verdict.text


def test_a_time_limit_ends_it():
    report = fuzz(10**9, seconds=5.0, jobs=2)
    assert report.seconds >= 5.0
    assert 0 < report.cases < 10**6
    assert report.failure is None


def test_a_deadlock_is_told_with_who_waits(attempts, monkeypatch):
    """One rank leaves out its last step of a full allreduce, and does not flush: nobody helps."""
    scenario = Scenario(
        ranks=3,
        seed=0,
        handles=(Options(count=6, policy=Quorum(3)), Options(count=6, policy=Quorum(3))),
        phases=(Phase((2,)),),
        opened=2,
    )
    from fuzz import scenario as programs

    original = programs.Program.step

    def step(self, order, hold):
        if self.rank == 1:  # the order of the handles is not the same everywhere
            for index in (1, 0):
                yield from self.start(index)
                yield from self.collect(index)
        else:
            yield from original(self, order, hold)

    monkeypatch.setattr(programs.Program, "step", step)
    verdict = fuzzer.attempt(scenario)
    while verdict.kind is None:  # only some timings deadlock
        scenario = dataclasses.replace(scenario, seed=scenario.seed + 1)
        verdict = fuzzer.attempt(scenario)
    assert verdict.kind == "deadlock in wait"
    assert "rank 1 in wait of handle" in verdict.text


def test_a_deadlock_in_a_barrier_is_told_as_that():
    text = "no rank can go on:\n  rank 3 in a barrier, with 3 of 4\n  rank 0 in wait of handle 1"
    assert fuzzer._kind(Deadlock(text)) == "deadlock in barrier, wait"


def test_active_ranks_are_counted_with_several_handles_too():
    """One round of theirs is changed, on all ranks: it leaves out one that was ready."""
    handles = (Options(count=8), Options(count=8))
    scenario = Scenario(ranks=4, seed=0, handles=handles, phases=(Phase((4,)),), ask=True)
    outcome = run(scenario)
    judge(scenario, outcome)
    results = [record for log in outcome.logs[0] for record in log.records]
    ready = collections.Counter(one.result.round for one in results if fresh(one))
    known = (one for one in results if one.result.active == ready[one.result.round])
    number = next(one.result.round for one in known if one.result.cause == "policy")
    for record in results:
        if record.result.round == number:
            record.result = dataclasses.replace(record.result, active=record.result.active - 1)
    with pytest.raises(AssertionError, match="ranks were ready"):
        judge(scenario, outcome)


def fresh(record):
    return record.kind == "wait" and record.at == record.result.round and record.result.included


@pytest.mark.parametrize(
    ("handle", "buffer", "words"),
    [
        (Options(count=6), "send", "the send buffer was written"),
        (Options(count=6), "recv", "the receive buffer was written"),
        (Options(count=6, in_place=True), "recv", "the receive buffer was written"),
        (PreduceOptions("random:2"), "recv", "the vector was written"),
    ],
)
def test_buffers_that_belong_to_the_application_are_looked_at(handle, buffer, words, monkeypatch):
    """They are changed while a rank works, as the library would with a late round."""
    scenario = Scenario(ranks=3, seed=0, handles=(handle,), phases=(Phase((3,)),))
    assert fuzzer.attempt(scenario).kind is None
    from fuzz import scenario as programs

    original = programs.Program.work

    def work(self):
        if self.rank == 1 and self.logs[0].starts == 1:
            getattr(self.handles[0], buffer)[-1] = 5
        return original(self)

    monkeypatch.setattr(programs.Program, "work", work)
    assert fuzzer.attempt(scenario).text.endswith(f"rank 1: {words}")


# ---- coverage ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def covered():
    return fuzz(1000, seed=11)


def test_no_random_case_fails(covered):
    assert covered.failure is None, covered.failure
    assert covered.cases == 1000


@pytest.mark.parametrize("name", COVERAGE)
def test_what_is_hard_to_get_right_occurs_in_every_hundredth_case(covered, name):
    assert covered.share(name) >= 0.01


def test_cases_have_twenty_rounds_on_average(covered):
    assert covered.rounds_per_case() >= 20
    assert covered.passed()


def test_too_little_coverage_is_no_success(covered):
    assert not covered.shortcomings()
    bare = dataclasses.replace(covered, coverage=covered.coverage | {"departures": 9})
    assert len(bare.shortcomings()) == 1
    assert "departure in mid-round" in bare.shortcomings()[0]
    assert not bare.passed()
    short = dataclasses.replace(covered, rounds=19 * 1000)
    assert not short.passed()
    few = dataclasses.replace(bare, cases=999, kinds={"rounds": 999})
    assert few.passed()


@pytest.fixture(scope="module")
def groups_covered():
    return fuzz(500, seed=11, what="groups")


def test_no_random_case_with_groups_fails(groups_covered):
    assert groups_covered.failure is None, groups_covered.failure
    assert groups_covered.passed(), groups_covered.shortcomings()
    assert groups_covered.kinds == {"groups": 500}


@pytest.mark.parametrize("name", COVERAGES["groups"])
def test_what_is_hard_with_groups_occurs_in_every_hundredth_case(groups_covered, name):
    assert groups_covered.share(name) >= 0.01


@pytest.fixture(scope="module")
def neighbours_covered():
    return fuzz(600, seed=11, what="neighbours")


def test_no_random_case_with_neighbours_fails(neighbours_covered):
    assert neighbours_covered.failure is None, neighbours_covered.failure
    assert neighbours_covered.passed(), neighbours_covered.shortcomings()
    assert neighbours_covered.kinds == {"neighbours": 600}


@pytest.mark.parametrize("name", COVERAGES["neighbours"])
def test_what_is_hard_with_neighbours_occurs_in_every_hundredth_case(neighbours_covered, name):
    assert neighbours_covered.share(name) >= 0.01


# ---- defects -------------------------------------------------------------------------------------


@pytest.mark.parametrize("plant", PLANTS)
def test_a_planted_defect_is_found(plant):
    """Within 10,000 cases; the shrunk case is small, fails, and passes without the defect."""
    what = WHAT_OF_PLANT[plant]
    cases = {"rounds": 10_000, "groups": 300, "neighbours": 3000}[what]
    failure = fuzz(cases, seed=2, plant=plant, what=what).failure
    assert failure is not None
    assert failure.shrunk.ranks <= 5
    again = Scenario.from_text(failure.shrunk.to_text())
    assert fuzzer.attempt(again, plant) == failure.shrunk_verdict
    assert fuzzer.attempt(again).kind is None
    assert fuzzer.attempt(failure.scenario).kind is None


# ---- the command ---------------------------------------------------------------------------------


def command(*words):
    environ = {n: v for n, v in os.environ.items() if not n.startswith(("OMPI_", "PMIX_", "PMI_"))}
    return subprocess.run(
        [sys.executable, "-m", "fuzz", *words],
        cwd=TESTS,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=environ,
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--cases 0", "--cases"),
        ("--jobs 0", "--jobs"),
        ("--plant none", "--plant"),
        ("--replay {} --json x.json", "not allowed"),
    ],
)
def test_usage_errors_of_the_command(words, message, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(words.split())
    assert message in capsys.readouterr().err


def test_the_command_prints_the_same_for_any_number_of_jobs(tmp_path):
    def run(jobs):
        path = tmp_path / f"{jobs}.json"
        done = command("--cases", "40", "--seed", "3", "--jobs", str(jobs), "--json", str(path))
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stderr == ""
        found = json.loads(path.read_text())
        assert found.pop("jobs") == jobs
        assert found.pop("seconds") > 0
        assert found.pop("command")
        assert found.pop("date")
        return done.stdout.splitlines(), found

    (one, found), (two, same) = run(1), run(2)
    assert one[:-1] == two[:-1]
    assert "cases/s" in one[-1]
    assert found == same
    assert (found["cases"], found["failure"]) == (40, None)
    assert one[0] == "40 cases passed (seed 3)"
    assert one[1].startswith(f"{found['rounds']} rounds and groups, ")
    assert found["kinds"]["rounds"] > found["kinds"]["groups"] > 0
    words = [words for names in COVERAGES.values() for words in names.values()]
    assert all(any(line.strip().startswith(word) for line in one) for word in words)


def test_the_command_replays_a_case():
    scenario = draw_scenario(0, 3)
    done = command("--replay", scenario.to_text())
    assert done.returncode == 0, done.stdout + done.stderr
    assert "All oracles hold." in done.stdout
    for rank in range(scenario.ranks):
        assert f"handle 0, rank {rank}: " in done.stdout
    done = command("--replay", '{"ranks":2}')
    assert done.returncode == 2
    assert "--replay: not a scenario" in done.stderr


HANDLE = '{"dtype":"float64","count":1}'


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[" * 100_000, "it is nested too deeply"),
        ('{"memory":' + "[" * 900 + "]" * 900 + "}", "nested too deeply|has memory"),
        (
            f'{{"ranks":1,"seed":0,"handles":[{HANDLE}],"phases":[{{"steps":[{2**31}]}}]}}',
            "steps 2147483648, not in 0..1000000",
        ),
        (
            f'{{"ranks":1,"seed":0,"handles":[{HANDLE}],"phases":[{{"steps":[]}}]}}',
            "a phase with the steps",
        ),
        ('{"ranks":' + "9" * 4000 + "}", "the scenario"),
        ('{"ranks":' + "9" * 5000 + "}", "integer"),
    ],
    ids=["unclosed", "nested", "steps", "no steps", "number", "long number"],
)
def test_scenarios_that_cannot_be_read_say_why(text, named):
    with pytest.raises(ValueError, match=named) as caught:
        Scenario.from_text(text)
    assert "\n" not in str(caught.value)


def test_the_command_finds_shrinks_and_replays_a_planted_defect():
    done = command("--cases", "10000", "--plant", "lost-start")
    assert done.returncode == 1, done.stdout + done.stderr
    line = next(line for line in done.stdout.splitlines() if line.startswith("replay: "))
    begin = "replay: python -m tests.fuzz --plant lost-start --replay '"
    assert line.startswith(begin)
    text = line.removeprefix(begin).removesuffix("'")
    again = command("--plant", "lost-start", "--replay", text)
    assert again.returncode == 1
    assert "FAILED: " in again.stdout
    assert command("--replay", text).returncode == 0
