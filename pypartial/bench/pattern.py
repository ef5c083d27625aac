"""Buffers whose sums name their contributors.

They extend the oracle of named contributors (rank r adds 1 to element r) to buffers of any size, so
that a benchmark can verify exactly the sums that it times.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .options import DType

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]
    Counts = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Tally:
    """The contributions in a sum: by rank (None if the buffer is too small), and altogether."""

    counts: Counts | None
    total: int


@dataclass(frozen=True)
class Pattern:
    """Contributions that can be counted in their sum.

    A buffer repeats `columns` elements; column c stands for the ranks r ≡ c (mod columns). If the
    buffer is long enough, every rank has a column of its own. If it is not, the ranks of a column
    are digits of one number. If the digits do not fit either, every element is 1, and a sum tells
    only the total.

    Attributes
    ----------
    ranks : int
    count : int
        Elements of a buffer, at least 1.
    dtype : DType
    bits_needed : int
        The bits of a digit, which counts one rank's contributions to a sum. A rank contributes at
        most twice to a round after a barrier: once late for the round before, once in time for this
        one. Two bits leave room to see a third.
    """

    ranks: int
    count: int
    dtype: DType
    bits_needed: int = 2

    @property
    def columns(self) -> int:
        """Number of elements after which a buffer repeats itself."""
        return min(self.ranks, self.count) if self.named else 1

    @property
    def named(self) -> bool:
        """Whether a sum tells the ranks apart."""
        return self._bits >= self.bits_needed

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
        """Count the contributions in a sum; return None if it is not a sum of contributions.

        The method looks at every bit of the buffer.
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
