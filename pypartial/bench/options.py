"""What a run of the micro-benchmark is asked for: parsing of values, no measurement."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


class PolicyKind(str, Enum):
    """A way to sum over all ranks: a policy of the library, or MPI's own collective."""

    SOLO = "solo"
    MAJORITY = "majority"
    QUORUM = "quorum"
    FULL = "full"
    MPI = "mpi"


@dataclass(frozen=True)
class PolicyChoice:
    """One ``--policy``.

    Attributes
    ----------
    kind : PolicyKind
    quorum : int or None
        Ranks that a quorum asks for; None for every other kind.
    """

    kind: PolicyKind
    quorum: int | None = None

    @property
    def label(self) -> str:
        """The policy as it is written on the command line."""
        return self.kind.value if self.quorum is None else f"{self.kind.value}:{self.quorum}"

    def expected_active(self, ranks: int) -> float | None:
        """Return the active ranks of a round in expectation if all arrival times are distinct.

        Solo is triggered by the first rank to arrive, majority by a rank drawn with equal chances
        (eager-SGD, section 6.1), a quorum by its last one.  None for MPI.
        """
        return {
            PolicyKind.SOLO: 1.0,
            PolicyKind.MAJORITY: (ranks + 1) / 2,
            PolicyKind.QUORUM: float(self.quorum or 0),
            PolicyKind.FULL: float(ranks),
            PolicyKind.MPI: None,
        }[self.kind]


def parse_policy(text: str) -> PolicyChoice:
    """Return the policy that ``solo``, ``majority``, ``quorum:K``, ``full`` or ``mpi`` names.

    Raises
    ------
    ValueError
        If the text names none of them, or K is not a positive number.
    """
    name, colon, number = text.strip().lower().partition(":")
    if name == PolicyKind.QUORUM.value and number.isdecimal() and int(number) > 0:
        return PolicyChoice(PolicyKind.QUORUM, int(number))
    plain = [kind.value for kind in PolicyKind if kind is not PolicyKind.QUORUM]
    if not colon and name in plain:
        return PolicyChoice(PolicyKind(name))
    raise ValueError(
        f"{text!r} is not a policy: choose among {', '.join(plain)} and quorum:K with K >= 1"
    )


class Work(str, Enum):
    """What a rank does until its call: sleep, or arithmetic that keeps a core busy."""

    SLEEP = "sleep"
    COMPUTE = "compute"


class Transport(str, Enum):
    """How the library's ranks reach each other: `pypartial.Context`'s ``transport``."""

    AUTO = "auto"
    MPI = "mpi"


class DType(str, Enum):
    """Element types that hold the counts the verification needs exactly."""

    FLOAT32 = "float32"
    FLOAT64 = "float64"
    INT32 = "int32"
    INT64 = "int64"

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return 4 if self in (DType.FLOAT32, DType.INT32) else 8

    @property
    def exact_bits(self) -> int:
        """Every non-negative integer of so many bits is represented exactly."""
        return {
            DType.FLOAT32: 24,
            DType.FLOAT64: 53,
            DType.INT32: 31,
            DType.INT64: 63,
        }[self]


@dataclass(frozen=True)
class SkewOptions:
    """One run of ``pypartial bench skew``, the same on every rank.

    Attributes
    ----------
    policies : tuple of PolicyChoice
        Compared with each other on the same buffers, in this order in the results.
    sizes : tuple of int
        Bytes of a rank's buffer.
    skew_ns : int
        Rank r calls r times so many nanoseconds after the round began.
    rounds, warmup : int
        Rounds measured, and rounds run before them, for each size and policy.
    work : Work
    transport : Transport
    dtype : DType
    seed : int
        Of the library's draws.
    json, plot : Path or None
        Files that rank 0 writes.
    """

    policies: tuple[PolicyChoice, ...]
    sizes: tuple[int, ...]
    skew_ns: int
    rounds: int
    warmup: int
    work: Work = Work.SLEEP
    transport: Transport = Transport.AUTO
    dtype: DType = DType.FLOAT32
    seed: int = 0
    json: Path | None = None
    plot: Path | None = None

    def complaint(self, ranks: int) -> str | None:
        """Return what is wrong with these options on so many ranks; None if nothing is."""
        for size in self.sizes:
            if size % self.dtype.itemsize:
                return (
                    f"--size {size}: not a multiple of {self.dtype.itemsize} bytes, "
                    f"the size of {self.dtype.value}"
                )
        for policy in self.policies:
            if policy.quorum is not None and policy.quorum > ranks:
                return f"--policy {policy.label}: asks for {policy.quorum} of {ranks} ranks"
        if not 0 <= self.seed < 1 << 64:
            return f"--seed {self.seed}: not in 0..2**64 - 1"
        for name, values in (("--policy", self.policies), ("--size", self.sizes)):
            if len(set(values)) < len(values):
                return f"{name}: the same value is given twice"
        return None
