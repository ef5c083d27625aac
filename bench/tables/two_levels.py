"""Four ranks as if on two nodes that cannot ring each other, against messages between all ranks."""

from __future__ import annotations

from _common import Run, Table, find, main, middle, mpi_times, size_text

SECONDS = (90, 15)
REPEATS = (3, 1)
SIZES = (8, 64 << 10, 1 << 20)
SIDES = {
    "two levels": ("", {"PYPARTIAL_NODE_RANKS": "2"}),
    "messages": (" --transport mpi", {}),
}
HEAD = ["", *(f"{size_text(size)}, {policy}" for size in SIZES for policy in ("Full", "Solo"))]
NOTES = (
    "4 ranks, NumPy buffers, as multiples of the best MPI call of the launch, which knows that all "
    "are on one node. Medians over the launches [95 % interval]."
)


def measure(run: Run) -> Table:
    command = "bench latency --policy full --policy solo --buffers numpy"
    command += f" --budget {'20ms' if run.quick else '60ms'}"
    command += "".join(f" --size {size}" for size in SIZES)
    found = {side: [] for side in SIDES}
    for side in run.turns(list(SIDES)):
        option, env = SIDES[side]
        found[side].append(run.bench(4, command + option, env=env))
    return Table(HEAD, [[side, *cells(found[side])] for side in SIDES], NOTES)


def cells(launches: list) -> list[str]:
    return [
        middle(
            [
                find(rows, policy=policy, bytes=size)["latency_us"]["p50"]
                / min(mpi_times(rows, size).values())
                for rows in launches
            ]
        )
        for size in SIZES
        for policy in ("full", "solo")
    ]


if __name__ == "__main__":
    main(__file__, __doc__, measure, REPEATS)
