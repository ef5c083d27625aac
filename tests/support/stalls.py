"""Tests of times: turns in which a process stood still say nothing about the library."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
from mpi4py import MPI

LOOK_S = 1e-3
TIMES = 25  # as many turns as are to count are made at most


class Turns:
    """So many turns, and one more for each in which some rank stood still.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
    number : int
        How many are to count.
    stall_s : float
        A turn does not count if a thread that sleeps for a moment again and again came so late.
    """

    def __init__(self, comm: MPI.Comm, number: int, stall_s: float) -> None:
        self._comm, self.number, self._stall_s = comm, number, stall_s
        self._counted, self._late_s = 0, 0.0

    def __iter__(self) -> Iterator[int]:
        over = threading.Event()
        thread = threading.Thread(target=self._look, args=(over,))
        thread.start()
        try:
            for turn in range(TIMES * self.number):
                self._late_s = 0.0
                yield turn
                if self._counted == self.number:
                    return
        finally:
            over.set()
            thread.join()
        # Not skipped: it may be the library that keeps the processors from other threads.
        pytest.fail(f"only in {self._counted} turns of {TIMES * self.number} no rank stood still")

    def _look(self, over: threading.Event) -> None:
        before = time.monotonic()
        while not over.wait(LOOK_S):
            now = time.monotonic()
            self._late_s = max(self._late_s, now - before - LOOK_S)
            before = now

    def count(self) -> bool:
        """Return, at the end of a turn and on all ranks alike, whether it counts; collective."""
        counts = self._comm.allreduce(self._late_s, MPI.MAX) < self._stall_s
        self._counted += counts
        return counts
