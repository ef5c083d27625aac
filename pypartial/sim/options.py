"""What a simulation is asked for: parsing of values, nothing is simulated here."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from ..units import parse_duration
from .arrivals import BASE_NS, parse_arrivals
from .network import Network

if TYPE_CHECKING:
    from pathlib import Path


class Schedule(str, Enum):
    """A schedule by itself.

    The activation starts at rank 0, and a rank finishes when it is activated.  The allreduces start
    on all ranks at once.
    """

    ACTIVATION = "activation"
    RECURSIVE_DOUBLING = "recursive-doubling"
    RABENSEIFNER = "rabenseifner"
    RING = "ring"


class Dump(str, Enum):
    """A form in which schedules are written: GOAL-like text, or Graphviz."""

    GOAL = "goal"
    DOT = "dot"


class Deliver(str, Enum):
    """What a request completes with: the handle's ``deliver``."""

    LATEST = "latest"
    SUM = "sum"
    EACH = "each"


@dataclass(frozen=True)
class Policy:
    """A policy as it is written: ``solo``, ``majority``, ``first-of:M``, ``quorum:K`` or ``full``.

    Attributes
    ----------
    label : str
    kind : str
        ``first_of`` or ``quorum``.
    k : int or None
        m or k; None: all ranks.
    """

    label: str
    kind: str
    k: int | None

    @classmethod
    def parse(cls, text: str) -> Policy:
        """Read a policy.

        Raises
        ------
        ValueError
            If the text names none, or M or K is not a positive number.
        """
        name, colon, number = text.strip().lower().partition(":")
        plain = {"solo": ("first_of", None), "majority": ("first_of", 1), "full": ("quorum", None)}
        if name in plain and not colon:
            return cls(name, *plain[name])
        counted = {"first-of": "first_of", "quorum": "quorum"}
        if name in counted and number.isdecimal() and 0 < int(number) < 1 << 31:
            return cls(f"{name}:{int(number)}", counted[name], int(number))
        raise ValueError(
            f"{text!r} is not a policy: choose among solo, majority, first-of:M, quorum:K and "
            "full, with M and K from 1 on"
        )

    def count(self, ranks: int) -> int:
        """Return m or k on so many ranks."""
        return ranks if self.k is None else self.k

    def expected_active(self, ranks: int) -> float:
        """Return a round's active ranks in expectation, for arrivals at distinct times.

        The first of m drawn ranks is in expectation the (P+1)/(m+1)-th to arrive (eager-SGD,
        section 6.1, has m = P and m = 1); a quorum has as many as it asks for.
        """
        count = self.count(ranks)
        return float(count) if self.kind == "quorum" else (ranks + 1) / (count + 1)


@dataclass(frozen=True)
class Death:
    """A rank that dies.

    Attributes
    ----------
    rank : int
    time_ns : int
    told_ns : int or None
        So long afterwards the others are told; None: never.
    """

    rank: int
    time_ns: int
    told_ns: int | None

    @classmethod
    def parse(cls, text: str) -> Death:
        """Read ``RANK:TIME`` or ``RANK:TIME:DETECTION``.

        Raises
        ------
        ValueError
            If the text is neither.
        """
        rank, *times = text.strip().split(":")
        if not rank.isdecimal() or not 1 <= len(times) <= 2:
            raise ValueError(
                f"{text!r}: write RANK:TIME, or RANK:TIME:DETECTION, such as 3:20ms or 3:20ms:1ms"
            )
        durations = [parse_duration(time) for time in times]
        return cls(int(rank), durations[0], durations[1] if len(durations) > 1 else None)


@dataclass(frozen=True)
class SkewOptions:
    """One run of ``pypartial sim skew``: every policy for every number of ranks and size.

    Attributes
    ----------
    ranks, sizes : tuple of int
        `sizes` in bytes of a rank's vector.
    policies : tuple of Policy
    arrivals : str
        As `parse_arrivals` reads it.
    network : Network
    steps, seed, window, base_ns : int
    deliver : Deliver
    max_lag : int or None
        None: unbounded for ``latest``, else as large as the window allows.
    barrier : bool or None
        All ranks begin each step together; None: with ``linear`` arrivals only.
    death : Death or None
    json, plot : Path or None
    """

    ranks: tuple[int, ...]
    sizes: tuple[int, ...]
    policies: tuple[Policy, ...]
    arrivals: str
    network: Network
    steps: int
    seed: int = 0
    window: int = 4
    base_ns: int = BASE_NS
    deliver: Deliver = Deliver.LATEST
    max_lag: int | None = None
    barrier: bool | None = None
    death: Death | None = None
    json: Path | None = None
    plot: Path | None = None

    @property
    def with_barrier(self) -> bool:
        """Whether all ranks begin each step together."""
        if self.barrier is None:
            return self.arrivals.strip().startswith("linear")
        return self.barrier

    def complaint(self) -> str | None:
        """Return what is wrong with these options; None if nothing is."""
        for name, values in (
            ("--ranks", self.ranks),
            ("--bytes", self.sizes),
            ("--policy", self.policies),
        ):
            if len(set(values)) < len(values):
                return f"{name}: the same value is given twice"
        fewest = min(self.ranks)
        for policy in self.policies:
            if policy.count(fewest) > fewest:
                return f"--policy {policy.label}: asks for {policy.k} of {fewest} ranks"
        if self.max_lag is not None and self.max_lag >= self.window:
            return (
                f"--max-lag {self.max_lag}: needs a --window of at least {self.max_lag + 1}, "
                f"and it is {self.window}"
            )
        if self.death is not None and self.death.rank >= fewest:
            return f"--kill: there is no rank {self.death.rank} among {fewest}"
        return self._arrivals_complaint()

    def _arrivals_complaint(self) -> str | None:
        for ranks in self.ranks:
            try:
                parse_arrivals(self.arrivals, ranks, self.steps, self.seed, self.base_ns)
            except ValueError as error:
                return f"--arrivals: {error}"
        return None


@dataclass(frozen=True)
class ScheduleOptions:
    """One run of ``pypartial sim schedule``.

    Attributes
    ----------
    schedule : Schedule
    ranks, size, seed : int
        `size` in bytes of a rank's vector.
    network : Network
    quiet : bool
        Print the latest time only.
    dump : Dump or None
        Write the schedule instead of executing it.
    json : Path or None
    """

    schedule: Schedule
    ranks: int
    size: int
    network: Network
    seed: int = 0
    quiet: bool = False
    dump: Dump | None = None
    json: Path | None = None
