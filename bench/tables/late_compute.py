"""Late ranks that compute until their calls: what others' rounds cost them.

A rank that sleeps has nothing to lose. One that computes shares its core with the round that others
make meanwhile: "slower" is by how much more its computation takes than in rounds without calls.
"""

from __future__ import annotations

from _common import Run, Table, extremes, find, main, size_text

SECONDS = (120, 20)
REPEATS = (3, 1)
SIZES = (8, 4 << 20)
HEAD = ["size", "policy", "mean, us", "mean if late ranks sleep, us", "computation slower, %"]
NOTES = "2 ranks, rank 1 is 4 ms late. Medians over the launches (least-most)."


def measure(run: Run) -> Table:
    command = "bench skew --policy solo --policy majority --policy mpi --skew 4ms"
    command += "".join(f" --size {size}" for size in SIZES)
    command += f" --rounds {40 if run.quick else 200}"
    found = {"compute": [], "sleep": []}
    for work in run.turns(list(found)):
        found[work].append(run.bench(2, f"{command} --work {work}"))
    table = Table(HEAD, notes=NOTES)
    for size in SIZES:
        for policy in ("solo", "majority", "mpi"):
            rows = {
                work: [find(rows, policy=policy, bytes=size) for rows in launches]
                for work, launches in found.items()
            }
            table.rows.append([size_text(size), policy, *cells(rows)])
    return table


def cells(rows: dict[str, list]) -> list[str]:
    return [
        extremes([row["latency_us"]["mean"] for row in rows["compute"]]),
        extremes([row["latency_us"]["mean"] for row in rows["sleep"]]),
        extremes([100 * row["slowdown"] for row in rows["compute"]]),
    ]


if __name__ == "__main__":
    main(__file__, __doc__, measure, REPEATS)
