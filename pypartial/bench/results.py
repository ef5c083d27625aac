"""Results of the benchmarks: statistics over samples, and the JSON that others read."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ..provenance import header
from ..statistics import Active, Latency, Spread
from .options import on_device

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class Row:
    """One policy at one size.

    Attributes
    ----------
    policy : str
        As on the command line.
    bytes, ranks, rounds : int
        Size of a rank's buffer, and what was measured.
    latency_us : Latency
    speedup_vs_mpi : float or None
        MPI_Allreduce's mean latency at this size over this one's; None if MPI was not asked for.
    active : Active
        Of MPI_Allreduce: all ranks.
    active_expected : float or None
        In theory, for distinct arrival times; None for MPI or without skew.
    cpu_us_per_round : float
        CPU time of the calling thread inside the calls and of the progress thread, a rank and
        round.
    verified : bool
        Every sum and status of every round was right, warm-up and flush included.
    slowdown : float or None
        How much longer the late ranks' computation until their calls takes than the same
        computation in rounds without any call: the ratio less 1. None if ranks do not compute.
    buffers : str
        "library", "numpy", "cupy", "torch" or, for MPI on a device, "cuda-staged-by-hand".
    device_path : str or None
        How elements on devices travelled: "staged", "ipc" or "direct"; None for MPI, and for
        buffers of the host.
    """

    policy: str
    bytes: int
    ranks: int
    rounds: int
    latency_us: Latency
    speedup_vs_mpi: float | None
    active: Active
    active_expected: float | None
    cpu_us_per_round: float
    verified: bool
    slowdown: float | None = field(default=None, kw_only=True)
    buffers: str = field(default="numpy", kw_only=True)
    device_path: str | None = field(default=None, kw_only=True)


@dataclass(frozen=True)
class LatencyRow(Row):
    """One way to sum, or the copy of a buffer, at one size with one kind of buffers.

    A block's value is the mean time of a call on the slowest rank; `latency_us` is taken over the
    blocks, and `speedup_vs_mpi` from the medians.  `rounds` are the calls of all blocks, and
    `cpu_us_per_round` is a median over the blocks, too.  `active` is of those rounds whose status
    was read; for ways that are not of this library: all ranks.

    Attributes
    ----------
    blocks, calls : int
        Blocks, and calls in each.
    best_us : float
        Of the best block, which tells least about other programs on the machine.
    mean_of_ranks_us : float
        Median over the blocks of the mean over the ranks, where `latency_us` takes the slowest.
    gb_per_s : float
        Size over median latency, in 10^9 bytes a second.
    ratio_to_mpi, ratio_to_memcpy : float or None
        Median latency over that of MPI_Allreduce and of the copy at this size; None: not measured.
    verified : bool
        Every sum and status that was looked at was right: of a loop those of its last call and of
        the flush, and all of those before the measurement; with skew all.
    """

    blocks: int
    calls: int
    best_us: float
    mean_of_ranks_us: float
    gb_per_s: float
    ratio_to_mpi: float | None
    ratio_to_memcpy: float | None


@dataclass(frozen=True)
class OverheadRow:
    """One kind of call on one rank.

    Attributes
    ----------
    call : str
        "Start", "Wait", "Start+Wait", "Test" or "Allreduce".
    of : str
        "pypartial" or "mpi4py".
    buffers : str
        "library" or "numpy".
    bytes : int
    ns : Spread
        Mean time of a call, over the loops.
    ratio_to_mpi, ratio_to_mpi_persistent : float or None
        Median over that of mpi4py's Allreduce, and of its persistent Start+Wait; None: not there.
    verified : bool
        The last result of every loop was right.
    """

    call: str
    of: str
    buffers: str
    bytes: int
    ns: Spread
    ratio_to_mpi: float | None
    ratio_to_mpi_persistent: float | None
    verified: bool


@dataclass(frozen=True)
class TuneRow:
    """One algorithm at one size on one number of ranks.

    Attributes
    ----------
    algorithm : str
    bytes, ranks : int
    link : str
        "node" or "network".
    latency_us : Latency
        Mean time of a call on the slowest rank, over the blocks.
    model_us : float
        What the cost model says with the parameters that were fitted to these rows.
    chosen, chosen_before : str
        What "auto" becomes at this size, by these rows and by what there was before.
    verified : bool
        Every result that was looked at was right.
    """

    algorithm: str
    bytes: int
    ranks: int
    link: str
    latency_us: Latency
    model_us: float
    chosen: str
    chosen_before: str
    verified: bool


@dataclass(frozen=True)
class GroupLatencyRow:
    """One way to average in groups of one size, with vectors of one size.

    A block's value is the mean time of a call on the slowest rank of those that take part;
    `latency_us` is taken over the blocks, and the ratios are those of its median.

    Attributes
    ----------
    way : str
        "given", "static" (a table of fixed groups), "random", "smart" or "controller"; "full", an
        allreduce of this library; "mpi", "mpi-create-group" or "mpi-split".
    backend : str or None
        "node", "schedule" or "comm"; None: no groups of this library.
    buffers : str
        "library" or "numpy".
    bytes, ranks : int
        Of a rank's buffer; of the run.
    size, groups : int
        Ranks of a group, and groups at once; the other ranks slept.
    members : float
        Ranks of the groups that calls were in, on average.
    latency_us : Latency
    best_us : float
        Of the best block.
    mean_of_ranks_us : float
        Median over the blocks of the mean over the ranks.
    cpu_us_per_call : float
        CPU time of the calling thread inside the calls and of the progress thread, a rank and
        call; median over the blocks.
    blocks, calls : int
        Blocks, and calls in each.
    ratio_to_mpi, ratio_to_create_group, ratio_to_split : float or None
        Median latency over that of MPI_Allreduce and a division, on a communicator that is kept,
        and on one that each call makes; None: not measured.
    verified : bool
        All averages that were looked at were right, and each block kept the mean over the ranks.
    """

    way: str
    backend: str | None
    buffers: str
    bytes: int
    ranks: int
    size: int
    groups: int
    members: float
    latency_us: Latency
    best_us: float
    mean_of_ranks_us: float
    cpu_us_per_call: float
    blocks: int
    calls: int
    ratio_to_mpi: float | None
    ratio_to_create_group: float | None
    ratio_to_split: float | None
    verified: bool


@dataclass(frozen=True)
class IterationSide:
    """Ranks that fared alike.

    Attributes
    ----------
    name : str
        "fast", "slow" or "all".
    iteration_us : Spread
        Mean time of an iteration of these ranks, over the runs.
    undisturbed_us : Spread or None
        The same where no rank is slow; None if the arrival model has no slow rank.
    ratio : Spread or None
        The first over the second, of the runs in pairs.
    """

    name: str
    iteration_us: Spread
    undisturbed_us: Spread | None
    ratio: Spread | None


@dataclass(frozen=True)
class IterationRow:
    """Iterations of one generator.

    Attributes
    ----------
    generator : str
        "static" (Ripples' table), "random", "smart", "controller"; "full": an allreduce.
    size : int
        Ranks of a group; 0: several sizes.
    backend : str or None
        As in `GroupLatencyRow`; None: an allreduce.
    bytes, ranks : int
    runs : int
        With the arrival model; as many without its slow rank.
    sides : list of IterationSide
    verified : bool
        Each run kept the mean over the ranks.
    """

    generator: str
    size: int
    backend: str | None
    bytes: int
    ranks: int
    runs: int
    sides: list[IterationSide]
    verified: bool


@dataclass(frozen=True)
class TorchRow:
    """One way to train a network of one size, under one policy.

    A block's value is the mean time of a step on the slowest rank; in the late part, the mean over
    the ranks but the late one.

    Attributes
    ----------
    part : str
        "balanced" or "late".
    way : str
        "gloo" (DistributedDataParallel), "optimizer", "hook" or "backend".
    policy : str or None
        As on the command line; None: there is no choice.
    bytes, ranks : int
        Of all parameters; of the run.
    step_us : Spread
        Over the blocks.
    late_us : Spread or None
        Of the late rank; None in the balanced part.
    ratio_to_gloo : Spread
        Over that of gloo, of the blocks in pairs.
    blocks, steps : int
        Blocks, and steps in each.
    verified : bool
        Replicas were the same in the end, and trained as they should be.
    """

    part: str
    way: str
    policy: str | None
    bytes: int
    ranks: int
    step_us: Spread
    late_us: Spread | None
    ratio_to_gloo: Spread
    blocks: int
    steps: int
    verified: bool


@dataclass(frozen=True)
class GossipRow:
    """One way to make models of one size more alike: of `GossipWay` or `RIVALS`.

    Latencies are those of iterations, over the blocks, each with the mean on the slowest rank;
    ratios are those of blocks in pairs. `consensus` is the distance after each iteration.
    """

    way: str
    buffers: str
    bytes: int
    ranks: int
    latency_us: Latency
    best_us: float
    ratio_to_mpi: Spread
    ratio_to_sendrecv: Spread
    ratio_to_neighbor: Spread
    consensus: list[float]
    blocks: int
    calls: int
    verified: bool


@dataclass(frozen=True)
class Versions:
    """What was measured.

    Attributes
    ----------
    mpi, version, python : str
        Versions of the MPI library, of this package and of Python.
    """

    mpi: str
    version: str
    python: str


@dataclass(frozen=True)
class DeviceFacts:
    """The devices of a run.

    Attributes
    ----------
    name : str
        Of the device; if ranks have different ones, all of them.
    count : int
        Devices of rank 0's node.
    driver : str or None
        The NVIDIA driver's version; None if it is not told.
    cuda : str
        The version of CUDA that the driver is for.
    libraries : dict
        The version of each library whose arrays were measured.
    device_path : str
        How elements were asked to travel; each row says how they did.
    device_path_reason : str
        Why that was not possible; else "".
    """

    name: str
    count: int
    driver: str | None
    cuda: str
    libraries: dict[str, str]
    device_path: str = "auto"
    device_path_reason: str = ""


@dataclass(frozen=True)
class Meta(Versions):
    """Where and how allreduces over all ranks were measured.

    Attributes
    ----------
    ranks, nodes, cores : int
        Cores are those of all nodes together.
    skew_us : float
        Rank r is r times this late.
    work, transport, dtype : str
    seed : int
    first_round_s : float or None
        From the launcher's start to the first round; None where that cannot be known.
    late_calls : float
        Share of the calls that began more than half a skew behind their time.
    device : DeviceFacts or None
        None if all buffers are the host's.
    """

    ranks: int
    cores: int
    skew_us: float
    work: str
    transport: str
    nodes: int
    dtype: str
    seed: int
    first_round_s: float | None
    late_calls: float
    device: DeviceFacts | None = field(default=None, kw_only=True)


@dataclass(frozen=True)
class SkewMeta(Meta):
    """Of ``bench skew``.

    Attributes
    ----------
    warmup : int
        Rounds before those that were measured.
    """

    warmup: int


@dataclass(frozen=True)
class LatencyMeta(Meta):
    """Of ``bench latency``.

    Attributes
    ----------
    lacking : list of str
        Ways that were not measured because this MPI does not have them.
    """

    lacking: list[str]


@dataclass(frozen=True)
class OverheadMeta(Versions):
    """Of ``bench overhead``.

    Attributes
    ----------
    policy : str
        Of the library's calls; as on the command line.
    loops, calls : int
        Loops of every kind of call, and calls in each.
    clock_ns : float
        What the clock itself takes between two readings; subtracted from Start, Wait and Test.
    lacking : list of str
        Calls that were not measured because this MPI does not have them.
    """

    policy: str
    loops: int
    calls: int
    clock_ns: float
    lacking: list[str]


@dataclass(frozen=True)
class TuneMeta(Versions):
    """Of ``pypartial tune``.

    Attributes
    ----------
    host : str
        Rank 0's.
    cores : int
        Of that host.
    link : str
        "node" or "network".
    date : str
        UTC, ISO 8601.
    before : str
        What "auto" went by before, in words.
    """

    host: str
    cores: int
    link: str
    date: str
    before: str


@dataclass(frozen=True)
class GroupsMeta(Versions):
    """Of ``bench groups``.

    Attributes
    ----------
    ranks, cores : int
        Cores are those of all nodes together.
    transport : str
    nodes : int
    dtype : str
    seed : int
    arrivals : str
        The arrival model of the iterations.
    base_us, run_us : float
        Mean sleep of a rank that is not slow; no iteration begins so much later than its run.
    """

    ranks: int
    cores: int
    transport: str
    nodes: int
    dtype: str
    seed: int
    arrivals: str
    base_us: float
    run_us: float


@dataclass(frozen=True)
class TorchMeta(Versions):
    """Of ``bench torch``.

    Attributes
    ----------
    torch : str
        Its version.
    ranks, cores, nodes : int
        Cores are those of all nodes together.
    transport : str
    seed : int
    batch : int
        Samples of a rank in a step.
    base_us, late_us : float
        Of the late part: how long computing takes, and how much longer on the last rank.
    """

    torch: str
    ranks: int
    cores: int
    nodes: int
    transport: str
    seed: int
    batch: int
    base_us: float
    late_us: float


@dataclass(frozen=True)
class GossipMeta(Versions):
    """Of ``bench gossip``; cores are those of all nodes together."""

    ranks: int
    cores: int
    nodes: int
    transport: str
    dtype: str
    topology: str


MetaType = TypeVar("MetaType", bound=Versions, covariant=True)
AnyRow = Row | OverheadRow | TuneRow | GroupLatencyRow | TorchRow | GossipRow
RowType = TypeVar("RowType", bound="AnyRow", covariant=True)


@dataclass(frozen=True)
class Report(Generic[MetaType, RowType]):
    """All rows of a run."""

    meta: MetaType
    rows: Sequence[RowType]

    @property
    def verified(self) -> bool:
        """Whether every row is."""
        return all(row.verified for row in self.rows)

    def as_dict(self) -> dict[str, Any]:
        """Return the report in types that JSON knows: a header, ``meta``, and ``rows``."""
        return {
            **header(),
            "meta": dataclasses.asdict(self.meta),
            "rows": [dataclasses.asdict(row) for row in self.rows],
        }

    def save_json(self, path: Path) -> None:
        """Write the report to a file."""
        import json  # not needed on the other ranks

        path.write_text(json.dumps(self.as_dict(), indent=1) + "\n", encoding="utf-8")


@dataclass(frozen=True)
class GroupsReport(Report[GroupsMeta, GroupLatencyRow]):
    """All rows of a run of ``bench groups``: `rows` are the latencies."""

    iterations: Sequence[IterationRow]

    @property
    def verified(self) -> bool:
        """Whether every row is."""
        return super().verified and all(row.verified for row in self.iterations)

    def as_dict(self) -> dict[str, Any]:
        """Return the report as `Report` does, with ``iterations``."""
        return {
            **super().as_dict(),
            "iterations": [dataclasses.asdict(row) for row in self.iterations],
        }


@dataclass(frozen=True)
class Outcome(Generic[MetaType, RowType]):
    """What rank 0 holds after a run.

    Attributes
    ----------
    report : Report
    failures : list of str
        What was wrong with sums or statuses, in words: the first few of every rank and row.
    """

    report: Report[MetaType, RowType]
    failures: list[str]


@dataclass(frozen=True)
class GroupsOutcome(Outcome[GroupsMeta, GroupLatencyRow]):
    """What rank 0 holds after ``bench groups``."""

    report: GroupsReport


def with_speedups(rows: Sequence[Row]) -> list[Row]:
    """Return the rows, each with its speed-up over ``mpi`` at the same size, in the same memory."""
    baseline = {_place(row): row.latency_us.mean for row in rows if row.policy == "mpi"}
    return [
        dataclasses.replace(
            row,
            speedup_vs_mpi=(
                baseline[_place(row)] / row.latency_us.mean if _place(row) in baseline else None
            ),
        )
        for row in rows
    ]


def with_ratios(rows: Sequence[LatencyRow]) -> list[LatencyRow]:
    """Return the rows, each compared with MPI_Allreduce and with the copy at the same size.

    Those with buffers on a device are compared with MPI's and the copy there.
    """
    medians = {(row.policy, _place(row)): row.latency_us.p50 for row in rows}

    def over(row: LatencyRow, other: str) -> float | None:
        return ratio(row.latency_us.p50, medians.get((other, _place(row))))

    return [
        dataclasses.replace(
            row,
            speedup_vs_mpi=ratio(medians.get(("mpi", _place(row))), row.latency_us.p50),
            ratio_to_mpi=over(row, "mpi"),
            ratio_to_memcpy=over(row, "memcpy"),
        )
        for row in rows
    ]


def _place(row: Row) -> tuple[int, bool]:
    """Return size and memory of a row: only those of the same place are compared."""
    return row.bytes, on_device(row.buffers)


def with_group_ratios(rows: Sequence[GroupLatencyRow]) -> list[GroupLatencyRow]:
    """Return the rows, each compared with MPI's own in the same case."""

    def case(row: GroupLatencyRow, way: str) -> tuple[str, int, int, int]:
        return way, row.bytes, row.size, row.groups

    medians = {case(row, row.way): row.latency_us.p50 for row in rows if row.backend is None}

    def over(row: GroupLatencyRow, way: str) -> float | None:
        return ratio(row.latency_us.p50, medians.get(case(row, way)))

    return [
        dataclasses.replace(
            row,
            ratio_to_mpi=over(row, "mpi"),
            ratio_to_create_group=over(row, "mpi-create-group"),
            ratio_to_split=over(row, "mpi-split"),
        )
        for row in rows
    ]


def ratio(time: float | None, other: float | None) -> float | None:
    """Return a time over another; None if one was not measured, or is too short to be."""
    return time / other if time is not None and other else None
