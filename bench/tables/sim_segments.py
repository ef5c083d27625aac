"""Segments: how long a schedule takes with them, over the same schedule in one piece.

By `pypartial sim schedule`: the same on any machine, and nothing is timed.
"""

from __future__ import annotations

from _common import Run, Table, main, size_text

SECONDS = (180, 20)
REPEATS = (1, 1)
NETWORKS = (
    "infiniband-mvapich,reduce=4GB/s",
    "L=2us,o=500ns,g=300ns,G=0.08ns,S=16K,reduce=10GB/s",
)
RANKS = (2, 7, 8, 16)
QUICK_RANKS = (2, 7)
SIZES = (4 << 20, 16 << 20, 64 << 20)
SCHEDULES = ("recursive_doubling", "rabenseifner", "ring")
HEAD = ["network", "ranks", *(name.replace("_", " ") for name in SCHEDULES)]
NOTES = f"Each cell: {', '.join(map(size_text, SIZES))}. Below 1, segments are faster."


def measure(run: Run) -> Table:
    table = Table(HEAD, notes=NOTES)
    for network in run.turns(NETWORKS):
        for ranks in QUICK_RANKS if run.quick else RANKS:
            cells = [ratios(run, schedule, ranks, network) for schedule in SCHEDULES]
            table.rows.append([f"`{network}`", str(ranks), *cells])
    run.ranks.clear()  # they are in the table
    return table


def ratios(run: Run, schedule: str, ranks: int, network: str) -> str:
    found = []
    for size in SIZES:
        command = f"sim schedule {schedule} --ranks {ranks} --size {size} --network {network}"
        times = [
            max(run.results(1, f"{command} --quiet{option}")["finished_ns"])
            for option in (" --segments 1", "")
        ]
        found.append(f"{times[1] / times[0]:.2f}")
    return ", ".join(found)


if __name__ == "__main__":
    main(__file__, __doc__, measure, REPEATS)
