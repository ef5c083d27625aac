"""Hop's rules of one rank (``csrc/queues``), to which a program tells events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .._core_sim import ffi, lib
from .._names import PROTOCOL
from .._queue_init import way_back
from .gossip_options import Mode
from .handle import CoreError, check

if TYPE_CHECKING:
    from .._core import CData
    from ..topology import RankGraph

__all__ = ["EVENTS", "complaint", "describe", "open_queues"]

EVENTS: dict[str, int] = {
    name: getattr(lib, "PP_QUEUES_" + name.upper())
    for name in (
        *("start", "wait", "averaged", "leave", "back"),
        *("update", "header", "gone", "left", "here", "token", "unbound"),
    )
}


def describe(mode: Mode, ins: int, outs: int, back: int) -> CData:
    """Return the plan of a rank with so many neighbours; `back` is what `way_back` returns."""
    plan = ffi.new("pp_queues_plan_t *")
    setattr(plan, "in", ins)
    plan.out, plan.back = outs, back
    plan.protocol = PROTOCOL.constant(lib, mode.protocol)
    plan.max_ig, plan.backup, plan.most_backup = mode.max_ig, mode.backup, mode.backup
    plan.staleness = lib.PP_QUEUES_UNSET if mode.staleness is None else mode.staleness
    plan.skip = lib.PP_QUEUES_UNSET if mode.skip is None else mode.skip
    plan.skip_trigger, plan.weighted = mode.skip_trigger, mode.weighted
    return plan


def open_queues(plan: CData, weights: Sequence[float] | None = None) -> CData:
    """Return the state of a rank; with `weights` of its in-neighbours, where the plan says so."""
    given = ffi.NULL if weights is None else ffi.new("double[]", list(weights))
    opened = ffi.new("pp_sim_queues_t **")
    check(lib.pp_sim_queues_open(plan, given, opened))
    return ffi.gc(opened[0], lib.pp_sim_queues_free)


def complaint(mode: Mode, graph: RankGraph) -> str | None:
    """Return why options do not go together on a graph; None if they do."""
    fewest = min(map(len, graph.in_neighbours))
    try:
        check(lib.pp_queues_check(describe(mode, fewest, fewest, way_back(graph))))
    except CoreError as error:
        return error.text
    return None
