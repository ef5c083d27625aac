"""Late ranks in shared memory: how many times faster than MPI_Allreduce, on 32 ranks.

Rank r sleeps r milliseconds before each call, as in Fig. 8 of eager-SGD.
"""

from __future__ import annotations

from _common import Run, Table, extremes, find, main, size_text

SECONDS = (900, 60)
REPEATS = (5, 1)
RANKS = 32
ROUNDS = {8: 200, 64 << 10: 60, 4 << 20: 40}
HEAD = ["size", "policy", "times faster than MPI_Allreduce", "mean, us", "p50, us", "p99, us"]
HEAD += ["active", "CPU, us"]
NOTES = "Medians over the launches (least-most)."


def measure(run: Run) -> Table:
    found = {size: [] for size in ROUNDS}
    for size in run.turns(list(ROUNDS)):
        rounds = 10 if run.quick else ROUNDS[size]
        found[size].append(
            run.bench(
                RANKS,
                "bench skew --policy solo --policy majority --policy mpi --skew 1ms "
                f"--size {size} --rounds {rounds}",
            )
        )
    table = Table(HEAD, notes=NOTES)
    for size, launches in found.items():
        for policy in ("solo", "majority", "mpi"):
            rows = [find(rows, policy=policy) for rows in launches]
            table.rows.append([size_text(size), policy, *cells(rows)])
    return table


def cells(rows: list) -> list[str]:
    return [
        extremes([row["speedup_vs_mpi"] for row in rows]),
        *(extremes([row["latency_us"][name] for row in rows]) for name in ("mean", "p50", "p99")),
        extremes([row["active"]["mean"] for row in rows]),
        extremes([row["cpu_us_per_round"] for row in rows]),
    ]


if __name__ == "__main__":
    main(__file__, __doc__, measure, REPEATS)
