"""What Start, Wait and Test cost from Python on one rank, against mpi4py on COMM_SELF."""

from __future__ import annotations

from _common import Run, Table, main, median, middle, number

SECONDS = (60, 8)
REPEATS = (5, 2)
CALLS = ("Start", "Wait", "Start+Wait", "Test", "Allreduce")
HEAD = ["call", "buffers", "ns", "/ mpi4py Allreduce", "/ mpi4py persistent Start+Wait"]
NOTES = "8 bytes, Full. Medians over the launches [95 % interval]."


def measure(run: Run) -> Table:
    found: dict[tuple[str, str, str], list] = {}
    for _ in run.turns():
        for row in run.bench(1, f"bench overhead --loops {31 if run.quick else 101}"):
            if row["call"] in CALLS:
                found.setdefault((row["of"], row["call"], row["buffers"]), []).append(row)
    table = Table(HEAD, notes=NOTES)
    for (of, call, buffers), rows in found.items():
        name = call if of == "pypartial" else f"{of} {call}"
        table.rows.append([name, buffers, *cells(rows)])
    return table


def cells(rows: list) -> list[str]:
    return [
        number(median([row["ns"]["median"] for row in rows])),
        *(
            middle([row[name] for row in rows if row[name] is not None])
            for name in ("ratio_to_mpi", "ratio_to_mpi_persistent")
        ),
    ]


if __name__ == "__main__":
    main(__file__, __doc__, measure, REPEATS)
