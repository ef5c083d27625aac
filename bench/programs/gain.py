"""Compares what `pypartial sim gain` predicts for ranks with what these then take.

Usage: mpirun -n P python -m mpi4py gain.py TURNS FILE

In each turn, and for each shape of arrivals, the ranks make STEPS steps with the policy full, which
are recorded, and then the same steps in each way. A step sleeps in place of computation. (The
recorded program waits asleep, too: MPI's own calls may poll, and take the cores from the others.)
It saves JSON: the mean time of a step in ms in each turn, predicted and measured, over the steps
that ended before the first rank's last.
"""

import itertools
import json
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from mpi4py import MPI

import pypartial as pp
from pypartial.cli import app
from pypartial.cli.sim_run import simulate_rounds
from pypartial.sim.gain import ways_of
from pypartial.sim.group_report import measure

STEPS, STEP_S, COUNT = 100, 5e-3, 1024
POLICIES = ("full", "solo", "majority", "quorum:3")
GENERATORS = {"smart:2": pp.groups.Smart(2), "controller:2": pp.groups.Controller(2)}
WAYS = (*POLICIES, *GENERATORS)
comm = MPI.COMM_WORLD


def shapes(seed: int) -> dict[str, np.ndarray]:
    """Return the seconds that each rank sleeps in each step."""
    draws, ranks = np.random.default_rng(seed), np.arange(comm.size)
    even = STEP_S * draws.uniform(0.95, 1.05, (STEPS, comm.size))
    return {
        "none slow": even,
        "one slow, 2x": even * np.where(ranks == 1, 2, 1),
        "random, 6x, p=1/16": even * np.where(draws.random(even.shape) < 1 / 16, 6, 1),
        "linear, 1x to 2x": even * np.linspace(1, 2, comm.size),
        "two slow, 2x": even * np.where(ranks < 2, 2, 1),
    }


def steps_made(work: np.ndarray, meet: Callable[[], object]) -> list[float]:
    """Make all steps; return when the first began and when each ended."""
    comm.Barrier()
    times = [time.monotonic()]
    for seconds in work[:, comm.rank]:
        time.sleep(seconds)
        meet()
        times.append(time.monotonic())
    return times


def measured(work: np.ndarray, way: str, told: Callable[[], object] = lambda: None) -> float:
    """Return the mean time of a step in ms; collective."""
    buffer, out = np.ones(COUNT), np.ones(COUNT)
    with pp.Context(comm, seed=1, patience=None) as ctx:
        if way in POLICIES:
            request = ctx.Allreduce_init(buffer, out, policy=way, deliver="latest")
        else:
            request = ctx.Preduce_init(buffer, groups=GENERATORS[way])
        times = steps_made(work, lambda: (told(), request.Start(), request.Wait()))
        request.Flush()
    until = comm.allreduce(times[-1], MPI.MIN)
    took = [end - begin for begin, end in itertools.pairwise(times) if end <= until]
    return 1e3 * comm.allreduce(sum(took)) / comm.allreduce(len(took))


def predicted(work: np.ndarray, file: str) -> dict[str, float]:
    """Record the steps; return what each way is to take, on rank 0."""
    with pp.record(file) as recorder:
        measured(work, "full", recorder.step)
    if comm.rank != 0:
        return dict.fromkeys(WAYS, 0.0)
    words = [word for way in POLICIES for word in ("--policy", way)]
    words += [word for way in GENERATORS for word in ("--generator", way)]
    options = app.parse(["sim", "gain", file, *words], 1)
    groups = [measure(options.groups, plan) for plan in options.groups.plans]
    ways = ways_of(simulate_rounds(options.rounds).rows, groups)
    return {way.name: 1e3 * way.step_s for way in ways}


def main() -> None:
    turns, file = int(sys.argv[1]), Path(sys.argv[2])
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(turns):
            for shape, work in shapes(turn).items():
                told = predicted(work, f"{folder}/arrivals.csv")
                for way in WAYS:
                    row = {"shape": shape, "way": way, "predicted_ms": told[way]}
                    rows.append({**row, "measured_ms": measured(work, way)})
    if comm.rank == 0:
        meta = {"python": platform.python_version(), "version": pp.__version__}
        meta["mpi"] = MPI.Get_library_version().split(",")[0]
        file.write_text(json.dumps({"meta": meta, "rows": rows}, indent=1), encoding="utf-8")


main()
