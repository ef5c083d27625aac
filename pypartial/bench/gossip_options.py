"""The options of ``bench gossip``; nothing is measured here."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from ..errors import ArgumentError
from ..topology import parse
from .options import Buffers, DType, Transport, repeated, uneven

if TYPE_CHECKING:
    from pathlib import Path


class GossipWay(str, Enum):
    """A way of this library to make models more alike."""

    AD_PSGD = "ad-psgd"
    ACTIVE = "ad-psgd-active"
    D_PSGD = "d-psgd"
    HOP = "hop"
    PREDUCE = "preduce"
    FULL = "full"


@dataclass(frozen=True, kw_only=True)
class BenchGossipOptions:
    """Options of one run of ``pypartial bench gossip``, the same on every rank.

    Those that `BenchGroupsOptions` has, too, mean the same here.
    """

    sizes: tuple[int, ...]
    ways: tuple[GossipWay, ...]
    topology: str
    buffers: tuple[Buffers, ...]
    budget_ns: int
    blocks: int | None = None
    calls: int | None = None
    transport: Transport = Transport.AUTO
    dtype: DType = DType.FLOAT32
    json: Path | None = None
    plot: Path | None = None

    def complaint(self, ranks: int) -> str | None:
        """Return what is wrong with these options on `ranks` ranks; None if nothing is."""
        if ranks == 1:
            return "one rank has no neighbours: start several, with mpirun -n 4"
        if self.dtype not in (DType.FLOAT32, DType.FLOAT64):
            return f"--dtype {self.dtype.value}: models are float32 or float64"
        if not self.budget_ns:
            return "--budget 0: no call fits into it; choose a time above 0"
        try:
            graph = parse(self.topology).on(ranks)
            if GossipWay.ACTIVE in self.ways:
                graph.sides()
        except (ArgumentError, ImportError, ValueError) as error:
            return f"--topology {self.topology}: {error}"
        options = {"--size": self.sizes, "--way": self.ways, "--buffers": self.buffers}
        return uneven(self.sizes, self.dtype) or repeated(options)
