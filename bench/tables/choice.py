"""How much longer algorithm="auto" takes than the fastest algorithm, by what it goes by.

Two runs of `pypartial tune` one after the other: each is judged by the times that it measured.
"""

from __future__ import annotations

import math
import tempfile
from pathlib import Path

from _common import Run, Table, main

SECONDS = (120, 30)
REPEATS = (1, 1)
RANKS = (2, 4)
SIZES = ("8", "1K", "4K", "16K", "32K", "64K", "128K", "256K", "512K", "1M", "4M", "16M")
QUICK_SIZES = ("8", "16K", "256K", "4M")
HEAD = ["ranks, run", "recursive doubling up to 128 KiB", "default parameters"]
HEAD += ["table of the other run", "table of this run"]
NOTES = "Geometric mean over the sizes, and the worst size; of several launches the last."


def measure(run: Run) -> Table:
    sizes = QUICK_SIZES if run.quick else SIZES
    command = f"tune --budget {'3s' if run.quick else '12s'}"
    command += "".join(f" --size {size}" for size in sizes)
    table = Table(HEAD, notes=NOTES)
    for ranks in run.turns(RANKS):
        with tempfile.TemporaryDirectory() as folder:
            env = {"PYPARTIAL_TUNING": str(Path(folder, "tuning.json"))}
            first, second = (run.bench(ranks, command, env=env) for _ in range(2))
        defaults = chosen(first, "chosen_before")  # there was no table yet
        tables = (chosen(first, "chosen"), chosen(second, "chosen"))
        kept = [row for row in table.rows if not row[0].startswith(f"{ranks},")]
        table.rows = [
            *kept,
            line(f"{ranks}, first", first, defaults, tables[1], tables[0]),
            line(f"{ranks}, second", second, defaults, tables[0], tables[1]),
        ]
    return table


def chosen(rows: list, name: str) -> dict[int, str]:
    return {row["bytes"]: row[name] for row in rows}


def line(name: str, rows: list, *choices: dict[int, str]) -> list[str]:
    simple = {size: "recursive_doubling" for size in choices[0] if size <= 128 << 10}
    simple |= {size: "rabenseifner" for size in choices[0] if size > 128 << 10}
    return [name, *(regret(rows, choice) for choice in (simple, *choices))]


def regret(rows: list, choice: dict[int, str]) -> str:
    """Return how much longer than the fastest a choice takes."""
    us: dict[int, dict[str, float]] = {}
    for row in rows:
        us.setdefault(row["bytes"], {})[row["algorithm"]] = row["latency_us"]["p50"]
    ratios = [us[size][name] / min(us[size].values()) for size, name in choice.items()]
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    return f"{mean:.3f}, {max(ratios):.2f}"


if __name__ == "__main__":
    main(__file__, __doc__, measure, REPEATS)
