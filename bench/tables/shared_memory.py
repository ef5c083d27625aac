"""Balanced allreduces in shared memory, against MPI's own calls and a copy.

Everything at one size takes turns in one run of `pypartial bench latency`, so that the ratios hold
on a machine whose speed changes.
"""

from __future__ import annotations

from _common import MPI_CALLS, Run, Table, find, main, median, middle, mpi_times, number, size_text

SECONDS = (900, 60)
REPEATS = (3, 1)
RANKS = (2, 4, 8)
SIZES = (8, 64 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20)
QUICK_SIZES = (8, 64 << 10, 4 << 20)
WAYS = (("full", "library"), ("full", "numpy"), ("solo", "library"), ("solo", "numpy"))
HEAD = [
    "ranks",
    "size",
    "MPI_Allreduce, us",
    "best MPI call, us",
    "Full, library",
    "Full, NumPy",
    "Solo, library",
    "Solo, NumPy",
    "Full, library / MPI_Allreduce",
    "Full, library / memcpy",
]
NOTES = (
    "The four columns after the best MPI call are multiples of it: below 1 is faster. It is the "
    "fastest of MPI_Allreduce, the persistent and the nonblocking allreduce in the same launch. "
    "Medians over the launches [95 % interval]."
)


def measure(run: Run) -> Table:
    table = Table(HEAD, notes=NOTES)
    sizes = QUICK_SIZES if run.quick else SIZES
    found = {ranks: [] for ranks in RANKS}
    for ranks in run.turns(RANKS):
        found[ranks].append(rows_of(run, ranks, sizes))
    for ranks in RANKS:
        table.rows += [cells(found[ranks], ranks, size) for size in sizes]
    return table


def rows_of(run: Run, ranks: int, sizes) -> list:
    budget = "40ms" if run.quick else "120ms"
    small = [size for size in sizes if size < 64 << 20]
    command = f"bench latency --policy full --policy solo --budget {budget}"
    rows = run.bench(ranks, command + "".join(f" --size {size}" for size in small))
    if len(small) < len(sizes):
        rows = rows + run.bench(ranks, f"{command} --size 64M --blocks 5")
    return rows


def cells(launches: list, ranks: int, size: int) -> list[str]:
    times = [mpi_times(rows, size) for rows in launches]
    best = [min(one.values()) for one in times]
    ours = {
        way: [find(rows, policy=way[0], buffers=way[1], bytes=size) for rows in launches]
        for way in WAYS
    }

    def over(way: tuple[str, str], base: list[float]) -> list[float]:
        rows = ours[way]
        return [row["latency_us"]["p50"] / us for row, us in zip(rows, base, strict=True)]

    fastest = min(times[-1], key=lambda call: times[-1][call])
    return [
        str(ranks),
        size_text(size),
        number(median([one["mpi"] for one in times])),
        f"{number(median(best))} ({MPI_CALLS[fastest]})",
        *(middle(over(way, best)) for way in WAYS),
        middle(over(WAYS[0], [one["mpi"] for one in times])),
        middle([row["ratio_to_memcpy"] for row in ours[WAYS[0]]]),
    ]


if __name__ == "__main__":
    main(__file__, __doc__, measure, REPEATS)
