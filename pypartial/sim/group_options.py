"""Options of the commands for groups, in types that need no compiled module."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from ..groups import least_history
from ..units import spell_duration
from .arrivals import BASE_NS, LONGEST_NS, arrivals_complaint
from .generators import USAGES, Plan

__all__ = ["RANKS_MAX", "AnalyseOptions", "GroupsOptions", "ShowOptions", "Weights"]

RANKS_MAX = 4096
_TIME_MOST_NS = LONGEST_NS // 10 * 9  # a base computation varies around its mean


class Weights(str, Enum):
    """What the models of a group count for."""

    CONSTANT = "constant"
    CLOSEST = "closest"
    INITIAL = "initial"


@dataclass(frozen=True)
class GroupsOptions:
    """Options of one run of ``pypartial sim groups``.

    Attributes
    ----------
    plans : tuple of Plan
        Generators to simulate, one after the other.
    ranks, iterations : int
        Each simulation ends when the fastest rank has made so many iterations.
    arrivals : str
        In the form that `parse_arrivals` reads.
    seed, base_ns : int
    per_node : int
        Consecutive ranks of a node.
    group_ns : int
        How long a group takes.
    weights : Weights
    alpha : float
        Of weights by iteration.
    log, json : Path or None
        Files for the groups and the results.
    """

    plans: tuple[Plan, ...]
    ranks: int
    iterations: int
    arrivals: str
    seed: int = 0
    base_ns: int = BASE_NS
    per_node: int = 4
    group_ns: int = 0
    weights: Weights = Weights.CONSTANT
    alpha: float = 0.5
    log: Path | None = None
    json: Path | None = None

    def complaint(self) -> str | None:
        """Return what is wrong with these options; None if nothing is."""
        if not 0 <= self.alpha < 1:
            return f"--alpha {self.alpha:g} is not in [0, 1)"
        if self.log is not None and len(self.plans) > 1:
            return "--log: one file has the groups of one --generator; name one only"
        for name, time_ns in (("--base", self.base_ns), ("--group-time", self.group_ns)):
            if time_ns > _TIME_MOST_NS:
                most = spell_duration(_TIME_MOST_NS)
                return f"{name}: {spell_duration(time_ns)} is longer than {most}"
        for plan in self.plans:
            complaint = plan_complaint(plan, self.ranks, self.per_node)
            if complaint is not None:
                return f"--generator: {complaint}"
        arrivals = self.arrivals, self.ranks, self.iterations, self.seed, self.base_ns
        return arrivals_complaint(*arrivals, steps_option="--iterations")


@dataclass(frozen=True)
class AnalyseOptions:
    """Options of one run of ``pypartial groups analyse``.

    Attributes
    ----------
    log : Path or None
        The log to analyse; None: groups of `course` are.
    course : GroupsOptions or None
        What to simulate.
    ranks : int or None
        None: as many as the log has.
    lipschitz : float
    window : int or None
        Groups of the sync-graph.
    json : Path or None
    """

    log: Path | None
    course: GroupsOptions | None
    ranks: int | None = None
    lipschitz: float = 1.0
    window: int | None = None
    json: Path | None = None

    def complaint(self) -> str | None:
        """Return what is wrong with these options; None if nothing is."""
        if not 0 < self.lipschitz < float("inf"):
            return f"--lipschitz {self.lipschitz:g} is not a number above 0"
        if self.log is not None and not self.log.is_file():
            return f"SOURCE {self.log}: neither a file nor a generator ({USAGES})"
        return None if self.course is None else self.course.complaint()


@dataclass(frozen=True)
class ShowOptions:
    """Options of one run of ``pypartial groups show``: the static table.

    Attributes
    ----------
    nodes, per_node : int
    """

    nodes: int
    per_node: int


def plan_complaint(plan: Plan, ranks: int, per_node: int) -> str | None:
    """Return why a generator does not fit so many ranks; None if it does."""
    if plan.size > ranks:
        return f"{plan.text}: there are no groups of {plan.size} among {ranks} ranks"
    least = least_history(ranks, plan.size) if plan.size else 0
    if 0 < plan.history < least:
        return (
            f"{plan.text}: history={plan.history} is less than {least}, the groups that connect "
            f"{ranks} ranks"
        )
    if plan.generator == "static" and ranks % per_node:
        return f"static: {ranks} ranks are not nodes of {per_node}; choose another --per-node"
    return None
