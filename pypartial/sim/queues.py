"""Hop's rules of one rank (``csrc/queues``), to which a program tells events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .._core_sim import ffi, lib
from .._queue_options import fill
from .handle import check

if TYPE_CHECKING:
    from .._core import CData
    from .._queue_options import Mode

__all__ = ["EVENTS", "describe", "open_queues"]

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
    assert isinstance(mode.backup, int)
    fill(lib, plan, mode, mode.backup, ins, outs, back)
    return plan


def open_queues(plan: CData, weights: Sequence[float] | None = None) -> CData:
    """Return the state of a rank; with `weights` of its in-neighbours, where the plan says so."""
    given = ffi.NULL if weights is None else ffi.new("double[]", list(weights))
    opened = ffi.new("pp_sim_queues_t **")
    check(lib.pp_sim_queues_open(plan, given, opened))
    return ffi.gc(opened[0], lib.pp_sim_queues_free)
