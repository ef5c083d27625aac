"""Logs of a loop over one handle, and the oracles that judge them (contract: "Oracles").

Every rank contributes a vector of P integers that counts it: 1 in its own element. So element r of
a round's sum is the number of rank r's Starts in it. Each rank logs what its requests completed
with; rank 0 compares the logs, and all ranks raise what it found.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np

import pypartial as pp

FLUSH = 3
CAUSES = {"policy": 0, "departed": 1, "deadline": 2, "flush": FLUSH}
# What must be the same on every rank that was given a round.
SHARED = ("digest", "counts", "named", "contributions", "active", "cause", "initiator")


def record_type(ranks: int) -> np.dtype[Any]:
    return np.dtype(
        [
            ("round", "i8"),
            ("first", "i8"),
            ("start", "i8"),  # number of this call's Start, from 1; after the last: all of them
            ("counts", "i8", (ranks,)),
            ("digest", "u4"),
            ("named", "u8"),  # contributors as bits
            ("contributions", "i8"),
            ("active", "i4"),
            ("cause", "i1"),
            ("initiator", "i4"),
            ("missed", "i8"),
            ("staleness", "i8"),
            ("included", "?"),
            ("external", "?"),
        ]
    )


class Log:
    """What the requests of one rank completed with, in order."""

    def __init__(self, ranks: int, capacity: int) -> None:
        assert ranks <= 64
        self.ranks = ranks
        self.records = np.zeros(capacity, record_type(ranks))
        self.length = 0
        self.starts = 0

    def started(self) -> None:
        self.starts += 1

    def given(self, status: pp.Status, out: np.ndarray[Any, Any]) -> None:
        """Note a completed request; the first P elements of `out` are the counts."""
        if self.length == len(self.records):
            self.records = np.concatenate([self.records, np.zeros_like(self.records)])
        contributors = status.contributors
        assert contributors is not None
        self.records[self.length] = (
            status.round,
            status.first,
            self.starts,
            out[: self.ranks],
            zlib.crc32(out.tobytes()),
            sum(1 << rank for rank in contributors),
            status.contributions,
            status.active,
            CAUSES[status.cause.value],
            -1 if status.initiator is None else status.initiator,
            status.missed,
            status.staleness,
            status.included,
            status.activation == "external",
        )
        self.length += 1


@dataclass(frozen=True)
class Rounds:
    """Numbers about the rounds of a log, the flush not counted."""

    rounds: int
    partial: int  # not all ranks were active
    several_initiators: int  # activated by the calls of two or more ranks
    missed: int  # complete before somebody's next Start
    departed: int

    def __str__(self) -> str:
        def share(number: int) -> str:
            return f"{number} ({100 * number / max(1, self.rounds):.1f} %)"

        return (
            f"{self.rounds} rounds, partial {share(self.partial)}, two or more initiators "
            f"{share(self.several_initiators)}, missed by someone {share(self.missed)}, departed "
            f"{self.departed}"
        )


def judge(comm: Any, log: Log, request: pp.AllreduceRequest, *, left: bool = False) -> Rounds:
    """Gather the logs of all ranks and check them. Collective; raises on every rank.

    The log covers the handle's whole life: every Start, and the Flush or Drain at its end. `left`:
    ranks may have left the handle before that, or have waited elsewhere; what completes then does
    not count in `missed`.
    """
    logs = comm.gather((log.records[: log.length], log.starts))
    verdict: Any = None
    if comm.rank == 0:
        try:
            verdict = check_logs(logs, request, left=left)
        except AssertionError as error:
            verdict = error
    verdict = comm.bcast(verdict)
    if isinstance(verdict, AssertionError):
        raise verdict
    assert isinstance(verdict, Rounds)
    return verdict


def check_logs(
    logs: list[tuple[np.ndarray[Any, Any], int]],
    request: pp.AllreduceRequest,
    *,
    left: bool = False,
) -> Rounds:
    """Apply every oracle to the logs of all ranks."""
    records = [log for log, _ in logs]
    starts = np.array([count for _, count in logs])
    table = check_agreement(records, request)
    check_conservation(table, starts)
    cumulated = np.vstack([np.zeros(len(logs), np.int64), np.cumsum(table["counts"], axis=0)])
    missed = np.zeros(len(table), bool)
    for rank, log in enumerate(records):
        where = f"rank {rank}: "
        check_coverage(where, log, table, cumulated, request.deliver)
        if left:
            check_lag(where, log, request)
        else:
            missed |= check_missed(where, log, len(table), request)
        own = cumulated[:, rank]
        check_included(where, log, own)
        check_staleness(where, log, own, request, left)
    check_initiators(records, table, request)
    if not left:
        check_departed(records, table)
    body = table[:-1]
    internal = np.zeros(len(table), int)
    for log in records:
        single = log[(log["first"] == log["round"]) & ~log["external"]]
        internal[single["round"]] += 1
    return Rounds(
        rounds=len(body),
        partial=int((body["active"] < len(logs)).sum()),
        several_initiators=int((internal[:-1] >= 2).sum()),
        missed=int(missed.sum()),
        departed=int((body["cause"] == CAUSES["departed"]).sum()),
    )


def require(good: Any, what: str, *rows: Any) -> None:
    """Fail unless every element of `good` is true; show the first rows for which it is not."""
    good = np.atleast_1d(np.asarray(good))
    if good.all():
        return
    at = int(np.flatnonzero(~good)[0])
    shown = "\n".join(str(dict(zip(row.dtype.names, row[at], strict=True))) for row in rows)
    raise AssertionError(f"{what} ({(~good).sum()} of {good.size} times; first:\n{shown})")


def check_agreement(
    records: list[np.ndarray[Any, Any]], request: pp.Request
) -> np.ndarray[Any, Any]:
    """Return the table of all rounds, after checking that the ranks tell the same about each."""
    everything = np.concatenate(records)
    single = everything[everything["first"] == everything["round"]]
    rounds, index = np.unique(single["round"], return_index=True)
    table = single[index]
    require(
        rounds == np.arange(len(rounds)), "rounds are missing: nobody was given them alone", table
    )
    reference = table[single["round"]]
    for name in SHARED:
        same = single[name] == reference[name]
        require(
            same.all(axis=1) if same.ndim > 1 else same, f"ranks disagree on {name}", single,
            reference,
        )  # fmt: skip
    # A merged result says of its newest round what the others say.
    require(everything["round"] < len(table), "a rank was given a round nobody knows", everything)
    reference = table[everything["round"]]
    for name in SHARED[2:]:
        require(everything[name] == reference[name], f"ranks disagree on {name}", everything)
    ranks = np.arange(table["counts"].shape[1], dtype=np.uint64)
    bits = ((table["counts"] > 0).astype(np.uint64) << ranks).sum(axis=1).astype(np.uint64)
    require(bits == table["named"], "contributors are not those who have data in the sum", table)
    require(table["counts"].sum(axis=1) == table["contributions"], "wrong contributions", table)
    is_flush = np.arange(len(table)) == len(table) - 1
    require((table["cause"] == FLUSH) == is_flush, "the last round and no other is a flush", table)
    require((table["contributions"] > 0) | is_flush, "an empty round before the flush", table)
    by_policy = table["cause"] == CAUSES["policy"]
    enough = request.policy.least_active(len(records))
    require((table["active"] >= enough) | ~by_policy, "fewer active ranks than the quorum", table)
    contributors = (table["counts"] > 0).sum(axis=1)
    require((table["active"] <= contributors) | is_flush, "an active rank without data", table)
    return table


def drawn(request: pp.AllreduceRequest) -> int:
    """Return how many ranks are drawn for a round; 0 where the ready ones are counted instead."""
    kind, number = request.policy.trigger(request.context.size)
    return number if kind == "first_of" else 0


def check_conservation(table: np.ndarray[Any, Any], starts: np.ndarray[Any, Any]) -> None:
    total = table["counts"].sum(axis=0)
    assert (total == starts).all(), (
        f"contributions of the ranks {starts.tolist()}, in all rounds {total.tolist()}"
    )


def check_coverage(
    where: str,
    log: np.ndarray[Any, Any],
    table: np.ndarray[Any, Any],
    cumulated: np.ndarray[Any, Any],
    deliver: str,
) -> None:
    """Check which rounds a rank was given, and merged results against the single ones."""
    assert len(log), where + "was given nothing"
    assert log["round"][-1] == len(table) - 1, where + "was not given the flush"
    if deliver == "latest":
        require(np.diff(log["round"]) > 0, where + "given an old round", log[1:], log[:-1])
        require(log["first"] == log["round"], where + "several rounds at once", log)
        return
    require(
        log["first"] == np.append(0, log["round"][:-1] + 1),
        where + "rounds given twice or never",
        log,
    )
    if deliver == "each":
        require(log["first"] == log["round"], where + "several rounds at once", log)
    merged = cumulated[log["round"] + 1] - cumulated[log["first"]]
    require((merged == log["counts"]).all(axis=1), where + "not the sum of its rounds", log)


def overwrites(request: pp.AllreduceRequest) -> bool:
    """Whether a result may be overwritten before it is collected, and replaced by the newest."""
    if request.deliver != "latest" or request.max_lag is not None:
        return False
    stats = request.context.stats()
    several_nodes = stats.neighbours < request.context.size  # then any algorithm, between them
    return request.algorithm == "shared_memory" or (bool(stats.shares_memory) and several_nodes)


def check_lag(where: str, log: np.ndarray[Any, Any], request: pp.AllreduceRequest) -> None:
    requests = log[asked(log)]
    if request.max_lag is not None:
        require(requests["missed"] <= request.max_lag, where + "above max_lag", requests)


def check_missed(
    where: str, log: np.ndarray[Any, Any], rounds: int, request: pp.Request
) -> np.ndarray[Any, Any]:
    """Follow the number of completed rounds through `missed`; return which rounds were missed."""
    result = np.zeros(rounds, bool)
    check_lag(where, log, request)
    requests = log[asked(log)]
    completed, given = 0, -1  # rounds complete when the previous request was; its round
    for at, row in enumerate(requests):
        known = completed + int(row["missed"])
        result[completed:known] = True
        late = known > given + 1
        if not late:
            expected = known
        elif request.deliver == "each":
            expected = given + 1
        else:
            expected = known - 1
        # In shared memory a result that was overwritten is replaced by the newest one.
        replaced = overwrites(request) and row["round"] > expected
        require(replaced or row["round"] == expected,
                where + f"given another round than {expected}", requests[at : at + 1])  # fmt: skip
        # Not for quorums: their root activates rounds by itself.
        waited = row["external"] or not late or not drawn(request)
        assert waited, where + f"activated round {row['round']} before its Start"
        given = int(row["round"])
        completed = max(known, given + 1)
    return result


def check_included(where: str, log: np.ndarray[Any, Any], own: np.ndarray[Any, Any]) -> None:
    truth = own[log["round"] + 1] >= log["start"]
    require(log["included"] == truth, where + "wrong `included`", log)


def check_staleness(
    where: str,
    log: np.ndarray[Any, Any],
    own: np.ndarray[Any, Any],
    request: pp.AllreduceRequest,
    left: bool,
) -> None:
    """The age of this rank's oldest contribution in the round, by the round its call was given."""
    calls = log[asked(log)]
    given = np.full(int(log["start"].max()) + 1, -1)
    given[calls["start"]] = calls["round"]
    rounds = log["round"]
    oldest = own[rounds] + 1  # number of the oldest contribution in the round
    has_data = own[rounds + 1] > own[rounds]
    # A contribution whose own request was not collected before the flush was given the flush.
    oldest_given = given[np.minimum(oldest, len(given) - 1)]
    truth = np.where(has_data & (oldest_given >= 0), np.maximum(0, rounds - oldest_given), 0)
    good = log["staleness"] == truth
    if overwrites(request):  # it counts from what the call would have been given
        due = given_unless_replaced(calls, given)[np.minimum(oldest, len(given) - 1)]
        most = np.where(has_data & (due >= 0), np.maximum(0, rounds - due), 0)
        good |= log["staleness"] == most
        if left:  # `missed` is less than what completed, and `due` the least that it can have been
            good |= (log["staleness"] >= truth) & (log["staleness"] <= most)
    require(good, where + "wrong `staleness`", log)


def given_unless_replaced(
    calls: np.ndarray[Any, Any], given: np.ndarray[Any, Any]
) -> np.ndarray[Any, Any]:
    """By Start, the round its call would have been given, had no result been overwritten."""
    due, completed, newest = given.copy(), 0, -1
    for row in calls:
        known = completed + int(row["missed"])
        due[row["start"]] = known - 1 if known > newest + 1 else known
        newest = int(row["round"])
        completed = max(known, newest + 1)
    return due


def check_initiators(
    records: list[np.ndarray[Any, Any]], table: np.ndarray[Any, Any], request: pp.Request
) -> None:
    body = table[:-1]
    most, size = drawn(request), len(records)
    require((body["initiator"] >= 0) == (most > 0), "wrong presence of an initiator", body)
    assert table["initiator"][-1] == -1, "a flush has an initiator"
    internal = np.zeros(len(table), int)
    for rank, log in enumerate(records):
        mine = log[log["initiator"] == rank]
        require(~mine["external"], f"rank {rank} initiated, and calls it external", mine)
        internal[log["round"][asked(log) & ~log["external"]]] += 1
    if most == 0:
        return
    # Only the drawn activate a round, and those that a draw was handed on to.
    handed_on = body["cause"] != CAUSES["policy"]
    require((internal[:-1] <= most) | handed_on, "activated by more ranks than were drawn", body)
    told = (internal[:-1] >= 1) | (handed_on & (most < size))
    if overwrites(request):  # who activated the round may have been given a newer one
        given = [set(log["round"].tolist()) for log in records]
        told |= [row["round"] not in given[row["initiator"]] for row in body]
    require(told, "activated by nobody", body)


def check_departed(records: list[np.ndarray[Any, Any]], table: np.ndarray[Any, Any]) -> None:
    """A round does without ranks that it needs only after somebody's last request."""
    last = min(int(log["round"][asked(log)].max(initial=-1)) for log in records)
    early = (table["cause"] == CAUSES["departed"]) & (table["round"] <= last)
    require(~early, f"departed, while no rank had left (until round {last})", table)


def asked(log: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Mark the records of requests; the others are what a Flush or Drain gave."""
    return (np.diff(log["start"], prepend=0) > 0) & (log["cause"] != FLUSH)


# ---- groups -------------------------------------------------------------------------------------


def check_groups(comm: Any, log: list[tuple[Any, ...]]) -> None:
    """What the members of a group say of it is the same, and no rank runs two out of order.

    Each rank's `log` has a tuple for each request: the round, the group, its weights, a hash of the
    average's bytes.
    """
    groups: dict[int, list[Any]] = {}
    for rank, entries in enumerate(comm.allgather(log)):
        rounds = [entry[0] for entry in entries if entry[0]]
        assert rounds == sorted(set(rounds))
        for round_, *rest in entries:
            assert rank in rest[0]
            if round_:
                assert groups.setdefault(round_, rest) == rest
            else:
                assert rest[0] == (rank,)
