"""Balanced allreduces by messages (transport="mpi"), against MPI's own calls."""

from __future__ import annotations

from _common import MPI_CALLS, Run, Table, find, main, median, middle, mpi_times, number, size_text

SECONDS = (240, 40)
REPEATS = (3, 1)
RANKS = (2, 4)
SIZES = (8, 1 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20)
QUICK_SIZES = (8, 16 << 10, 1 << 20)
HEAD = [
    "ranks",
    "size",
    "MPI_Allreduce, us",
    "best MPI call, us",
    "Full / MPI_Allreduce",
    "Full / best",
    "Solo / MPI_Allreduce",
    "Solo / best",
]
NOTES = (
    "NumPy buffers, blocks in turn, the slowest rank; medians over the launches [95 % interval]."
)


def measure(run: Run) -> Table:
    sizes = QUICK_SIZES if run.quick else SIZES
    command = "bench latency --transport mpi --policy full --policy solo --buffers numpy"
    command += " --budget 60ms" if run.quick else ""
    command += "".join(f" --size {size}" for size in sizes)
    found = {ranks: [] for ranks in RANKS}
    for ranks in run.turns(RANKS):
        found[ranks].append(run.bench(ranks, command))
    table = Table(HEAD, notes=NOTES)
    for ranks in RANKS:
        table.rows += [cells(found[ranks], ranks, size) for size in sizes]
    return table


def cells(launches: list, ranks: int, size: int) -> list[str]:
    times = [mpi_times(rows, size) for rows in launches]
    default = [one["mpi"] for one in times]
    best = [min(one.values()) for one in times]
    fastest = min(times[-1], key=lambda call: times[-1][call])

    def over(policy: str, base: list[float]) -> str:
        rows = [find(rows, policy=policy, bytes=size) for rows in launches]
        return middle([row["latency_us"]["p50"] / us for row, us in zip(rows, base, strict=True)])

    return [
        str(ranks),
        size_text(size),
        number(median(default)),
        f"{number(median(best))} ({MPI_CALLS[fastest]})",
        over("full", default),
        over("full", best),
        over("solo", default),
        over("solo", best),
    ]


if __name__ == "__main__":
    main(__file__, __doc__, measure, REPEATS)
