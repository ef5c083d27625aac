"""Results of the micro-benchmark: statistics over samples, and the JSON that others read."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..statistics import Active, Latency

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


@dataclass(frozen=True)
class Meta:
    """Where and how the rows were measured.

    Attributes
    ----------
    mpi, version, python : str
        Versions of the MPI library, of this package and of Python.
    ranks, nodes, cores : int
        Cores are those of all nodes together.
    skew_us : float
        Rank r is r times this late.
    work, transport, dtype : str
    seed, warmup : int
    first_round_s : float or None
        From the launcher's start to the first round; None where that cannot be known.
    late_calls : float
        Share of the calls that began more than half a skew behind their time.
    """

    mpi: str
    ranks: int
    cores: int
    version: str
    skew_us: float
    work: str
    transport: str
    nodes: int
    python: str
    dtype: str
    seed: int
    warmup: int
    first_round_s: float | None
    late_calls: float


@dataclass(frozen=True)
class Report:
    """All rows of a run."""

    meta: Meta
    rows: Sequence[Row]

    @property
    def verified(self) -> bool:
        """Whether every row is."""
        return all(row.verified for row in self.rows)

    def as_dict(self) -> dict[str, Any]:
        """Return the report in types that JSON knows: ``{"meta": {...}, "rows": [{...}]}``."""
        return {
            "meta": dataclasses.asdict(self.meta),
            "rows": [dataclasses.asdict(row) for row in self.rows],
        }

    def save_json(self, path: Path) -> None:
        """Write the report to a file."""
        import json  # not needed on the other ranks

        path.write_text(json.dumps(self.as_dict(), indent=1) + "\n", encoding="utf-8")


def with_speedups(rows: Sequence[Row]) -> list[Row]:
    """Return the rows, each with its speed-up over ``mpi`` at the same size."""
    baseline = {row.bytes: row.latency_us.mean for row in rows if row.policy == "mpi"}
    return [
        dataclasses.replace(
            row,
            speedup_vs_mpi=(
                baseline[row.bytes] / row.latency_us.mean if row.bytes in baseline else None
            ),
        )
        for row in rows
    ]
