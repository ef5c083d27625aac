"""How often the report of a run names the right rank, or none where all are equal.

Usage: mpirun -n P python -m mpi4py who_is_slow.py RUNS FILE

A run makes STEPS steps that sleep STEP_S in place of computation; one rank sleeps TIMES as long.
Each rank in turn is the slow one, in RUNS runs of each kind; as many runs have none. It prints and
saves as JSON in how many runs the verdict was right, of another rank, or of none.
"""

import json
import platform
import sys
import time
from pathlib import Path

import numpy as np
from mpi4py import MPI

import pypartial as pp

STEPS, STEP_S, COUNT = 20, 5e-3, 1024
TIMES = (1.0, 1.3, 2.0, 5.0)
KINDS = ("full", "majority", "quorum:3", "smart:2", "controller:2")
GROUPS = {"smart:2": pp.groups.Smart(2), "controller:2": pp.groups.Controller(2)}
comm = MPI.COMM_WORLD


def named(kind: str, slow: int, times: float) -> int | None:
    """Make a run; return the rank that rank 0's report names."""
    buffer, out = np.ones(COUNT), np.ones(COUNT)
    with pp.Context(comm, seed=1, patience=None) as ctx:
        if kind in GROUPS:
            request = ctx.Preduce_init(buffer, groups=GROUPS[kind])
        else:
            request = ctx.Allreduce_init(buffer, out, policy=kind)
        comm.Barrier()
        for _ in range(STEPS):
            time.sleep(STEP_S * (times if comm.rank == slow else 1))
            request.Start()
            request.Wait()
        request.Flush()
        return comm.bcast(ctx.report().verdict.rank)


def main() -> None:
    runs, file = int(sys.argv[1]), Path(sys.argv[2])
    rows = []
    for kind in KINDS:
        for times in TIMES:
            found = [
                (None if times == 1 else slow, named(kind, slow, times))
                for _ in range(runs)
                for slow in range(comm.size)
            ]
            right = sum(is_slow == said for is_slow, said in found)
            none = sum(said is None for _, said in found) if times > 1 else 0
            row = {"kind": kind, "times": times, "runs": len(found), "right": right, "none": none}
            rows.append({**row, "wrong": len(found) - right - none})
            if comm.rank == 0:
                print(*(f"{name}={value}" for name, value in rows[-1].items()), flush=True)
    if comm.rank == 0:
        meta = {"python": platform.python_version(), "version": pp.__version__}
        meta["mpi"] = MPI.Get_library_version().split(",")[0]
        meta |= {"ranks": comm.size, "steps": STEPS, "step_s": STEP_S}
        file.write_text(json.dumps({"meta": meta, "rows": rows}, indent=1), encoding="utf-8")


main()
