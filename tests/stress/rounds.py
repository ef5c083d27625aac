"""Thousands of rounds with random delays, judged by the oracles of the contract.

    mpirun -n 7 python -m mpi4py tests/stress/rounds.py --rounds 10000
    mpirun -n 7 python -m mpi4py tests/stress/rounds.py --short

For every policy and delivery the ranks work for a random time of up to 1 ms before each call, until
the rounds are done; then they flush and compare everything they were given (conservation,
agreement, quorum, staleness bound, no empty rounds, and the rest of `tests/support/oracles.py`).
After that come a few rounds with payloads that travel in other ways, and with ranks that make
different numbers of calls.

A row of the table is one handle's life. Its percentages are of its rounds, the flush left out:

partial    fewer than all ranks were active
2+ init    two or more ranks triggered it: it is the `round` that a request of theirs completed
           with, and the status's `activation` is "internal": the rank's own call activated the
           round there, before any message did. What Drain gives is left out: the rank had only
           joined. A round that a rank never saw (latest), or saw in a sum with newer ones, is not
           counted there, so the number errs on the low side. For Full it means ranks that were
           ready before a message came; in Quorum only the counting root triggers.
missed     complete before some rank's next Start

Without partial rounds and simultaneous initiators a run would prove little, so their shares are
checks, too. The last line is "N passed, N failed".
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import numpy as np
from checks import HANGS_S, Checks, policy_of, run
from mpi4py import MPI
from support.oracles import Log, Rounds, judge

import pypartial as pp

DELIVERIES = ("latest", "sum", "each")
# From this number of rounds on the shares are required, not only printed.
ENOUGH_ROUNDS = 250
PARTIAL_SHARE = 0.30  # not for Full
INITIATORS_SHARE = 0.05  # for Solo
# Payloads above 16 KiB are messages of their own; above 64 KiB they are copied without the lock;
# with the last every algorithm cuts its messages into segments of an odd length.
SIZES = (24 << 10, 200_008)
ALGORITHMS = ("recursive_doubling", "rabenseifner", "ring")


@dataclass(frozen=True)
class Case:
    policy: str
    deliver: str
    rounds: int
    size_bytes: int
    algorithm: str = "auto"
    independent: bool = False  # every rank makes a number of calls of its own


@dataclass(frozen=True)
class Work:
    """How long the ranks are busy between their calls."""

    longest_s: float
    at_once: float  # share of the calls without any delay
    seed: int

    def delays(self, rank: int) -> Iterator[float]:
        random = np.random.default_rng((self.seed, rank))
        while True:
            block = random.uniform(0, self.longest_s, 1000)
            block[random.random(1000) < self.at_once] = 0
            yield from block


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, help="of each combination (10000)")
    parser.add_argument("--short", action="store_true", help="fewer rounds: under 40 s on 2 cores")
    parser.add_argument(
        "--policy", action="append", help="solo, majority, first:M, quorum:K or full"
    )
    parser.add_argument("--deliver", action="append", choices=DELIVERIES)
    parser.add_argument(
        "--size",
        type=int,
        action="append",
        help="bytes of the vector; leaves out the runs with other payloads",
    )
    parser.add_argument(
        "--ranks-independent",
        action="store_true",
        help="every rank makes a number of calls of its own, in all combinations",
    )
    parser.add_argument("--algorithm", default="auto", choices=("auto", *ALGORITHMS))
    parser.add_argument("--max-lag", default="auto", type=lambda s: s if s == "auto" else int(s))
    parser.add_argument("--window", type=int, default=4)
    parser.add_argument("--delay-us", type=float, default=1000, help="longest delay")
    parser.add_argument(
        "--at-once",
        type=float,
        default=0.4,
        help="share of the calls without a delay, so that ranks that were given the same round "
        "call at the same time; the others are uniform (0.4)",
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit", type=float, default=3600, help="seconds until it counts as hung")
    options = parser.parse_args()
    options.rounds = options.rounds or (1200 if options.short else 10_000)
    options.policy = options.policy or ["solo", "majority", "quorum", "full"]
    options.deliver = options.deliver or list(DELIVERIES)
    return options


# ---- one combination -----------------------------------------------------------------------------


class Payload:
    """What follows the counts: every element depends on its place, so that a shift shows."""

    def __init__(self, ranks: int, elements: int) -> None:
        self.pattern = np.arange(elements, dtype=np.int64) % 8191 + 1
        self.weights = np.arange(1, ranks + 1) ** 2
        self.is_right = True

    def of(self, rank: int) -> np.ndarray:
        return self.pattern * self.weights[rank]

    def check(self, out: np.ndarray) -> None:
        ranks = len(self.weights)
        if len(self.pattern):
            expected = self.pattern * (out[:ranks] @ self.weights)
            self.is_right &= np.array_equal(out[ranks:], expected)


def calls(case: Case, comm: MPI.Comm, seed: int) -> int | None:
    """Return how many calls this rank makes; None: until the rounds are done."""
    if not case.independent:
        return None
    return int(np.random.default_rng((seed, comm.rank, 1)).integers(1, 2 * case.rounds))


def call_often(
    request: pp.Request,
    case: Case,
    out: np.ndarray,
    work: Work,
    log: Log,
    payload: Payload,
) -> None:
    comm, status = request.context.comm, pp.Status()
    most = calls(case, comm, work.seed)
    for delay in work.delays(comm.rank):
        if delay > 0:
            time.sleep(delay)
        request.Start()
        log.started()
        request.Wait(status, HANGS_S)
        log.given(status, out)
        payload.check(out)
        if (status.round >= case.rounds - 1) if most is None else (log.starts == most):
            return


def finish(request: pp.Request, out: np.ndarray, log: Log, payload: Payload) -> None:
    if request.deliver == "each":
        statuses = request.Drain()
    else:
        status = pp.Status()
        request.Flush(status)
        statuses = iter([status])
    for status in statuses:
        log.given(status, out)
        payload.check(out)


def count_initiators(comm: MPI.Comm, log: Log, collected: int, rounds: int) -> int:
    """Return how many rounds were triggered by two or more ranks: see the top of this file."""
    records = log.records[:collected]
    own = records[~records["external"] & (records["round"] < rounds)]["round"]
    triggered_by = np.zeros(rounds, np.int32)
    triggered_by[own] = 1
    comm.Allreduce(MPI.IN_PLACE, triggered_by)
    lowest = np.full(rounds, comm.size, np.int32)
    lowest[own] = comm.rank
    comm.Allreduce(MPI.IN_PLACE, lowest, MPI.MIN)
    named = records["initiator"]
    wrong = (named >= 0) & (named > lowest[np.minimum(records["round"], rounds - 1)])
    assert comm.allreduce(int(wrong.sum())) == 0, "the initiator is not the lowest that triggered"
    return int((triggered_by >= 2).sum())


def live(ctx: pp.Context, case: Case, work: Work, max_lag: int | str) -> Rounds:
    """Run one combination; raise AssertionError on every rank if an oracle is violated."""
    comm = ctx.comm
    payload = Payload(comm.size, max(0, case.size_bytes // 8 - comm.size))
    send = np.zeros(comm.size + len(payload.pattern), np.int64)
    send[comm.rank] = 1
    send[comm.size :] = payload.of(comm.rank)
    out = np.zeros_like(send)
    request = ctx.Allreduce_init(
        send,
        out,
        policy=policy_of(case.policy, comm.size),
        deliver=case.deliver,
        max_lag=max_lag,
        algorithm=case.algorithm,
    )
    try:
        log = Log(comm.size, 2 * case.rounds + 1)
        call_often(request, case, out, work, log, payload)
        collected = log.length
        finish(request, out, log, payload)
        rounds = judge(comm, log, request)
        several = count_initiators(comm, log, collected, rounds.rounds)
        rounds = replace(rounds, several_initiators=several)
        right = comm.allgather(payload.is_right)
        assert all(right), f"wrong payload, right on ranks {right}"
    finally:
        discarded = comm.allreduce(request.Free())
    assert discarded == 0, f"{discarded} contributions were pending after the flush"
    return rounds


# ---- all of them ---------------------------------------------------------------------------------


def cases(options: argparse.Namespace) -> Iterator[Case]:
    combinations = list(itertools.product(options.policy, options.deliver))
    for size_bytes, (policy, deliver) in itertools.product(options.size or [0], combinations):
        yield Case(
            policy,
            deliver,
            options.rounds,
            size_bytes,
            options.algorithm,
            options.ranks_independent,
        )
    if options.size or options.ranks_independent:
        return
    algorithms = itertools.cycle(ALGORITHMS)
    few = max(20, options.rounds // (40 if options.short else 50))
    for (policy, deliver), size_bytes in itertools.product(combinations, SIZES):
        yield Case(policy, deliver, few, size_bytes, next(algorithms))
    for policy, deliver in combinations:
        yield Case(policy, deliver, 2 * few, 0, independent=True)


COLUMNS = "{:9} {:7} {:>7} {:19} {:5} {:>6} {:>9} {:>9} {:>8} {:>9} {:>8}  {}"
HEAD = COLUMNS.format(
    "policy", "deliver", "bytes", "algorithm", "calls", "rounds", "partial %", "2+ init %",
    "missed %", "departed", "seconds", "oracles",
)  # fmt: skip


def row(case: Case, ranks: int, rounds: Rounds | None, seconds: float, verdict: str) -> str:
    size_bytes = 8 * max(ranks, case.size_bytes // 8)
    independent = "own" if case.independent else "equal"
    if rounds is None:
        shares = ["", "", "", "", ""]
    else:
        percent = [
            f"{100 * number / max(1, rounds.rounds):.1f}"
            for number in (rounds.partial, rounds.several_initiators, rounds.missed)
        ]
        shares = [str(rounds.rounds), *percent, str(rounds.departed)]
    return COLUMNS.format(
        case.policy, case.deliver, size_bytes, case.algorithm, independent, *shares,
        f"{seconds:.1f}", verdict,
    )  # fmt: skip


def main() -> None:
    comm, options = MPI.COMM_WORLD, parse()
    checks = Checks(comm)
    work = Work(options.delay_us * 1e-6, options.at_once, options.seed)
    results: list[tuple[Case, Rounds | None]] = []
    began = time.monotonic()
    checks.say(HEAD)
    with pp.Context(comm, seed=options.seed, window=options.window) as ctx:
        shared = bool(ctx.stats().shares_memory)
        for number, case in enumerate(cases(options)):
            case_began = time.monotonic()
            try:
                seeded = replace(work, seed=1000 * options.seed + number)
                rounds, verdict = live(ctx, case, seeded, options.max_lag), "ok"
            except AssertionError as error:  # raised by all ranks, from what they have gathered
                rounds, verdict = None, f"FAILED: {error}"
            seconds = time.monotonic() - case_began
            checks.count(verdict == "ok")
            checks.say(row(case, comm.size, rounds, seconds, verdict))
            results.append((case, rounds))
    checks.say(f"\n{time.monotonic() - began:.0f} s on {comm.size} ranks\n")
    check_shares(checks, comm.size, results, shared)
    checks.end()


def check_shares(
    checks: Checks,
    ranks: int,
    results: list[tuple[Case, Rounds | None]],
    shared: bool,
) -> None:
    """Enough was tried, in each combination that is long enough to tell.

    In shared memory the first rank has run its round before a second one triggers it, unless
    results are waited for; then several initiators say nothing about what was tried.
    """
    for case, rounds in results:
        if rounds is None or case.rounds < ENOUGH_ROUNDS or case.independent or ranks < 3:
            continue
        name = f"{case.policy} {case.deliver}"
        if case.policy != "full":
            share = rounds.partial / rounds.rounds
            what = f"{name}: {100 * share:.1f} % of the rounds were partial"
            checks.note(share >= PARTIAL_SHARE, f"{what} (at least {100 * PARTIAL_SHARE:.0f} %)")
        if case.policy == "solo" and not shared:
            share = rounds.several_initiators / rounds.rounds
            what = f"{name}: {100 * share:.1f} % of the rounds had two or more initiators"
            checks.note(
                share >= INITIATORS_SHARE, f"{what} (at least {100 * INITIATORS_SHARE:.0f} %)"
            )


if __name__ == "__main__":
    run(main, parse().limit)
