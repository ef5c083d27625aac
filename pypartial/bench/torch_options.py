"""The options of ``bench torch``; nothing is measured here, and torch is not needed."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from ..policy import Full, Policy
from ..units import spell_duration
from .options import Transport, asks_too_much, not_a_seed, repeated

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["BenchTorchOptions", "TorchPart", "TorchWay", "entries", "parameter_bytes"]

INPUTS, OUTPUTS = 64, 10  # of the network
_FLOAT_BYTES = 4
_LONGEST_NS = 10**10


class TorchPart(str, Enum):
    """What is measured: steps of equally fast ranks, or steps beside a rank that is late."""

    BALANCED = "balanced"
    LATE = "late"


class TorchWay(str, Enum):
    """A way to train: what averages the gradients of the ranks.

    `GLOO` is torch's DistributedDataParallel as it is, and `BACKEND` is the same on this library's
    backend; `HOOK` has this library's communication hook. `OPTIMIZER` is `DistributedOptimizer`.
    """

    GLOO = "gloo"
    OPTIMIZER = "optimizer"
    HOOK = "hook"
    BACKEND = "backend"

    def __str__(self) -> str:
        return self.value

    @property
    def has_policies(self) -> bool:
        """Whether it is measured once with each policy."""
        return self in (TorchWay.OPTIMIZER, TorchWay.HOOK)


def parameter_bytes(hidden: int) -> int:
    """Return the bytes of all parameters of the network: four layers, three of them this wide."""
    widths = (INPUTS, hidden, hidden, hidden, OUTPUTS)
    count = sum((of + 1) * to for of, to in itertools.pairwise(widths))
    return _FLOAT_BYTES * count


@dataclass(frozen=True, kw_only=True)
class BenchTorchOptions:
    """Options of one run of ``pypartial bench torch``, the same on every rank.

    Attributes
    ----------
    parts : tuple of TorchPart
    hidden : tuple of int
        Widths of the network's hidden layers; the late part has the first one.
    ways : tuple of TorchWay
        Beside `TorchWay.GLOO`, which is always measured.
    policies : tuple of Policy
    batch : int
        Samples of a rank in a step.
    budget_ns : int
        About how long each way is measured in each case, in nanoseconds.
    blocks, steps : int or None
        Blocks of each way, and steps in each block; None: as many as the budget allows.
    base_ns, late_ns : int
        Of the late part: how long computing takes in a step, and how much longer on the last rank.
    transport : Transport
    seed : int
    json, plot : Path or None
        Files that rank 0 writes.
    """

    parts: tuple[TorchPart, ...] = tuple(TorchPart)
    hidden: tuple[int, ...]
    ways: tuple[TorchWay, ...]
    policies: tuple[Policy, ...]
    batch: int = 32
    budget_ns: int
    blocks: int | None = None
    steps: int | None = None
    base_ns: int = 5_000_000
    late_ns: int = 30_000_000
    transport: Transport = Transport.AUTO
    seed: int = 0
    json: Path | None = None
    plot: Path | None = None

    def complaint(self, ranks: int) -> str | None:
        """Return what is wrong with these options on `ranks` ranks; None if nothing is."""
        if ranks == 1:
            return (
                "one rank averages nothing: start several, with mpirun -n 4 pypartial bench torch"
            )
        if not self.budget_ns:
            return "--budget 0: no step fits into it; choose a time above 0"
        for name, ns in (("--base", self.base_ns), ("--late", self.late_ns)):
            if ns > _LONGEST_NS:
                return f"{name} {spell_duration(ns)}: choose a time of 10 s at most"
        if (complaint := not_a_seed(self.seed)) is not None:
            return complaint
        if TorchWay.GLOO in self.ways:
            return "--way gloo: it is always measured here; leave it out"
        return asks_too_much(self.policies, ranks) or repeated(
            {
                "--part": self.parts,
                "--hidden": self.hidden,
                "--way": self.ways,
                "--policy": self.policies,
            }
        )


def entries(options: BenchTorchOptions) -> list[tuple[TorchWay, Policy]]:
    """Return the ways with their policies, gloo first; `Full` where there is no choice."""
    found: list[tuple[TorchWay, Policy]] = [(TorchWay.GLOO, Full())]
    for way in options.ways:
        found += [(way, policy) for policy in (options.policies if way.has_policies else (Full(),))]
    return found
