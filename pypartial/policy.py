"""Policies: which ranks a round waits for.

A round of a partial collective is *activated* when its policy is satisfied. Every rank then takes
part. A rank that has called contributes its new data; a late rank contributes what it has pending
from earlier calls, or nothing. The ranks that were ready when the round took contributions are its
*active* ranks. See eager-SGD (Li et al., PPoPP 2020), sections 4 and 5.

Commands and reports write a policy as text: ``solo``, ``first:3``, ``majority``, ``quorum:4`` or
``full``, each followed by ``,deadline=5ms`` and ``,grace=200us`` if it has them. `Policy.parse`
reads what ``str(policy)`` writes, and so does every argument that takes a policy.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import Field, dataclass, field, fields
from typing import Any, ClassVar, NamedTuple

from ._arguments import real_number, whole_number
from .errors import ArgumentError
from .units import parse_seconds, spell_seconds

__all__ = ["FirstOf", "Full", "Majority", "Policy", "Quorum", "Solo", "Trigger"]

_LONGEST_S = float(1 << 63) / 1e9  # what the core's nanoseconds hold
_COUNTED = ["quorum"]  # kinds of triggers for which ready ranks are counted; else some are drawn


class Trigger(NamedTuple):
    """What activates a round.

    Attributes
    ----------
    kind : {"first_of", "quorum"}
        ``"first_of"``: the first of `ranks` drawn ranks to wait for the round activates it.
        ``"quorum"``: the round is activated when `ranks` ranks are ready.
    ranks : int
        From 1 to the number of ranks of the context.
    """

    kind: str
    ranks: int


@dataclass(frozen=True, repr=False)
class Policy(ABC):
    """When a round is activated: the base of all policies.

    Use one of `Solo`, `Majority`, `FirstOf`, `Quorum` and `Full`. A policy is immutable, and
    policies are compared by value. An application can define its own: a frozen dataclass derived
    from this class, with a `word` for its text form, at most one positional field, which is an
    integer, and a method `trigger`.

    Parameters
    ----------
    deadline : float, optional
        Seconds, above 0. A rank that has waited for a round for this long activates it with the
        ranks that are ready then; the round's cause is ``"deadline"``. A deadline does not override
        `max_lag`: a rank that `max_lag` protects still has its patience. None: no deadline.
    grace : float, optional
        Seconds, 0 or more, between the activation of a round and the moment when it takes
        contributions. Ranks that come a little later are then in the round. None: the library
        chooses by the size of the vector.

    Raises
    ------
    ArgumentError
        If `deadline` or `grace` is not a number of seconds in its range.
    """

    word: ClassVar[str] = ""

    deadline: float | None = field(default=None, kw_only=True)
    grace: float | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        """Check the fields, and keep them as int and float."""
        for entry in _counts(type(self)):
            name = f"{type(self).__name__}({entry.name})"
            count = whole_number(name, getattr(self, entry.name))
            if count < 1:
                raise ArgumentError(
                    f"{type(self).__name__}({count}): {entry.name} must be at least 1"
                )
            object.__setattr__(self, entry.name, count)
        self._keep_seconds("deadline", "above 0", lambda seconds: seconds > 0)
        self._keep_seconds("grace", "of 0 or more", lambda seconds: seconds >= 0)

    def _keep_seconds(self, name: str, which: str, good: Any) -> None:
        value = getattr(self, name)
        if value is None:
            return
        seconds = real_number(value)
        if not (good(seconds) and seconds < _LONGEST_S):
            raise ArgumentError(
                f"{type(self).__name__}: {name} must be a finite number of seconds {which}, or "
                f"None, not {value!r}"
            )
        object.__setattr__(self, name, abs(seconds))  # a grace of -0.0 is one of 0.0

    @abstractmethod
    def trigger(self, size: int) -> Trigger:
        """Return what activates a round of a context with `size` ranks.

        Raises
        ------
        ArgumentError
            If the policy asks for more ranks than the context has.
        """

    def drawn(self, size: int) -> int:
        """Return how many ranks are drawn for a round, of which one triggers it; 0: none."""
        kind, count = self.trigger(size)
        return 0 if kind in _COUNTED else count

    def needed(self, size: int) -> int:
        """Return how many ready ranks trigger a round; 0: they are not counted."""
        kind, count = self.trigger(size)
        return count if kind in _COUNTED else 0

    def least_active(self, size: int) -> int:
        """Return the least number of active ranks in a round whose cause is ``"policy"``."""
        return max(1, self.needed(size))

    def expected_active(self, size: int) -> float | None:
        """Return the expected number of active ranks if all ranks arrive at distinct times.

        For m drawn ranks out of P = `size` this is (P + 1) / (m + 1), because that is the expected
        place of the first drawn rank in the order of arrivals; for m = P and m = 1 see eager-SGD,
        section 6.1. For a quorum it is the number that the quorum asks for. None with a deadline or
        a grace period: the number then depends on how late the ranks are.
        """
        if self.deadline is not None or self.grace:
            return None
        return float(self.needed(size)) or (size + 1) / (self.drawn(size) + 1)

    @property
    def lockstep(self) -> bool:
        """Whether every rank takes part in every round with new data, as in an MPI allreduce."""
        return False

    @property
    def deadline_ns(self) -> int:
        """The deadline in nanoseconds, as the C core takes it; 0: none."""
        return 0 if self.deadline is None else max(1, round(self.deadline * 1e9))

    @property
    def grace_ns(self) -> int:
        """The grace period in nanoseconds, as the C core takes it; -1: the core chooses."""
        return -1 if self.grace is None else round(self.grace * 1e9)

    @staticmethod
    def parse(text: str) -> Policy:
        """Return the policy that a text such as ``first:3,deadline=5ms`` names.

        Parameters
        ----------
        text : str
            ``solo``, ``first:M``, ``majority``, ``quorum:K`` or ``full``; behind it
            ``,deadline=TIME`` and ``,grace=TIME``, where a time is written ``5ms`` or ``200us``.
            Upper and lower case mean the same.

        Raises
        ------
        ArgumentError
            If the text names no policy, or is no string.

        Examples
        --------
        >>> pp.Policy.parse("quorum:4,deadline=5ms")  # doctest: +SKIP
        Quorum(4, deadline=0.005)
        """
        if not isinstance(text, str):
            raise ArgumentError(f"a policy's text must be a string, not {text!r}")
        head, *options = text.strip().lower().split(",")
        word, colon, number = head.strip().partition(":")
        kind = next((kind for kind in _kinds(Policy) if kind.word == word), None)
        if kind is None or bool(colon) != bool(_counts(kind)) or len(options) > 2:
            raise ArgumentError(_not_a_policy(text))
        if colon and not (number.isdecimal() and number.isascii() and len(number) < 10):
            raise ArgumentError(_not_a_policy(text))
        seconds: dict[str, Any] = {}
        for option in options:
            name, equals, value = option.strip().partition("=")
            if not equals or name not in ("deadline", "grace") or name in seconds:
                raise ArgumentError(_not_a_policy(text))
            try:
                seconds[name] = parse_seconds(value)
            except ValueError as error:
                raise ArgumentError(f"{text!r}: {error}") from None
        counts = [int(number)] if colon else []
        return kind(*counts, **seconds)

    def __str__(self) -> str:
        """Return the text that `parse` reads back: ``quorum:4,deadline=5ms``."""
        parts = [":".join([self.word, *map(str, self._numbers())])]
        for name in ("deadline", "grace"):
            seconds = getattr(self, name)
            if seconds is not None:
                parts.append(f"{name}={spell_seconds(seconds)}")
        return ",".join(parts)

    def __repr__(self) -> str:
        """Return the policy as Python code: ``Quorum(4, deadline=0.005)``."""
        given = [(name, getattr(self, name)) for name in ("deadline", "grace")]
        options = [f"{name}={value!r}" for name, value in given if value is not None]
        return f"{type(self).__name__}({', '.join([*map(str, self._numbers()), *options])})"

    def _numbers(self) -> list[int]:
        return [getattr(self, entry.name) for entry in _counts(type(self))]

    def _at_most(self, count: int, size: int) -> int:
        if count > size:
            there = "1 rank" if size == 1 else f"{size} ranks"
            raise ArgumentError(f"{self!r} asks for {count} ranks; the context has only {there}")
        return count


@dataclass(frozen=True, repr=False)
class Solo(Policy):
    """The first rank to wait for a round triggers it (eager-SGD, section 4.2: solo allreduce).

    No rank waits for another one, and often only one rank is active. Under heavy skew, training
    with it loses accuracy (section 6.3). The same as ``FirstOf(P)`` for P ranks.

    Parameters
    ----------
    deadline, grace : float, optional
        As for every `Policy`.
    """

    word: ClassVar[str] = "solo"

    def trigger(self, size: int) -> Trigger:
        """Return the first of all ranks."""
        return Trigger("first_of", size)


@dataclass(frozen=True, repr=False)
class Majority(Policy):
    """One rank, drawn anew for every round, triggers it (eager-SGD, section 4.3).

    All ranks draw the same rank, from the context's seed and the number of the round. If the ranks
    arrive at distinct times, (P + 1) / 2 of P ranks are active in expectation (Lemma 5.1). A single
    round may have fewer; use `Quorum` for a guarantee in every round. The same as ``FirstOf(1)``.

    Parameters
    ----------
    deadline, grace : float, optional
        As for every `Policy`.
    """

    word: ClassVar[str] = "majority"

    def trigger(self, size: int) -> Trigger:
        """Return the one rank that is drawn."""
        return Trigger("first_of", 1)


@dataclass(frozen=True, repr=False)
class FirstOf(Policy):
    """The first of `m` ranks, drawn anew for every round, triggers it.

    It lies between `Majority` (m = 1) and `Solo` (m = P). If the ranks arrive at distinct times,
    (P + 1) / (m + 1) of P ranks are active in expectation.

    Parameters
    ----------
    m : int
        Number of ranks drawn, 1 to the size of the context.
    deadline, grace : float, optional
        As for every `Policy`.

    Raises
    ------
    ArgumentError
        If `m` is not an integer, or below 1. `Context.Allreduce_init` raises it if `m` is above the
        size of the context.
    """

    word: ClassVar[str] = "first"

    m: int

    def trigger(self, size: int) -> Trigger:
        """Return the first of m drawn ranks."""
        return Trigger("first_of", self._at_most(self.m, size))


@dataclass(frozen=True, repr=False)
class Quorum(Policy):
    """A round waits until `k` ranks are ready.

    Every round whose cause is ``"policy"`` has at least `k` active ranks. A rank that is inside a
    collective call of the context, or whose patience is over, has left. If fewer than `k` ranks
    have not left, the round waits for all of these only, and its cause is ``"departed"``. With `k`
    the size of the context and no `deadline`, it is `Full`, whose waits no patience ends.

    Parameters
    ----------
    k : int
        Number of ranks, 1 to the size of the context.
    deadline, grace : float, optional
        As for every `Policy`.

    Raises
    ------
    ArgumentError
        If `k` is not an integer, or below 1. `Context.Allreduce_init` raises it if `k` is above the
        size of the context.
    """

    word: ClassVar[str] = "quorum"

    k: int

    def trigger(self, size: int) -> Trigger:
        """Return k ready ranks."""
        return Trigger("quorum", self._at_most(self.k, size))


@dataclass(frozen=True, repr=False)
class Full(Policy):
    """A round waits until all ranks are ready: the synchronous collective, ``Quorum(P)``.

    A rank inside a collective call of the context has left, as for `Quorum`. For any other slow
    rank ``Full()`` waits as MPI does: the slow rank's patience does not end the wait. With a
    deadline the first of the two ends it, the deadline or the slow rank's patience.

    Parameters
    ----------
    deadline, grace : float, optional
        As for every `Policy`.
    """

    word: ClassVar[str] = "full"

    @property
    def lockstep(self) -> bool:
        """Whether no deadline lets a round go on without a rank."""
        return self.deadline is None

    def trigger(self, size: int) -> Trigger:
        """Return all ranks, ready."""
        return Trigger("quorum", size)


def as_policy(value: Any) -> Policy:
    """Return the policy that an argument is, or names; raise ArgumentError if it is neither."""
    if isinstance(value, str):
        return Policy.parse(value)
    if not isinstance(value, Policy):
        raise ArgumentError(
            "policy must be pypartial.Solo(), Majority(), FirstOf(m), Quorum(k) or Full(), or text "
            f"such as 'majority', not {value!r}"
        )
    return value


def _counts(kind: type[Policy]) -> list[Field[Any]]:
    """Return the fields of a policy that hold a number of ranks."""
    return [entry for entry in fields(kind) if not entry.kw_only]


def _kinds(base: Any) -> Iterator[type[Policy]]:
    """Yield all classes of policies, those of the application included."""
    for kind in base.__subclasses__():
        yield kind
        yield from _kinds(kind)


def _not_a_policy(text: str) -> str:
    forms = [
        ":".join([kind.word, *(entry.name.upper() for entry in _counts(kind))])
        for kind in _kinds(Policy)
        if kind.word
    ]
    return (
        f"{text!r} is not a policy: write one of {', '.join(forms)} with a number from 1 on for "
        "the capital letter, and after it, if you like, ,deadline=TIME and ,grace=TIME (5ms, 200us)"
    )
