"""What a run of the micro-benchmark is asked for: parsing of values, no measurement."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


class PolicyKind(str, Enum):
    """A way to sum over all ranks: a policy of the library, or one of MPI's own.

    `COPY` sums nothing: each rank copies its buffer, the least that any of the others can do.
    """

    SOLO = "solo"
    MAJORITY = "majority"
    QUORUM = "quorum"
    FULL = "full"
    MPI = "mpi"
    MPI_NONBLOCKING = "mpi-nonblocking"
    MPI_PERSISTENT = "mpi-persistent"
    COPY = "memcpy"

    @property
    def of_the_library(self) -> bool:
        """Whether it is a policy of this library."""
        return self in (
            PolicyKind.SOLO,
            PolicyKind.MAJORITY,
            PolicyKind.QUORUM,
            PolicyKind.FULL,
        )


# What a plain word on the command line may name.
_PLAIN = (PolicyKind.SOLO, PolicyKind.MAJORITY, PolicyKind.FULL, PolicyKind.MPI)


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
        (eager-SGD, section 6.1), a quorum by its last one.  None for what is not of the library.
        """
        return {
            PolicyKind.SOLO: 1.0,
            PolicyKind.MAJORITY: (ranks + 1) / 2,
            PolicyKind.QUORUM: float(self.quorum or 0),
            PolicyKind.FULL: float(ranks),
        }.get(self.kind)


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
    plain = [kind.value for kind in _PLAIN]
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


class Buffers(str, Enum):
    """Where the buffers come from: `pypartial.Context.alloc`, or `numpy.empty`."""

    LIBRARY = "library"
    NUMPY = "numpy"


@dataclass(frozen=True, kw_only=True)
class AllreduceOptions:
    """What the benchmarks of an allreduce over all ranks are asked for, the same on every rank.

    Attributes
    ----------
    policies : tuple of PolicyChoice
        Compared with each other, in this order in the results.
    sizes : tuple of int
        Bytes of a rank's buffer.
    skew_ns : int
        Rank r calls r times so many nanoseconds after the round began.
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
        return _repeated("--policy", self.policies) or _repeated("--size", self.sizes)


@dataclass(frozen=True, kw_only=True)
class SkewOptions(AllreduceOptions):
    """One run of ``pypartial bench skew``.

    Attributes
    ----------
    rounds, warmup : int
        Rounds measured, and rounds run before them, for each size and policy.
    """

    rounds: int
    warmup: int


@dataclass(frozen=True, kw_only=True)
class LatencyOptions(AllreduceOptions):
    """One run of ``pypartial bench latency``.

    Attributes
    ----------
    buffers : tuple of Buffers
        Every policy is measured with each of them.
    budget_ns : int
        About so long every way is called at every size, the slowest one.
    blocks, calls : int or None
        Blocks of a way, and calls in each; None: as many as the budget allows.
    """

    buffers: tuple[Buffers, ...]
    budget_ns: int
    blocks: int | None = None
    calls: int | None = None

    def complaint(self, ranks: int) -> str | None:
        """Return what is wrong with these options on so many ranks; None if nothing is."""
        for policy in self.policies:
            if not policy.kind.of_the_library:
                return f"--policy {policy.label}: MPI's own are always measured here"
        if not self.budget_ns:
            return "--budget 0: no call fits into it"
        return super().complaint(ranks) or _repeated("--buffers", self.buffers)


@dataclass(frozen=True, kw_only=True)
class OverheadOptions:
    """One run of ``pypartial bench overhead``, on one rank.

    Attributes
    ----------
    policy : PolicyChoice
    buffers : tuple of Buffers
    size : int
        Bytes of the buffers.
    loops, calls : int
        Loops of every kind of call, and calls in each.
    json : Path or None
        File with the results.
    """

    policy: PolicyChoice
    buffers: tuple[Buffers, ...]
    size: int
    loops: int
    calls: int
    json: Path | None = None

    def complaint(self) -> str | None:
        """Return what is wrong with these options; None if nothing is."""
        if not self.policy.kind.of_the_library or (self.policy.quorum or 1) > 1:
            return f"--policy {self.policy.label}: not one of the library's for a single rank"
        itemsize = DType.FLOAT32.itemsize
        if self.size % itemsize:
            return f"--size {self.size}: not a multiple of {itemsize} bytes, the size of float32"
        return _repeated("--buffers", self.buffers)


def _repeated(option: str, values: Sequence[object]) -> str | None:
    """Return the complaint about an option that says the same thing twice; None if it does not."""
    return f"{option}: the same value is given twice" if len(set(values)) < len(values) else None
