"""What the scripts of this folder share: drawing, and launches that are shown.

The pictures have no background of their own, and colours that stand out from white and from black,
so that one file serves light and dark pages. They hold no date: the same numbers give the same
bytes.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from commands import ROOT, Problem, command, launched, start

IMAGES = ROOT / "docs" / "images"

# Each has a contrast of at least 3 to white and to #131416.
GREY = "#808080"
COLOURS = ("#2e86c9", "#d55e00", "#0b9870", "#b8699b", "#9a7b00", "#7a6fd0")
_FAINT = "#8080804d"
_LARGEST_BYTES = 100_000

STYLE: dict[str, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "pypartial",
    "font.family": ["sans-serif"],
    "font.size": 11.5,
    "text.color": GREY,
    "axes.labelcolor": GREY,
    "axes.edgecolor": GREY,
    "axes.titlecolor": GREY,
    "axes.titlesize": 12.5,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": _FAINT,
    "grid.linewidth": 0.8,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "lines.markersize": 5.5,
}


# ---- commands ------------------------------------------------------------------------------------


def measured(*words: str, ranks: int = 1) -> dict[str, Any]:
    """Run a command of the package, such as "bench" with its options, and return its JSON."""
    return run(ranks, command(*words))


def run(ranks: int, words: Sequence[str]) -> dict[str, Any]:
    """Run a program, said on the standard error; return what it saves as JSON.

    Raises
    ------
    SystemExit
        If it fails.
    """
    print(f"$ {shlex.join(shown([*start(ranks), *words[:-1]]))}", file=sys.stderr, flush=True)
    try:
        return launched(ranks, words)
    except Problem as error:
        raise SystemExit(str(error)) from None


def shown(command: Sequence[str]) -> list[str]:
    """Return a command as a user types it."""
    programs = (sys.executable, *start(2)[:1])
    words = [Path(word).name if word in programs else word for word in command]
    at = next(
        (at for at in range(len(words) - 2) if words[at + 1 : at + 3] == ["-m", "pypartial"]), None
    )
    if at is not None:
        words[at : at + 3] = ["pypartial"]
    return [
        str(Path(word).relative_to(ROOT)) if Path(word).is_relative_to(ROOT) else word
        for word in words
    ]


# ---- drawing -------------------------------------------------------------------------------------


def figure(
    columns: int = 1, *, height: float = 4.2, width: float = 7.6
) -> tuple[Figure, list[Axes]]:
    """Return a figure with a row of axes."""
    parameters: Any = plt.rcParams
    parameters.update(STYLE)
    made, axes = plt.subplots(
        1, columns, figsize=(width, height), layout="constrained", squeeze=False
    )
    return made, list(axes[0])


def save(drawing: Figure, path: Path, command: str) -> None:
    """Write a figure as SVG that names the command that made it.

    Raises
    ------
    SystemExit
        If the file would be large.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    metadata = {"Date": None, "Creator": None, "Description": command}
    drawing.savefig(path, transparent=True, metadata=metadata)
    plt.close(drawing)
    if path.stat().st_size > _LARGEST_BYTES:
        raise SystemExit(f"{path} has {path.stat().st_size} bytes; a picture has {_LARGEST_BYTES}")
    print(shown([str(path)])[0])


def time_axis(axis: Any) -> None:
    """Write the ticks of an axis of microseconds with a unit."""
    axis.set_major_formatter(FuncFormatter(lambda us, _position: spell_us(us)))
    axis.set_minor_formatter(NullFormatter())


def spell_us(microseconds: float) -> str:
    """Return a time with a unit, to three digits: ``1.24 ms``."""
    if microseconds == 0:
        return "0"
    for unit, factor in (("s", 1e6), ("ms", 1e3)):
        if microseconds >= factor:
            return f"{microseconds / factor:.3g} {unit}"
    return f"{microseconds:.3g} µs"
