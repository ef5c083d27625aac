"""The plot of ``pypartial trace report``: who came when, and who waited for whom."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import numpy.typing as npt

__all__ = ["save_plot"]

_DOTS = 20_000  # in all; more take long, and show no more
_RANKS_NAMED = 16


def save_plot(
    samples: Mapping[int, npt.NDArray[Any]], waited: npt.NDArray[np.float64], path: Path
) -> None:
    """Draw arrivals over time and the matrix of waits; the suffix of the file names its format."""
    ranks, seconds, behind = lateness(samples)
    figure, (upper, lower) = plt.subplots(
        2, 1, figsize=(8.5, 9), layout="constrained", height_ratios=(1, 1.4)
    )
    shown = slice(None, None, 1 + len(ranks) // _DOTS)
    colours = plt.get_cmap("viridis")(np.linspace(0, 0.95, max(len(waited), 2)))
    for rank in sorted(samples):
        mine = ranks[shown] == rank
        dots = seconds[shown][mine], 1e3 * behind[shown][mine]
        upper.plot(*dots, ".", markersize=3, color=colours[rank], label=f"rank {rank}")
    upper.set_xlabel("time in seconds")
    upper.set_ylabel("ms after the first rank")
    upper.set_title("Arrivals: each Start, and how late it is", loc="left", fontsize=11)
    if len(samples) <= _RANKS_NAMED:
        upper.legend(frameon=False, markerscale=3, loc="center left", bbox_to_anchor=(1, 0.5))
    image = lower.imshow(waited, cmap="Blues", vmin=0)
    figure.colorbar(image, ax=lower, label="seconds")
    lower.set_xlabel("for this rank")
    lower.set_ylabel("this rank waited")
    lower.set_title("Who waited for whom", loc="left", fontsize=11)
    for axis in (lower.xaxis, lower.yaxis):
        axis.get_major_locator().set_params(integer=True)
    for side in ("top", "right"):
        upper.spines[side].set_visible(False)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def lateness(samples: Mapping[int, npt.NDArray[Any]]) -> tuple[npt.NDArray[Any], ...]:
    """Return of all cycles their ranks, their Starts, and how long after the first of the same key.

    Times are in seconds, and begin at the first Start.
    """
    ranks = np.concatenate([np.full(len(found), rank) for rank, found in sorted(samples.items())])
    every = np.concatenate([found for _, found in sorted(samples.items())])
    starts = every["start_ns"].astype(np.int64)
    order = np.lexsort((starts, every["key"], every["handle"]))
    keys = every[["handle", "key"]][order]
    new = np.ones(len(order), bool)
    new[1:] = keys[1:] != keys[:-1]
    firsts = starts[order][new][np.cumsum(new) - 1]
    behind = np.empty(len(order))
    behind[order] = (starts[order] - firsts) / 1e9
    return ranks, (starts - starts.min(initial=np.iinfo(np.int64).max)) / 1e9, behind
