"""Results of simulations as JSON: behind the header a function of the options, byte for byte."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import __version__
from ..provenance import header
from .options import ScheduleOptions, SkewOptions
from .schedule import Execution
from .skew import Row


@dataclass(frozen=True)
class SkewReport:
    """All rows of a run of ``pypartial sim skew``.

    Attributes
    ----------
    options : SkewOptions
    arrivals : str
        The model in its canonical spelling.
    rows : sequence of Row
    """

    options: SkewOptions
    arrivals: str
    rows: Sequence[Row]

    @property
    def verified(self) -> bool:
        """Whether every row is."""
        return all(row.verified for row in self.rows)

    def as_dict(self) -> dict[str, Any]:
        """Return a header, ``meta``, and ``rows`` in types that JSON knows."""
        options = self.options
        meta = {
            "version": __version__,
            "arrivals": self.arrivals,
            "base_ns": options.base_ns,
            "network": options.network.describe(),
            "steps": options.steps,
            "seed": options.seed,
            "window": options.window,
            "deliver": options.deliver.value,
            "max_lag": options.max_lag,
            "barrier": options.with_barrier,
            "patience": options.patience,
            "kill": None if options.death is None else dataclasses.asdict(options.death),
        }
        rows = [dataclasses.asdict(row) for row in self.rows]
        return {**header(), "meta": meta, "rows": rows}


def schedule_as_dict(options: ScheduleOptions, execution: Execution) -> dict[str, Any]:
    """Return one execution of a schedule in types that JSON knows."""
    return {
        **header(),
        "meta": {
            "version": __version__,
            "schedule": options.schedule,
            "ranks": options.ranks,
            "bytes": options.size,
            "network": options.network.describe(),
            "seed": options.seed,
            "segments": options.segments,
        },
        "finished_ns": execution.finished_ns.tolist(),
        "messages": execution.messages,
        "bytes_sent": execution.bytes,
    }


def save_json(what: dict[str, Any], path: Path) -> None:
    """Write a report to a file."""
    path.write_text(json.dumps(what, indent=1) + "\n", encoding="utf-8")
