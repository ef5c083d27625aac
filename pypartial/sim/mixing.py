"""How well groups mix models: the matrix of a group, its mean, and what theory makes of it.

A group of k ranks averages: in its matrix W the entries between members are 1/k, the other ranks
keep their models (Partial Reduce, Eq. 4; Ripples, F^G). Products of such matrices converge to the
mean of all models at a speed given by ``rho = max(|lambda_2|, |lambda_N|)`` of E[W].
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["Analysis", "analyse", "frozen_stretches", "largest_rate", "mean_matrix", "rho_bar"]

SAME = 1e-9
"""Eigenvalues nearer to 1 than this are taken for 1: they come from rounding."""


def mean_matrix(groups: Sequence[Sequence[int]], ranks: int) -> npt.NDArray[np.float64]:
    """Return E[W] of some groups, an array of shape ``(ranks, ranks)``.

    Raises
    ------
    ValueError
        If there are no groups.
    """
    if not groups:
        raise ValueError("there are no groups")
    mean = np.zeros((ranks, ranks))
    kept = np.full(ranks, float(len(groups)))
    for group in groups:
        members = np.asarray(group)
        mean[np.ix_(members, members)] += 1 / len(members)
        kept[members] -= 1
    mean[np.diag_indices(ranks)] += kept
    mean /= len(groups)
    return mean


def spectral_rho(mean: npt.NDArray[np.float64]) -> float:
    """Return ``max(|lambda_2|, |lambda_N|)`` of E[W]; 0 for one rank."""
    if len(mean) == 1:
        return 0.0
    eigenvalues = np.linalg.eigvalsh(mean)
    rho = float(max(abs(eigenvalues[0]), abs(eigenvalues[-2])))
    return 1.0 if rho > 1 - SAME else rho


def rho_bar(rho: float) -> float:
    """Return Partial Reduce's rho-bar (Theorem 1), infinite for rho = 1."""
    if rho >= 1:
        return math.inf
    return rho / (1 - rho) + 2 * math.sqrt(rho) / (1 - math.sqrt(rho)) ** 2


def largest_rate(rho: float, ranks: int, size: float, lipschitz: float) -> float:
    """Return the largest learning rate that Theorem 1 of Partial Reduce allows.

    The condition is ``eta L + 2 N^3 eta^2 L^2 rho_bar / P^2 <= 1`` with ``eta = P / N gamma``. The
    paper's Eq. 7 lacks the L^2, which its Eq. 8 has and without which the terms have different
    units.

    Parameters
    ----------
    rho : float
    ranks : int
        N.
    size : float
        P, ranks of a group.
    lipschitz : float
        L, above 0.
    """
    square = 2 * ranks**3 * rho_bar(rho) / size**2  # of eta L
    if math.isinf(square):
        return 0.0
    # The positive root of square x^2 + x - 1, in the form that is exact for square = 0, too.
    return 2 / (1 + math.sqrt(1 + 4 * square)) / lipschitz * ranks / size


def frozen_stretches(groups: Sequence[Sequence[int]], ranks: int, window: int) -> list[int]:
    """Return how long the sync-graph stayed unconnected, in groups, each time it did.

    The sync-graph connects the members of each of the last `window` groups. Ranks that are in none
    of the groups do not count.
    """
    active = sorted({rank for group in groups for rank in group})
    stretches, length = [], 0
    newest: int | None = None  # the groups from this number on connect all ranks
    for end in range(window, len(groups) + 1):
        if newest is None or newest < end - window:
            newest = _connecting_suffix(groups, end, end - window, active)
        if newest is None:
            length += 1
        elif length:
            stretches.append(length)
            length = 0
    return stretches + ([length] if length else [])


def _connecting_suffix(
    groups: Sequence[Sequence[int]], end: int, first: int, active: Sequence[int]
) -> int | None:
    """Return the largest number from which on groups up to `end` connect all ranks."""
    roots = {rank: rank for rank in active}

    def root(rank: int) -> int:
        while roots[rank] != rank:
            roots[rank] = roots[roots[rank]]
            rank = roots[rank]
        return rank

    trees = len(active)
    for number in range(end - 1, first - 1, -1):
        group = groups[number]
        for other in group[1:]:
            one, two = root(group[0]), root(other)
            trees -= one != two
            roots[one] = two
        if trees == 1:
            return number
    return None


@dataclass(frozen=True)
class Analysis:
    """What `analyse` finds.

    Attributes
    ----------
    ranks, groups : int
    mean_size : float
        Members of a group.
    rho, gap : float
        Of E[W]; the spectral gap is 1 - rho.
    rho_bar : float
        Infinite if rho is 1.
    rate : float
        The largest learning rate of Theorem 1; 0 if rho is 1.
    window : int
        Groups of the sync-graph.
    frozen : list of int or None
        Lengths of the stretches in which it was not connected; None if there are fewer groups.
    mean : array of float64, shape (ranks, ranks)
        E[W].
    """

    ranks: int
    groups: int
    mean_size: float
    rho: float
    gap: float
    rho_bar: float
    rate: float
    window: int
    frozen: list[int] | None
    mean: npt.NDArray[np.float64]


def analyse(
    groups: Sequence[Sequence[int]], ranks: int, lipschitz: float = 1.0, window: int | None = None
) -> Analysis:
    """Analyse groups in the order in which they began.

    Parameters
    ----------
    groups : sequence of sequence of int
    ranks : int
        N.
    lipschitz : float
        L of Theorem 1.
    window : int, optional
        Groups of the sync-graph; by default the controller's for groups of the mean size.

    Raises
    ------
    ValueError
        If there are no groups.
    """
    mean = mean_matrix(groups, ranks)
    size = sum(map(len, groups)) / len(groups)
    rho = spectral_rho(mean)
    if window is None:
        window = 4 * math.ceil((ranks - 1) / max(size - 1, SAME)) if size > 1 else 4 * ranks
    return Analysis(
        ranks=ranks,
        groups=len(groups),
        mean_size=size,
        rho=rho,
        gap=1 - rho,
        rho_bar=rho_bar(rho),
        rate=largest_rate(rho, ranks, size, lipschitz),
        window=window,
        frozen=frozen_stretches(groups, ranks, window) if len(groups) >= window else None,
        mean=mean,
    )
