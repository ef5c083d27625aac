"""``pypartial sim gain``: what policies and groups would make of a recorded program."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .. import __version__
from ..provenance import header
from . import group_report, skew
from .gain_options import GainOptions

__all__ = ["Way", "gain_as_dict", "ways_of"]


@dataclass(frozen=True)
class Way:
    """What one policy, or generator of groups, would give.

    Attributes
    ----------
    name : str
    step_s : float
        Mean time of a step in seconds, over all steps until the first rank has made its last.
    speedup_vs_synchronous : float
        Mean time of a step of ``full`` over this one.
    waiting : float
        Share of the time in which ranks wait.
    active : float
        Ranks whose newest data is in a round, or ranks of a group: the mean.
    staleness : float
        How many rounds late a rank's data came, the mean over what ranks gave to rounds; or by how
        many iterations a model was older than the newest of its group, the mean over the members.
    """

    name: str
    step_s: float
    speedup_vs_synchronous: float
    waiting: float
    active: float
    staleness: float


def ways_of(rounds: Sequence[skew.Row], groups: Sequence[group_report.Row]) -> list[Way]:
    """Put the results of the two simulations beside ``full``, which is one of the policies."""
    ways = [*map(_of_rounds, rounds), *map(_of_groups, groups)]
    base = next(way.step_s for way in ways if way.name == "full")
    return [
        dataclasses.replace(way, speedup_vs_synchronous=base / way.step_s if way.step_s else 1.0)
        for way in ways
    ]


def _of_rounds(row: skew.Row) -> Way:
    step = row.step_us.mean
    waiting = row.latency_us.mean / step if step else 0.0
    late = sum(int(rounds.rstrip("+")) * count for rounds, count in row.staleness.items())
    staleness = late / sum(row.staleness.values())
    return Way(row.policy, step / 1e6, 1.0, waiting, row.active.mean, staleness)


def _of_groups(row: group_report.Row) -> Way:
    (everyone,) = row.sides
    members = sum(size * count for size, count in row.sizes.items())
    active = members / max(sum(row.sizes.values()), 1)
    return Way(row.generator, row.step_ns / 1e9, 1.0, everyone.waiting or 0, active, row.staleness)


def gain_as_dict(options: GainOptions, ways: Sequence[Way]) -> dict[str, Any]:
    """Return a header, ``meta``, and ``rows`` in types that JSON knows."""
    meta = {
        "version": __version__,
        "file": options.file,
        "recorded": options.recorded,
        "ranks": options.groups.ranks,
        "steps": options.rounds.steps,
        "deliver": options.rounds.deliver.value,
        "seed": options.rounds.seed,
        "per_node": options.groups.per_node,
    }
    return {**header(), "meta": meta, "rows": list(map(dataclasses.asdict, ways))}
