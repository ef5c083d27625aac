"""Training steps of PyTorch with this library, against DistributedDataParallel on gloo.

All ways take turns in one run of `pypartial bench torch`, which trains the same network with each.
"""

from __future__ import annotations

from _common import NotHere, Run, Table, find, main, median, middle, number
from support.pytorch import has_torch

SECONDS = (600, 90)
REPEATS = (3, 1)
RANKS = (2, 4)
WAYS = (
    ("optimizer", "full"),
    ("optimizer", "majority"),
    ("hook", "full"),
    ("hook", "majority"),
    ("backend", None),
)
HEAD = [
    "ranks",
    "parameters",
    "gloo, ms",
    *(way if policy is None else f"{way}, {policy}" for way, policy in WAYS),
]
NOTES = (
    "A step is forward, backward, average and update of four layers, with a batch of 32 a rank and "
    "one thread. The columns of the ways are multiples of gloo's step: below 1 is faster. Where a "
    "rank is late, it computes 35 ms instead of 5 ms, and the step is that of the others. Medians "
    "over the launches [95 % interval]."
)


def measure(run: Run) -> Table:
    if not has_torch():
        raise NotHere("there is no PyTorch here (pip install torch)")
    command = f"bench torch --budget {'300ms' if run.quick else '4s'}"
    found: dict[int, list] = {ranks: [] for ranks in RANKS}
    for ranks in run.turns(RANKS):
        found[ranks].append(run.bench(ranks, command))
    table = Table(HEAD, notes=NOTES)
    for part in ("balanced", "late"):
        for ranks in RANKS:
            sizes = [row["bytes"] for row in rows_of(found[ranks][0], part, "gloo")]
            table.rows += [cells(found[ranks], ranks, part, size) for size in sizes]
    return table


def rows_of(launch: list, part: str, way: str) -> list:
    return [row for row in launch if row["part"] == part and row["way"] == way]


def cells(launches: list, ranks: int, part: str, size: int) -> list[str]:
    def values(way: str, policy: str | None, name: str) -> list[float]:
        case = {"part": part, "bytes": size, "way": way, "policy": policy}
        return [find(launch, **case)[name]["median"] for launch in launches]

    gloo = values("gloo", None, "step_us")
    return [
        str(ranks),
        f"{size / 1e6:.1f} MB" + (", a rank late" if part == "late" else ""),
        number(median(gloo) / 1e3),
        *(middle(values(way, policy, "ratio_to_gloo")) for way, policy in WAYS),
    ]


if __name__ == "__main__":
    main(__file__, __doc__, measure, REPEATS)
