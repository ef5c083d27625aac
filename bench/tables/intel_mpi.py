"""Balanced allreduces against the best of two MPIs: Open MPI, or what is installed, and Intel MPI.

Intel MPI comes from the wheels impi-rt and impi-devel, in an environment of its own under
build/bench. Its ranks spin; where there are more than cores, I_MPI_WAIT_MODE=1 lets them wait.
Launches with the one and with the other follow each other.
"""

from __future__ import annotations

import os
from typing import Any

from _common import Run, Table, cores, find, main, median, middle, mpi_times, number, size_text
from _programs import NEEDS, build_for, environment

SECONDS = (700, 120)
REPEATS = (5, 1)
RANKS = (2, 4, 8)
SIZES = (8, 64 << 10, 1 << 20, 4 << 20, 16 << 20)
QUICK_SIZES = (8, 64 << 10, 1 << 20)
HEAD = ["ranks", "size", "best call of the MPI here, us", "best call of Intel MPI, us"]
HEAD += ["Intel / here", "Full, library / best of all", "Full, NumPy / best of all"]
HEAD += ["Solo, library / best of all", "Full, library, on Intel MPI / best of all"]
NOTES = (
    "An MPI's best call is the fastest of its blocking, persistent and nonblocking allreduce. "
    "Ratios of launches that followed each other: medians [95 % interval]."
)


def measure(run: Run) -> Table:
    intel = environment("intel", ["impi-rt", "impi-devel", *NEEDS])
    variables = {"I_MPI_ROOT": str(intel), "VIRTUAL_ENV": str(intel)}
    variables["PATH"] = os.pathsep.join([str(intel / "bin"), os.environ["PATH"]])
    source = build_for(intel, variables | {"PYPARTIAL_MPICC": str(intel / "bin" / "mpicc")})
    sizes = QUICK_SIZES if run.quick else SIZES
    command = "bench latency --policy full --policy solo"
    command += "".join(f" --size {size}" for size in sizes)
    command += f" --budget {'40ms' if run.quick else '120ms'}"
    there: dict[str, Any] = {
        "env": variables | {"PYTHONPATH": str(source)},
        "python": str(intel / "bin" / "python"),
        "launcher": [str(intel / "bin" / "mpirun")],
    }
    jobs = [(ranks, side) for ranks in RANKS for side in ("here", "Intel")]
    found: dict[tuple[int, str], list] = {job: [] for job in jobs}
    for ranks, side in run.turns(jobs):
        options = dict(there) if side == "Intel" else {}
        if side == "Intel" and ranks > cores():
            options["env"] = there["env"] | {"I_MPI_WAIT_MODE": "1"}
        found[ranks, side].append(run.bench(ranks, command, **options))
    table = Table(HEAD, notes=NOTES)
    for ranks in RANKS:
        for size in sizes:
            sides = (found[ranks, "here"], found[ranks, "Intel"])
            table.rows.append([str(ranks), size_text(size), *cells(*sides, size)])
    return table


def cells(here: list, intel: list, size: int) -> list[str]:
    best = [min(mpi_times(rows, size).values()) for rows in here]
    theirs = [min(mpi_times(rows, size).values()) for rows in intel]
    least = [min(pair) for pair in zip(best, theirs, strict=True)]

    def over(launches: list, policy: str, buffers: str) -> str:
        times = [
            find(rows, policy=policy, buffers=buffers, bytes=size)["latency_us"]["p50"]
            for rows in launches
        ]
        return middle([us / base for us, base in zip(times, least, strict=True)])

    return [
        number(median(best)),
        number(median(theirs)),
        middle([other / one for one, other in zip(best, theirs, strict=True)]),
        over(here, "full", "library"),
        over(here, "full", "numpy"),
        over(here, "solo", "library"),
        over(intel, "full", "library"),
    ]


if __name__ == "__main__":
    main(__file__, __doc__, measure, REPEATS)
