"""Late ranks whose rounds are made of messages, as between nodes: 64 bytes."""

from __future__ import annotations

from _common import Run, Table, extremes, find, main

SECONDS = (300, 30)
REPEATS = (3, 1)
RANKS = (8, 32)
POLICIES = ("solo", "majority", "full", "mpi")
HEAD = ["ranks", "policy", "mean, us", "p50", "p99", "times faster than MPI_Allreduce"]
HEAD += ["active [95 % interval, one launch]", "CPU, us"]
NOTES = "Medians over the launches (least-most)."


def measure(run: Run) -> Table:
    command = "bench skew --transport mpi --size 64 --skew 1ms"
    command += "".join(f" --policy {policy}" for policy in POLICIES)
    command += f" --rounds {20 if run.quick else 200}"
    found = {ranks: [] for ranks in RANKS}
    for ranks in run.turns(RANKS):
        found[ranks].append(run.bench(ranks, command))
    table = Table(HEAD, notes=NOTES)
    for ranks in RANKS:
        for policy in POLICIES:
            rows = [find(rows, policy=policy) for rows in found[ranks]]
            table.rows.append([str(ranks), policy, *cells(rows)])
    return table


def cells(rows: list) -> list[str]:
    active = rows[0]["active"]
    low, high = active["ci95"]
    return [
        *(extremes([row["latency_us"][name] for row in rows]) for name in ("mean", "p50", "p99")),
        extremes([row["speedup_vs_mpi"] for row in rows]),
        f"{active['mean']:.2f} [{low:.2f}, {high:.2f}]",
        extremes([row["cpu_us_per_round"] for row in rows]),
    ]


if __name__ == "__main__":
    main(__file__, __doc__, measure, REPEATS)
