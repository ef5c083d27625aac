"""The real memory of a DistributedOptimizer, beside a late rank: by the context's window."""

from __future__ import annotations

import sys

from _common import PROGRAMS, NotHere, Run, Table, find, main
from support.pytorch import has_torch

SECONDS = (60, 20)
REPEATS = (1, 1)
RANKS = 4
WINDOWS = (2, 4, 8)
POLICIES = ("full", "majority", "solo")
HEAD = ["window", *POLICIES]
NOTES = (
    f"What {RANKS} ranks of a node hold more, in vectors of 8 MB a rank, the size of the "
    "parameters; in brackets MB of all ranks. Beside the model, its gradients and SGD's momentum. "
    "Pages that several processes share count once (PSS). After 40 steps of 2 ms, the last rank's "
    "of 30 ms."
)


def measure(run: Run) -> Table:
    if not has_torch():
        raise NotHere("there is no PyTorch here (pip install torch)")
    program = [sys.executable, str(PROGRAMS / "torch_memory.py")]
    found = {}
    for policy in run.turns(POLICIES):
        found[policy] = run.program(RANKS, [*program, policy, *map(str, WINDOWS)])
    table = Table(HEAD, notes=NOTES)
    for window in WINDOWS:
        cells = [text(find(found[policy], window=window)) for policy in POLICIES]
        table.rows.append([str(window), *cells])
    return table


def text(row: dict) -> str:
    grown = max(0, row["bytes"])
    return f"{grown / RANKS / row['vector']:.1f} ({grown / 1e6:,.0f})"


if __name__ == "__main__":
    main(__file__, __doc__, measure, REPEATS)
