"""The plots of ``pypartial sim skew`` and ``sim gain``: time of a step by policy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from ..units import format_duration, format_size
from .report import SkewReport
from .skew import Row

# Okabe and Ito's colours, which colour-blind readers tell apart; the synchronous baseline is black.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_BASELINE = "full"
# A name, microseconds (mean, and 99th percentile or None), how many times faster than full.
Bar = tuple[str, float, float | None, float]


def save_plot(report: SkewReport, path: Path, more: Sequence[Bar] = ()) -> None:
    """Draw the mean time of a step and save it; the suffix of the file names its format.

    The plot is against the number of ranks if there are several, else against the size if there are
    several, else it has a bar for each policy, with a mark at the 99th percentile, and `more` bars.
    """
    figure, axes = plt.subplots(figsize=(8.5, 5.2), layout="constrained")
    by_ranks = len(report.options.ranks) > 1
    if by_ranks or len(report.options.sizes) > 1:
        _lines(axes, report.rows, by_ranks=by_ranks)
    else:
        _bars(axes, [*map(_bar, report.rows), *more])
    options = report.options
    where = [] if by_ranks else [f"{options.ranks[0]:,} ranks"]
    if len(options.sizes) == 1:
        where.append(format_size(options.sizes[0]))
    axes.set_title(
        f"Simulated partial allreduce: {', '.join(where)}\n"
        f"{report.arrivals}, {options.steps} steps, network {options.network.name}",
        loc="left",
        fontsize=11,
    )
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _policies(rows: Sequence[Row]) -> dict[str, list[Row]]:
    lines: dict[str, list[Row]] = {}
    for row in rows:
        lines.setdefault(row.policy, []).append(row)
    return lines


def _lines(axes: Axes, rows: Sequence[Row], *, by_ranks: bool) -> None:
    """Draw a line for each policy, and for each size if both vary."""
    colours = iter(_COLOURS * len(rows))
    sizes = {row.bytes for row in rows}
    for policy, line in _policies(rows).items():
        colour = "#000000" if policy == _BASELINE else next(colours)
        for size in sorted(sizes) if by_ranks else [None]:
            part = [row for row in line if size in (None, row.bytes)]
            part.sort(key=lambda row: row.ranks if by_ranks else row.bytes)
            label = policy if size is None or len(sizes) == 1 else f"{policy}, {format_size(size)}"
            axes.plot(
                [row.ranks if by_ranks else row.bytes for row in part],
                [row.step_us.mean for row in part],
                color=colour,
                linestyle="--" if policy == _BASELINE else "-",
                marker="o",
                markersize=5,
                label=label,
            )
    places = sorted({row.ranks if by_ranks else row.bytes for row in rows})
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.minorticks_off()
    axes.set_xticks(places, [f"{x:,}" if by_ranks else format_size(x) for x in places])
    axes.yaxis.set_major_formatter(lambda us, _position: format_duration(1e3 * us))
    axes.set_xlabel("ranks" if by_ranks else "size of a rank's buffer")
    axes.set_ylabel("time of a step, mean over ranks and steps")
    axes.grid(visible=True, color="#dddddd", linewidth=0.8)
    axes.legend(frameon=False)


def _bar(row: Row) -> Bar:
    return row.policy, row.step_us.mean, row.step_us.p99, row.speedup_vs_synchronous


def _bars(axes: Axes, bars: Sequence[Bar]) -> None:
    colours = iter(_COLOURS * len(bars))
    names = [name for name, *_ in bars]
    axes.barh(
        names,
        [mean for _, mean, *_ in bars],
        color=["#444444" if name == _BASELINE else next(colours) for name in names],
        height=0.6,
    )
    for place, (name, mean, p99, speedup) in enumerate(bars):
        if p99 is not None:
            axes.plot([p99] * 2, [place - 0.3, place + 0.3], color="#000000", linewidth=1.5)
        text = format_duration(1e3 * mean)
        if name != _BASELINE:
            text += f" ({speedup:.2f} x faster than full)"
        axes.annotate(
            text,
            (max(mean, p99 or 0), place),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
        )
    axes.invert_yaxis()
    axes.set_xlim(0, 1.45 * max(max(mean, p99 or 0) for _, mean, p99, _ in bars))
    axes.xaxis.set_major_formatter(lambda us, _position: format_duration(1e3 * us))
    axes.set_xlabel("time of a step: mean over ranks and steps; the mark is the 99th percentile")
