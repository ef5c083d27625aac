"""What a deadline costs: 4 ranks, each 10 ms later than the one before.

Rank 0 waits in vain for the others, until its deadline; they come late to its rounds. So one call
in four waits, and the p99 of all calls is the 96th percentile of those. `solo` is the same
round without the wait.
"""

from __future__ import annotations

from _common import Run, Table, extremes, main, size_text

SECONDS = (240, 30)
REPEATS = (3, 1)
SIZES = (8, 64 << 10)
LIMITED = ("full", "majority", "quorum:4")
TRANSPORTS = {"auto": "shared memory", "mpi": "messages"}
HEAD = ["p99, us", "solo", *(f"{policy},deadline=2ms" for policy in LIMITED)]
NOTES = "Medians over the launches (least-most)."


def measure(run: Run) -> Table:
    policies = ["solo", *(f"{policy},deadline=2ms" for policy in LIMITED)]
    command = "bench skew --skew 10ms" + "".join(f" --policy {policy}" for policy in policies)
    command += "".join(f" --size {size}" for size in SIZES)
    command += f" --rounds {10 if run.quick else 100}"
    found = {transport: [] for transport in TRANSPORTS}
    for transport in run.turns(list(TRANSPORTS)):
        found[transport].append(run.bench(4, f"{command} --transport {transport}"))
    table = Table(HEAD, notes=NOTES)
    for transport, name in TRANSPORTS.items():
        for size in SIZES:
            values = [by_policy(found[transport], size, n) for n in range(len(policies))]
            table.rows.append([f"{name}, {size_text(size)}", *map(extremes, values)])
    return table


def by_policy(launches: list, size: int, place: int) -> list[float]:
    """Return the p99 of a policy, which is at this place among those of a size."""
    return [
        [row for row in rows if row["bytes"] == size][place]["latency_us"]["p99"]
        for rows in launches
    ]


if __name__ == "__main__":
    main(__file__, __doc__, measure, REPEATS)
