"""Buffers whose sums name their contributors, and the ledger that checks every round.

The oracle of named contributors (rank r adds 1 to element r) for buffers of any size, so that a
benchmark can verify exactly what it times.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ..status import Status
from .options import DType, PolicyChoice, PolicyKind

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]
    Counts = npt.NDArray[np.int64]
    Digests = npt.NDArray[np.uint32]

# A rank contributes at most twice to a round that a barrier precedes (once late to the round
# before, once in time for this one); two bits a rank leave room to see a third.
_BITS_NEEDED = 2
_FAILURES_KEPT = 3


@dataclass(frozen=True)
class Tally:
    """What a sum says: contributions a rank (None if the buffer is too small), and altogether."""

    counts: Counts | None
    total: int


@dataclass(frozen=True)
class Pattern:
    """Contributions that can be counted in their sum.

    A buffer repeats `columns` elements, column c standing for the ranks r ≡ c (mod columns): all
    ranks have a column of their own where the buffer is long enough.  Where it is not, the ranks of
    a column are told apart as digits of one number.  Where even the digits do not fit, every
    element is 1 and only the total is known.

    Attributes
    ----------
    ranks : int
    count : int
        Elements of a buffer, at least 1.
    dtype : DType
    """

    ranks: int
    count: int
    dtype: DType

    @property
    def columns(self) -> int:
        """Elements after which a buffer repeats itself."""
        return min(self.ranks, self.count) if self.named else 1

    @property
    def named(self) -> bool:
        """Whether a sum tells the ranks apart."""
        return self._bits >= _BITS_NEEDED

    @property
    def _bits(self) -> int:
        digits = -(-self.ranks // min(self.ranks, self.count))
        return self.dtype.exact_bits // digits

    def contribution(self, rank: int) -> Array:
        """Return a new buffer with what one call of a rank contributes."""
        vector = np.zeros(self.count, dtype=self.dtype.value)
        if self.named:
            vector[rank % self.columns :: self.columns] = self._weight(rank)
        else:
            vector[:] = 1
        return vector

    def read(self, total: Array) -> Tally | None:
        """Count the contributions in a sum; return None if it is no sum of contributions.

        Looks at every bit of the buffer.
        """
        bits = total.view(f"u{total.itemsize}")
        if not np.array_equal(bits[self.columns :], bits[: -self.columns]):
            return None
        head = total[: self.columns]
        if not (np.all(head >= 0) and np.all(head < 2.0**self.dtype.exact_bits)):
            return None
        numbers = head.astype(np.int64)
        if not np.array_equal(numbers, head):
            return None
        if not self.named:
            return Tally(None, int(numbers[0]))
        ranks = np.arange(self.ranks)
        places = ranks // self.columns
        counts = numbers[ranks % self.columns] >> (self._bits * places) & (2**self._bits - 1)
        return Tally(counts, int(counts.sum()))

    def _weight(self, rank: int) -> int:
        return int(2 ** (self._bits * (rank // self.columns)))


@dataclass
class Ledger:
    """One rank's account of one handle: what went in, what came out, and what was wrong.

    Valid for a program in which every rank starts once a round and a barrier separates the rounds:
    then all ranks see every round, and have started equally often whenever one is entered.

    Attributes
    ----------
    pattern : Pattern
    policy : PolicyChoice
    rank : int
    starts : int
        Calls of each rank so far.
    failures : list of str
        The first few things that were wrong, in words.
    """

    pattern: Pattern
    policy: PolicyChoice
    rank: int
    starts: int = 0
    failures: list[str] = field(default_factory=list)
    _rounds: list[int] = field(default_factory=list)
    _digests: list[int] = field(default_factory=list)
    _included: Counts | None = None
    _total: int = 0

    def enter(self, result: Array, status: Status | None) -> None:
        """Check a round that followed one Start of every rank.

        Parameters
        ----------
        result : array
            The sum, in the buffer that the call filled.
        status : Status or None
            The call's; None for MPI_Allreduce, to which every rank contributes once.
        """
        self.starts += 1
        tally = self._account(result, status)
        if tally is None:
            return
        if status is None:
            self._check_complete(tally)
            return
        self._check_policy(status, tally)
        if self._included is not None:
            caught_up = int(self._included[self.rank]) == self.starts
            if caught_up != status.included:
                self._fail(f"included is {status.included}, its sums say {caught_up}")

    def flush(self, result: Array, status: Status) -> None:
        """Check the flush, after which every contribution must have been delivered."""
        if self._account(result, status) is None:
            return
        expected = self.starts * self.pattern.ranks
        if self._total != expected:
            self._fail(f"{self._total} contributions delivered after the flush, not {expected}")
        if self._included is not None and np.any(self._included != self.starts):
            self._fail(
                f"contributions delivered after the flush, by rank: {self._included.tolist()}, "
                f"not {self.starts} each"
            )

    @property
    def digests(self) -> Digests:
        """One number a round, equal on two ranks whose rounds had the same sum and status."""
        return np.array(self._digests, dtype=np.uint32)

    def compare(self, digests: Sequence[Digests]) -> None:
        """Check that all ranks saw the same rounds, given every rank's `digests`."""
        for rank, theirs in enumerate(digests):
            if not np.array_equal(theirs, self.digests):
                self._fail(f"its rounds differ from those of rank {rank}")
                return

    def _account(self, result: Array, status: Status | None) -> Tally | None:
        """Add a round to the account; None if its sum makes no sense."""
        self._rounds.append(len(self._rounds) if status is None else status.round)
        tally = self.pattern.read(result)
        self._digests.append(_digest(tally, status))
        if tally is None:
            self._fail("the buffer is no sum of contributions")
            return None
        self._total += tally.total
        if tally.counts is not None:
            before = np.zeros_like(tally.counts) if self._included is None else self._included
            self._included = before + tally.counts
            if np.any(self._included > self.starts):
                self._fail(f"delivered twice: {self._included.tolist()} of {self.starts} calls")
        if status is not None:
            self._check_status(status, tally)
        return tally

    def _check_complete(self, tally: Tally) -> None:
        once = tally.counts is None or bool(np.all(tally.counts == 1))
        if not once or tally.total != self.pattern.ranks:
            self._fail(f"not one contribution of every rank: {tally}")

    def _check_status(self, status: Status, tally: Tally) -> None:
        if len(self._rounds) > 1 and self._rounds[-1] != self._rounds[-2] + 1:
            self._fail(f"follows round {self._rounds[-2]}")
        if tally.total != status.contributions:
            self._fail(f"{tally.total} contributions, the status says {status.contributions}")
        if tally.counts is not None and status.contributors is not None:
            contributors = tuple(int(rank) for rank in np.flatnonzero(tally.counts))
            if contributors != tuple(status.contributors):
                self._fail(f"contributors {contributors}, the status says {status.contributors}")

    def _check_policy(self, status: Status, tally: Tally) -> None:
        least = {
            PolicyKind.QUORUM: self.policy.quorum or 0,
            PolicyKind.FULL: self.pattern.ranks,
        }.get(self.policy.kind, 1)
        if not least <= status.active <= tally.total:
            self._fail(f"{status.active} active ranks, at least {least} and at most {tally.total}")
        if self.policy.kind is PolicyKind.FULL:
            self._check_complete(tally)

    def _fail(self, text: str) -> None:
        if len(self.failures) < _FAILURES_KEPT:
            where = f"{self.policy.label}, {self.pattern.count} x {self.pattern.dtype.value}"
            self.failures.append(f"{where}, rank {self.rank}, round {self._rounds[-1]}: {text}")


def _digest(tally: Tally | None, status: Status | None) -> int:
    """Return a checksum of everything that must be identical on every rank."""
    words: list[object] = [None if tally is None else tally.total]
    if tally is not None and tally.counts is not None:
        words.append(tally.counts.tolist())
    if status is not None:
        words += [status.round, status.active, status.contributors, status.contributions]
        words += [str(status.cause), status.initiator]
    return zlib.crc32(repr(words).encode())
