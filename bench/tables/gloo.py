"""Balanced allreduces of gloo, through torch.distributed, against MPI_Allreduce and Full.

torch's CPU wheel gets an environment of its own under build/bench. Its processes meet at a file.
"""

from __future__ import annotations

from _common import PROGRAMS, Run, Table, find, main, median, middle, number, size_text
from _programs import environment

SECONDS = (240, 120)
REPEATS = (5, 1)
RANKS = (2, 4)
SIZES = (8, 64 << 10, 1 << 20, 4 << 20)
HEAD = ["ranks", "size", "gloo, us", "gloo / MPI_Allreduce", "gloo / Full, NumPy"]
NOTES = "Ratios of launches that followed each other: medians [95 % interval]."
INDEX = ("--index-url", "https://download.pytorch.org/whl/cpu", "--extra-index-url")
INDEX += ("https://pypi.org/simple",)


def measure(run: Run) -> Table:
    torch = environment("gloo", ["torch==2.13.0+cpu", "numpy"], INDEX)
    jobs = [(ranks, side) for ranks in RANKS for side in ("gloo", "here")]
    found: dict[tuple[int, str], list] = {job: [] for job in jobs}
    sizes = "".join(f" --size {size}" for size in SIZES)
    budget = 40 if run.quick else 250
    for ranks, side in run.turns(jobs):
        if side == "gloo":
            program = [str(PROGRAMS / "gloo.py"), str(budget), *map(str, SIZES)]
            rows = run.program(ranks, [str(torch / "bin" / "python"), *program])
        else:
            command = f"bench latency --policy full --buffers numpy --budget {budget}ms{sizes}"
            rows = run.bench(ranks, command)
        found[ranks, side].append(rows)
    table = Table(HEAD, notes=NOTES)
    for ranks in RANKS:
        for size in SIZES:
            sides = (found[ranks, "gloo"], found[ranks, "here"])
            table.rows.append([str(ranks), size_text(size), *cells(*sides, size)])
    return table


def cells(theirs: list, ours: list, size: int) -> list[str]:
    gloo = [find(rows, bytes=size)["us"] for rows in theirs]

    def over(policy: str) -> str:
        times = [find(rows, policy=policy, bytes=size)["latency_us"]["p50"] for rows in ours]
        return middle([us / base for us, base in zip(gloo, times, strict=True)])

    return [number(median(gloo)), over("mpi"), over("full")]


if __name__ == "__main__":
    main(__file__, __doc__, measure, REPEATS)
