"""What the stress commands share: counting checks, ending, and never hanging."""

from __future__ import annotations

import faulthandler
import sys
from collections.abc import Callable
from pathlib import Path

from mpi4py import MPI

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # `support`

from support.ending import end_all_at_an_error

import pypartial as pp

HANGS_S = 60.0  # a Wait that takes so long has hung, however busy the machine is


POLICIES: dict[str, Callable[[int], pp.Policy]] = {
    "solo": lambda ranks: pp.Solo(),
    "majority": lambda ranks: pp.Majority(),
    "quorum": lambda ranks: pp.Quorum(min(3, max(1, ranks - 1))),
    "full": lambda ranks: pp.Full(),
}


def policy_of(text: str, ranks: int) -> pp.Policy:
    """Return the policy that a text names; "quorum" may be without a number."""
    return POLICIES[text](ranks) if text in POLICIES else pp.Policy.parse(text)


class Checks:
    """Counts what passed and failed; rank 0 prints."""

    def __init__(self, comm: MPI.Comm) -> None:
        self.comm = comm
        self.passed = self.failed = 0

    def say(self, text: str) -> None:
        if self.comm.rank == 0:
            print(text, flush=True)

    def count(self, good: bool) -> None:
        """Count a check whose outcome all ranks know."""
        self.passed, self.failed = self.passed + good, self.failed + (not good)

    def note(self, good: bool, what: str) -> None:
        """Count a check, and print it."""
        self.count(good)
        self.say(f"{'ok    ' if good else 'FAILED'}  {what}")

    def end(self) -> None:
        self.say(f"{self.passed} passed, {self.failed} failed")
        # Before the exit code, at which `python -m mpi4py` would abort the other ranks.
        MPI.Finalize()
        sys.exit(self.failed > 0)


def run(main: Callable[[], None], limit_s: float) -> None:
    """Run a command: after `limit_s` or at an exception all ranks end, and say where they were."""
    faulthandler.dump_traceback_later(limit_s, exit=True)
    try:
        end_all_at_an_error(main)
    finally:
        faulthandler.cancel_dump_traceback_later()
