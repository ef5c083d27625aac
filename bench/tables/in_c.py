"""Eight bytes in C and from Python: MPI's own allreduces, and Start and Wait of this library.

From Python the cost of the call itself is most of the time, so that the ratios of the two columns
differ. The program is bench/c/allreduce.c, compiled with the sources of csrc.
"""

from __future__ import annotations

from _common import Run, Table, find, main, median, middle, number
from _programs import compile_c

SECONDS = (240, 60)
REPEATS = (5, 1)
BALANCED = (2, 4, 8)
LATE = 32
BALANCED_WAYS = ("mpi", "mpi-persistent", "mpi-nonblocking", "full", "solo")
LATE_WAYS = ("mpi", "full", "solo", "majority")
HEAD = ["ranks", "call", "in C, us", "/ MPI_Allreduce in C", "from Python, us"]
HEAD += ["/ MPI_Allreduce from Python"]
NOTES = (
    "Balanced: median block, slowest rank. Late (rank r sleeps r ms): mean over ranks. Buffers of "
    "the library, late ones from Python NumPy's. Medians over the launches [95 % interval]."
)


def measure(run: Run) -> Table:
    program = str(compile_c("allreduce"))
    jobs = [(ranks, side) for ranks in (*BALANCED, LATE) for side in ("C", "Python")]
    found: dict[tuple[int, str], list[dict[str, float]]] = {job: [] for job in jobs}
    for ranks, side in run.turns(jobs):
        times = in_c if side == "C" else from_python
        found[ranks, side].append(times(run, ranks, program))
    table = Table(HEAD, notes=NOTES)
    for ranks in (*BALANCED, LATE):
        for way in LATE_WAYS if ranks == LATE else BALANCED_WAYS:
            if all(way in one for side in ("C", "Python") for one in found[ranks, side]):
                name = f"{ranks}, late" if ranks == LATE else str(ranks)
                sides = [cells(found[ranks, side], way) for side in ("C", "Python")]
                table.rows.append([name, way, *sides[0], *sides[1]])
    return table


def in_c(run: Run, ranks: int, program: str) -> dict[str, float]:
    if ranks == LATE:
        words = [program, "8", "3" if run.quick else "7", "10", "1000"]
    else:
        words = [program, "8", "9", "300" if run.quick else "2000", "0"]
    return {row["policy"]: row["us"] for row in run.program(ranks, words)}


def from_python(run: Run, ranks: int, _program: str) -> dict[str, float]:
    if ranks == LATE:
        policies = "".join(f" --policy {way}" for way in LATE_WAYS)
        rounds = 20 if run.quick else 70
        rows = run.bench(ranks, f"bench skew --size 8 --skew 1ms --rounds {rounds}{policies}")
        return {way: find(rows, policy=way)["latency_us"]["mean"] for way in LATE_WAYS}
    command = "bench latency --size 8 --policy full --policy solo --buffers library"
    rows = run.bench(ranks, f"{command} --budget {'40ms' if run.quick else '250ms'}")
    return {row["policy"]: row["latency_us"]["p50"] for row in rows}


def cells(launches: list[dict[str, float]], way: str) -> list[str]:
    times = [one[way] for one in launches]
    ratios = [one[way] / one["mpi"] for one in launches]
    small = max(ratios) < 0.01  # solo, where others are late
    text = f"1 / {middle([1 / ratio for ratio in ratios])}" if small else middle(ratios)
    return [number(median(times)), text]


if __name__ == "__main__":
    main(__file__, __doc__, measure, REPEATS)
