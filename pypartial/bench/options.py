"""The options of the benchmarks: they are parsed and checked here, and nothing is measured."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

from ..errors import ArgumentError
from ..policy import Policy

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


class Rival(str, Enum):
    """A way to sum over all ranks that does not belong to this library.

    `COPY` sums nothing: each rank copies its buffer, the least that any way to sum can do.
    """

    MPI = "mpi"
    MPI_NONBLOCKING = "mpi-nonblocking"
    MPI_PERSISTENT = "mpi-persistent"
    COPY = "memcpy"

    def __str__(self) -> str:
        return self.value


# A way to sum; the command line and the results name it by its text.
Way: TypeAlias = Policy | Rival


def parse_way(text: str) -> Way:
    """Return the policy that a text names, or MPI's allreduce for ``mpi``.

    Raises
    ------
    ValueError
        If the text names neither.
    """
    return Rival.MPI if text.strip().lower() == "mpi" else Policy.parse(text)


def expected_active(way: Way, ranks: int) -> float | None:
    """Return the expected number of active ranks if all arrival times are distinct.

    None if the way to sum does not belong to this library.
    """
    return way.expected_active(ranks) if isinstance(way, Policy) else None


class Work(str, Enum):
    """What a rank does until its call: it sleeps, or keeps a core busy with arithmetic."""

    SLEEP = "sleep"
    COMPUTE = "compute"


class Transport(str, Enum):
    """How the library's ranks reach each other: `pypartial.Context`'s ``transport``."""

    AUTO = "auto"
    MPI = "mpi"


class DType(str, Enum):
    """Element types that hold the counts of the verification exactly."""

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
        """The number of bits up to which every non-negative integer is exact."""
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


class DeviceBuffers(str, Enum):
    """Buffers in the memory of a CUDA device: whose arrays they are.

    `BY_HAND` is for MPI's allreduce only: a program copies the buffers to and from pinned memory.
    """

    CUPY = "cupy"
    TORCH = "torch"
    BY_HAND = "cuda-staged-by-hand"


class DevicePath(str, Enum):
    """How elements of buffers on devices travel: `Context.Allreduce_init`'s ``device_path``."""

    AUTO = "auto"
    STAGED = "staged"
    IPC = "ipc"
    DIRECT = "direct"


AnyBuffers: TypeAlias = Buffers | DeviceBuffers


def on_device(buffers: str) -> bool:
    """Return whether buffers of the kind with this name are in the memory of a device."""
    return buffers in {kind.value for kind in DeviceBuffers}


def parse_buffers(text: str, host: Sequence[Buffers]) -> tuple[AnyBuffers, ...]:
    """Return the kinds of buffers that a text names; ``host`` names several of the host's.

    Raises
    ------
    ValueError
        If it names none.
    """
    name = text.strip().lower()
    if name == "host":
        return tuple(host)
    kinds: tuple[AnyBuffers, ...] = (*Buffers, *DeviceBuffers)
    for kind in kinds:
        if kind.value == name:
            return (kind,)
    known = ", ".join(["host", *(kind.value for kind in kinds)])
    raise ValueError(f"{text!r} is not a kind of buffers: {known}")


def ways_and_buffers(
    policies: Sequence[Way], buffers: Sequence[AnyBuffers]
) -> list[tuple[Way, AnyBuffers]]:
    """Return each way with each kind of buffers that it has.

    MPI has NumPy's arrays, and on a device those that are staged by hand.
    """
    found: list[tuple[Way, AnyBuffers]] = []
    for way in policies:
        for kind in buffers:
            if isinstance(way, Rival):
                kind = Buffers.NUMPY if isinstance(kind, Buffers) else DeviceBuffers.BY_HAND
            elif kind is DeviceBuffers.BY_HAND:
                continue
            if (way, kind) not in found:
                found.append((way, kind))
    return found


@dataclass(frozen=True, kw_only=True)
class AllreduceOptions:
    """Options of the benchmarks of an allreduce over all ranks, the same on every rank.

    Attributes
    ----------
    policies : tuple of Way
        The ways to compare, in the order of the results.
    sizes : tuple of int
        Bytes of a rank's buffer.
    skew_ns : int
        Rank r calls r times this many nanoseconds after the beginning of the round.
    work : Work
    transport : Transport
    dtype : DType
    seed : int
        Seed of the library's draws.
    patience : float or "auto" or None
        The `patience` of `pypartial.Context`.
    buffers : tuple of Buffers and DeviceBuffers
        Every policy is measured with each of them.
    device : int or None
        Of all ranks; None: the ranks of a node take its devices in turn.
    device_path : DevicePath or None
        Of the policies with buffers on a device. None: not asked for, which is "auto".
    json, plot : Path or None
        Files that rank 0 writes.
    """

    policies: tuple[Way, ...]
    sizes: tuple[int, ...]
    skew_ns: int
    buffers: tuple[AnyBuffers, ...] = (Buffers.NUMPY,)
    device: int | None = None
    device_path: DevicePath | None = None
    work: Work = Work.SLEEP
    transport: Transport = Transport.AUTO
    dtype: DType = DType.FLOAT32
    seed: int = 0
    patience: float | Literal["auto"] | None = None
    json: Path | None = None
    plot: Path | None = None

    def complaint(self, ranks: int) -> str | None:
        """Return what is wrong with these options on `ranks` ranks; None if nothing is."""
        return (
            uneven(self.sizes, self.dtype)
            or asks_too_much(self.policies, ranks)
            or not_a_seed(self.seed)
            or self._device_complaint()
            or repeated(
                {"--policy": self.policies, "--size": self.sizes, "--buffers": self.buffers}
            )
        )

    def _device_complaint(self) -> str | None:
        if self.device is not None and not any(map(on_device, self.buffers)):
            return f"--device {self.device}: all buffers are the host's; add --buffers cupy"
        if self.device_path is not None and not self._has_requests_on_device():
            path = self.device_path.value
            return f"--device-path {path}: no policy has buffers on a device; add --buffers cupy"
        return None

    def _has_requests_on_device(self) -> bool:
        ways = ways_and_buffers(self.policies, self.buffers)
        return any(isinstance(way, Policy) and on_device(kind.value) for way, kind in ways)


def asked_path(options: AllreduceOptions) -> str:
    """Return the `device_path` of requests whose buffers are on a device."""
    return (options.device_path or DevicePath.AUTO).value


@dataclass(frozen=True, kw_only=True)
class SkewOptions(AllreduceOptions):
    """Options of one run of ``pypartial bench skew``.

    Attributes
    ----------
    rounds, warmup : int
        Rounds measured, and rounds run before them, for each size and policy.
    """

    rounds: int
    warmup: int

    def complaint(self, ranks: int) -> str | None:
        """Return what is wrong with these options on `ranks` ranks; None if nothing is."""
        if not ways_and_buffers(self.policies, self.buffers):
            return f"--buffers {DeviceBuffers.BY_HAND.value}: only mpi has them; add --policy mpi"
        return super().complaint(ranks)


class Repetitions(Protocol):
    """How often calls are measured: options of several benchmarks.

    Attributes
    ----------
    budget_ns : int
        About how long each way is measured at each size, in nanoseconds.
    blocks, calls : int or None
        Blocks of each way, and calls in each block; None: as many as the budget allows.
    """

    @property
    def budget_ns(self) -> int: ...  # noqa: D102

    @property
    def blocks(self) -> int | None: ...  # noqa: D102

    @property
    def calls(self) -> int | None: ...  # noqa: D102


@dataclass(frozen=True, kw_only=True)
class LatencyOptions(AllreduceOptions):
    """Options of one run of ``pypartial bench latency``.

    Attributes
    ----------
    budget_ns : int
        About how long each way is measured at each size, in nanoseconds.
    blocks, calls : int or None
        Blocks of each way, and calls in each block; None: as many as the budget allows.
    """

    budget_ns: int
    blocks: int | None = None
    calls: int | None = None

    def complaint(self, ranks: int) -> str | None:
        """Return what is wrong with these options on `ranks` ranks; None if nothing is."""
        for policy in self.policies:
            if isinstance(policy, Rival):
                return f"--policy {policy}: MPI's own are always measured here; leave it out"
        if not self.budget_ns:
            return "--budget 0: no call fits into it; choose a time above 0"
        return super().complaint(ranks)


@dataclass(frozen=True, kw_only=True)
class OverheadOptions:
    """Options of one run of ``pypartial bench overhead``, on one rank.

    Attributes
    ----------
    policy : Policy
    buffers : tuple of Buffers
    size : int
        Bytes of the buffers.
    loops, calls : int
        Loops of every kind of call, and calls in each loop.
    json : Path or None
        File for the results.
    """

    policy: Policy
    buffers: tuple[Buffers, ...]
    size: int
    loops: int
    calls: int
    json: Path | None = None

    def complaint(self) -> str | None:
        """Return what is wrong with these options; None if nothing is."""
        return (
            asks_too_much([self.policy], 1)
            or uneven([self.size], DType.FLOAT32)
            or repeated({"--buffers": self.buffers})
        )


@dataclass(frozen=True, kw_only=True)
class TuneOptions:
    """Options of one run of ``pypartial tune``.

    Attributes
    ----------
    sizes : tuple of int
        Bytes of a rank's buffer, ascending.
    ranks : tuple of int
        Numbers of ranks to measure on; empty: all ranks.
    budget_ns : int
        About how long the whole measurement takes, in nanoseconds.
    table : Path or None
        The tuning table to write to; None: none.
    json : Path or None
        File for the results.
    """

    sizes: tuple[int, ...]
    ranks: tuple[int, ...]
    budget_ns: int
    table: Path | None
    json: Path | None = None

    def complaint(self, ranks: int) -> str | None:
        """Return what is wrong with these options on `ranks` ranks; None if nothing is."""
        if ranks == 1:
            return "one rank sends no messages: start several, with mpirun -n 4 pypartial tune"
        for number in self.ranks:
            if number > ranks:
                return (
                    f"--ranks {number}: there are only {ranks} ranks; start more, with "
                    f"mpirun -n {number} pypartial tune"
                )
        complaint = uneven(self.sizes, DType.FLOAT32)
        if complaint is None and not self.budget_ns:
            return "--budget 0: no call fits into it; choose a time above 0"
        return complaint or repeated({"--size": self.sizes, "--ranks": self.ranks})


# Each returns the complaint about options, or None if there is none.


def asks_too_much(ways: Sequence[Way], ranks: int) -> str | None:
    """Look for a policy that asks for more ranks than there are."""
    for way in ways:
        if isinstance(way, Policy):
            try:
                way.trigger(ranks)
            except ArgumentError as error:
                return f"--policy {way}: {error}"
    return None


def uneven(sizes: Sequence[int], dtype: DType) -> str | None:
    """Look for a size that is no number of elements."""
    for size in sizes:
        if size % dtype.itemsize:
            what = f"{dtype.itemsize} bytes, the size of {dtype.value}"
            return f"--size {size}: not a multiple of {what}"
    return None


def not_a_seed(seed: int) -> str | None:
    """Look whether a seed has more than 64 bits."""
    return None if 0 <= seed < 1 << 64 else f"--seed {seed} is not in 0..2**64 - 1"


def repeated(options: Mapping[str, Sequence[object]]) -> str | None:
    """Look for an option with the same value twice."""
    for option, values in options.items():
        if len(set(values)) < len(values):
            return f"{option}: the same value is given twice"
    return None
