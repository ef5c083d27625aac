"""The options of queues (Hop), and which of them go together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ._arguments import listed, whole_number
from ._names import PROTOCOL
from .errors import ArgumentError

if TYPE_CHECKING:
    from ._core import CData, Lib
    from .topology import RankGraph

__all__ = ["Mode", "fill", "read_mode"]

_MOST = 1_000_000  # PP_QUEUES_MOST


@dataclass(frozen=True)
class Mode:
    """Options of `Context.Queue_init` that go together: others raise `ArgumentError`."""

    max_ig: int = 4
    backup: int | tuple[int, ...] = 0
    staleness: int | None = None
    skip: int | None = None
    skip_trigger: int = 2
    protocol: str = "tokens"
    weighted: bool = False  # by the topology

    def __post_init__(self) -> None:
        backups = self.backup if isinstance(self.backup, tuple) else (self.backup,)
        values: list[tuple[str, int | None, int]] = [("max_ig", self.max_ig, 1)]
        values += [("backup", count, 0) for count in backups]
        values += [("staleness", self.staleness, 0), ("skip", self.skip, 2)]
        for name, value, least in values:
            if value is not None and not least <= value <= _MOST:
                raise ArgumentError(f"{name}={value} is not in {least}..{_MOST}")
        loose = "backup" if any(backups) else None if self.staleness is None else "staleness"
        if self.weighted and loose:
            why = "what is averaged changes" if any(backups) else "Eq. 2 gives the weights"
            raise ArgumentError(f"weights='topology' does not go with {loose}: {why}")
        if self.protocol == "notify-ack" and loose:
            raise ArgumentError(
                f"protocol='notify-ack' does not go with {loose}: it keeps neighbours within 2 "
                "iterations (Hop 3.4, 3.5)"
            )
        if self.protocol == "none" and any(backups):
            raise ArgumentError(
                "protocol='none' does not go with backup: nothing bounds the gap (Hop 4.3)"
            )
        if self.skip is not None:
            self._check_skip(loose)

    def _check_skip(self, loose: str | None) -> None:
        if not loose:
            raise ArgumentError(
                f"skip={self.skip} needs backup or staleness: without them the others wait for "
                "each iteration"
            )
        if self.protocol != "tokens":
            raise ArgumentError(
                f"skip={self.skip} needs protocol='tokens': by its tokens a rank sees how far it "
                "is behind"
            )
        if not 0 <= self.skip_trigger < self.max_ig:
            raise ArgumentError(
                f"skip_trigger={self.skip_trigger} is not in 0..{self.max_ig - 1}: it must be "
                f"below max_ig={self.max_ig}"
            )

    def backups(self, graph: RankGraph) -> tuple[int, ...]:
        """Return the `backup` of each rank; raise `ArgumentError` if it is not for this graph."""
        ranks = graph.ranks
        counts = self.backup if isinstance(self.backup, tuple) else (self.backup,) * ranks
        if len(counts) != ranks:
            raise ArgumentError(f"backup has {len(counts)} numbers for {ranks} ranks")
        for rank, (count, ins) in enumerate(zip(counts, graph.in_neighbours, strict=True)):
            if count >= max(len(ins), 1) and ranks > 1:  # one rank waits for nobody anyway
                raise ArgumentError(
                    f"backup={count} is not below the number of in-neighbours of rank {rank}, "
                    f"{len(ins)}: lower it, or take a topology with more neighbours"
                )
        return counts


def read_mode(
    max_ig: Any = None,
    backup: Any = 0,
    staleness: Any = None,
    skip: Any = None,
    skip_trigger: Any = 2,
    protocol: Any = "tokens",
    weights: Any = "uniform",
) -> Mode:
    """Read the options of `Context.Queue_init`; raise `ArgumentError` if they are wrong."""
    PROTOCOL.check(protocol)
    if weights not in ("uniform", "topology"):
        raise ArgumentError(f"weights must be 'uniform' or 'topology', not {weights!r}")

    def optional(name: str, value: Any) -> int | None:
        return None if value is None else whole_number(name, value)

    is_list = hasattr(backup, "__len__")
    counts = [
        whole_number("backup", it) for it in (listed("backup", backup) if is_list else [backup])
    ]
    bound = optional("staleness", staleness)
    return Mode(
        max_ig=max(4, (bound or 0) + 1) if max_ig is None else whole_number("max_ig", max_ig),
        backup=tuple(counts) if is_list else counts[0],
        staleness=bound,
        skip=optional("skip", skip),
        skip_trigger=whole_number("skip_trigger", skip_trigger),
        protocol=protocol,
        weighted=weights == "topology",
    )


def fill(lib: Lib, plan: CData, mode: Any, backup: int, ins: int, outs: int, back: int) -> None:
    """Fill in a ``pp_queues_plan_t``.

    Parameters
    ----------
    mode : Mode
        Or what has the same options.
    backup, ins, outs : int
        Of this rank: how many backup workers and neighbours.
    back : int
        As ``pp_queues_plan_t`` has it.
    """
    setattr(plan, "in", ins)
    plan.out, plan.back, plan.backup = outs, back, backup
    plan.protocol = PROTOCOL.constant(lib, mode.protocol)
    plan.max_ig, plan.skip_trigger, plan.weighted = mode.max_ig, mode.skip_trigger, mode.weighted
    plan.staleness = lib.PP_QUEUES_UNSET if mode.staleness is None else mode.staleness
    plan.skip = lib.PP_QUEUES_UNSET if mode.skip is None else mode.skip
