"""A member of a group is stopped in mid-transfer; the group {0, 1} without it goes on.

    stopped.py TRANSPORT VICTIM ELEMENTS FOLDER

Ranks 0 and 1 average in a loop, and so do ranks 2 and 3. Rank 4 stops rank VICTIM, which is 2 or 3,
while both of its group are in their Wait, waits until ranks 0 and 1 have completed 100 more groups,
and lets it go on, until that has succeeded `HITS` times. It says how often

hit      ... its partner's Wait ended after that only: the victim was stopped in mid-transfer
missed   the victim, or its partner, was out of its Wait: it was stopped too late
held     ranks 0 and 1 stood still, until it went on: it was stopped in the lock of the node

The ranks see each other's counters in a file of FOLDER.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
from mpi4py import MPI
from whole import whole

import pypartial as pp

HITS, MOST = 3, 1000
GROUPS = 100
HELD_S = 10.0  # no group completes for so long: they stand still
comm = MPI.COMM_WORLD
transport, victim, elements = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
partner = 5 - victim
STEP = 4097  # of the elements that are compared

# A row a rank: its process, Starts, and Waits that have ended; of rank 4 also: all is over.
file = Path(sys.argv[4]) / "counters"
if comm.rank == 0:
    np.zeros((comm.size, 4), "i8").tofile(file)
comm.Barrier()
counters = np.memmap(file, "i8", "r+", shape=(comm.size, 4))
PROCESS, STARTED, DONE, OVER = range(4)


def waits(rank: int) -> int:
    """Return which Wait a rank is in, from 1; 0: it is in none."""
    started, done = int(counters[rank, STARTED]), int(counters[rank, DONE])
    return started if started > done else 0


def average(request: pp.PreduceRequest, model: np.ndarray, group: list[int]) -> None:
    """Average with the other one until all is over; who leaves lets the other one go on alone."""
    status, mine = pp.Status(), counters[comm.rank]
    while not counters[4, OVER]:
        model[::STEP] = comm.rank
        request.Start(group=group)
        mine[STARTED] += 1
        request.Wait(status)
        mine[DONE] += 1
        expected = sum(status.group) / len(status.group)
        assert (model[::STEP] == expected).all(), status


def states(process: int) -> set[str]:
    """Return the states of a process's threads."""
    texts = [(task / "stat").read_text() for task in Path(f"/proc/{process}/task").iterdir()]
    return {text.rpartition(")")[2].split()[0] for text in texts}


def stop() -> str:
    """Stop the victim once, and return what came of it."""
    process = int(counters[victim, PROCESS])
    while not (waits(victim) and waits(partner)):
        os.sched_yield()
    os.kill(process, signal.SIGSTOP)
    try:
        while states(process) != {"T"}:
            os.sched_yield()
        call = waits(partner)
        return outcome(call) if call == waits(victim) > 0 else "missed"
    finally:
        os.kill(process, signal.SIGCONT)


def outcome(call: int) -> str:
    """Wait until ranks 0 and 1 have completed enough groups, or it is known that they need not."""
    last, goal = int(counters[0, DONE]), int(counters[:2, DONE].max()) + GROUPS
    until = time.monotonic() + HELD_S
    while counters[:2, DONE].min() < goal:
        if waits(partner) != call:
            return "missed"
        if counters[0, DONE] != last:
            last, until = int(counters[0, DONE]), time.monotonic() + HELD_S
        if time.monotonic() > until:
            return "held"
        os.sched_yield()
    return "hit" if waits(partner) == call else "missed"


def pass_on() -> None:
    """Wait until the victim and its partner have completed another group."""
    goal = counters[2:4, DONE] + 2
    while (counters[2:4, DONE] < goal).any():
        os.sched_yield()


def main() -> None:
    model = np.zeros(elements)
    counters[comm.rank, PROCESS] = os.getpid()
    with pp.Context(comm, transport=transport, patience=None, stall_warning=None) as ctx:
        request = ctx.Preduce_init(model, pp.groups.Given())
        comm.Barrier()
        if comm.rank < 4:
            average(request, model, [0, 1] if comm.rank < 2 else [2, 3])
        else:
            seen = []
            while seen.count("hit") < HITS and len(seen) < MOST:
                seen.append(stop())
                pass_on()
            counts = ", ".join(f"{seen.count(what)} {what}" for what in ("hit", "missed", "held"))
            print(f"{request.backend}: {counts}", flush=True)
            counters[4, OVER] = 1
        request.Flush()
        assert comm.allgather(model.tobytes()) == [model.tobytes()] * comm.size
        request.Free()


whole(main)
