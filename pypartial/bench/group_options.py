"""The options of ``bench groups``; nothing is measured here."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from ..sim.arrivals import BASE_NS, LONGEST_NS, arrivals_complaint
from ..units import spell_duration
from .options import Buffers, DType, Transport, not_a_seed, repeated, uneven

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["Backend", "BenchGroupsOptions", "GroupGenerator", "Part", "parse_group_size"]

_FLOATS = (DType.FLOAT32, DType.FLOAT64)


class Part(str, Enum):
    """What is measured: the latency of groups, or how long iterations take beside slow ranks."""

    LATENCY = "latency"
    ITERATIONS = "iterations"


class GroupGenerator(str, Enum):
    """A generator of groups, without its size; and an allreduce that knows no groups.

    `STATIC` stands for fixed groups of the size in `Part.LATENCY`, and for Ripples' table in
    `Part.ITERATIONS`, where fixed groups would never meet. `GIVEN` is for latencies only. `FULL` is
    the policy of that name: on a context of the group's ranks alone in `Part.LATENCY`; in
    `Part.ITERATIONS` it is always there.
    """

    GIVEN = "given"
    STATIC = "static"
    RANDOM = "random"
    SMART = "smart"
    CONTROLLER = "controller"
    FULL = "full"

    def __str__(self) -> str:
        return self.value


class Backend(str, Enum):
    """How members add up their models: `Context.Preduce_init`'s ``backend``."""

    AUTO = "auto"
    NODE = "node"
    SCHEDULE = "schedule"
    COMM = "comm"

    def __str__(self) -> str:
        return self.value


def parse_group_size(text: str) -> int:
    """Return the ranks of a group.

    Raises
    ------
    ValueError
        If the text is not an integer of at least 2.
    """
    number = text.strip()
    if not (number.isascii() and number.isdecimal() and len(number) < 8 and int(number) >= 2):
        raise ValueError(f"{text!r} is not a size of groups: write 2 or more ranks, such as 2,4")
    return int(number)


@dataclass(frozen=True, kw_only=True)
class BenchGroupsOptions:
    """Options of one run of ``pypartial bench groups``, the same on every rank.

    Attributes
    ----------
    parts : tuple of Part
    sizes : tuple of int
        Bytes of a rank's buffer; iterations have the first one.
    group_sizes : tuple of int
        Ranks of a group.
    generators : tuple of GroupGenerator
    backends : tuple of Backend
    buffers : tuple of Buffers
        Of the library's requests; iterations have the first kind.
    budget_ns : int
        About how long each way is measured in each case, in nanoseconds.
    blocks, calls : int or None
        Blocks of each way, and calls in each block; None: as many as the budget allows.
    arrivals : str
        In the form that `parse_arrivals` reads: how long ranks sleep before each Start.
    base_ns, iterations : int
        Mean sleep of a rank that is not slow; a run lasts so many times as long.
    runs : int
        Of iterations: runs of each generator.
    transport : Transport
    dtype : DType
    seed : int
        Of the generators and of the arrivals.
    json, plot : Path or None
        Files that rank 0 writes.
    """

    parts: tuple[Part, ...] = tuple(Part)
    sizes: tuple[int, ...]
    group_sizes: tuple[int, ...]
    generators: tuple[GroupGenerator, ...]
    backends: tuple[Backend, ...] = (Backend.AUTO,)
    buffers: tuple[Buffers, ...] = (Buffers.LIBRARY,)
    budget_ns: int
    blocks: int | None = None
    calls: int | None = None
    arrivals: str = "slow:0:6x"
    base_ns: int = BASE_NS // 10
    iterations: int = 60
    runs: int = 5
    transport: Transport = Transport.AUTO
    dtype: DType = DType.FLOAT32
    seed: int = 0
    json: Path | None = None
    plot: Path | None = None

    def complaint(self, ranks: int) -> str | None:
        """Return what is wrong with these options on `ranks` ranks; None if nothing is."""
        if ranks == 1:
            return "one rank has no groups: start several, with mpirun -n 8 pypartial bench groups"
        if self.dtype not in _FLOATS:
            return f"--dtype {self.dtype.value}: groups average float32 or float64"
        if (complaint := uneven(self.sizes, self.dtype)) is not None:
            return complaint
        for size in self.group_sizes:
            if size > ranks:
                return (
                    f"--group-size {size}: there are only {ranks} ranks; start more, with "
                    f"mpirun -n {size} pypartial bench groups"
                )
        if not self.budget_ns:
            return "--budget 0: no call fits into it; choose a time above 0"
        options: dict[str, Sequence[object]] = {
            "--part": self.parts,
            "--size": self.sizes,
            "--group-size": self.group_sizes,
            "--generator": self.generators,
            "--backend": self.backends,
            "--buffers": self.buffers,
        }
        if (complaint := repeated(options)) is not None:
            return complaint
        if Part.LATENCY not in self.parts and GroupGenerator.GIVEN in self.generators:
            return "--generator given: it is for latencies only; iterations have no groups to give"
        if self.transport is Transport.MPI and Backend.NODE in self.backends:
            return "--backend node: with --transport mpi ranks share no memory"
        return self._arrivals_complaint(ranks)

    def _arrivals_complaint(self, ranks: int) -> str | None:
        if not 0 < self.base_ns <= LONGEST_NS // 2:
            return f"--base {spell_duration(self.base_ns)}: choose a time above 0 and below 5 days"
        arrivals = self.arrivals, ranks, self.iterations, self.seed, self.base_ns
        return not_a_seed(self.seed) or arrivals_complaint(*arrivals, steps_option="--iterations")
