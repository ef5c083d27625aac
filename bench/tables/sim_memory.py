"""Memory of simulated ranks."""

from __future__ import annotations

import sys

from _common import PROGRAMS, NotHere, Run, Table, main, number

SECONDS = (240, 60)
REPEATS = (1, 1)
RANKS = (1024, 4096, 16384, 65536)
QUICK_RANKS = (1024, 4096)
FULL_RANKS = 16384  # full needs a vector of each rank at once
HEAD = ["ranks", "solo, KB a rank", "full, KB a rank"]
NOTES = (
    "Growth of the process's memory divided by the number of ranks, Python's objects included. "
    "`sim skew` simulates full beside any other policy, so that these are simulations of one "
    "policy by themselves."
)


def measure(run: Run) -> Table:
    table = Table(HEAD, notes=NOTES)
    for ranks in QUICK_RANKS if run.quick else RANKS:
        if ranks * 60_000 > available():
            raise NotHere(f"{ranks} simulated ranks need {ranks * 60_000 / 1e9:.0f} GB of memory")
        rows = {
            policy: program(run, policy, ranks)
            for policy in ("solo", "full")
            if policy == "solo" or ranks <= FULL_RANKS
        }
        sizes = {policy: number(row["bytes"] / 1e3) for policy, row in rows.items()}
        table.rows.append([f"{ranks:,}", sizes["solo"], sizes.get("full", "")])
    run.ranks.clear()  # they are in the table
    return table


def program(run: Run, policy: str, ranks: int) -> dict:
    words = [sys.executable, str(PROGRAMS / "simulated.py"), policy, str(ranks)]
    for _ in run.turns():
        row = run.program(1, words)[0]
    return row


def available() -> int:
    """Return how much memory the machine has left, in bytes."""
    with open("/proc/meminfo", encoding="utf-8") as file:
        fields = dict(line.split(":") for line in file)
    return 1024 * int(fields["MemAvailable"].split()[0])


if __name__ == "__main__":
    main(__file__, __doc__, measure, REPEATS)
