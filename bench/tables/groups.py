"""Averages inside groups of 8 ranks on one node, against MPI's own on communicators.

Everything in one case takes turns in one run of `pypartial bench groups`: one group while the other
ranks sleep, or groups of all ranks at once.
"""

from __future__ import annotations

from _common import Run, Table, find, main, median, middle, number, size_text

SECONDS = (500, 45)
REPEATS = (3, 1)
RANKS = 8
SIZES = (8, 64 << 10, 1 << 20, 4 << 20)
QUICK_SIZES = (8, 64 << 10)
GROUP_SIZES = (2, 4)
GENERATORS = ("static", "random", "smart", "controller")
HEAD = [
    "groups x ranks",
    "size",
    "MPI_Allreduce, us",
    "create_group, us",
    *GENERATORS,
    "static / create_group",
    "smart / create_group",
]
NOTES = (
    "Buffers of the library. MPI_Allreduce: and a division, on a communicator that is kept; "
    "create_group: on one that each call makes. The columns of the generators are multiples of "
    "the first: below 1 is faster. Medians over the launches [95 % interval]."
)


def measure(run: Run) -> Table:
    sizes = QUICK_SIZES if run.quick else SIZES
    command = f"bench groups --part latency --group-size {','.join(map(str, GROUP_SIZES))}"
    command += f" --generator {','.join(GENERATORS)} --size {','.join(map(str, sizes))}"
    command += f" --budget {'40ms' if run.quick else '250ms'}"
    launches = [run.bench(RANKS, command) for _ in run.turns()]
    table = Table(HEAD, notes=NOTES)
    for at_once in (False, True):
        for ranks in GROUP_SIZES:
            groups = RANKS // ranks if at_once else 1
            table.rows += [cells(launches, groups, ranks, size) for size in sizes]
    return table


def cells(launches: list, groups: int, ranks: int, size: int) -> list[str]:
    def rows(way: str) -> list:
        case = {"groups": groups, "size": ranks, "bytes": size}
        return [find(launch, way=way, **case) for launch in launches]

    def ratios(way: str, name: str) -> str:
        return middle([row[name] for row in rows(way)])

    def us(way: str) -> str:
        return number(median([row["latency_us"]["p50"] for row in rows(way)]))

    return [
        f"{groups} x {ranks}",
        size_text(size),
        us("mpi"),
        us("mpi-create-group"),
        *(ratios(way, "ratio_to_mpi") for way in GENERATORS),
        *(ratios(way, "ratio_to_create_group") for way in ("static", "smart")),
    ]


if __name__ == "__main__":
    main(__file__, __doc__, measure, REPEATS)
