"""Make the pictures of docs/gallery.md, each by a command of the package.

Every picture is drawn from the --json of that command. The simulated ones are the same on every
machine, `ratios` draws the table of docs/performance.md, and the others are measured here.
`latency` is made only if it is asked for: MPI's calls spin, and mean nothing on busy cores.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from common import COLOURS, GREY, IMAGES, ROOT, figure, measured, save, time_axis
from matplotlib.ticker import FuncFormatter, NullFormatter, NullLocator

COMMAND = "python bench/plots/gallery.py"
SEED = "7"
SCHEDULES = ("recursive_doubling", "rabenseifner", "ring")
NETWORKS = ("infiniband-mvapich", "piz-daint-like")
SCHEDULE_RANKS = 64
POLICIES = ("solo", "first:4", "first:2", "majority", "quorum:4", "quorum:6", "full")


def percentiles(images: Path, quick: bool) -> None:
    """Latencies of `bench skew` under three policies and MPI: median, mean, 99th and worst."""
    policies = ("solo", "majority", "full", "mpi")
    words = [word for policy in policies for word in ("--policy", policy)]
    sizes = ("--size", "64", "--size", "64K", "--size", "1M")
    rounds = "20" if quick else "200"
    options = ("--skew", "1ms", "--rounds", rounds, "--seed", SEED)
    report = measured("bench", "skew", *words, *sizes, *options, ranks=8)
    drawing, every = figure(3, height=3.8, width=9.6)
    for axes, size in zip(every, (64, 65536, 1 << 20), strict=True):
        rows = [row for row in report["rows"] if row["bytes"] == size]
        for place, row in enumerate(rows):
            times = row["latency_us"]
            colour = GREY if row["policy"] == "mpi" else COLOURS[place]
            axes.plot([place, place], [times["p50"], times["p99"]], color=colour, linewidth=6)
            axes.plot([place], [times["mean"]], "D", color=colour, markersize=8)
            axes.plot([place], [times["max"]], "_", color=colour, markersize=14)
        names = ["MPI" if row["policy"] == "mpi" else row["policy"] for row in rows]
        axes.set_xticks(range(len(rows)), names)
        axes.set_xlim(-0.6, len(rows) - 0.4)
        axes.set_yscale("log")
        time_axis(axes.yaxis)
        axes.grid(visible=False, axis="x")
        axes.set_title(spell_size(size))
    every[0].set_ylabel("latency")
    every[1].set_xlabel("bar: median to 99th percentile; diamond: mean; dash: worst")
    save(drawing, images / "gallery-percentiles.svg", COMMAND)


def active(images: Path, quick: bool) -> None:
    """Active ranks of `bench skew` by policy, with the interval, and what theory says."""
    words = [word for policy in POLICIES for word in ("--policy", policy)]
    rounds = "20" if quick else "200"
    options = ("--size", "64", "--skew", "1ms", "--rounds", rounds, "--seed", SEED)
    rows = measured("bench", "skew", *words, *options, ranks=8)["rows"]
    drawing, (axes,) = figure(height=3.6)
    for place, row in enumerate(rows):
        fresh = row["active"]
        low, high = fresh["ci95"]
        axes.bar(place, fresh["mean"], width=0.6, color=COLOURS[0])
        axes.plot([place, place], [low, high], color=COLOURS[1], linewidth=2.5)
        axes.plot(place, row["active_expected"], "D", color=COLOURS[2])
    axes.set_xticks(range(len(rows)), [row["policy"] for row in rows])
    axes.grid(visible=False, axis="x")
    axes.set_ylabel("active ranks of 8")
    axes.set_xlabel("bar: mean; line: its 95 % interval; diamond: expectation", fontsize=10)
    save(drawing, images / "gallery-active.svg", COMMAND)


def simulated(images: Path, quick: bool) -> None:
    """`sim skew` up to 4,096 ranks."""
    ranks = [word for count in (64, 512, 4096) for word in ("--ranks", str(count))]
    policies = ("--policy", "solo", "--policy", "majority", "--policy", "full")
    steps = "5" if quick else "20"
    options = ("--arrivals", "ucf101", "--steps", steps, "--seed", SEED)
    rows = measured("sim", "skew", *ranks, *policies, *options)["rows"]
    drawing, (left, right) = figure(2, height=3.8, width=9.2)
    for colour, policy in zip(COLOURS, ("solo", "majority", "full"), strict=False):
        line = sorted((r for r in rows if r["policy"] == policy), key=lambda row: row["ranks"])
        counts = [row["ranks"] for row in line]
        means = [row["step_us"]["mean"] for row in line]
        shares = [100 * row["active"]["mean"] / row["ranks"] for row in line]
        left.plot(counts, means, "o-", color=colour, label=policy)
        right.plot(counts, shares, "o-", color=colour, label=policy)
    for axes in (left, right):
        axes.set_xscale("log", base=2)
        axes.set_xticks([64, 512, 4096], ["64", "512", "4,096"])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xlabel("simulated ranks")
        axes.set_ylim(bottom=0)
        axes.legend(labelcolor=GREY)
    time_axis(left.yaxis)
    left.set_title("time of a step, mean")
    right.set_title("active ranks, %")
    save(drawing, images / "gallery-simulated.svg", COMMAND)


def latency(images: Path, quick: bool) -> None:
    """`bench latency` on two ranks, against MPI's own calls and a copy."""
    counts = (8, 1024, 65536, 1 << 20, 1 << 22) if quick else tuple(8 << 3 * i for i in range(8))
    sizes = [word for count in counts for word in ("--size", str(count))]
    budget = "60ms" if quick else "250ms"
    options = ("--policy", "full", "--policy", "solo", "--budget", budget)
    rows = measured("bench", "latency", *sizes, *options, ranks=2)["rows"]
    drawing, (axes,) = figure(height=4.4, width=9.2)
    others = {"mpi": "-", "mpi-nonblocking": ":", "mpi-persistent": "-.", "memcpy": "--"}
    names = {
        "mpi": "MPI_Allreduce",
        "mpi-nonblocking": "MPI_Iallreduce",
        "mpi-persistent": "MPI persistent",
        "memcpy": "memory copy",
    }
    ways = list(dict.fromkeys((row["policy"], row["buffers"]) for row in rows))
    colours = iter(COLOURS)
    for policy, buffers in ways:
        line = sorted(
            (row for row in rows if (row["policy"], row["buffers"]) == (policy, buffers)),
            key=lambda row: row["bytes"],
        )
        axes.plot(
            [row["bytes"] for row in line],
            [row["latency_us"]["p50"] for row in line],
            others.get(policy, "o-"),
            color=GREY if policy in others else next(colours),
            label=names.get(policy, f"{policy}, {buffers} buffers"),
        )
    size_axis(axes, counts)
    axes.set_yscale("log")
    time_axis(axes.yaxis)
    axes.set_ylabel("a call on the slowest rank, median")
    axes.legend(labelcolor=GREY, fontsize=10, loc="center left", bbox_to_anchor=(1, 0.5))
    save(drawing, images / "gallery-latency.svg", COMMAND)


def ratios(images: Path, quick: bool) -> None:
    """Times of `bench latency` as multiples of the best MPI call, out of docs/performance.md."""
    ways = ("Full, library", "Full, NumPy", "Solo, library")
    rows = published(("ranks", "size", "best MPI call, us", *ways))
    counts = list(dict.fromkeys(row["ranks"] for row in rows))
    drawing, every = figure(len(counts), height=3.9, width=9.6)
    for axes, count in zip(every, counts, strict=True):
        of = [row for row in rows if row["ranks"] == count]
        for at, (colour, way) in enumerate(zip(COLOURS, ways, strict=False)):
            for place, row in enumerate(of):
                middle, low, high = map(float, re.findall(r"[\d.]+", row[way]))
                x = place + 0.22 * (at - 1)
                axes.plot([x, x], [low, high], color=colour, linewidth=4)
                axes.plot([x], [middle], "o", color=colour, label=way if place == 0 else "")
        axes.axhline(1, color=GREY, linewidth=1.5)
        axes.set_xticks(range(len(of)), [row["size"] for row in of])
        axes.tick_params(axis="x", labelrotation=45)
        axes.set_ylim(0, 1.6)
        axes.grid(visible=False, axis="x")
        axes.set_title(f"{count} ranks")
    every[0].set_ylabel("time, in the best MPI call's")
    every[-1].legend(labelcolor=GREY, fontsize=10)
    save(drawing, images / "gallery-ratios.svg", COMMAND)


def published(columns: Sequence[str]) -> list[dict[str, str]]:
    """Return the table of docs/performance.md that has these columns.

    Raises
    ------
    SystemExit
        If there is none.
    """
    page = ROOT / "docs" / "performance.md"
    head: list[str] = []
    rows = []
    for line in page.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|"):
            head = []
        elif set(columns) <= set(cells):
            head = cells
        elif head and not set(line) <= set("|- :"):
            rows.append(dict(zip(head, cells, strict=True)))
    if not rows:
        raise SystemExit(f"{page}: no table has the columns {', '.join(columns)}")
    return rows


def schedules(images: Path, quick: bool) -> None:
    """`sim schedule`: when the last of 64 ranks is through, on two networks in LogGP."""
    exponents = range(3, 25, 7 if quick else 3)
    sizes = [1 << exponent for exponent in exponents]
    drawing, every = figure(2, height=4.0, width=9.6)
    for axes, network in zip(every, NETWORKS, strict=True):
        for colour, name in zip(COLOURS, SCHEDULES, strict=False):
            latest = []
            for size in sizes:
                options = ("--ranks", str(SCHEDULE_RANKS), "--size", str(size))
                words = ("sim", "schedule", name, *options, "--network", network, "--quiet")
                latest.append(max(measured(*words)["finished_ns"]) / 1e3)
            axes.plot(sizes, latest, "o-", color=colour, label=name)
        size_axis(axes, sizes)
        axes.set_yscale("log")
        time_axis(axes.yaxis)
        axes.set_title(network)
        axes.legend(labelcolor=GREY, fontsize=10)
    every[0].set_ylabel(f"last of {SCHEDULE_RANKS} ranks")
    save(drawing, images / "gallery-schedules.svg", COMMAND)


def size_axis(axes: Any, sizes: Any) -> None:
    """Write sizes in bytes under an axis of powers of two."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(list(sizes))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda size, _: spell_size(int(size))))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("size of a rank's buffer")
    if len(sizes) > 4:
        axes.tick_params(axis="x", labelrotation=45)


def spell_size(size: int) -> str:
    """Return a size with a unit, powers of 1024."""
    for unit, factor in (("MB", 1 << 20), ("KB", 1 << 10)):
        if size >= factor:
            return f"{size / factor:g} {unit}"
    return f"{size} B"


PICTURES: dict[str, Callable[[Path, bool], None]] = {
    "percentiles": percentiles,
    "active": active,
    "simulated": simulated,
    "ratios": ratios,
    "latency": latency,
    "schedules": schedules,
}


def main() -> None:
    """Read the options and make the pictures."""
    parser = argparse.ArgumentParser(prog=COMMAND.partition(" ")[2], description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="fewer rounds, steps and sizes: a minute or two"
    )
    parser.add_argument("--images", type=Path, default=IMAGES, help="folder of the pictures")
    parser.add_argument(
        "--only", choices=PICTURES, action="append", help="make this one only; repeatable"
    )
    options = parser.parse_args()
    for name in options.only or [name for name in PICTURES if name != "latency"]:
        PICTURES[name](options.images, options.quick)


if __name__ == "__main__":
    main()
