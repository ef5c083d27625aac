"""Policies: how many ranks a round waits for.

A round of a partial collective is *activated* when its policy is satisfied; every rank then takes
part in it, those that are not there yet with what they have pending, or with nothing. Ranks that
were there are its *active* ranks. See eager-SGD (Li et al., PPoPP 2020), sections 4 and 5.
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from typing import Any

from .errors import ArgumentError

__all__ = ["Full", "Majority", "Policy", "Quorum", "Solo"]


@dataclass(frozen=True)
class Policy:
    """Base of the policies. Compare by value; immutable."""

    def _resolve(self, size: int) -> tuple[str, int]:
        """Return the C policy's name and its k for a communicator of `size` ranks."""
        raise NotImplementedError


@dataclass(frozen=True)
class Solo(Policy):
    """The first rank to wait for a round triggers it (eager-SGD, section 4.2: solo allreduce).

    Nobody waits for anybody; often only one rank is active. Under heavy skew training loses
    accuracy with it (section 6.3).
    """

    def _resolve(self, size: int) -> tuple[str, int]:
        return "PP_FIRST_OF", size


@dataclass(frozen=True)
class Majority(Policy):
    """One rank, drawn anew for every round, triggers it (eager-SGD, section 4.3).

    The draw is the same on all ranks and depends on the context's seed and the round. If the ranks
    arrive at distinct times, (P + 1) / 2 of P ranks are active in expectation (Lemma 5.1). This is
    an expectation: for a guarantee in every round use `Quorum`.
    """

    def _resolve(self, size: int) -> tuple[str, int]:
        return "PP_FIRST_OF", 1


@dataclass(frozen=True)
class Quorum(Policy):
    """At least `k` ranks are ready: a guarantee for every round whose cause is ``"policy"``.

    When fewer than `k` ranks have not left (into a collective call of the context), all of those
    are enough; the round's cause is then ``"departed"``.

    Parameters
    ----------
    k : int
        Number of ranks, 1 to the size of the context.

    Raises
    ------
    ArgumentError
        If `k` is not an integer or below 1; above the size: from `Context.Allreduce_init`.
    """

    k: int

    def __post_init__(self) -> None:
        """Check `k` and keep it as a plain int."""
        object.__setattr__(self, "k", _whole_number("Quorum(k)", self.k))
        if self.k < 1:
            raise ArgumentError(f"Quorum({self.k}): k must be at least 1")

    def _resolve(self, size: int) -> tuple[str, int]:
        if self.k > size:
            raise ArgumentError(f"Quorum({self.k}): the context has only {size} ranks")
        return "PP_QUORUM", self.k


@dataclass(frozen=True)
class Full(Policy):
    """All ranks are ready: the synchronous collective, by the same code (``Quorum(P)``)."""

    def _resolve(self, size: int) -> tuple[str, int]:
        return "PP_QUORUM", size


def _real_number(value: Any) -> float:
    """Return `value` as a float, NaN if it is no real number; text is none, whatever it says."""
    if isinstance(value, (str, bytes, bytearray)):
        return math.nan
    try:
        return float(value)
    except Exception:  # objects that could be numbers raise what they like
        return math.nan


def _whole_number(name: str, value: Any) -> int:
    """Return `value` as an int if it is an integer (NumPy's too, bool not)."""
    if not isinstance(value, bool):
        try:
            return operator.index(value)
        except TypeError:
            pass
        except Exception as error:  # objects that could be integers raise what they like
            raise ArgumentError(
                f"{name} must be an integer: this {type(value).__name__} raises "
                f"{type(error).__name__}: {error}"
            ) from error
    raise ArgumentError(f"{name} must be an integer, not {value!r}")
