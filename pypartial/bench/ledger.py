"""Ledgers: accounts of what went into the rounds and what came out of them.

A ledger checks each result against its status, and that no contribution is lost or comes twice.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from ..policy import Policy
from ..status import Cause, Status
from .options import Rival, Way
from .pattern import Pattern, Tally

if TYPE_CHECKING:
    import numpy.typing as npt

    from .pattern import Array, Counts

    Digests = npt.NDArray[np.uint32]

_FAILURES_KEPT = 3


@dataclass
class _Account:
    """The checks of one result, which all ledgers share, and the failures found.

    Attributes
    ----------
    pattern : Pattern
    way : Way
    rank : int
    failures : list of str
        The first few failures, in words.
    """

    pattern: Pattern
    way: Way
    rank: int
    failures: list[str] = field(default_factory=list)

    def _check_complete(self, where: str, tally: Tally) -> None:
        once = tally.counts is None or bool(np.all(tally.counts == 1))
        if not once or tally.total != self.pattern.ranks:
            self._fail(where, f"not one contribution of every rank: {tally}")

    def _check_status(self, where: str, status: Status, tally: Tally) -> None:
        if tally.total != status.contributions:
            self._fail(
                where, f"{tally.total} contributions, the status says {status.contributions}"
            )
        if tally.counts is not None and status.contributors is not None:
            contributors = tuple(int(rank) for rank in np.flatnonzero(tally.counts))
            if contributors != tuple(status.contributors):
                self._fail(
                    where, f"contributors {contributors}, the status says {status.contributors}"
                )

    def _check_policy(
        self, where: str, status: Status, tally: Tally, *, departures: bool = False
    ) -> None:
        """Check that enough ranks were active; fewer are enough if ranks may have departed."""
        least = self.way.least_active(self.pattern.ranks) if isinstance(self.way, Policy) else 1
        if status.cause == Cause.DEADLINE or (departures and status.cause == Cause.DEPARTED):
            least = 1
        if not least <= status.active <= tally.total:
            self._fail(
                where,
                f"{status.active} active ranks, at least {least} and at most {tally.total}",
            )
        # After a round that a deadline cut short, a rank has two contributions in the next one.
        whole = isinstance(self.way, Policy) and self.way.lockstep
        if whole and least == self.pattern.ranks:
            self._check_complete(where, tally)

    def _fail(self, where: str, text: str) -> None:
        if len(self.failures) < _FAILURES_KEPT:
            what = f"{self.way}, {self.pattern.count} x {self.pattern.dtype.value}"
            self.failures.append(f"{what}, rank {self.rank}, {where}: {text}")


@dataclass
class Ledger(_Account):
    """One rank's account of one handle, in a program with a barrier between the rounds.

    Every rank starts once in each round, so all ranks see every round, and all have made equally
    many Starts whenever one enters a round here.

    Attributes
    ----------
    starts : int
        Calls of each rank so far.
    """

    starts: int = 0
    _rounds: list[int] = field(default_factory=list)
    _digests: list[int] = field(default_factory=list)
    _included: Counts | None = None
    _total: int = 0

    def enter(self, result: Array, status: Status | None) -> None:
        """Check a round that followed one Start of every rank.

        Parameters
        ----------
        result : array
            The buffer that the call filled with the sum.
        status : Status or None
            The status of the call; None for MPI_Allreduce, to which every rank contributes once.
        """
        self.starts += 1
        tally = self._account(result, status)
        if tally is None:
            return
        if status is None:
            self._check_complete(self._here, tally)
            return
        self._check_policy(self._here, status, tally)
        if self._included is not None:
            caught_up = int(self._included[self.rank]) == self.starts
            if caught_up != status.included:
                self._fail(self._here, f"included is {status.included}, its sums say {caught_up}")

    def flush(self, result: Array, status: Status) -> None:
        """Check the flush: every contribution must have been delivered after it."""
        if self._account(result, status) is None:
            return
        expected = self.starts * self.pattern.ranks
        if self._total != expected:
            self._fail(
                self._here, f"{self._total} contributions delivered after the flush, not {expected}"
            )
        if self._included is not None and np.any(self._included != self.starts):
            self._fail(
                self._here,
                f"contributions delivered after the flush, by rank: {self._included.tolist()}, "
                f"not {self.starts} each",
            )

    @property
    def digests(self) -> Digests:
        """One number for each round, equal on two ranks that saw the same sum and status."""
        return np.array(self._digests, dtype=np.uint32)

    def compare(self, digests: Sequence[Digests]) -> None:
        """Check by every rank's `digests` that all ranks saw the same rounds."""
        for rank, theirs in enumerate(digests):
            if not np.array_equal(theirs, self.digests):
                self._fail(self._here, f"its rounds differ from those of rank {rank}")
                return

    def _account(self, result: Array, status: Status | None) -> Tally | None:
        """Add a round to the account; return None if its sum makes no sense."""
        self._rounds.append(len(self._rounds) if status is None else status.round)
        tally = self.pattern.read(result)
        self._digests.append(_digest(tally, status))
        if tally is None:
            self._fail(self._here, "the buffer is not a sum of contributions")
            return None
        self._total += tally.total
        if tally.counts is not None:
            before = np.zeros_like(tally.counts) if self._included is None else self._included
            self._included = before + tally.counts
            if np.any(self._included > self.starts):
                self._fail(
                    self._here,
                    f"delivered twice: {self._included.tolist()} of {self.starts} calls",
                )
        if status is not None:
            if len(self._rounds) > 1 and self._rounds[-1] != self._rounds[-2] + 1:
                self._fail(self._here, f"follows round {self._rounds[-2]}")
            self._check_status(self._here, status, tally)
        return tally

    @property
    def _here(self) -> str:
        return f"round {self._rounds[-1]}"


@dataclass(frozen=True)
class Seen:
    """A round as one call of one rank was given it.

    Attributes
    ----------
    round : int
    tally : Tally
    digest : int
        Equal on two ranks that were given the same sum and status.
    calls : int
        Calls of the rank in this block, this one included.
    included : bool or None
        What the status said; None for a flush and for MPI.
    """

    round: int
    tally: Tally
    digest: int
    calls: int
    included: bool | None


@dataclass
class LoopLedger(_Account):
    """One rank's account of blocks of calls, in a program without a barrier between the calls.

    All ranks call equally often between two flushes. They run ahead of each other, so no rank is
    given every round. But every round is given to some rank, because only a rank that waits for a
    round triggers it. So the rounds that all ranks were given are the whole account.
    """

    _seen: list[Seen] = field(default_factory=list)
    _flushed: int = -1

    def enter(self, result: Array, status: Status | None, calls: int) -> None:
        """Check the result of a call.

        Parameters
        ----------
        result : array
            The buffer that the call filled with the sum.
        status : Status or None
            The status of the call; None if it was not a call of this library.
        calls : int
            This rank's calls since the last flush, this one included.
        """
        where = f"call {calls}" if status is None else f"call {calls}, round {status.round}"
        tally = self._account(result, status, calls, where)
        if tally is None:
            return
        if status is not None:
            # Ranks that are done with the block wait in its flush; in lockstep none is done early.
            departures = isinstance(self.way, Policy) and not self.way.lockstep
            self._check_policy(where, status, tally, departures=departures)
        elif self.way is Rival.COPY:
            self._check_own(where, tally)
        else:
            self._check_complete(where, tally)

    def flush(self, result: Array, status: Status, calls: int) -> None:
        """Check the flush that ends a block of `calls` calls."""
        self._account(result, status, calls, f"flush, round {status.round}", flush=True)
        if status.round <= self._flushed:
            self._fail("flush", f"round {status.round} does not follow round {self._flushed}")
        self._flushed = status.round

    def take(self) -> list[Seen]:
        """Return the rounds entered since the last call of this method."""
        seen, self._seen = self._seen, []
        return seen

    def compare(self, seen: Sequence[Sequence[Seen]]) -> dict[int, Seen]:
        """Check that all ranks that were given a round were given the same.

        Parameters
        ----------
        seen : sequence of sequence of Seen
            The rounds that every rank has entered.

        Returns
        -------
        dict
            Each of the rounds, as the first rank that was given it saw it.
        """
        rounds: dict[int, Seen] = {}
        for rank, rounds_of_rank in enumerate(seen):
            for one in rounds_of_rank:
                if rounds.setdefault(one.round, one).digest != one.digest:
                    self._fail(f"round {one.round}", f"rank {rank} was given something else")
        return rounds

    def audit(self, seen: Sequence[Sequence[Seen]], calls: int) -> None:
        """Check that the calls of a block and its flush account for every contribution.

        Parameters
        ----------
        seen : sequence of sequence of Seen
            The rounds that every rank has entered since the previous flush.
        calls : int
            Calls of each rank.
        """
        rounds = self.compare(seen)
        if not rounds or self.way is Rival.COPY:
            return
        numbers = sorted(rounds)
        if numbers != list(range(numbers[0], numbers[-1] + 1)):
            self._fail("rounds", f"no rank was given some of those between {numbers}")
        delivered = sum(one.tally.total for one in rounds.values())
        expected = calls * self.pattern.ranks
        if delivered != expected:
            self._fail("block", f"{delivered} contributions delivered, not {expected}")
        if not self.pattern.named:
            return
        counts = np.array([rounds[number].tally.counts for number in numbers])
        so_far = dict(zip(numbers, counts.cumsum(axis=0), strict=True))
        if np.any(so_far[numbers[-1]] != calls):
            by_rank = so_far[numbers[-1]].tolist()
            self._fail("block", f"contributions by rank: {by_rank}, not {calls} each")
        for one in seen[self.rank]:
            caught_up = int(so_far[one.round][self.rank]) == one.calls
            if one.included is not None and one.included != caught_up:
                where = f"call {one.calls}, round {one.round}"
                self._fail(where, f"included is {one.included}, the sums say {caught_up}")

    def _account(
        self, result: Array, status: Status | None, calls: int, where: str, *, flush: bool = False
    ) -> Tally | None:
        tally = self.pattern.read(result)
        if tally is None:
            self._fail(where, "the buffer is not a sum of contributions")
            return None
        if status is not None:
            self._check_status(where, status, tally)
        if self.way is not Rival.COPY:  # whose results differ, as they should
            self._seen.append(
                Seen(
                    round=calls - 1 if status is None else status.round,
                    tally=tally,
                    digest=_digest(tally, status),
                    calls=calls,
                    included=None if status is None or flush else status.included,
                )
            )
        return tally

    def _check_own(self, where: str, tally: Tally) -> None:
        own = np.arange(self.pattern.ranks) == self.rank
        if tally.total != 1 or (tally.counts is not None and np.any(tally.counts != own)):
            self._fail(where, f"not a copy of the own contribution: {tally}")


def _digest(tally: Tally | None, status: Status | None) -> int:
    """Return a checksum of all that must be identical on every rank."""
    words: list[object] = [None if tally is None else tally.total]
    if tally is not None and tally.counts is not None:
        words.append(tally.counts.tolist())
    if status is not None:
        words += [status.round, status.active, status.contributors, status.contributions]
        words += [str(status.cause), status.initiator]
    return zlib.crc32(repr(words).encode())
