"""The oracles: what the logs of all ranks must look like (contract: "Oracles", "Semantics").

The vectors name, for every round, how often each rank contributed and the sum of the numbers of
those contributions. As contributions are numbered from 1, consecutive rounds must hold consecutive
intervals: one that is lost, taken twice or reordered leaves a number that does not fit.

Knowledge is kept as *boundaries*: after[b][r] is the number of rank r's contributions in the rounds
below b. A result that covers the rounds first..round leads from boundary first to round + 1. With
deliver="latest" some rounds may have been given to nobody (both ranks that could have looked were
inside a Flush); what is not known then is -1.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scenario import Log, Scenario, run, tail_weights
from world import Options, Round

UNKNOWN = -1


def require(good: Any, what: str, *things: Any) -> None:
    if not good:
        raise AssertionError("\n  ".join([what, *map(str, things)]))


def check(scenario: Scenario) -> list[list[Log]]:
    """Run a scenario and judge it; a failure says how to replay it."""
    try:
        logs = run(scenario)
        judge(scenario, logs)
    except Exception as error:
        line = f'python tests/sim/scenario.py "{scenario!r}"'
        raise AssertionError(f"{error}\n\nreplay: {line}") from error
    return logs


def judge(scenario: Scenario, logs: list[list[Log]]) -> None:
    for index, options in enumerate(scenario.handles):
        if any(log.starts or log.records for log in logs[index]):
            try:
                Handle(scenario, options, logs[index]).judge()
            except AssertionError as error:
                raise AssertionError(f"handle {index}: {error}") from error


class Handle:
    """The logs of one handle on all ranks."""

    def __init__(self, scenario: Scenario, options: Options, logs: list[Log]) -> None:
        self.scenario, self.options, self.logs = scenario, options, logs
        self.ranks = scenario.ranks
        self.sums = options.op == "sum"
        self.counted = options.count >= self.ranks
        self.numbered = options.count >= 2 * self.ranks or not self.sums
        self.rounds: dict[int, Round] = {}  # by number, some rank's status of it
        self.after: dict[int, np.ndarray[Any, Any]] = {0: np.zeros(self.ranks, np.int64)}

    def judge(self) -> None:
        self.agreement()
        self.statuses()
        if self.counted and self.decodable():
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

    # ---- what all ranks must be told alike

    def agreement(self) -> None:
        """Agreement: status and result of a round are identical on every rank."""
        single: dict[int, Round] = {}
        spans: dict[tuple[int, int], Round] = {}
        for log in self.logs:
            for result in (record.result for record in log.records):
                known = self.rounds.setdefault(result.round, result)
                require(known.status() == result.status(), "different statuses", known, result)
                if result.first == result.round:
                    known = single.setdefault(result.round, result)
                    require(known.data == result.data, "different results", known, result)
                elif self.options.dtype.startswith("int"):
                    known = spans.setdefault((result.first, result.round), result)
                    require(known.data == result.data, "different sums", known, result)

    def statuses(self) -> None:
        options = self.options
        full = options.policy == "quorum" and options.k == self.ranks
        for r in self.rounds.values():
            flush = r.cause == "flush"
            require(r.contributions > 0 or flush, "an empty round before the flush", r)
            require(r.active > 0 or flush, "nobody was ready for a round", r)
            require(r.cause in ("policy", "departed", "flush"), "an impossible cause", r)
            drawn = options.policy == "first_of" and not flush
            require((r.initiator >= 0) == drawn, "wrong presence of an initiator", r)
            if r.contributors is not None:
                require(r.active <= len(r.contributors), "an active rank without data", r)
                require(len(r.contributors) <= r.contributions, "too few contributions", r)
                require(not drawn or r.initiator in r.contributors, "initiator without data", r)
            if options.policy == "quorum" and not flush:
                enough = r.active >= options.k
                require(enough == (r.cause == "policy"), "quorum and cause do not fit", r)
            if full and r.cause == "policy":
                require(r.active == self.ranks, "a full round without everybody", r)

    # ---- what is in the rounds

    def decodable(self) -> bool:
        return self.options.average in (None, "size") or self.options.deliver != "sum"

    def decode(self, result: Round) -> np.ndarray[Any, Any]:
        """The vector before any average, as integers."""
        vector = np.frombuffer(result.data, self.options.dtype)
        if not self.sums:  # the identity of a maximum is no number
            vector = np.maximum(vector, 0)
        if self.options.average is None:
            return vector[: 2 * self.ranks].astype(np.int64) if self.scenario.noise else vector
        by = {
            "size": self.ranks,
            "contributors": len(result.contributors or ()),
            "contributions": result.contributions,
        }[self.options.average]
        exact = vector.astype(np.float64) * max(by, 1)
        if self.scenario.noise:
            exact = exact[: 2 * self.ranks]
        whole = np.rint(exact)
        require(np.allclose(exact, whole, atol=1e-3), "wrong average", result)
        return whole

    def tiling(self) -> None:
        """Named contributors and conservation, from span to span."""
        spans = {}
        for log in self.logs:
            for result in (record.result for record in log.records):
                spans[result.first, result.round] = result
        for (first, round_), result in sorted(spans.items()):
            vector = self.decode(result)
            before = self.after.get(first, np.full(self.ranks, UNKNOWN))
            after, counts = self.lead(before, vector, result)
            known = self.after.setdefault(round_ + 1, after)
            clash = (known != after) & (known != UNKNOWN) & (after != UNKNOWN)
            require(not clash.any(), "ranks were given different sums", known, after, result)
            known[known == UNKNOWN] = after[known == UNKNOWN]
            if first == round_:
                self.named(result, vector, counts)
            self.tail(vector, counts, result)
        previous = np.zeros(self.ranks, np.int64)
        for boundary in sorted(self.after):
            after = self.after[boundary]
            fits = (after >= previous) | (after == UNKNOWN)
            require(fits.all(), "contributions came twice", boundary, previous, after)
            previous = np.maximum(previous, after)

    def lead(
        self, before: np.ndarray[Any, Any], vector: np.ndarray[Any, Any], result: Round
    ) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any] | None]:
        """From one boundary to the next; also how often each rank contributed, if that is known."""
        head = vector[: self.ranks].astype(np.int64)
        if not self.sums:  # the newest contribution of each rank
            after = np.where(head > 0, head, before)
            grown = (after > before) | (head <= 0) | (before == UNKNOWN)
            require(grown.all(), "a contribution twice", result, before, head)
            return after, None if (before == UNKNOWN).any() else after - before
        require((head >= 0).all(), "a negative count", result, head)
        if self.numbered:
            numbers = vector[self.ranks : 2 * self.ranks].astype(np.int64)
            offset = numbers - head * (head + 1) // 2
            counts = np.maximum(head, 1)
            whole = (offset % counts == 0) & (offset >= 0) & ((head > 0) | (numbers == 0))
            require(whole.all(), "not an interval of contributions", result, head, numbers)
            start = np.where(head > 0, offset // counts, before)
            same = (before == UNKNOWN) | (start == before)
            require(same.all(), "lost or repeated contributions", result, before, start, head)
            before = start
        return np.where(before == UNKNOWN, UNKNOWN, before + head), head

    def named(
        self, result: Round, vector: np.ndarray[Any, Any], counts: np.ndarray[Any, Any] | None
    ) -> None:
        head = vector[: self.ranks]
        if result.contributors is not None:
            named = tuple(int(r) for r in np.flatnonzero(head > 0))
            require(named == result.contributors, "wrong contributors", result, head)
        if counts is not None:
            require(counts.sum() == result.contributions, "wrong contributions", result, counts)

    def tail(
        self,
        vector: np.ndarray[Any, Any],
        counts: np.ndarray[Any, Any] | None,
        result: Round,
    ) -> None:
        length = len(vector) - 2 * self.ranks
        if length <= 0 or self.scenario.noise or not self.sums:
            return
        expected = counts @ tail_weights(self.ranks, length)
        require((vector[2 * self.ranks :] == expected).all(), "the sum has wrong elements", result)

    def flushes(self) -> None:
        """A flush leaves nothing pending anywhere."""
        for rank, log in enumerate(self.logs):
            for record in log.records:
                if record.result.cause != "flush":
                    continue
                after = self.after[record.result.round + 1][rank]
                require(
                    after in (record.start, UNKNOWN),
                    f"{record.start} Starts of rank {rank} before a flush, {after} in the rounds",
                    record,
                )

    def ends(self) -> None:
        """Conservation up to Free: what no round gave to anybody was discarded."""
        last = self.after[max(self.after)]
        held = any(log.unfinished for log in self.logs)
        for rank, log in enumerate(self.logs):
            missing = log.starts - (log.discarded or 0) - last[rank]
            # Of requests that were not collected before Free, nobody has told.
            good = missing >= 0 if held else missing == 0
            require(
                good or last[rank] == UNKNOWN,
                f"rank {rank}: {log.starts} Starts, {last[rank]} in rounds that were given, "
                f"{log.discarded} discarded",
            )

    # ---- what one rank is told, in order

    def order(self, log: Log) -> None:
        """Delivery: no round twice; with "sum" and "each", none left out."""
        newest = -1
        for record in log.records:
            r = record.result
            require(r.round > newest, "an old round", record)
            if self.options.deliver == "latest":
                require(r.first == r.round, "several rounds at once", record)
            else:
                require(r.first == newest + 1, "rounds are left out or repeated", record)
            if self.options.deliver == "each":
                require(r.first == r.round, "several rounds at once", record)
            newest = r.round
            collective = record.kind in ("flush", "drain")
            require(collective or r.cause != "flush", "a Wait gave a flush", record)

    def requests(self, log: Log) -> None:
        """Late and on-time, the round a request completes with, `missed` and its bound."""
        options, given = self.options, -1
        done: int | None = 0  # rounds complete when the previous request was
        calls: int | None = 0  # collective calls begun by then
        ahead = 0  # at most so many rounds counted as given then, because they were in flight
        refused = dict(log.refused)
        for number, record in enumerate(log.records):
            r, at = record.result, record.at
            if at is not None and number in refused:
                require(refused[number] == given + 1, "a Wait refused a result", given, record)
            if record.kind == "wait":
                require(options.max_lag < 0 or r.missed <= options.max_lag, "above max_lag", record)
            if at is not None and record.kind in ("wait", "extra"):
                late = at > given + 1
                expected = given + 1 if options.deliver == "each" else at - 1 if late else at
                require(r.round == expected, f"given another round than {expected}", record)
                require(late or record.kind == "wait", "a Wait gave without a result", record)
                if calls != record.calls or not record.alone:
                    ahead = at + self.scenario.window
                if record.kind == "wait" and done is not None:
                    least, most = max(0, at - max(done, ahead)), at - done
                    good = least <= r.missed <= most
                    require(good, f"missed {r.missed}, not {least}..{most}", record)
                done = at if late else r.round + 1
            elif record.kind in ("flush", "drain"):
                done = r.round + 1 if r.cause == "flush" else None
            else:
                done = None
            if record.kind == "extra":
                require(r.missed == 0, "an extra Wait missed something", record)
            given, calls = r.round, record.calls

    def own(self, rank: int, log: Log) -> None:
        """Included, staleness, and which side activated a round."""
        given = {rec.start: rec for rec in log.records if rec.kind == "wait"}
        for record in log.records:
            r = record.result
            if self.options.policy == "first_of" and r.first == r.round and r.initiator == rank:
                require(not r.external, "the initiator calls its round external", record)
            # On time here and not activated by a message: this rank triggered, the lowest is named.
            on_time = record.kind == "wait" and record.at == r.round
            if self.options.policy == "first_of" and on_time and not r.external:
                require(r.initiator <= rank, "the initiator is not the lowest", record)
            require(0 <= r.staleness <= r.round, "impossible staleness", record)
            if record.kind == "extra":
                require(not r.included, "an extra Wait has something included", record)
            after = self.after.get(r.round + 1)
            if after is None or after[rank] == UNKNOWN:
                continue
            if record.kind != "extra":
                truth = 0 < record.start <= after[rank]
                require(r.included == truth, f"included should be {truth}", record)
            before = self.after.get(r.round)
            if before is None or before[rank] == UNKNOWN:
                continue
            oldest = int(before[rank]) + 1
            if after[rank] < oldest:
                require(r.staleness == 0, "stale without data", record)
            elif oldest in given:
                truth = max(0, r.round - given[oldest].result.round)
                require(r.staleness == truth, f"staleness should be {truth}", record)

    def operations(self, log: Log) -> None:
        """A round fires every operation of its schedule once; start or join may be absent."""
        if log.fired is None:
            return
        for label, count in zip(*log.fired, strict=True):
            good = count <= 1 if label in ("start", "join") else count == 1
            require(good, f"operation {label!r} fired {count} times", log.fired)
