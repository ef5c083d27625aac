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

from ..report import meetings

_DOTS = 20_000  # in all; more take long, and show no more
_RANKS_NAMED = 16


def save_plot(
    samples: Mapping[int, npt.NDArray[Any]], waited: npt.NDArray[np.float64], path: Path
) -> None:
    """Draw arrivals over time and the matrix of waits; the suffix of the file names its format."""
    ranks, every, behind, _ = meetings(samples, np.zeros_like(waited))
    seconds = (every["start_ns"] - every["start_ns"].min(initial=2**63)) / 1e9
    figure, (upper, lower) = plt.subplots(2, figsize=(8.5, 9), layout="constrained")
    colours = plt.get_cmap("viridis")(np.linspace(0, 0.95, len(waited)))
    for rank in sorted(samples):
        mine = np.flatnonzero(ranks == rank)[:: 1 + len(ranks) // _DOTS]
        dots = {"markersize": 3, "color": colours[rank], "label": f"rank {rank}"}
        upper.plot(seconds[mine], 1e3 * behind[mine], ".", **dots)
    upper.set(title="Arrivals", xlabel="seconds", ylabel="Start, ms after that of the first rank")
    if len(samples) <= _RANKS_NAMED:
        upper.legend(frameon=False, markerscale=3, loc="center left", bbox_to_anchor=(1, 0.5))
    image = lower.imshow(waited, cmap="Blues", vmin=0)
    figure.colorbar(image, ax=lower, label="seconds")
    lower.set(title="Who waited for whom", xlabel="for this rank", ylabel="this rank waited")
    lower.locator_params(integer=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)
