"""What a simulation is asked for: parsing of values, nothing is simulated here."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from ..errors import ArgumentError
from ..policy import Policy
from ..units import parse_duration
from .arrivals import BASE_NS, parse_arrivals
from .network import Network

if TYPE_CHECKING:
    from pathlib import Path


ACTIVATION = "activation"


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


def parse_patience(text: str) -> int | None:
    """Read how long a rank may hold a round up: a duration, ``auto`` or ``none``.

    Returns
    -------
    int or None
        Nanoseconds; -1: by the rank's habit; None: for ever.

    Raises
    ------
    ValueError
        If the text is none of these, or a duration of 0.
    """
    word = text.strip().lower()
    if word in ("auto", "none"):
        return -1 if word == "auto" else None
    patience = parse_duration(text)
    if patience == 0:
        raise ValueError(f"{text!r}: a patience is above 0, auto or none")
    return patience


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
    patience : int or None
        As `parse_patience` reads it.
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
    patience: int | None = None
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
            try:
                policy.trigger(fewest)
            except ArgumentError as error:
                return f"--policy {policy}: {error}"
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
    schedule : str
        `ACTIVATION`, which starts at rank 0, a rank finishing when it is activated; or an algorithm
        of an allreduce, which starts on all ranks at once.
    ranks, size, seed : int
        `size` in bytes of a rank's vector.
    network : Network
    segments : int
        Of the vector; 0: by its size.
    quiet : bool
        Print the latest time only.
    dump : Dump or None
        Write the schedule instead of executing it.
    json : Path or None
    """

    schedule: str
    ranks: int
    size: int
    network: Network
    seed: int = 0
    segments: int = 0
    quiet: bool = False
    dump: Dump | None = None
    json: Path | None = None
