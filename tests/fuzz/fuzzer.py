"""The fuzzer: random scenarios, judged by every oracle, in several processes.

Case `i` of a seed is always the same scenario, for any number of processes. The processes take the
cases in order from a common counter. Each announces a case before it runs it, so that a crash or a
hang is reported with the case that caused it. After the first failure all cases below it are still
run; the lowest failing case counts, is shrunk, and is reported.

The processes are forked and end without running exit handlers: they do not touch MPI, not even to
finalize it, whether or not the parent process uses it.
"""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import multiprocessing.connection
import os
import re
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pypartial._core_sim import lib
from pypartial._names import PLANT
from pypartial.sim.groups import PLANTS as GROUPS_PLANTS
from pypartial.sim.handle import CoreError
from pypartial.sim.world import Deadlock

from .draw import WHAT, draw_scenario
from .group_oracles import occurred
from .kinds import KINDS
from .oracles import judge
from .scenario import Scenario, run
from .shrink import shrink

__all__ = [
    "COVERAGE",
    "Failure",
    "PLANTS",
    "WHAT_OF_PLANT",
    "Report",
    "Verdict",
    "attempt",
    "draw_scenario",
    "fuzz",
    "usable_cores",
]

COVERAGE = {
    "initiators_met": "simultaneous initiators",
    "departures": "departure in mid-round",
    "missed": "two or more missed rounds",
    "windows_full": "a full window",
    "draws_handed_on": "a draw handed on",
    "interruptions": "interruptions in shared memory",
    "crossings": "nodes that share memory",
    "landings": "results put in place early",
    "graces_met": "a round that waited until all were there",
    "graces_over": "a round that waited until its time was over",
    "merges": "a Start added to one that was pending",
    "merges_away": "a Start added while the round was between nodes",
    "announced": "a round announced by a rank that does not lead it",
    "asides": "a handle left by patience",
    "deadlines": "a deadline that was over",
    "timeouts": "a Wait that timed out",
    "more": "More that gave a round",
    "patience": "limited patience",
    "barriers": "barriers of the program's own",
    "away": "away()",
    "apart": "ranks away for different times",
    "stepped": "a blocking call that the library sees",
    "polling": "polling",
    "only": "phases over several handles",
    "threads": "interleaved threads",
    "contexts": "two contexts",
    "unequal": "unequal numbers of calls",
    "graces": "a grace that was asked for",
    "first_of": "FirstOf(m), 1 < m < P",
    "fenced": "memory that only its own table reaches",
}
GROUPS_COVERAGE = {
    "chains": "a request that ran several groups",
    "at_once": "groups of different ranks at once",
    "alone": "a rank that was alone",
    "shrunk": "a group that has lost members",
    "dropped": "a request that a collective call dropped",
    "averaged": "a flush of groups",
    "in_memory": "groups in memory that all ranks share",
    "by_messages": "groups by messages",
    "chunks": "groups averaged in chunks",
    "dynamic": "weights by iteration",
    "given": "groups that the callers give",
    "renamed": "groups that the callers give, others at each step, on several handles",
    "table": "groups of a table",
    "two": "two handles with groups",
    "beside": "groups beside an allreduce",
    "left": "ranks that wait elsewhere for long",
    "groups_away": "groups while ranks are away",
    "groups_timeouts": "a Wait for a group that timed out",
    "groups_polling": "groups and polling",
    "groups_patience": "groups that only patience keeps alive",
    "groups_contexts": "groups in two contexts, and polling",
}
NEIGHBOURS_COVERAGE = {
    name: text for kind in KINDS.values() for name, text in kind.coverage.items()
}
# By what is in a case.
COVERAGES = {"rounds": COVERAGE, "groups": GROUPS_COVERAGE, "neighbours": NEIGHBOURS_COVERAGE}
_KIND_OF = {name: kind for kind, names in COVERAGES.items() for name in names}
LEAST_COVERAGE = 0.01  # least share of the cases in which each must occur
LEAST_ROUNDS = 20  # a case, on average
CASES_FOR_COVERAGE = 1000  # the shares of fewer cases say nothing

# Defects to put into the engine, or into the generators of groups, on purpose, to see that the
# fuzzer finds them.
PLANTS: dict[str, dict[str, Any]] = {
    **{name: {"plant": PLANT.constant(lib, name)} for name in PLANT if name is not None},
    **{name: {"groups_plant": name} for name in GROUPS_PLANTS if name != "none"},
}
# By the name of a defect, what cases have it.
WHAT_OF_PLANT = {name: "groups" if "groups_plant" in PLANTS[name] else "rounds" for name in PLANTS}
for _plants in (kind.plants for kind in KINDS.values()):
    PLANTS |= _plants
    WHAT_OF_PLANT |= dict.fromkeys(_plants, "neighbours")

# A case that takes longer hangs: the largest ones take a second. For smaller cases a shorter limit
# would do; but shrinking a hanging case waits for the limit at each step, so it makes few steps.
CASE_LIMIT_S, SMALLER_LIMIT_S, SHRINKING_LIMIT_S = 60.0, 10.0, 180.0

_FORK = multiprocessing.get_context("fork")


# ---- one case ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Verdict:
    """The result of one case.

    Attributes
    ----------
    rounds : int
    seen : tuple of bool
        Whether each of the names in `COVERAGES` occurred, in their order.
    what : str
        "neighbours" if the case has a handle of `KINDS`, "groups" if it has one of P-Reduce.
    kind : str or None
        The sort of failure, equal for failures of one sort; None if the case passed.
    text : str
        The full text of a failure.
    """

    rounds: int = 0
    seen: tuple[bool, ...] = (False,) * len(COVERAGE)
    what: str = "rounds"
    kind: str | None = None
    text: str = ""


def attempt(scenario: Scenario, plant: str | None = None) -> Verdict:
    """Run and judge a scenario in this process.

    Parameters
    ----------
    scenario : Scenario
    plant : str, optional
        One of `PLANTS`: a defect to put into the engine.
    """
    try:
        outcome = run(scenario, **(PLANTS[plant] if plant else {}))
        judge(scenario, outcome)
    except Exception as error:
        return Verdict(kind=_kind(error), text=_text(error))
    if scenario.with_neighbours:
        found = dict.fromkeys(NEIGHBOURS_COVERAGE, False)
        for index, options in enumerate(scenario.handles):
            kind = KINDS.get(type(options))
            if kind and any(log.starts for log in outcome.logs[index]):
                for name, has in kind.occurred(scenario, index, outcome).items():
                    found[name] |= has
        return Verdict(outcome.rounds, tuple(found.values()), "neighbours")
    if scenario.groups:
        found = occurred(scenario, outcome)
        seen = tuple(found[name] for name in GROUPS_COVERAGE)
        return Verdict(outcome.rounds, seen, "groups")
    counts = outcome.coverage | scenario.features()
    counts |= {"missed": int(outcome.most_missed() >= 2), "more": outcome.count("more")}
    counts["timeouts"] = outcome.timeouts()
    return Verdict(outcome.rounds, tuple(counts[name] > 0 for name in COVERAGE))


def _kind(error: Exception) -> str:
    """Return what failures of one sort share: the first line, without numbers."""
    if isinstance(error, Deadlock):
        waiting = sorted(set(re.findall(r"^ *rank \d+ in (?:a )?(\w+)", str(error), re.MULTILINE)))
        return f"deadlock in {', '.join(waiting)}"
    line = (error.text if isinstance(error, CoreError) else str(error)).partition("\n")[0]
    line = re.sub(r"^(handle \d+: |rank \d+: )*", "", line)
    if not line:
        line = f"in {traceback.extract_tb(error.__traceback__)[-1].name}"
    words = re.sub(r"-?\d+", "N", line)
    return words if isinstance(error, AssertionError) else f"{type(error).__name__}: {words}"


def _text(error: Exception) -> str:
    if isinstance(error, AssertionError) and str(error):
        return str(error)
    return "".join(traceback.format_exception(error)).rstrip()


# ---- processes -----------------------------------------------------------------------------------

_Announce = Callable[[int], None]
_Cases = Callable[[_Announce], Iterator[tuple[int, Verdict]]]


class _Worker:
    """A forked process that runs cases, seen from its parent."""

    def __init__(self, cases: _Cases, limit_s: float) -> None:
        self.limit_s = limit_s  # of a case
        self.receiver, sender = _FORK.Pipe(duplex=False)
        self.current = _FORK.RawValue("q", -1)  # the case that it runs; -1: none
        self.process = _FORK.Process(
            target=_work, args=(cases, self.current, self.receiver, sender), daemon=True
        )
        self.process.start()
        sender.close()  # only the child holds this end: its death ends the pipe
        self.watched = (-1, time.monotonic())  # the case it runs, and since when
        self.stopped = False

    def receive(self) -> tuple[int, Verdict] | None:
        """Return the next verdict, also that on a crash; None if there are no more."""
        try:
            message: tuple[int, Verdict] | None = self.receiver.recv()
        except (EOFError, ConnectionResetError):
            return self.died()
        return message

    def died(self) -> tuple[int, Verdict]:
        """Return the case in which the process ended without a verdict, and how it ended."""
        self.process.join()
        index, code = int(self.current.value), self.process.exitcode
        self.stop()
        assert code is not None
        how = f"the process ended with code {code}"
        if code < 0:
            how = f"the process was ended by {signal.Signals(-code).name}"
        if index < 0:
            raise RuntimeError(f"between two cases {how}")
        return index, Verdict(kind=f"crash: {how}", text=f"crash: {how}")

    def hangs(self) -> bool:
        """Return whether the process has run the same case for too long."""
        if self.watched[0] != self.current.value:
            self.watched = (int(self.current.value), time.monotonic())
        return self.watched[0] >= 0 and time.monotonic() - self.watched[1] > self.limit_s

    def hung(self) -> tuple[int, Verdict]:
        """Give it up."""
        index = int(self.current.value)
        self.stop()
        return index, Verdict(kind="hang", text=f"hang: not done after {self.limit_s:.0f} s")

    def stop(self) -> None:
        """End the process if it is alive."""
        if not self.stopped:
            self.stopped = True
            self.process.kill()
            self.process.join()
            self.receiver.close()


def _work(cases: _Cases, current: Any, receiver: Any, sender: Any) -> None:
    """Run cases until there are no more: the body of a worker process."""
    receiver.close()  # else it would not notice the end of the parent
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends its children
    # ... unless it is ended itself while a case hangs, which does not notice the closed pipe.
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    gc.freeze()

    def announce(index: int) -> None:
        current.value = index

    try:
        for index, verdict in cases(announce):
            sender.send((index, verdict))
            current.value = -1
        sender.send(None)
    except BrokenPipeError:
        pass


def _verdicts(workers: Sequence[_Worker]) -> Iterator[tuple[int, Verdict]]:
    """Yield the verdicts of all cases, also those on crashed and hanging processes."""
    running = list(workers)
    try:
        while running:
            receivers = [worker.receiver for worker in running]
            ready = multiprocessing.connection.wait(receivers, timeout=1.0)
            for worker in running[:]:
                if worker.receiver in ready:
                    verdict = worker.receive()
                elif worker.hangs():
                    verdict = worker.hung()
                else:
                    continue
                if verdict is not None:
                    yield verdict
                if verdict is None or worker.stopped:
                    running.remove(worker)
    finally:
        for worker in workers:
            worker.stop()


# ---- all cases -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Failure:
    """A case that failed.

    Attributes
    ----------
    index : int
        The number of the case.
    scenario : Scenario
        The scenario as it was drawn.
    verdict : Verdict
    shrunk : Scenario
        The smallest scenario found that fails in the same way.
    shrunk_verdict : Verdict
    """

    index: int
    scenario: Scenario
    verdict: Verdict
    shrunk: Scenario
    shrunk_verdict: Verdict


@dataclass(frozen=True)
class Report:
    """The results of a run of the fuzzer; only `seconds` and `jobs` depend on the machine.

    Attributes
    ----------
    seed : int
    plant : str or None
    cases : int
        Number of cases that passed.
    rounds : int
        Number of rounds and groups in all of them.
    coverage : dict
        For each of the names in `COVERAGES`, of the kinds that were drawn, the number of cases in
        which it occurred.
    kinds : dict
        For each kind that was drawn the number of its cases that passed.
    failure : Failure or None
    seconds : float
        Duration without the shrinking.
    jobs : int
    """

    seed: int
    plant: str | None
    cases: int
    rounds: int
    coverage: dict[str, int]
    kinds: dict[str, int]
    failure: Failure | None
    seconds: float
    jobs: int

    def rounds_per_case(self) -> float:
        """Return the mean number of rounds of a case."""
        return self.rounds / max(self.cases, 1)

    def share(self, name: str) -> float:
        """Return the share of the cases of its kind in which one of `COVERAGES` occurred."""
        return self.coverage[name] / max(self.kinds[_KIND_OF[name]], 1)

    def shortcomings(self) -> list[str]:
        """Return what the cases did not cover enough; nothing if there were few cases."""
        found = [
            f"{words}: in fewer than {LEAST_COVERAGE:.0%} of the cases"
            for kind, cases in self.kinds.items()
            for name, words in COVERAGES[kind].items()
            if cases >= CASES_FOR_COVERAGE and self.share(name) < LEAST_COVERAGE
        ]
        if self.cases >= CASES_FOR_COVERAGE and self.rounds_per_case() < LEAST_ROUNDS:
            found.append(f"fewer than {LEAST_ROUNDS} rounds a case on average")
        return found

    def passed(self) -> bool:
        """Return whether no case failed and the cases covered enough."""
        return self.failure is None and not self.shortcomings()

    def as_dict(self) -> dict[str, Any]:
        """Return the report for JSON."""
        failure = self.failure
        return {
            "seed": self.seed,
            "plant": self.plant,
            "cases": self.cases,
            "rounds": self.rounds,
            "coverage": self.coverage,
            "kinds": self.kinds,
            "shortcomings": self.shortcomings(),
            "failure": None
            if failure is None
            else {
                "case": failure.index,
                "kind": failure.verdict.kind,
                "text": failure.verdict.text,
                "scenario": failure.scenario.to_text(),
                "shrunk": failure.shrunk.to_text(),
                "shrunk_text": failure.shrunk_verdict.text,
            },
            "seconds": round(self.seconds, 3),
            "jobs": self.jobs,
        }


class _Tally:
    """Sums over all cases below the first one that failed or has no verdict yet."""

    def __init__(self) -> None:
        self.cases = self.rounds = 0
        self.kinds = dict.fromkeys(COVERAGES, 0)
        self.seen = dict.fromkeys(_KIND_OF, 0)
        self.waiting: dict[int, Verdict] = {}

    def add(self, index: int, verdict: Verdict) -> None:
        self.waiting[index] = verdict
        while self.cases in self.waiting and self.waiting[self.cases].kind is None:
            passed = self.waiting.pop(self.cases)
            self.cases += 1
            self.rounds += passed.rounds
            self.kinds[passed.what] += 1
            for name, seen in zip(COVERAGES[passed.what], passed.seen, strict=True):
                self.seen[name] += seen


def fuzz(
    cases: int,
    seed: int = 0,
    *,
    seconds: float | None = None,
    jobs: int | None = None,
    plant: str | None = None,
    what: str = "rounds",
    progress: Callable[[int], None] | None = None,
) -> Report:
    """Run random cases until one fails.

    Parameters
    ----------
    cases : int
        Number of cases to run at most.
    seed : int
        Seed of the cases.
    seconds : float, optional
        Begin no case after this time. The number of cases then depends on the machine's speed.
    jobs : int, optional
        Number of processes; by default one for each core that this process may use.
    plant : str, optional
        One of `PLANTS`.
    what : str
        Which cases to draw: see `draw_scenario`.
    progress : callable, optional
        Called with the number of cases that have passed, whenever it has grown.

    Returns
    -------
    Report
        The same for any number of jobs.
    """
    began = time.monotonic()
    assert what in WHAT, what
    deadline = float("inf") if seconds is None else began + seconds
    jobs = max(1, min(jobs or usable_cores(), cases))
    next_case, end = _FORK.Value("q", 0), _FORK.RawValue("q", cases)

    def take() -> int | None:
        with next_case.get_lock():
            index = int(next_case.value)
            if index >= end.value or time.monotonic() >= deadline:
                return None
            next_case.value = index + 1
        return index

    def work(announce: _Announce) -> Iterator[tuple[int, Verdict]]:
        while (index := take()) is not None:
            scenario = draw_scenario(seed, index, what)
            announce(index)
            yield index, attempt(scenario, plant)

    tally, failed = _Tally(), {}
    for index, verdict in _verdicts([_Worker(work, CASE_LIMIT_S) for _ in range(jobs)]):
        tally.add(index, verdict)
        if verdict.kind is not None:
            failed[index] = verdict
            end.value = min(int(end.value), index)  # the cases before it are still run
        elif progress is not None:
            progress(tally.cases)
    elapsed = time.monotonic() - began
    failure = None
    if failed:
        first = min(failed)
        failure = _shrunk(first, draw_scenario(seed, first, what), failed[first], plant)
    kinds = {kind: n for kind, n in tally.kinds.items() if what in ("all", kind)}
    coverage = {name: tally.seen[name] for kind in kinds for name in COVERAGES[kind]}
    return Report(seed, plant, tally.cases, tally.rounds, coverage, kinds, failure, elapsed, jobs)


def usable_cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _shrunk(index: int, scenario: Scenario, verdict: Verdict, plant: str | None) -> Failure:
    """Shrink a failing case; each attempt runs in a process that may crash or hang."""
    latest, until = verdict, float("inf")
    if verdict.kind == "hang":
        until = time.monotonic() + SHRINKING_LIMIT_S

    def find(scenarios: Sequence[Scenario]) -> int | None:
        nonlocal latest
        begin = 0
        while begin < len(scenarios) and time.monotonic() < until:
            begin, found = _first_failing(scenarios, begin, verdict.kind, plant)
            if found is not None:
                latest = found
                return begin
            begin += 1
        return None

    return Failure(index, scenario, verdict, shrink(scenario, find), latest)


def _first_failing(
    scenarios: Sequence[Scenario], begin: int, kind: str | None, plant: str | None
) -> tuple[int, Verdict | None]:
    """Run scenarios up to the first that fails in this way, or that ends the process in another.

    Returns
    -------
    index : int
        The last scenario that was run.
    verdict : Verdict or None
        Its verdict if it failed in this way, else None.
    """

    def work(announce: _Announce) -> Iterator[tuple[int, Verdict]]:
        for index in range(begin, len(scenarios)):
            announce(index)
            verdict = attempt(scenarios[index], plant)
            if verdict.kind == kind or index == len(scenarios) - 1:
                yield index, verdict
                return

    index, verdict = next(iter(_verdicts([_Worker(work, min(SMALLER_LIMIT_S, CASE_LIMIT_S))])))
    return index, verdict if verdict.kind == kind else None
