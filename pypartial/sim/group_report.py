"""Results of ``pypartial sim groups`` and ``groups analyse``, as values and for JSON."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

from .. import __version__
from ..provenance import header
from .arrivals import Arrivals, parse_arrivals
from .events import drawn_times
from .generators import Plan
from .group_options import GroupsOptions
from .group_run import Course, Result, simulate
from .mixing import Analysis

__all__ = ["Row", "Side", "analysis_as_dict", "course_of", "groups_as_dict", "measure"]

_MATRIX_RANKS = 256
_SLOW = re.compile(r"slow:(\d+):")


@dataclass(frozen=True)
class Side:
    """How some of the ranks fared.

    Attributes
    ----------
    name : str
        ``fast``, ``slow`` or ``all``.
    ranks : int
        How many they are.
    iteration_ns : float or None
        Mean time of an iteration; None if none was completed.
    undisturbed_ns : float or None
        The same where no rank is slow; None if the arrival model has no slow rank.
    ratio : float or None
        How many times longer than undisturbed an iteration takes.
    waiting : float or None
        Share of the time in which they waited for groups; None if no iteration was completed.
    """

    name: str
    ranks: int
    iteration_ns: float | None
    undisturbed_ns: float | None
    ratio: float | None
    waiting: float | None


@dataclass(frozen=True)
class Row:
    """One simulated generator.

    Attributes
    ----------
    generator : str
    sides : list of Side
    sizes : dict
        How many groups of each size there were.
    alone : float
        Share of the requests that were completed without a group.
    step_ns : float
        Mean time of an iteration over all ranks' iterations, so a fast rank counts more.
    staleness : float
        By how many iterations a member is behind the newest of its group, on average.
    """

    generator: str
    sides: list[Side]
    sizes: dict[int, int]
    alone: float
    step_ns: float
    staleness: float


def _model(options: GroupsOptions, arrivals: str) -> Arrivals:
    return parse_arrivals(
        arrivals, options.ranks, options.iterations, options.seed, options.base_ns
    )


def course_of(options: GroupsOptions, plan: Plan, arrivals: str) -> Course:
    """Return the simulation of one generator under an arrival model."""
    return Course(
        plan=plan,
        ranks=options.ranks,
        iterations=options.iterations,
        times=drawn_times(_model(options, arrivals)),
        seed=options.seed,
        per_node=options.per_node,
        group_ns=options.group_ns,
        weights=options.weights.value,
        alpha=options.alpha,
    )


def measure(
    options: GroupsOptions,
    plan: Plan,
    log: TextIO | None = None,
    progress: Callable[[float], None] | None = None,
) -> Row:
    """Simulate one generator; where the model has a slow rank, once more without.

    Parameters
    ----------
    options : GroupsOptions
    plan : Plan
        One of theirs.
    log : text file, optional
        Gets the groups of the first simulation.
    progress : callable, optional
        Is given the share that is done.
    """
    slow = _SLOW.match(_model(options, options.arrivals).text)
    part = 0.5 if slow else 1.0

    def share(offset: float) -> Callable[[float], None]:
        return lambda done: progress(offset + part * done) if progress else None

    result = simulate(course_of(options, plan, options.arrivals), log, share(0.0))
    even = None
    if slow:
        even = simulate(course_of(options, plan, f"slow:{slow[1]}:1x"), None, share(part))
    parts = {"all": list(range(options.ranks))}
    if slow:
        alone = int(slow[1])
        parts = {"fast": [r for r in range(options.ranks) if r != alone], "slow": [alone]}
    sides = [_side(name, ranks, result, even) for name, ranks in parts.items() if ranks]
    requests = sum(result.iterations)
    sizes = dict(sorted(result.sizes().items()))
    members = sum(size * count for size, count in sizes.items())
    return Row(
        plan.text,
        sides,
        sizes,
        result.alone / requests,
        sum(result.elapsed_ns) / requests,
        result.behind / max(members, 1),
    )


def _side(name: str, ranks: list[int], result: Result, even: Result | None) -> Side:
    takes = _known(result.iteration_ns(ranks))
    undisturbed = None if even is None else _known(even.iteration_ns(ranks))
    ratio = takes / undisturbed if takes is not None and undisturbed else None
    return Side(name, len(ranks), takes, undisturbed, ratio, _known(result.waiting(ranks)))


def _known(number: float) -> float | None:
    return None if math.isnan(number) else number


def _meta(options: GroupsOptions) -> dict[str, Any]:
    return {
        "ranks": options.ranks,
        "iterations": options.iterations,
        "arrivals": options.arrivals,
        "base_ns": options.base_ns,
        "seed": options.seed,
        "per_node": options.per_node,
        "group_ns": options.group_ns,
        "weights": options.weights.value,
        "alpha": options.alpha,
    }


def groups_as_dict(options: GroupsOptions, rows: Sequence[Row]) -> dict[str, Any]:
    """Return a header, ``meta``, and ``rows`` in types that JSON knows."""
    meta = {"version": __version__, **_meta(options)}
    return {**header(), "meta": meta, "rows": list(map(dataclasses.asdict, rows))}


def analysis_as_dict(
    source: str, course: GroupsOptions | None, lipschitz: float, analysis: Analysis
) -> dict[str, Any]:
    """Return a header, ``meta``, and the analysis.

    What is infinite is None, and so is E[W] of more than 256 ranks.
    """
    meta = {
        "version": __version__,
        "source": source,
        "lipschitz": lipschitz,
        "simulated": None if course is None else _meta(course),
    }
    values = dataclasses.asdict(analysis)
    values["rho_bar"] = analysis.rho_bar if math.isfinite(analysis.rho_bar) else None
    values["rate"] = analysis.rate if math.isfinite(analysis.rate) else None
    values["mean"] = analysis.mean.tolist() if analysis.ranks <= _MATRIX_RANKS else None
    return {**header(), "meta": meta, "analysis": values}
