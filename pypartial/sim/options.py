"""The options of simulations: they are parsed and checked here, and nothing is simulated."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from ..errors import ArgumentError
from ..policy import Policy
from ..units import parse_duration
from .arrivals import BASE_NS, arrivals_complaint
from .network import Network

if TYPE_CHECKING:
    from pathlib import Path


ACTIVATION = "activation"


class Dump(str, Enum):
    """A form of a schedule's text: GOAL-like, or for Graphviz."""

    GOAL = "goal"
    DOT = "dot"


class Deliver(str, Enum):
    """What a request delivers: the handle's ``deliver``."""

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
        The time of the death.
    told_ns : int or None
        The time from the death until the other ranks are told; None: never.
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
        Nanoseconds; -1 for ``auto``, by the rank's usual time; None: for ever.

    Raises
    ------
    ValueError
        If the text is neither of the words, nor a duration above 0.
    """
    word = text.strip().lower()
    if word in ("auto", "none"):
        return -1 if word == "auto" else None
    patience = parse_duration(text)
    if patience == 0:
        raise ValueError(f"{text!r}: a patience is above 0; write none for ever")
    return patience


@dataclass(frozen=True)
class SkewOptions:
    """Options of one run of ``pypartial sim skew``: each policy for each number of ranks and size.

    Attributes
    ----------
    ranks : tuple of int
        Numbers of ranks.
    sizes : tuple of int
        Sizes of a rank's vector, in bytes.
    policies : tuple of Policy
    arrivals : str
        The arrival model, in the form that `parse_arrivals` reads.
    network : Network
    steps, seed, window, base_ns : int
    deliver : Deliver
    max_lag : int or None
        None: no bound for ``latest``, else window - 1.
    barrier : bool or None
        Whether all ranks begin each step together; None: with ``linear`` arrivals only.
    death : Death or None
    patience : int or None
        The value that `parse_patience` returns.
    json, plot : Path or None
        Files for the results and the plot.
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
        """Return whether all ranks begin each step together."""
        if self.barrier is None:
            return self.arrivals.strip().startswith("linear")
        return self.barrier

    def complaint(self) -> str | None:
        """Return what is wrong with these options; None if nothing is."""
        for name, values in (
            ("--ranks", self.ranks),
            ("--size", self.sizes),
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
        course = self.steps, self.seed, self.base_ns
        complaints = (arrivals_complaint(self.arrivals, ranks, *course) for ranks in self.ranks)
        return next(filter(None, complaints), None)


@dataclass(frozen=True)
class ScheduleOptions:
    """Options of one run of ``pypartial sim schedule``.

    Attributes
    ----------
    schedule : str
        `ACTIVATION`, which rank 0 starts and which finishes at a rank when it is activated; or an
        algorithm of an allreduce, which all ranks start at once.
    ranks, seed : int
    size : int
        Bytes of a rank's vector.
    network : Network
    segments : int
        Of the vector; 0: by its size.
    quiet : bool
        Print only the time at which the last rank finishes.
    dump : Dump or None
        The form in which to print the schedule instead of executing it.
    json : Path or None
        File for the times.
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
