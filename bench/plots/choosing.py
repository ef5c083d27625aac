"""Measure what a policy, `deliver`, `window`, `max_lag`, `average` and `patience` do.

Writes the pictures of docs/choosing.md and the tables in it. The parts that are simulated are the
same on every machine; the others are measured here. Seeds are fixed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from common import (
    COLOURS,
    GREY,
    IMAGES,
    ROOT,
    figure,
    measured,
    run,
    save,
    shown,
    spell_us,
    time_axis,
)
from pages import fragment, put, table

import pypartial as pp

SCRIPT = "bench/plots/choosing.py"
COMMAND = f"python {SCRIPT}"
PAGE = ROOT / "docs" / "choosing.md"
SEED = "7"
RANKS, SKEW_MS = 8, 1
SIZES = ("64", "64K")
MEASURED = (
    "solo",
    "first:2",
    "majority",
    "quorum:4",
    "quorum:6",
    "full,deadline=2ms",
    "full",
    "mpi",
)
SIMULATED = ("solo", "first:4", "majority", "quorum:16", "quorum:32", "quorum:48", "full")
DEADLINES = ("500ms", "1s", "1500ms", "2s")
LAGS = (0, 1, 2, 3, 7, 15)
GRACES = ("0us", "50us", "100us", "200us", "400us")
TRIAL_RANKS = 4


# ---- measuring -----------------------------------------------------------------------------------


def skew(rounds: str) -> dict[str, Any]:
    """On this machine: ranks that call one after the other."""
    policies = [word for policy in MEASURED for word in ("--policy", policy)]
    sizes = [word for size in SIZES for word in ("--size", size)]
    options = ["--skew", f"{SKEW_MS}ms", "--rounds", rounds, "--seed", SEED]
    return measured("bench", "skew", *policies, *sizes, *options, ranks=RANKS)


def simulate(policies: Sequence[str], ranks: str, arrivals: str, steps: str, *more: str) -> Any:
    """Return the rows of one simulation, in the order of the policies."""
    words = [word for policy in policies for word in ("--policy", policy)]
    options = ["--ranks", ranks, "--arrivals", arrivals, "--steps", steps, "--seed", SEED]
    report = measured("sim", "skew", *words, *options, *more)
    by_policy = {row["policy"]: row for row in report["rows"]}
    return [by_policy[str(pp.Policy.parse(policy))] for policy in policies]


def simulated_policies(steps: str) -> Any:
    """Uneven work: the times of an LSTM on UCF101."""
    return simulate(SIMULATED, "64", "ucf101", steps)


def simulated_deadlines(steps: str) -> Any:
    """Return the synchronous policy with a deadline on the same arrivals."""
    return simulate([f"full,deadline={deadline}" for deadline in DEADLINES], "64", "ucf101", steps)


def lags(steps: str) -> list[dict[str, Any]]:
    """One rank that is four times as slow, under several bounds."""
    rows = []
    for lag in LAGS:
        options = ("--deliver", "sum", "--max-lag", str(lag), "--window", str(max(4, lag + 1)))
        for row in simulate(("solo", "majority"), "8", "slow:7:4x", steps, *options):
            rows.append({"max_lag": lag, **row})
    return rows


def graces(steps: str) -> Any:
    """Ranks that come 100 us apart (standard deviation), with a moment to wait for them."""
    policies = [f"solo,grace={grace}" for grace in GRACES]
    return simulate(policies, "16", "normal:2ms:100us", steps, "--barrier")


def trial(steps: str) -> Any:
    """On this machine: a slow rank and what it is given."""
    program = str(Path(__file__).resolve().with_name("choosing_ranks.py"))
    words = [sys.executable, "-m", "mpi4py", program, "--steps", steps, "--json"]
    return run(TRIAL_RANKS, words)


# What is measured or simulated: by a number of rounds, and with --quick.
PARTS: dict[str, tuple[Callable[[str], Any], str, str]] = {
    "skew": (skew, "200", "20"),
    "simulated": (simulated_policies, "200", "20"),
    "deadlines": (simulated_deadlines, "200", "20"),
    "lags": (lags, "200", "20"),
    "graces": (graces, "200", "20"),
    "trial": (trial, "400", "40"),
}


# ---- drawing -------------------------------------------------------------------------------------


def draw(numbers: dict[str, Any], images: Path) -> None:
    """Write the pictures."""
    draw_skew(numbers["skew"], images / "choosing-policy.svg")
    draw_trade(numbers["simulated"], numbers["deadlines"], images / "choosing-simulated.svg")
    draw_lags(numbers["lags"], images / "choosing-lag.svg")


def draw_skew(report: dict[str, Any], path: Path) -> None:
    """Latency, with the 50th and 99th percentile, beside the active ranks, for the first size."""
    first = report["rows"][0]["bytes"]
    rows = [row for row in report["rows"] if row["bytes"] == first]
    drawing, (left, right) = figure(2, height=4.0, width=9.2)
    places = range(len(rows))
    for place, row in zip(places, rows, strict=True):
        times, colour = row["latency_us"], colour_of(row["policy"])
        left.plot(
            [times["p50"], times["p99"]], [place, place], color=colour, linewidth=5, alpha=0.45
        )
        left.plot([times["p50"]], [place], "|", color=colour, markersize=13, markeredgewidth=2.5)
        left.plot([times["mean"]], [place], "o", color=colour)
        right.barh(place, row["active"]["mean"], color=colour, height=0.55)
    left.set_xscale("log")
    time_axis(left.xaxis)
    left.set_yticks(places, [label_of(row["policy"]) for row in rows])
    left.set_title("latency")
    left.set_xlabel("line: median; dot: mean; bar: to the 99th percentile", fontsize=10)
    right.set_yticks(places, [])
    right.set_xlim(0, RANKS + 0.3)
    right.set_title(f"active ranks of {RANKS}")
    right.set_xlabel("mean over the rounds", fontsize=10)
    for axes in (left, right):
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.grid(visible=False, axis="y")
    save(drawing, path, COMMAND)


def draw_trade(rows: Any, deadlines: Any, path: Path) -> None:
    """Time of a step against the share of the ranks that is active."""
    drawing, (axes,) = figure()
    for row in rows:
        x, y = 100 * row["active"]["mean"] / row["ranks"], row["step_us"]["mean"]
        axes.plot([x], [y], "o", color=colour_of(row["policy"]), markersize=8)
        beside = {"first": (-14, 10), "major": (-24, 10), "quoru": (4, -16)}.get(
            row["policy"][:5], (8, -4)
        )
        axes.annotate(label_of(row["policy"]), (x, y), xytext=beside, textcoords="offset points")
    shares = [100 * row["active"]["mean"] / row["ranks"] for row in deadlines]
    times = [row["step_us"]["mean"] for row in deadlines]
    axes.plot(shares, times, "s--", color=GREY, label="full, with a deadline")
    for share, us, row in zip(shares, times, deadlines, strict=True):
        text = row["policy"].partition("deadline=")[2]
        axes.annotate(text, (share, us), xytext=(-4, 8), textcoords="offset points", ha="right")
    axes.set_xlim(0, 112)
    axes.set_ylim(bottom=0)
    time_axis(axes.yaxis)
    axes.set_xlabel("active ranks, mean, % of 64")
    axes.set_ylabel("time of a step, mean")
    axes.set_title("simulated: 64 ranks, work of an LSTM on UCF101")
    axes.legend(loc="upper left", labelcolor=GREY)
    save(drawing, path, COMMAND)


def draw_lags(rows: list[dict[str, Any]], path: Path) -> None:
    """Time of a step, and how long fast ranks wait, against max_lag."""
    drawing, (left, right) = figure(2, height=3.6, width=9.2)
    for policy in ("solo", "majority"):
        of = [row for row in rows if row["policy"] == policy]
        positions = list(range(len(of)))
        colour = colour_of(policy)
        left.plot(
            positions, [row["step_us"]["mean"] for row in of], "o-", color=colour, label=policy
        )
        right.plot(positions, [waiting(row) for row in of], "o-", color=colour, label=policy)
    for axes in (left, right):
        axes.set_xticks(range(len(LAGS)), [str(lag) for lag in LAGS])
        axes.set_xlabel("max_lag")
        axes.set_ylim(bottom=0)
        axes.legend(labelcolor=GREY)
    time_axis(left.yaxis)
    left.set_title("time of a step, mean of all ranks")
    right.set_title("share of their time that fast ranks wait, %")
    save(drawing, path, COMMAND)


def waiting(row: dict[str, Any]) -> float:
    """Return the share of its time that a rank other than the last one waits, in per cent."""
    shares: list[float] = row["idle"]["per_rank"][:-1]
    return 100 * sum(shares) / len(shares)


def colour_of(policy: str) -> str:
    """Return the colour of a policy's kind."""
    kinds = ("solo", "first", "majority", "quorum", "full")
    kind = policy.replace(",", ":").partition(":")[0]
    return COLOURS[kinds.index(kind)] if kind in kinds else GREY


def label_of(policy: str) -> str:
    """Return a policy's name in a picture."""
    return "MPI_Allreduce" if policy == "mpi" else policy.replace(",", ", ")


# ---- tables --------------------------------------------------------------------------------------


def tables(numbers: dict[str, Any]) -> dict[str, str]:
    """Return the tables of the page by their names."""
    return {
        "measured": measured_table(numbers["skew"]),
        "simulated": simulated_table([*numbers["simulated"], *numbers["deadlines"]]),
        "graces": grace_table(numbers["graces"]),
        "deliver": deliver_table(numbers["trial"]),
        "lags": lag_table(numbers["lags"]),
        "average": average_table(numbers["trial"]),
        "patience": patience_table(numbers["trial"]),
    }


def measured_table(report: dict[str, Any]) -> str:
    """Return what was measured with ranks that call one after the other."""
    sizes = list(dict.fromkeys(row["bytes"] for row in report["rows"]))
    head = ["policy"]
    for size in sizes:
        head += [f"{spell_size(size)}: mean", "p50", "p99", "x MPI", "active"]
    lines = []
    for policy in MEASURED:
        line = ["`MPI_Allreduce`" if policy == "mpi" else f"`{policy}`"]
        for size in sizes:
            row = next(r for r in report["rows"] if (r["policy"], r["bytes"]) == (policy, size))
            times = row["latency_us"]
            line += [spell_us(times[name]) for name in ("mean", "p50", "p99")]
            line += [f"{row['speedup_vs_mpi']:.3g}", f"{row['active']['mean']:.2f}"]
        lines.append(line)
    return table(head, lines)


def simulated_table(rows: Any) -> str:
    """Return what was simulated with uneven work."""
    head = [
        "policy",
        "step, mean",
        "p99",
        "times faster than `full`",
        "active of 64",
        "stale parts",
    ]
    lines = [
        [
            f"`{row['policy']}`",
            spell_us(row["step_us"]["mean"]),
            spell_us(row["step_us"]["p99"]),
            f"{row['speedup_vs_synchronous']:.2f}",
            f"{row['active']['mean']:.1f}",
            f"{100 * row['stale_share']:.0f} %",
        ]
        for row in rows
    ]
    return table(head, lines)


def grace_table(rows: Any) -> str:
    """Return what a grace period brings in and costs."""
    head = ["policy", "active of 16", "latency, mean", "p99"]
    lines = [
        [
            f"`{row['policy']}`",
            f"{row['active']['mean']:.1f}",
            spell_us(row["latency_us"]["mean"]),
            spell_us(row["latency_us"]["p99"]),
        ]
        for row in rows
    ]
    return table(head, lines)


def deliver_table(trial: dict[str, Any]) -> str:
    """Return what a slow rank and its replica see."""
    head = ["`deliver`", "step of a fast rank", "`missed` by the slow one: mean, most"]
    head += ["replicas apart at the end: plain", "with momentum"]
    lines = [
        [
            f"`{row['deliver']}`" + (" with `More`" if row["more"] else ""),
            f"{row['step_ms']:.2f} ms",
            f"{row['missed']:.1f}, {row['missed_most']}",
            spell_share(row["drift_plain"]),
            spell_share(row["drift_momentum"]),
        ]
        for row in trial["deliver"]
    ]
    return table(head, lines)


def lag_table(rows: list[dict[str, Any]]) -> str:
    """Return the time of a step under several bounds."""
    head = ["`max_lag`", "`solo`: step, mean", "fast ranks wait", "active of 8"]
    head += ["`majority`: step, mean", "fast ranks wait", "active of 8"]
    lines = []
    for lag in LAGS:
        line = [str(lag)]
        for policy in ("solo", "majority"):
            row = next(r for r in rows if (r["max_lag"], r["policy"]) == (lag, policy))
            line += [spell_us(row["step_us"]["mean"]), f"{waiting(row):.0f} %"]
            line.append(f"{row['active']['mean']:.1f}")
        lines.append(line)
    return table(head, lines)


def average_table(trial: dict[str, Any]) -> str:
    """Return what an average of ones is."""
    head = ["`average`", "result of a round: least, mean, most"]
    head += ["contributors, mean", "contributions, mean"]
    lines = [
        [
            f'`"{row["average"]}"`' if row["average"] else "`None`",
            ", ".join(f"{value:.3g}" for value in row["result"]),
            f"{row['contributors']:.2f}",
            f"{row['contributions']:.2f}",
        ]
        for row in trial["average"]
    ]
    return table(head, lines)


def patience_table(trial: dict[str, Any]) -> str:
    """Return how long the others waited for a rank that was blocked."""
    head = ["the blocked rank", "longest wait of the others"]
    lines = []
    for row in trial["patience"]:
        value = row["patience"]
        spelled = f'"{value}"' if isinstance(value, str) else str(value)
        lines.append([f"`patience={spelled}`", spell_us(1e6 * row["longest_wait_s"])])
    return table(head, lines)


def spell_size(size: int) -> str:
    """Return a size with a unit."""
    return f"{size // 1024} KB" if size >= 1024 else f"{size} B"


def spell_share(share: float) -> str:
    """Return a share in per cent, or in words where there is none."""
    if share == 0:
        return "0: bit for bit"
    return f"{100 * share:.1f} %" if share > 1e-3 else f"{share:.0e}"


# ---- command -------------------------------------------------------------------------------------


def main() -> None:
    """Read the options, measure, draw, and write the tables."""
    parser = argparse.ArgumentParser(prog=SCRIPT, description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="a tenth of the rounds: to see that it works"
    )
    parser.add_argument("--images", type=Path, default=IMAGES, help="folder of the pictures")
    parser.add_argument("--page", type=Path, default=PAGE, help="page whose tables are replaced")
    parser.add_argument(
        "--numbers",
        type=Path,
        help="file of the numbers (default: choosing.json in the folder of the pictures)",
    )
    parser.add_argument(
        "--only",
        choices=PARTS,
        action="append",
        help="take the other numbers from that file; repeatable",
    )
    parser.add_argument("--redraw", action="store_true", help="take all numbers from that file")
    options = parser.parse_args()
    kept: Path = options.numbers or options.images / "choosing.json"
    old = json.loads(kept.read_text()) if options.redraw or options.only else {}
    wanted = [] if options.redraw else options.only or PARTS
    numbers = {**old}
    for name in wanted:
        part, rounds, few = PARTS[name]
        numbers[name] = part(few if options.quick else rounds)
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text(json.dumps(numbers, indent=1) + "\n")
    draw(numbers, options.images)
    for name, text in tables(numbers).items():
        if not put(options.page, fragment(f"{SCRIPT} {name}", text)):
            raise SystemExit(f"{options.page}: no place for {name}")
    print(shown([str(options.page)])[0])


if __name__ == "__main__":
    main()
