"""What a run of the micro-benchmark is asked for: parsing of values, no measurement."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, TypeAlias

from ..errors import ArgumentError
from ..policy import Policy

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


class Rival(str, Enum):
    """A way to sum over all ranks that is not of this library.

    `COPY` sums nothing: each rank copies its buffer, the least that any of the others can do.
    """

    MPI = "mpi"
    MPI_NONBLOCKING = "mpi-nonblocking"
    MPI_PERSISTENT = "mpi-persistent"
    COPY = "memcpy"

    def __str__(self) -> str:
        return self.value


# A way to sum; its text is how the command line and the results name it.
Way: TypeAlias = Policy | Rival


def parse_way(text: str) -> Way:
    """Return the policy of this library that a text names, or for ``mpi`` MPI's allreduce.

    Raises
    ------
    ValueError
        If the text names neither.
    """
    return Rival.MPI if text.strip().lower() == "mpi" else Policy.parse(text)


def expected_active(way: Way, ranks: int) -> float | None:
    """Return the active ranks of a round in expectation if all arrival times are distinct.

    None for what is not of the library.
    """
    return way.expected_active(ranks) if isinstance(way, Policy) else None


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
    policies : tuple of Way
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

    policies: tuple[Way, ...]
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
            asks_too_much = _size_complaint(policy, ranks)
            if asks_too_much is not None:
                return asks_too_much
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
            if isinstance(policy, Rival):
                return f"--policy {policy}: MPI's own are always measured here"
        if not self.budget_ns:
            return "--budget 0: no call fits into it"
        return super().complaint(ranks) or _repeated("--buffers", self.buffers)


@dataclass(frozen=True, kw_only=True)
class OverheadOptions:
    """One run of ``pypartial bench overhead``, on one rank.

    Attributes
    ----------
    policy : Policy
    buffers : tuple of Buffers
    size : int
        Bytes of the buffers.
    loops, calls : int
        Loops of every kind of call, and calls in each.
    json : Path or None
        File with the results.
    """

    policy: Policy
    buffers: tuple[Buffers, ...]
    size: int
    loops: int
    calls: int
    json: Path | None = None

    def complaint(self) -> str | None:
        """Return what is wrong with these options; None if nothing is."""
        asks_too_much = _size_complaint(self.policy, 1)
        if asks_too_much is not None:
            return asks_too_much
        itemsize = DType.FLOAT32.itemsize
        if self.size % itemsize:
            return f"--size {self.size}: not a multiple of {itemsize} bytes, the size of float32"
        return _repeated("--buffers", self.buffers)


@dataclass(frozen=True, kw_only=True)
class TuneOptions:
    """One run of ``pypartial tune``.

    Attributes
    ----------
    sizes : tuple of int
        Bytes of a rank's buffer, ascending.
    ranks : tuple of int
        Numbers of ranks to measure on; none: all there are.
    budget_ns : int
        About so long the blocks of all sizes, algorithms and numbers of ranks take.
    table : Path or None
        File to write the outcome into; None: nowhere.
    json : Path or None
        File with the results.
    """

    sizes: tuple[int, ...]
    ranks: tuple[int, ...]
    budget_ns: int
    table: Path | None
    json: Path | None = None

    def complaint(self, ranks: int) -> str | None:
        """Return what is wrong with these options on so many ranks; None if nothing is."""
        if ranks == 1:
            return "one rank sends no messages: start several, with mpirun -n 4 pypartial tune"
        for number in self.ranks:
            if number > ranks:
                return f"--ranks {number}: there are {ranks}; start more with mpirun -n {number}"
        itemsize = DType.FLOAT32.itemsize
        for size in self.sizes:
            if size % itemsize:
                return f"--size {size}: not a multiple of {itemsize} bytes, the size of float32"
        if not self.budget_ns:
            return "--budget 0: no call fits into it"
        return _repeated("--size", self.sizes) or _repeated("--ranks", self.ranks)


def _size_complaint(way: Way, ranks: int) -> str | None:
    """Return the complaint about a policy that asks for more ranks than there are."""
    if isinstance(way, Policy):
        try:
            way.trigger(ranks)
        except ArgumentError as error:
            return f"--policy {way}: {error}"
    return None


def _repeated(option: str, values: Sequence[object]) -> str | None:
    """Return the complaint about an option that says the same thing twice; None if it does not."""
    return f"{option}: the same value is given twice" if len(set(values)) < len(values) else None
