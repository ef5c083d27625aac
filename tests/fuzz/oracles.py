"""The oracles: what the logs of all ranks must look like (contract: "Oracles", "Semantics").

The vector of a round names how often each rank contributed, and the sum of the numbers of those
contributions. Contributions are numbered from 1, so consecutive rounds must hold consecutive
intervals: a contribution that is lost, taken twice or reordered leaves a number that does not fit.

What is known is kept as *boundaries*: after[b][r] is the number of rank r's contributions in the
rounds below b. A result that covers the rounds first..round leads from boundary first to boundary
round + 1. With deliver="latest" it can happen that no rank is given some round, because every rank
that could have looked was inside a Flush; -1 stands for what is unknown then.

All vectors of a handle are decoded at once, into lists of plain integers, which are faster than
arrays for so few ranks.
"""

from __future__ import annotations

import itertools
import operator
from typing import Any, NoReturn

import numpy as np

from pypartial._core_sim import lib
from pypartial._names import CAUSE
from pypartial.sim.allreduce_handle import Options, Round

from .group_oracles import judge_groups
from .kinds import KINDS
from .scenario import Log, Outcome, Record, Scenario, run, tail_weights

__all__ = ["check", "judge", "replay_command"]

_UNKNOWN = -1
_WITHOUT_START = ("extra", "more")
_LEAST_PATIENCE_NS = 1_000_000_000  # of "auto"
_STATUS = operator.attrgetter("contributions", "active", "cause", "initiator", "contributors")

Array = np.ndarray[Any, Any]


def _is_for(record: Record, number: int) -> bool:
    """Return whether a request may have been outstanding when this round was made."""
    r = record.result
    return record.at == number or r.first <= number <= r.round


def _fail(what: str, *things: Any) -> NoReturn:
    raise AssertionError("\n  ".join([what, *map(str, things)]))


def replay_command(scenario: Scenario, plant: str | None = None) -> str:
    """Return the shell command that runs the scenario again."""
    planted = f"--plant {plant} " if plant else ""
    return f"python -m tests.fuzz {planted}--replay '{scenario.to_text()}'"


def check(scenario: Scenario) -> Outcome:
    """Run a scenario and judge it.

    Raises
    ------
    AssertionError
        If an oracle does not hold, with the command that replays the scenario.
    """
    try:
        outcome = run(scenario)
        judge(scenario, outcome)
    except Exception as error:
        raise AssertionError(f"{error}\n\nreplay: {replay_command(scenario)}") from error
    return outcome


def judge(scenario: Scenario, outcome: Outcome) -> None:
    """Check the logs of all handles and ranks by every oracle.

    Raises
    ------
    AssertionError
        For the first oracle that does not hold. The first line names handle, rank and oracle; the
        others show what was seen.
    """
    for index, options in enumerate(scenario.handles):
        logs = outcome.logs[index]
        if any(log.starts or log.records for log in logs):
            try:
                if isinstance(options, Options):
                    _Handle(scenario, options, logs).judge()
                elif kind := KINDS.get(type(options)):
                    kind.judge(scenario, index, logs, outcome.begun[index])
                else:
                    judge_groups(scenario, index, logs, outcome.begun[index])
            except AssertionError as error:
                raise AssertionError(f"handle {index}: {error}") from error


class _Handle:
    """The logs of one handle on all ranks."""

    def __init__(self, scenario: Scenario, options: Options, logs: list[Log]) -> None:
        self.scenario, self.options, self.logs = scenario, options, logs
        self.ranks = scenario.ranks
        self.trigger = options.policy.trigger(scenario.ranks)
        self.draws = options.policy.drawn(scenario.ranks) > 0
        self.needed = options.policy.needed(scenario.ranks)
        self.sums = options.op == "sum"
        self.counted = options.count >= self.ranks
        self.numbered = options.count >= 2 * self.ranks or not self.sums
        self.rounds: dict[int, Round] = {}  # by number, the status of some rank
        self.spans: list[Round] = []  # each different result once, in order
        self.after: dict[int, list[int]] = {0: [0] * self.ranks}

    def judge(self) -> None:
        self.agreement()
        for result in self.rounds.values():
            self.status(result)
        self.attendance()
        self.deadlines()
        if self.counted:
            if not self.decodable():
                self.spans = [r for r in self.spans if r.first == r.round]
            if self.spans:
                self.tiling()
            self.flushes()
            self.ends()
        for rank, log in enumerate(self.logs):
            try:
                self.order(log)
                self.requests(log)
                self.own(rank, log)
                self.operations(log)
            except AssertionError as error:
                raise AssertionError(f"rank {rank}: {error}") from error

    # ---- what must be identical on all ranks

    def agreement(self) -> None:
        """Agreement: status and result of a round are identical on every rank."""
        spans: dict[tuple[int, int], Round] = {}
        different = []  # float sums of the same rounds, combined in different orders
        exact = self.options.dtype.startswith("int")
        for log in self.logs:
            for record in log.records:
                result = record.result
                known = self.rounds.setdefault(result.round, result)
                if known is not result and _STATUS(known) != _STATUS(result):
                    _fail("different statuses", known, result)
                known = spans.setdefault((result.first, result.round), result)
                if known.data == result.data:
                    continue
                if result.first == result.round:
                    _fail("different results", known, result)
                if exact:
                    _fail("different sums", known, result)
                different.append(result)
        self.spans = sorted([*spans.values(), *different], key=lambda r: (r.first, r.round))

    def status(self, r: Round) -> None:
        """Check that the status of a round is possible."""
        options, flush = self.options, r.cause == "flush"
        if not (r.contributions > 0 or flush):
            _fail("an empty round before the flush", r)
        if not (r.active > 0 or flush):
            _fail("no rank was ready for a round", r)
        if r.cause not in CAUSE or (r.cause == "deadline" and options.policy.deadline_ns == 0):
            _fail("an impossible cause", r)
        drawn = self.draws and not flush
        if (r.initiator >= 0) != drawn:
            _fail("wrong presence of an initiator", r)
        if r.contributors is not None:
            if r.active > len(r.contributors):
                _fail("an active rank without data", r)
            if len(r.contributors) > r.contributions:
                _fail("too few contributions", r)
            if drawn and r.initiator not in r.contributors:
                _fail("initiator without data", r)
        if self.needed and not flush:
            enough = r.active >= self.needed
            # If a rank that withheld its part has stepped aside, enough ranks may be ready.
            leaves = self.scenario.patience != 0 or self.scenario.steps_aside()
            lifted = leaves and options.max_lag >= 0
            wrong = r.cause == "departed" and enough and not lifted
            if wrong or (r.cause == "policy" and not enough):
                _fail("quorum and cause do not fit", r)
            if self.needed == self.ranks and r.cause == "policy" and r.active != self.ranks:
                _fail("a full round without everybody", r)

    # ---- which ranks were ready

    def attendance(self) -> None:
        """Check which ranks were ready for a round, which had left, and which triggered it.

        A rank whose own Start is on time for a round, and enters it, is ready for it. With one
        handle whose requests are collected before the next collective call no other rank is, and a
        rank has left exactly inside its collective calls.
        """
        scenario = self.scenario
        knows_all = len(scenario.handles) == 1 and not any(phase.hold for phase in scenario.phases)
        ready: dict[int, dict[int, Record]] = {number: {} for number in self.rounds}
        passed = dict.fromkeys(self.rounds, 0)  # ranks that were given a newer round instead
        given: dict[int, int] = {}  # when a rank was first given the round
        for rank, log in enumerate(self.logs):
            newest = -1
            for record in log.records:
                r = record.result
                given[r.round] = min(given.get(r.round, record.ended), record.ended)
                # A late request, whose result was overwritten, may be given the round after it.
                late = record.at is not None and record.at > newest + 1
                newest = r.round
                if record.kind == "wait" and record.at == r.round and r.included and not late:
                    ready[r.round][rank] = record
                elif record.kind == "wait" and record.at in passed and record.at < r.round:
                    passed[record.at] += 1
        for number, r in sorted(self.rounds.items()):
            if r.cause == "flush":
                continue
            most = len(ready[number]) + passed[number] if knows_all else self.ranks
            if not len(ready[number]) <= r.active <= most:
                _fail(f"{len(ready[number])} ranks were ready", r, sorted(ready[number]))
            if not knows_all:
                continue
            few = r.active < self.needed  # else patience has lifted some rank's max_lag
            if r.cause == "departed" and few:
                began = max((x.begun for x in ready.get(number - 1, {}).values()), default=0)
                self.departed(r, ready[number], began, given[number])
            if self.trigger.kind == "first_of":
                self.drawn(r, given)

    def departed(self, r: Round, ready: dict[int, Record], began: int, ended: int) -> None:
        """Check that all other ranks had left where fewer than k were enough."""
        for rank, log in enumerate(self.logs):
            absences = self.absences(log)
            left = any(begin <= ended and end >= began for begin, end in absences)
            if rank not in ready and not left:
                _fail(f"fewer than {self.trigger.ranks}, and rank {rank} had not left", r)

    def drawn(self, r: Round, given: dict[int, int]) -> None:
        """Check that, while no rank has left, a drawn rank triggers and no draw is handed on."""
        if r.cause == "deadline":
            return
        first_left = min((a for log in self.logs for a, _ in self.absences(log)), default=None)
        order = [
            lib.pp_sim_drawn(self.scenario.seed, 1, r.round, self.ranks, place)
            for place in range(self.trigger.ranks)
        ]
        if r.initiator in order and r.cause == "policy":
            return
        if first_left is None or first_left > given[r.round]:
            _fail("no rank had left, and the initiator was not drawn", r, order)
        in_order = r.round == 0 or first_left > given.get(r.round - 1, -1)
        if in_order and r.cause == "policy":
            _fail("the cause of a draw handed on is not 'policy'", r, order)

    def deadlines(self) -> None:
        """Check that some rank had waited for its deadline where that is the cause."""
        if any(phase.hold for phase in self.scenario.phases):
            return  # requests outstanding in a Flush are not in the logs
        for number, r in self.rounds.items():
            if r.cause != "deadline":
                continue
            records = [x for log in self.logs for x in log.records if x.kind == "wait"]
            due = [x.begun + self.options.policy.deadline_ns for x in records if _is_for(x, number)]
            given = min(
                x.ended
                for log in self.logs
                for x in log.records
                if x.result.first <= number <= x.result.round
            )
            if not due or min(due) > given:
                _fail("a deadline that no rank had waited for", r, due, given)

    def absences(self, log: Log) -> list[tuple[int, float]]:
        """Return the longest spans of time in which the rank may have left, for any reason."""
        patience = self.scenario.patience
        if patience == 0:
            return [*log.away]
        if patience < 0:
            patience = _LEAST_PATIENCE_NS
        starts = [0, *log.started, float("inf")]
        gaps = [(int(a) + patience, b) for a, b in itertools.pairwise(starts)]
        return [*log.away, *(gap for gap in gaps if gap[0] <= gap[1])]

    # ---- what is in the rounds

    def decodable(self) -> bool:
        """Return whether sums of several rounds can be decoded: not if each has its own divisor."""
        return self.options.average in (None, "size") or self.options.deliver != "sum"

    def decode(self) -> Array:
        """Return the vectors of all spans, one row each, as whole numbers, before any average."""
        data = b"".join([r.data for r in self.spans])
        vectors: Array = np.frombuffer(data, self.options.dtype).reshape(len(self.spans), -1)
        if self.scenario.noise:
            vectors = vectors[:, : 2 * self.ranks]
        if not self.sums:  # the identity of a maximum is not a number
            vectors = np.maximum(vectors, 0)
        if self.options.average is not None:
            divisors = np.array([[max(self.divisor(r), 1)] for r in self.spans])
            vectors = vectors.astype(np.float64) * divisors
        elif self.options.dtype.startswith("int"):
            return vectors
        whole: Array = np.rint(vectors)
        allowed = 0.0 if self.options.average is None else 1e-3 + 1e-5 * np.abs(whole)
        good = (np.abs(vectors - whole) <= allowed).all(axis=1)
        if not good.all():
            row = int(np.argmin(good))
            _fail("no whole numbers, or a wrong average", self.spans[row], vectors[row])
        return whole

    def divisor(self, result: Round) -> int:
        if self.options.average == "size":
            return self.ranks
        if self.options.average == "contributors":
            return len(result.contributors or ())
        return result.contributions

    def tiling(self) -> None:
        """Check named contributors and conservation, from span to span."""
        vectors = self.decode()
        heads = vectors[:, : self.ranks].astype(np.int64)
        if self.sums and (heads < 0).any():
            _fail("a negative count", self.spans[int((heads < 0).any(axis=1).argmax())])
        starts: list[Any] = [None] * len(self.spans)
        if self.sums and self.numbered:
            starts = self.intervals(heads, vectors).tolist()
        for result, head, start in zip(self.spans, heads.tolist(), starts, strict=True):
            before = self.after.get(result.first) or [_UNKNOWN] * self.ranks
            if self.sums:
                after = self.lead(before, head, start, result)
                counts = head
            else:
                after = self.lead_newest(before, head, result)
                counts = [b - a for a, b in zip(before, after, strict=True)]
                if _UNKNOWN in before:
                    counts = None
            self.learn(result, after)
            if result.first == result.round:
                self.named(result, head, counts)
        self.tails(vectors, heads)
        self.growth()

    def intervals(self, heads: Array, vectors: Array) -> Array:
        """Return how many contributions of each rank came before a span, by the sum of numbers."""
        numbers = vectors[:, self.ranks : 2 * self.ranks].astype(np.int64)
        offset = numbers - heads * (heads + 1) // 2
        counts = np.maximum(heads, 1)
        good = (offset % counts == 0) & (offset >= 0) & ((heads > 0) | (numbers == 0))
        if not good.all():
            row = int(np.argmin(good.all(axis=1)))
            _fail("not an interval of contributions", self.spans[row], heads[row], numbers[row])
        before: Array = offset // counts
        return before

    def lead(
        self, before: list[int], head: list[int], start: list[int] | None, result: Round
    ) -> list[int]:
        """Return the next boundary, from the one before a span."""
        if start is not None:
            parts = list(zip(before, head, start, strict=True))
            if any(h and b not in (s, _UNKNOWN) for b, h, s in parts):
                _fail("lost or repeated contributions", result, before, start, head)
            return [s + h if h else b for b, h, s in parts]
        return [_UNKNOWN if b == _UNKNOWN else b + h for b, h in zip(before, head, strict=True)]

    def lead_newest(self, before: list[int], head: list[int], result: Round) -> list[int]:
        """Return the next boundary for maxima, which hold each rank's newest contribution."""
        if any(0 < h <= b for b, h in zip(before, head, strict=True)):
            _fail("a contribution twice", result, before, head)
        return [h if h > 0 else b for b, h in zip(before, head, strict=True)]

    def learn(self, result: Round, after: list[int]) -> None:
        """Compare a boundary with what is known of it, and add what was unknown."""
        known = self.after.setdefault(result.round + 1, after)
        if known is after or known == after:
            return
        for rank, (old, new) in enumerate(zip(known, after, strict=True)):
            if old == _UNKNOWN:
                known[rank] = new
            elif new not in (old, _UNKNOWN):
                _fail("ranks were given different sums", known, after, result)

    def named(self, result: Round, head: list[int], counts: list[int] | None) -> None:
        if result.contributors is not None:
            named = tuple([rank for rank, h in enumerate(head) if h > 0])
            if named != result.contributors:
                _fail("wrong contributors", result, head)
        if counts is not None and sum(counts) != result.contributions:
            _fail("wrong contributions", result, counts)

    def tails(self, vectors: Array, heads: Array) -> None:
        length = vectors.shape[1] - 2 * self.ranks
        if length <= 0 or self.scenario.noise or not self.sums:
            return
        expected = heads @ tail_weights(self.ranks, length)
        good = (vectors[:, 2 * self.ranks :] == expected).all(axis=1)
        if not good.all():
            _fail("the sum has wrong elements", self.spans[int(np.argmin(good))])

    def growth(self) -> None:
        """Check that boundaries never fall."""
        previous = [0] * self.ranks
        for boundary in sorted(self.after):
            after = self.after[boundary]
            if any(a < p and a != _UNKNOWN for a, p in zip(after, previous, strict=True)):
                _fail("contributions came twice", boundary, previous, after)
            previous = list(map(max, previous, after))

    def flushes(self) -> None:
        """Check that a flush leaves nothing pending anywhere."""
        for rank, log in enumerate(self.logs):
            for record in log.records:
                if record.result.cause != "flush":
                    continue
                known = self.after.get(record.result.round + 1)
                after = known[rank] if known else _UNKNOWN
                if after not in (record.start, _UNKNOWN):
                    _fail(
                        f"{record.start} Starts of rank {rank} before a flush, {after} in the "
                        "rounds",
                        record,
                    )

    def ends(self) -> None:
        """Check conservation up to Free: contributions in no round were discarded."""
        if self.rounds and max(self.after) <= max(self.rounds):
            return  # the last rounds were given in a sum that cannot be decoded
        last = self.after[max(self.after)]
        held = any(log.unfinished for log in self.logs)
        for rank, log in enumerate(self.logs):
            missing = log.starts - (log.discarded or 0) - last[rank]
            # Requests that were not collected before Free are not in the logs.
            good = missing >= 0 if held else missing == 0
            if not good and last[rank] != _UNKNOWN:
                _fail(
                    f"rank {rank}: {log.starts} Starts, {last[rank]} in rounds that were given, "
                    f"{log.discarded} discarded"
                )

    # ---- the results of one rank, in order

    def order(self, log: Log) -> None:
        """Check delivery: no round twice; with "sum" and "each", no round left out."""
        newest, deliver = -1, self.options.deliver
        for record in log.records:
            r = record.result
            if r.round <= newest:
                _fail("an old round", record)
            if deliver != "latest" and r.first != newest + 1:
                _fail("rounds are left out or repeated", record)
            if deliver != "sum" and r.first != r.round:
                _fail("several rounds at once", record)
            newest = r.round
            if r.cause == "flush" and record.kind not in ("flush", "drain"):
                _fail("a Wait gave a flush", record)

    def requests(self, log: Log) -> None:
        """Check late and on-time requests, their rounds, and `missed` and its bound."""
        options, given = self.options, -1
        done: int | None = 0  # rounds complete when the previous request was
        calls = 0  # collective calls begun by then
        previous = 0  # when it was made
        ahead = 0  # the most rounds in flight that counted as given then
        refused = dict(log.refused)
        leaves = self.scenario.patience or self.scenario.steps_aside()
        absences = self.absences(log) if leaves else []
        for number, record in enumerate(log.records):
            r, at = record.result, record.at
            if at is not None and refused.get(number, given + 1) != given + 1:
                _fail("a Wait refused a result", given, record)
            if record.kind == "wait" and 0 <= options.max_lag < r.missed:
                _fail("above max_lag", record)
            if at is not None and record.kind in ("wait", *_WITHOUT_START):
                late = at > given + 1
                expected = given + 1 if options.deliver == "each" else at - 1 if late else at
                # An overwritten result in shared memory is replaced by the newest one. That cannot
                # happen while max_lag keeps the others back; a rank that has left is exempt.
                held = any(phase.hold for phase in self.scenario.phases)
                bounded = options.max_lag >= 0 and record.alone and not held and not absences
                newer = self.scenario.memory and options.deliver == "latest" and not bounded
                if r.round < expected or (r.round > expected and not newer):
                    _fail(f"given another round than {expected}", record)
                if not late and record.kind != "wait":
                    _fail("a Wait gave without a result", record)
                absent = any(a <= record.begun and previous <= b for a, b in absences)
                if calls != record.calls or not record.alone or absent:
                    ahead = at + self.scenario.window
                if record.kind == "wait" and done is not None:
                    least, most = max(0, at - max(done, ahead)), at - done
                    if not least <= r.missed <= most:
                        _fail(f"missed {r.missed}, not {least}..{most}", record)
                done = max(at, r.round + 1)
            elif record.kind in ("flush", "drain"):
                done = r.round + 1 if r.cause == "flush" else None
            else:
                done = None
            if record.kind in _WITHOUT_START and r.missed != 0:
                _fail("a Wait without a Start missed something", record)
            given, calls, previous = r.round, record.calls, record.begun

    def own(self, rank: int, log: Log) -> None:
        """Check `included`, `staleness` and `activation`."""
        waits = [rec for rec in log.records if rec.kind == "wait"]
        given = {start: rec for rec in waits for start in (rec.start, *rec.added)}
        drawn = self.draws
        for record in log.records:
            r = record.result
            if drawn and not r.external:
                # Internal activation: this rank triggered, and the initiator is the lowest such.
                on_time = record.kind == "wait" and record.at == r.round
                if on_time and r.initiator > rank:
                    _fail("the initiator is not the lowest", record)
            elif drawn and r.first == r.round and r.initiator == rank:
                _fail("the initiator calls its round external", record)
            if not 0 <= r.staleness <= r.round:
                _fail("impossible staleness", record)
            if record.kind in _WITHOUT_START and r.included:
                _fail("a Wait without a Start has something included", record)
            after = self.after.get(r.round + 1)
            if after is not None and after[rank] != _UNKNOWN:
                self.own_part(record, rank, after[rank], given)

    def own_part(self, record: Record, rank: int, after: int, given: dict[int, Record]) -> None:
        """Check the status against the rank's contributions before + 1..after in the round."""
        r = record.result
        if record.kind not in _WITHOUT_START:
            truth = 0 < record.start <= after
            if r.included != truth:
                _fail(f"included should be {truth}", record)
        known = self.after.get(r.round)
        if known is None or known[rank] == _UNKNOWN:
            return
        oldest = known[rank] + 1
        if after < oldest:
            if r.staleness != 0:
                _fail("stale without data", record)
        elif oldest in given:
            own = given[oldest]
            expected = max(0, r.round - own.result.round)
            if r.staleness != expected and not self.replaced(own, r, oldest in own.added):
                _fail(f"staleness should be {expected}", record)

    def replaced(self, own: Record, r: Round, added: bool) -> bool:
        """Return whether staleness counts from a result that was overwritten before its collection.

        A Start that was `added` to the request counts from a later result.
        """
        if not self.scenario.memory or own.at is None or own.result.round < own.at:
            return False
        most = max(0, r.round - own.at + 1)
        return r.staleness <= most if added else r.staleness in (max(0, r.round - own.at), most)

    def operations(self, log: Log) -> None:
        """Check that a round fires every operation once; start or join may be absent."""
        if log.fired is None:
            return
        for label, count in zip(*log.fired, strict=True):
            if count != 1 and (count > 1 or label not in ("start", "join")):
                _fail(f"operation {label!r} fired {count} times", log.fired)
