"""The plots of the reports: latency against size, a line for each way to sum."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.legend_handler import HandlerTuple
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter, NullLocator

from ..units import format_size
from .group_table import setting as groups_setting
from .options import Buffers, on_device
from .results import (
    GossipMeta,
    GossipRow,
    GroupLatencyRow,
    GroupsReport,
    IterationRow,
    LatencyMeta,
    LatencyRow,
    Meta,
    Report,
    Row,
    SkewMeta,
    TorchMeta,
    TorchRow,
)
from .table import setting
from .torch_table import label as torch_label
from .torch_table import setting as torch_setting

AnyRow = TypeVar("AnyRow", Row, LatencyRow, GroupLatencyRow, GossipRow)
CaseRow = TypeVar("CaseRow", GroupLatencyRow, GossipRow)
Key = TypeVar("Key", bound=Hashable)

# Okabe and Ito's colours, which colour-blind readers tell apart; MPI is black.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_MPI_COLOUR = "#000000"
_COPY_COLOUR = "#888888"
_LABELS = {
    "mpi": "MPI_Allreduce",
    "mpi-nonblocking": "MPI_Iallreduce",
    "mpi-persistent": "MPI persistent",
    "memcpy": "memory copy",
    "mpi-create-group": "create_group",
    "mpi-split": "MPI_Comm_split",
}
# Colour and style of the ways that the library is compared with.
_OTHERS = {
    "mpi": (_MPI_COLOUR, "--"),
    "mpi-nonblocking": (_MPI_COLOUR, ":"),
    "mpi-persistent": (_MPI_COLOUR, "-."),
    "memcpy": (_COPY_COLOUR, ":"),
    "mpi-create-group": (_MPI_COLOUR, ":"),
    "mpi-split": (_MPI_COLOUR, "-."),
    "mpi-sendrecv": (_MPI_COLOUR, ":"),
    "mpi-neighbor": (_MPI_COLOUR, "-."),
}
# The labels of more sizes than this are written aslant.
_LEVEL_TICKS = 8
# The least distance of two labels, as a share of the axis.
_LABEL_DISTANCE = 0.05
# How far the marks of neighbouring lines are apart at most, in powers of 2 of the size.
_ASIDE = 0.22
# Height of a legend, which stands between the axes and what was measured where.
_LEGEND_POINTS = 18


@dataclass(frozen=True)
class Line:
    """A line of a plot, and the label at its end."""

    label: str
    sizes: Sequence[float]
    microseconds: Sequence[float]
    colour: str
    style: str = "-"


def save_plot(report: Report[SkewMeta, Row], path: Path) -> None:
    """Draw latency and active ranks against size, and save them.

    Above: the mean latency, its 95 % interval, the median and the 99th percentile. Below: the mean
    of the active ranks, its 95 % interval, and what theory expects. The suffix of the file names
    its format.
    """
    colours = itertools.cycle(_COLOURS)
    by_policy = lines_of(report.rows, lambda row: (row.policy, row.buffers))
    sizes = sorted({row.bytes for row in report.rows})
    lines = []
    for number, ((policy, buffers), rows) in enumerate(by_policy.items()):
        last, other = rows[-1], policy in _OTHERS
        label = _LABELS.get(policy, policy)
        if buffers != Buffers.NUMPY.value:
            label += f", {buffers}"
        if not other and (last.speedup_vs_mpi or 0) >= 1.05:
            label += f"\n({last.speedup_vs_mpi:.3g} x faster at {format_size(last.bytes)})"
        aside = _aside(number, len(by_policy), sizes)
        lines.append(
            Line(
                label,
                [row.bytes * aside for row in rows],
                [row.latency_us.mean for row in rows],
                *(_OTHERS[policy] if other else (next(colours), "-")),
            )
        )
    figure, (above, below) = plt.subplots(
        2, figsize=(9.5, 7.6), height_ratios=(5, 3), sharex=True, layout="constrained"
    )
    for line, rows in zip(lines, by_policy.values(), strict=True):
        _draw_latency(above, line, rows)
        _draw_active(below, line, rows)
    latencies = [row.latency_us for row in report.rows]
    _scale(
        above,
        sizes,
        [one.p50 for one in latencies] + [one.p99 for one in latencies],
        _aside(len(lines) - 1, len(lines), sizes),
    )
    _label(above, lines, 2 * _LABEL_DISTANCE)
    _scale_active(below, report.rows)
    above.tick_params(labelbottom=False)
    above.set_ylabel(f"latency of {report.rows[0].rounds} rounds on all ranks")
    _size_axis(below, report.meta)
    _legend(above, below)
    _head(above, report.meta, "Partial allreduce and MPI_Allreduce", _LEGEND_POINTS)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def save_latency_plot(report: Report[LatencyMeta, LatencyRow], path: Path) -> None:
    """Draw latency against size and save it, as `save_plot` does."""
    colours = itertools.cycle(_COLOURS)
    lines = []
    by_way = lines_of(report.rows, lambda row: (row.policy, row.buffers))
    for (policy, buffers), rows in by_way.items():
        last, other = rows[-1], policy in _OTHERS
        label = _LABELS.get(policy, f"{policy}, {buffers}")
        if other and on_device(buffers):
            label += f", {buffers}"
        if not other and last.ratio_to_mpi is not None:
            label += f" ({last.ratio_to_mpi:.3g} x MPI at {format_size(last.bytes)})"
        lines.append(
            Line(
                label,
                [row.bytes for row in rows],
                [row.latency_us.p50 for row in rows],
                *(_OTHERS[policy] if other else (next(colours), "-")),
            )
        )
    latency = "time of a call on the slowest rank, median of blocks"
    _draw(lines, report.meta, "Partial allreduce, MPI's own, and a copy", latency, path)


def save_groups_plot(report: GroupsReport, path: Path) -> None:
    """Draw what ``bench groups`` has measured, and save it.

    A picture for each case of the latencies, time against size; and one of the iterations, how many
    times longer they take beside the slow rank.
    """
    cases: dict[tuple[int, int], list[GroupLatencyRow]] = {}
    for row in report.rows:
        cases.setdefault((row.size, row.groups), []).append(row)
    pictures = len(cases) + bool(report.iterations)
    figure, grid = plt.subplots(
        pictures, figsize=(9.5, 4.4 * pictures), layout="constrained", squeeze=False
    )
    figure.suptitle(groups_setting(report.meta), fontsize=10, color="#444444", x=0.02, ha="left")
    places = iter(grid[:, 0])
    for (size, groups), rows in cases.items():
        _draw_case(next(places), rows, _case_title(size, groups))
    if report.iterations:
        _draw_iterations(next(places), report.iterations)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def save_gossip_plot(report: Report[GossipMeta, GossipRow], path: Path) -> None:
    """Draw times of iterations of ``bench gossip`` against size, and save them."""
    figure, axes = plt.subplots(figsize=(9.5, 4.8), layout="constrained")
    figure.suptitle(groups_setting(report.meta), fontsize=10, color="#444444", x=0.02, ha="left")
    _draw_case(axes, report.rows, f"Iterations on {report.meta.topology}")
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _draw_case(axes: Axes, rows: Sequence[CaseRow], title: str) -> None:
    """Draw a line for each way to average in one case."""
    colours = itertools.cycle(_COLOURS)
    by_way = lines_of(rows, lambda row: (row.way, getattr(row, "backend", None), row.buffers))
    lines = []
    for (way, backend, buffers), line in by_way.items():
        label = _LABELS.get(way, ", ".join(filter(None, (way, backend, buffers))))
        times = [row.latency_us.p50 for row in line]
        look = _OTHERS[way] if way in _OTHERS else (next(colours), "-")
        lines.append(Line(label, [row.bytes for row in line], times, *look))
        axes.plot(lines[-1].sizes, times, color=look[0], linestyle=look[1], marker="o")
    sizes = sorted({row.bytes for row in rows})
    _scale(axes, sizes, [time for line in lines for time in line.microseconds])
    _label(axes, lines, _LABEL_DISTANCE)
    axes.set_title(title, loc="left", fontsize=13)
    axes.set_xlabel("size of a rank's buffer")
    axes.set_ylabel("time of a call on the slowest rank")


def _draw_iterations(axes: Axes, rows: Sequence[IterationRow]) -> None:
    """Draw a bar for each generator and kind of ranks: the ratio, or else the time."""
    sides = [side.name for side in rows[0].sides]
    compared = all(side.ratio is not None for row in rows for side in row.sides)
    width = 0.8 / len(sides)
    for number, name in enumerate(sides):
        found = [next(side for side in row.sides if side.name == name) for row in rows]
        spreads = [side.ratio or side.iteration_us for side in found]
        middles = [one.median for one in spreads]
        reach = [
            [one.median - one.p10 for one in spreads],
            [one.p90 - one.median for one in spreads],
        ]
        at = [place + width * (number - (len(sides) - 1) / 2) for place in range(len(rows))]
        axes.bar(at, middles, width, yerr=reach, color=_COLOURS[number], label=f"{name} ranks")
    names = [
        (f"{row.generator}:{row.size}" if row.size else row.generator)
        + ("" if row.backend is None else f"\n{row.backend}")
        for row in rows
    ]
    axes.set_xticks(range(len(rows)), names)
    axes.set_ylabel("times longer than undisturbed" if compared else "iteration, µs")
    axes.set_title("Iterations beside slow ranks", loc="left", fontsize=13)
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
    axes.set_ylim(bottom=0)


def save_torch_plot(report: Report[TorchMeta, TorchRow], path: Path) -> None:
    """Draw a bar for each way of ``bench torch``, in a picture for each case, and save it."""
    cases: dict[tuple[str, int], list[TorchRow]] = {}
    for row in report.rows:
        cases.setdefault((row.part, row.bytes), []).append(row)
    figure, grid = plt.subplots(
        len(cases), figsize=(9.5, 3.2 * len(cases)), layout="constrained", squeeze=False
    )
    figure.suptitle(torch_setting(report.meta), fontsize=10, color="#444444", x=0.02, ha="left")
    for axes, ((part, size), rows) in zip(grid[:, 0], cases.items(), strict=True):
        ratios = [row.ratio_to_gloo for row in rows]
        reach = [
            [one.median - one.p10 for one in ratios],
            [one.p90 - one.median for one in ratios],
        ]
        colours = [_MPI_COLOUR if row.way == "gloo" else _COLOURS[0] for row in rows]
        middles = [one.median for one in ratios]
        axes.bar(range(len(rows)), middles, 0.6, yerr=reach, color=colours, ecolor=_COPY_COLOUR)
        axes.axhline(1, color=_MPI_COLOUR, linestyle=":", linewidth=0.8)
        names = [torch_label(row).replace(", ", "\n") for row in rows]
        axes.set_xticks(range(len(rows)), names)
        axes.set_ylabel("step, gloo = 1")
        beside = ", beside a late rank" if part == "late" else ""
        axes.set_title(f"{format_size(size)} of parameters{beside}", loc="left", fontsize=13)
        axes.set_ylim(bottom=0)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _case_title(size: int, groups: int) -> str:
    if groups == 1:
        return f"One group of {size} ranks"
    return f"{groups} groups of {size} ranks at once"


def lines_of(rows: Iterable[AnyRow], way: Callable[[AnyRow], Key]) -> dict[Key, list[AnyRow]]:
    """Return the rows of each way to sum, by size; the ways are in the order of their first row."""
    lines: dict[Key, list[AnyRow]] = {}
    for row in rows:
        lines.setdefault(way(row), []).append(row)
    return {key: sorted(line, key=lambda row: row.bytes) for key, line in lines.items()}


def spread(positions: Sequence[float], distance: float) -> list[float]:
    """Move positions apart, as little as possible, until no two are closer than `distance`.

    Neighbours that are too close form a block around their mean. Blocks that then touch are merged
    (pool adjacent violators). The result is in the order of the input.
    """
    order = sorted(range(len(positions)), key=lambda index: positions[index])
    blocks: list[tuple[float, int]] = []  # mean of (position - place in its block), members
    for place, index in enumerate(order):
        blocks.append((positions[index] - place * distance, 1))
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            (last, members), (mean, more) = blocks.pop(), blocks.pop()
            blocks.append(((last * members + mean * more) / (members + more), members + more))
    starts = [mean for mean, members in blocks for _ in range(members)]
    moved = [0.0] * len(positions)
    for place, index in enumerate(order):
        moved[index] = starts[place] + place * distance
    return moved


def _draw(lines: Sequence[Line], meta: Meta, title: str, latency: str, path: Path) -> None:
    """Draw lines over the sizes and save the picture."""
    figure, axes = plt.subplots(figsize=(8.5, 5.2), layout="constrained")
    for line in lines:
        axes.plot(
            line.sizes,
            line.microseconds,
            color=line.colour,
            linestyle=line.style,
            marker="o",
            markersize=5,
            linewidth=1.8,
        )
    sizes = sorted({int(size) for line in lines for size in line.sizes})
    _scale(axes, sizes, [time for line in lines for time in line.microseconds])
    _label(axes, lines, _LABEL_DISTANCE)
    _size_axis(axes, meta)
    axes.set_ylabel(latency)
    _head(axes, meta, title)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _aside(number: int, lines: int, sizes: Sequence[int]) -> float:
    """Return the factor that moves a line's marks to the side of those of the other lines.

    The marks at a size stay closer to each other than to those at the next one.
    """
    gaps = [math.log2(more / less) for less, more in itertools.pairwise(sizes)]
    step = min([_ASIDE, *(gap / (lines + 1) for gap in gaps)])
    return float(2 ** (step * (number - (lines - 1) / 2)))


def _draw_latency(axes: Axes, line: Line, rows: Sequence[Row]) -> None:
    """Draw a line through the means, with intervals, and what lies from median to p99."""
    times = [row.latency_us for row in rows]
    axes.plot(line.sizes, line.microseconds, color=line.colour, linestyle=line.style, linewidth=1.2)
    medians, tails = [time.p50 for time in times], [time.p99 for time in times]
    axes.vlines(line.sizes, medians, tails, color=line.colour, linewidth=1)
    for end, marker in ((medians, "o"), (tails, "_")):
        axes.plot(
            line.sizes,
            end,
            color=line.colour,
            linestyle="none",
            marker=marker,
            markersize=6,
            markerfacecolor="white",
        )
    intervals = [time.ci95 or (time.mean, time.mean) for time in times]
    lows, highs = zip(*intervals, strict=True)
    # On a logarithmic axis nothing is at or below 0, where the interval of a wide spread may end.
    lows = tuple(max(low, time.mean / 10) for low, time in zip(lows, times, strict=True))
    axes.vlines(line.sizes, lows, highs, color=line.colour, linewidth=5, alpha=0.45)


def _draw_active(axes: Axes, line: Line, rows: Sequence[Row]) -> None:
    """Draw the mean of the active ranks with its interval, and what theory expects."""
    means = [row.active.mean for row in rows]
    intervals = [row.active.ci95 or (row.active.mean, row.active.mean) for row in rows]
    lows, highs = zip(*intervals, strict=True)
    axes.plot(line.sizes, means, color=line.colour, linestyle=line.style, linewidth=1.2)
    axes.vlines(line.sizes, lows, highs, color=line.colour, linewidth=5, alpha=0.45)
    expected = [(x, row.active_expected) for x, row in zip(line.sizes, rows, strict=True)]
    known = [(x, value) for x, value in expected if value is not None]
    if known:
        axes.plot(*zip(*known, strict=True), color=line.colour, marker="x", linestyle="none")


def _scale_active(axes: Axes, rows: Sequence[Row]) -> None:
    most = max(row.ranks for row in rows)
    axes.set_ylim(0, 1.08 * most)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
    axes.set_ylabel(f"active ranks of {most}")
    axes.grid(visible=True, color="#dddddd", linewidth=0.8)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.set_axisbelow(True)


def _legend(above: Axes, below: Axes) -> None:
    """Say what the marks are."""
    grey = "#444444"
    bar = Line2D([], [], color=grey, linewidth=5, alpha=0.45)
    line = Line2D([], [], color=grey, linewidth=1.2)
    median = Line2D([], [], color=grey, marker="o", markerfacecolor="white", linestyle="none")
    tail = Line2D([], [], color=grey, marker="_", linestyle="none")
    cross = Line2D([], [], color=grey, marker="x", linestyle="none")
    mean = "mean and its 95 % interval"
    expected = "expected for distinct arrival times"
    Marks = list[tuple[Line2D | tuple[Line2D, ...], str]]
    upper: Marks = [((line, bar), mean), (median, "median"), (tail, "99th percentile")]
    lower: Marks = [((line, bar), mean), (cross, expected)]
    for axes, marks in ((above, upper), (below, lower)):
        axes.legend(
            [mark for mark, _ in marks],
            [text for _, text in marks],
            handler_map={tuple: HandlerTuple()},
            loc="lower left",
            bbox_to_anchor=(0, 1),
            ncols=len(marks),
            frameon=False,
            fontsize=9,
            borderaxespad=0.2,
        )


def _head(axes: Axes, meta: Meta, title: str, above: int = 0) -> None:
    """Write a title so many points above the axes, and under it what was measured where."""
    axes.set_title(title, loc="left", fontsize=13, pad=above + 24)
    axes.annotate(
        f"{setting(meta)}; {meta.mpi}",
        (0, 1),
        xycoords="axes fraction",
        xytext=(0, above + 6),
        textcoords="offset points",
        fontsize=10,
        color="#444444",
    )


def _size_axis(axes: Axes, meta: Meta) -> None:
    axes.set_xlabel(f"size of a rank's buffer ({meta.dtype})")


def _scale(
    axes: Axes, sizes: Sequence[int], times: Sequence[float], outermost: float = 1.0
) -> None:
    """Scale the axes; `outermost` is the factor of the marks that are the farthest aside."""
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(sizes, [format_size(size) for size in sizes])
    if len(sizes) > _LEVEL_TICKS:
        axes.tick_params(axis="x", labelrotation=45)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(_time))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_xlim(sizes[0] / outermost / 1.5, sizes[-1] * outermost * 1.5)
    axes.set_ylim(min(times) / 2, max(times) * 2)
    axes.grid(visible=True, color="#dddddd", linewidth=0.8)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.set_axisbelow(True)


def _label(axes: Axes, lines: Sequence[Line], distance: float) -> None:
    """Write the label of each line at its end."""
    to_axes = axes.transData + axes.transAxes.inverted()
    heights = [to_axes.transform((line.sizes[-1], line.microseconds[-1]))[1] for line in lines]
    for line, height in zip(lines, spread(heights, distance), strict=True):
        axes.text(
            1.01,
            height,
            line.label,
            color=line.colour,
            va="center",
            transform=axes.transAxes,
            fontsize=10,
        )


def _time(microseconds: float, _position: int | None = None) -> str:
    for unit, factor in (("s", 1e6), ("ms", 1e3)):
        if microseconds >= factor:
            return f"{microseconds / factor:g} {unit}"
    return f"{microseconds:g} µs"
