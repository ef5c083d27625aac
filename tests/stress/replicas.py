"""Replicas of a model on every rank, one rank slow: equal at the end, and no deadlock.

    mpirun -n 4 python -m mpi4py tests/stress/replicas.py [--short] [--part slow|buckets|stall]

slow: one rank takes as long for a step as max_lag lets the others go on. With deliver="sum" the sum
of all that a rank was given, Flush included, is the same integer vector on all ranks, and with
deliver="each" the float32 replicas are the same bit for bit; nothing is ever resynchronised.
`missed` never exceeds max_lag, and the fast ranks are not held up before that: rank 0 says which
rounds are complete, and under Solo and Quorum the slow rank calls only when all are that max_lag
allows; without a bound, when 20 are. (Majority waits for the slow rank when that is drawn, and Full
in each round: there its step takes 20 times as long.)

buckets: two and three handles in one loop (gradient buckets), both patterns of the contract's point
9, every policy, one slow rank, a Flush of all handles every 500 steps: no deadlock, equal replicas.

stall: programs outside point 9 that deadlock are reported by the stall warning and by the
TimeoutError of Wait, which name the handle, the ranks waited for and what each is doing.

The last line is "N passed, N failed".
"""

from __future__ import annotations

import argparse
import itertools
import logging
import re
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import numpy as np
from checks import HANGS_S, POLICIES, Checks, run
from mpi4py import MPI
from support.reports import said_of_ranks

import pypartial as pp

SLOWER = 20
WORK_S = 5e-4  # a step of a fast rank
BUSY_S = 1e-3  # longest step of the slow rank between buckets
FLUSH_EVERY = 500
ELEMENTS = 1000
NO_BOUND = 8 * SLOWER - 1  # a max_lag that three fast ranks do not come to
ROUND_TAG, END = 1, 1 << 40  # rank 0 to the slow one; later than any round

comm = MPI.COMM_WORLD
SLOW_RANK = comm.size - 1


def agree(array: np.ndarray) -> bool:
    """Whether all ranks have the same bytes."""
    return len(set(comm.allgather((zlib.crc32(array), zlib.adler32(array))))) == 1


def require(good: bool, what: str) -> None:
    """Raise on every rank if it is wrong on one."""
    wrong = [rank for rank, fine in enumerate(comm.allgather(bool(good))) if not fine]
    assert not wrong, f"{what} (ranks {wrong})"


# ---- one slow rank -------------------------------------------------------------------------------


class Replica:
    """What a rank adds up, and what it contributed itself; element 0 marks the slow rank's end."""

    def __init__(self, request_dtype: type) -> None:
        self.send = np.zeros(ELEMENTS, request_dtype)
        self.out = np.zeros_like(self.send)
        self.sum = np.zeros_like(self.send)
        self.own = np.zeros(ELEMENTS, np.int64)
        self.random = np.random.default_rng(comm.rank)

    def contribute(self, last: bool) -> None:
        if self.send.dtype.kind == "i":
            self.send[:] = self.random.integers(-1000, 1000, ELEMENTS)
        else:
            self.send[:] = self.random.standard_normal(ELEMENTS)
        self.send[0] = last
        if self.send.dtype.kind == "i":
            self.own += self.send

    @property
    def ended(self) -> bool:
        return self.sum[0] > 0


class Gate:
    """The step of the slow rank is over when the others have come so far without it.

    Rank 0 tells it the newest round that is complete, after each of its own calls.
    """

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds  # since the newest that the slow rank was given
        self.newest = -1
        self.told: list[MPI.Request] = []

    def tell(self, newest: int) -> None:
        self.told.append(comm.isend(newest, SLOW_RANK, ROUND_TAG))

    def hear(self) -> None:
        self.newest = comm.recv(source=0, tag=ROUND_TAG)

    def wait(self, given: int) -> None:
        """Return when those rounds are complete; they must be, or the job hangs, and is ended."""
        while self.newest < given + self.rounds:
            self.hear()

    def close(self) -> None:
        """Every message is received: the last one is `END`."""
        if comm.rank == 0:
            self.tell(END)
            MPI.Request.waitall(self.told)
        elif comm.rank == SLOW_RANK:
            while self.newest != END:
                self.hear()


def slow(ctx: pp.Context, policy: pp.Policy, deliver: str, max_lag: int, slow_steps: int) -> Pace:
    """Return the pace of the loop; raise AssertionError on every rank if something is wrong."""
    replica = Replica(np.int64 if deliver == "sum" else np.float32)
    request = ctx.Allreduce_init(
        replica.send, replica.out, policy=policy, deliver=deliver, max_lag=max_lag
    )
    status = pp.Status()
    is_slow = comm.rank == SLOW_RANK
    gate = Gate(SLOWER if max_lag == NO_BOUND else max_lag) if goes_on(policy) else None
    rounds, missed, steps = [], [], 0
    comm.barrier()
    began = time.monotonic()
    while not (steps == slow_steps if is_slow else replica.ended):
        if is_slow and gate:
            gate.wait(rounds[-1] if rounds else -1)
        else:
            time.sleep(WORK_S * (SLOWER if is_slow else 1))
        steps += 1
        replica.contribute(last=is_slow and steps == slow_steps)
        request.Start()
        request.Wait(status, HANGS_S)
        replica.sum += replica.out
        rounds.append(status.round)
        missed.append(status.missed)
        if comm.rank == 0 and gate:
            gate.tell(status.round)
    seconds = time.monotonic() - began
    if gate:
        gate.close()
    if deliver == "each":
        for _ in request.Drain():
            replica.sum += replica.out
    else:
        request.Flush()
        replica.sum += replica.out
    request.Free()

    assert agree(replica.sum), "the replicas differ"
    if deliver == "sum":
        expected = comm.allreduce(replica.own)
        require(np.array_equal(replica.sum, expected), "the replicas are not the sum")
    require(max(missed) <= max_lag, f"missed at most {comm.allreduce(max(missed), MPI.MAX)} rounds")
    steps_taken = np.diff(rounds)
    most = 1 if deliver == "each" else max_lag + 1
    require(not len(steps_taken) or steps_taken.max() <= most, "given too many rounds at once")
    rounds = comm.bcast(rounds, root=SLOW_RANK)
    return Pace(
        per_slow_step=(rounds[-1] - rounds[0]) / (len(rounds) - 1),
        steps_per_s=comm.allgather(steps / seconds),
        missed=comm.allreduce(max(missed), MPI.MAX),
    )


def goes_on(policy: pp.Policy) -> bool:
    """Whether the rounds of this policy do not need the slow rank."""
    return isinstance(policy, pp.Solo | pp.Quorum) and comm.size > 1


@dataclass(frozen=True)
class Pace:
    """How fast the rounds were while the slow rank was there."""

    per_slow_step: float  # rounds in a step of the slow rank
    steps_per_s: list[float]  # of each rank
    missed: int  # at most, in one step

    def describe(self) -> str:
        slow_per_s = self.steps_per_s[SLOW_RANK]
        return (
            f"{self.per_slow_step:5.2f} rounds per step of the slow rank "
            f"({self.per_slow_step * slow_per_s:4.0f}/s); steps/s: slow {slow_per_s:.0f}, fast "
            f"{min(self.steps_per_s[:-1], default=0):.0f}; missed <= {self.missed}"
        )


def slow_cases(options: argparse.Namespace) -> Iterator[tuple[str, Callable[[], str]]]:
    combinations = [("sum", 0), ("sum", 1), ("sum", 3), ("sum", 8), ("each", 0), ("each", 3)]
    if options.short:
        combinations = [("sum", 3), ("sum", 8), ("each", 3)]
    combinations.insert(0, ("sum", NO_BOUND))

    for (name, make), (deliver, max_lag) in itertools.product(POLICIES.items(), combinations):

        def case(make=make, deliver=deliver, max_lag=max_lag) -> str:
            # Without patience: it would let rounds go on that max_lag wrongly holds up.
            window = max(4, max_lag + 1)
            with pp.Context(comm, seed=3, window=window, patience=None) as ctx:
                return slow(ctx, make(comm.size), deliver, max_lag, options.slow_steps).describe()

        yield f"slow rank, {name:8} {deliver:4} max_lag={max_lag:<3}", case


# ---- several handles -----------------------------------------------------------------------------


def buckets(ctx: pp.Context, policy: pp.Policy, number: int, together: bool, steps: int) -> str:
    requests, outs, replicas = [], [], []
    send = np.arange(1, ELEMENTS + 1) * (comm.rank + 1)
    for _ in range(number):
        out = np.zeros_like(send)
        requests.append(ctx.Allreduce_init(send, out, policy=policy, deliver="sum"))
        outs.append(out)
        replicas.append(np.zeros_like(send))
    random = np.random.default_rng((number, comm.rank))
    longest_s = BUSY_S if comm.rank == SLOW_RANK else BUSY_S / SLOWER
    done_by_all = np.arange(1, ELEMENTS + 1) * sum(range(1, comm.size + 1))
    wrong = late = 0
    status = pp.Status()
    for step in range(1, steps + 1):
        time.sleep(random.uniform(0, longest_s))
        if together:
            pp.Startall(requests)
        for request, replica, out in zip(requests, replicas, outs, strict=True):
            if not together:
                request.Start()
            request.Wait(status, HANGS_S)
            replica += out
            late += not status.included
        if step % FLUSH_EVERY == 0 or step == steps:
            for request, replica, out in zip(requests, replicas, outs, strict=True):
                request.Flush(status)
                replica += out
                wrong += not np.array_equal(replica, step * done_by_all)
    for request in requests:
        wrong += request.Free() != 0
    rounds = status.round + 1
    require(not wrong, "wrong replicas after a Flush")
    share = comm.allreduce(late) / (comm.size * number * steps)
    return f"{steps} steps, {rounds} rounds of the last handle, {100 * share:.0f} % late requests"


def buckets_cases(options: argparse.Namespace) -> Iterator[tuple[str, Callable[[], str]]]:
    for number, together, (name, policy) in itertools.product(
        (2, 3), (False, True), POLICIES.items()
    ):

        def case(number=number, together=together, policy=policy) -> str:
            with pp.Context(comm, seed=4) as ctx:
                return buckets(ctx, policy(comm.size), number, together, options.steps)

        pattern = "all starts, all waits" if together else "start-wait each"
        yield f"{number} buckets, {name:8} {pattern:21}", case


# ---- programs that deadlock ----------------------------------------------------------------------


class Warnings(logging.Handler):
    """Keeps the library's warnings instead of printing them."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())

    def __enter__(self) -> Warnings:
        logger = logging.getLogger("pypartial")
        logger.addHandler(self)
        logger.propagate = False
        return self

    def __exit__(self, *_: Any) -> None:
        logger = logging.getLogger("pypartial")
        logger.removeHandler(self)
        logger.propagate = True


def wait_in_vain(request: pp.Request) -> list[str]:
    """Wait for what cannot come; return the warnings, and the exception's text last."""
    with Warnings() as warnings:
        try:
            request.Wait(timeout=2.5)
        except pp.TimeoutError as error:
            return [*warnings.texts, str(error)]
    return [*warnings.texts, "Wait returned"]


def check_reports(texts: list[str], mine: pp.Request, waited_for: dict[int, str]) -> None:
    """Two warnings (after 1 and 2 seconds) and the error say the same."""
    reports = [
        re.fullmatch(
            rf"(?:pypartial: )?Wait on handle {mine.id} \(SUM of 4 int64, .*\): not complete after "
            r"(\d[.\d]*) s; the ranks' answers .* ago: round \d+ is held up; (.*)",
            text,
        )
        for text in texts
    ]
    require(len(texts) == 3 and all(reports), f"no such report: {texts}")
    times = [float(report[1]) for report in reports if report]
    require(all(low <= t for low, t in zip((1.0, 2.0, 2.5), times, strict=True)), f"times {times}")
    for report in reports:
        assert report is not None
        named = {rank: does for ranks, does in said_of_ranks(report[2]) for rank in ranks}
        right = named.keys() == waited_for.keys() and all(
            re.match(pattern, named[rank]) for rank, pattern in waited_for.items()
        )
        require(right, f"expected {waited_for}: {report[0]}")


def opposite_orders(ctx: pp.Context, policy: pp.Policy) -> str:
    """Rank 0 calls handle 1, then 2; the others 2, then 1: each waits for the other."""
    outs = [np.zeros(4, np.int64) for _ in range(2)]
    send = np.ones(4, np.int64)
    one, two = (ctx.Allreduce_init(send, out, policy=policy) for out in outs)
    mine, other = (one, two) if comm.rank == 0 else (two, one)
    mine.Start()
    texts = wait_in_vain(mine)
    elsewhere = range(1, comm.size) if comm.rank == 0 else [0]
    doing = rf"waiting on handle {other.id}\)"
    check_reports(texts, mine, dict.fromkeys(elsewhere, doing))
    other.Start()  # which ends it: the request that timed out is still outstanding
    mine.Wait(timeout=HANGS_S)
    other.Wait(timeout=HANGS_S)
    require(all((out == comm.size).all() for out in outs), f"wrong sums {outs}")
    one.Free()
    two.Free()
    return texts[0] if comm.rank == 0 else ""


def absent(ctx: pp.Context, policy: pp.Policy) -> str:
    """Rank 0 does not call."""
    out = np.zeros(4, np.int64)
    request = ctx.Allreduce_init(np.ones(4, np.int64), out, policy=policy)
    texts: list[str] = []
    if comm.rank != 0:
        request.Start()
        texts = wait_in_vain(request)
    comm.barrier()
    if comm.rank == 0:
        request.Start()
        texts = ["", "", ""]
    is_report = [bool(text) for text in texts]
    require(comm.rank == 0 or all(is_report), "no report")
    if comm.rank != 0:
        named = all("rank 0 (computing, " in text for text in texts)
        others = any(
            f"rank {rank} (" in text for text in texts[:-1] for rank in range(1, comm.size)
        )
    else:
        named, others = True, False
    require(named and not others, f"rank 0 alone is waited for: {texts}")
    request.Wait(timeout=HANGS_S)
    require((out == comm.size).all(), f"wrong sum {out}")
    request.Free()
    return comm.bcast(texts[0], root=1)


def stall_cases(options: argparse.Namespace) -> Iterator[tuple[str, Callable[[], str]]]:
    if comm.size == 1:
        return
    for name, program in (("opposite orders", opposite_orders), ("a rank does not call", absent)):

        def case(program=program) -> str:
            with pp.Context(comm, stall_warning=1) as ctx:
                return f'"{program(ctx, pp.Full())}"'

        yield f"stall, {name}", case


PARTS = {"slow": slow_cases, "buckets": buckets_cases, "stall": stall_cases}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", action="append", choices=PARTS)
    parser.add_argument("--short", action="store_true", help="fewer steps: under 40 s on 2 cores")
    parser.add_argument(
        "--steps",
        type=int,
        help=f"of every rank, with buckets (10000); else the slow rank makes 1 in {SLOWER} of them",
    )
    parser.add_argument("--limit", type=float, default=3600, help="seconds until it counts as hung")
    options = parser.parse_args()
    options.steps = options.steps or (400 if options.short else 10_000)
    options.slow_steps = max(20, options.steps // SLOWER)
    return options


def main() -> None:
    options, checks = parse(), Checks(comm)
    for part in options.part or PARTS:
        for name, case in PARTS[part](options):
            began = time.monotonic()
            try:
                result, good = case(), True
            except AssertionError as error:  # raised by all ranks, from what they have gathered
                result, good = str(error), False
            checks.note(good, f"{name} {time.monotonic() - began:6.1f} s  {result}")
    checks.end()


if __name__ == "__main__":
    run(main, parse().limit)
