"""Averages inside one group of 8 ranks by messages, against an allreduce of the group's ranks.

The allreduce is Full with transport="mpi" on a context of these ranks alone. All take turns in one
run of `pypartial bench groups`, while the other ranks sleep.
"""

from __future__ import annotations

from _common import Run, Table, find, main, median, middle, number, size_text

SECONDS = (300, 40)
REPEATS = (3, 1)
RANKS = 8
SIZES = (8, 64 << 10, 1 << 20, 4 << 20)
QUICK_SIZES = (8, 64 << 10)
GROUP_SIZES = (2, 4)
GENERATORS = ("static", "smart", "controller")
HEAD = ["ranks", "size", "Full, us", *GENERATORS, "MPI_Allreduce"]
NOTES = (
    'Backend "schedule". The columns after Full are multiples of it: below 1 is faster. '
    "MPI_Allreduce: and a division, on a communicator that is kept. Medians over the launches "
    "[95 % interval]."
)


def measure(run: Run) -> Table:
    sizes = QUICK_SIZES if run.quick else SIZES
    command = f"bench groups --part latency --group-size {','.join(map(str, GROUP_SIZES))}"
    command += f" --generator full,{','.join(GENERATORS)} --size {','.join(map(str, sizes))}"
    command += " --transport mpi --backend schedule --buffers numpy"
    command += f" --budget {'40ms' if run.quick else '120ms'}"
    launches = [run.bench(RANKS, command) for _ in run.turns()]
    table = Table(HEAD, notes=NOTES)
    for ranks in GROUP_SIZES:
        table.rows += [cells(launches, ranks, size) for size in sizes]
    return table


def cells(launches: list, ranks: int, size: int) -> list[str]:
    def times(way: str) -> list[float]:
        case = {"groups": 1, "size": ranks, "bytes": size}
        return [find(launch, way=way, **case)["latency_us"]["p50"] for launch in launches]

    full = times("full")

    def over(way: str) -> str:
        return middle([us / base for us, base in zip(times(way), full, strict=True)])

    ratios = map(over, (*GENERATORS, "mpi"))
    return [str(ranks), size_text(size), number(median(full)), *ratios]


if __name__ == "__main__":
    main(__file__, __doc__, measure, REPEATS)
