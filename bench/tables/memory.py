"""The real memory of a handle: what all ranks of a node hold more, in vectors a rank.

Rank r comes r times 1 ms late, so that contributions of several rounds are alive at once.
"""

from __future__ import annotations

import sys

from _common import PROGRAMS, Run, Table, find, main, size_text

SECONDS = (120, 30)
REPEATS = (1, 1)
RANKS = (2, 8, 32)
SIZE = 4 << 20
POLICIES = ("solo", "majority", "full")
WAYS = (("auto", "numpy"), ("auto", "library"), ("mpi", "numpy"))
NAMES = {
    ("auto", "numpy"): "shared memory, NumPy buffers",
    ("auto", "library"): "shared memory, library buffers",
    ("mpi", "numpy"): "messages, NumPy buffers",
}
HEAD = ["ranks", "policy", *NAMES.values()]
NOTES = (
    f"Vectors of {size_text(SIZE)} a rank, beside the send and receive buffers; in brackets MB of "
    "all ranks. Pages that several processes share count once (PSS). The handle's defaults, "
    "after 30 rounds."
)


def measure(run: Run) -> Table:
    table = Table(HEAD, notes=NOTES)
    for ranks in RANKS[:2] if run.quick else RANKS:
        found = {}
        for _ in run.turns():
            for transport, buffers in WAYS:
                words = [str(PROGRAMS / "memory.py"), str(SIZE), transport, buffers, *POLICIES]
                found[transport, buffers] = run.program(ranks, [sys.executable, *words])
        for policy in POLICIES:
            cells = [text(find(found[way], policy=policy), ranks) for way in WAYS]
            table.rows.append([str(ranks), policy, *cells])
    return table


def text(row: dict, ranks: int) -> str:
    grown = max(0, row["bytes"])
    return f"{grown / ranks / SIZE:.1f} ({grown / 1e6:,.0f})"


if __name__ == "__main__":
    main(__file__, __doc__, measure, REPEATS)
