"""``pypartial tune``: measure on all ranks, and write the table on rank 0."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from .. import tuning
from ..bench import tune as tune_bench
from ..bench.options import TuneOptions
from ..bench.tune_table import print_report
from .bench import announce, judge, progress_bar, ready
from .core import load_on_all, save

if TYPE_CHECKING:
    from mpi4py import MPI


def tune(options: TuneOptions, comm: MPI.Intracomm) -> int:
    """Run ``tune``; collective.

    Returns
    -------
    int
        The exit code, the same on all ranks: 1 if a sum was wrong, if the compiled module cannot be
        loaded, if there are too few nodes or too little memory, or if a file cannot be saved.
    """
    link, able = tune_bench.participants(comm)
    measuring = able[: max(options.ranks, default=len(able))]
    if not ready(comm, max(options.sizes), 1, measures=comm.rank in measuring):
        return 1
    native, _ = load_on_all(comm)
    assert native is not None
    if len(able) < max(options.ranks, default=2):
        if comm.rank == 0:
            found = f"{len(able)} nodes" if link == "network" else f"{len(able)} ranks"
            print(f"pypartial: --ranks asks for more than there are: {found}", file=sys.stderr)
        return 1
    table = tuning.load(native, tuning.location())
    announce("about", options.budget_ns / 1e9, comm)
    with progress_bar(tune_bench.turns(options, len(able)), comm) as progress:
        found_out = tune_bench.measure(options, comm, native, table, progress)
    code = 0
    if found_out is not None:
        outcome, entries = found_out
        report = outcome.report
        print_report(report, entries)
        saved = options.json is None or save("Results", options.json, report.save_json)
        if options.table is not None and report.verified:
            if table.ignored:
                print(f"What {table.path} had is dropped: {table.why.partition(';')[0]}.")
            saved &= save("Table", options.table, lambda path: tuning.write(native, path, entries))
        code = judge(outcome, saved)
    return int(comm.bcast(code))
