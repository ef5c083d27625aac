"""Thousands of rounds with random delays, judged by the oracles of the contract.

    mpirun -n 7 python tests/stress/stress.py --rounds 10000

For every policy and delivery the ranks call at random times until the rounds are done, flush, and
compare everything they were given: conservation, agreement, quorum, staleness bound, and the rest
of `tests/support/oracles.py`. It prints how many rounds were partial, had several initiators, and
were missed by someone: without those the run would prove little. The last line is "N passed,
N failed".
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
from mpi4py import MPI
from support.oracles import Log, Rounds, judge

import pypartial as pp

DELIVERIES = ("latest", "sum", "each")
HANGS_S = 120.0  # a Wait that takes so long has hung, however busy the machine is
AT_ONCE = 0.4  # share of the calls without a delay: several ranks then call at the same time
# From this number of rounds on the shares are required, not only printed.
ENOUGH_ROUNDS = 1000
PARTIAL_SHARE = 0.30  # not for Full
INITIATORS_SHARE = 0.05  # for Solo


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=10_000)
    parser.add_argument("--delay-us", type=float, default=1000, help="longest delay")
    parser.add_argument("--policy", action="append", help="solo, majority, quorum:K or full")
    parser.add_argument("--deliver", action="append", choices=DELIVERIES)
    parser.add_argument("--max-lag", default="auto", type=lambda s: s if s == "auto" else int(s))
    parser.add_argument("--elements", type=int, default=0, help="payload besides the counts")
    parser.add_argument("--algorithm", default="auto")
    parser.add_argument("--window", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    options.policy = options.policy or ["solo", "majority", "quorum:3", "full"]
    options.deliver = options.deliver or list(DELIVERIES)
    return options


def policy_of(text: str) -> pp.Policy:
    name, _, k = text.partition(":")
    if name == "quorum":
        return pp.Quorum(min(int(k or 3), MPI.COMM_WORLD.size))
    return {"solo": pp.Solo, "majority": pp.Majority, "full": pp.Full}[name]()


def run(ctx: pp.Context, policy: pp.Policy, deliver: str, options: argparse.Namespace) -> Rounds:
    """Run one combination; raise AssertionError on every rank if an oracle is violated."""
    comm = ctx.comm
    send = np.zeros(comm.size + options.elements, np.int64)
    send[comm.rank] = 1
    send[comm.size :] = comm.rank + 1
    out = np.zeros_like(send)
    request = ctx.Allreduce_init(
        send,
        out,
        policy=policy,
        deliver=deliver,
        max_lag=options.max_lag,
        algorithm=options.algorithm,
    )
    log, status = Log(comm.size, 2 * options.rounds), pp.Status()
    weights = np.arange(1, comm.size + 1)
    payload_is_right = True

    def given(which: pp.Status) -> None:
        nonlocal payload_is_right
        log.given(which, out)
        if options.elements:
            expected = out[: comm.size] @ weights
            payload_is_right &= bool((out[comm.size :] == expected).all())

    random = np.random.default_rng((options.seed, comm.rank))
    last = -1
    while last < options.rounds - 1:
        delays = random.uniform(0, options.delay_us * 1e-6, 1000)
        delays[random.random(1000) < AT_ONCE] = 0
        for delay in delays:
            time.sleep(delay)
            request.Start()
            log.started()
            request.Wait(status, HANGS_S)
            given(status)
            last = status.round
            if last >= options.rounds - 1:
                break
    if deliver == "each":
        for drained in request.Drain():
            given(drained)
    else:
        request.Flush(status)
        given(status)
    try:
        rounds = judge(comm, log, request)
        right = comm.allgather(payload_is_right)
        assert all(right), (
            f"wrong payload on ranks {[r for r, good in enumerate(right) if not good]}"
        )
        check_shares(rounds, policy, comm.size)
    finally:
        request.Free()
    return rounds


def check_shares(rounds: Rounds, policy: pp.Policy, ranks: int) -> None:
    """Without partial rounds and simultaneous initiators nothing was tried."""
    if rounds.rounds < ENOUGH_ROUNDS or ranks < 3:
        return
    if not isinstance(policy, pp.Full):
        assert rounds.partial >= PARTIAL_SHARE * rounds.rounds, f"too few partial rounds: {rounds}"
    if isinstance(policy, pp.Solo):
        enough = INITIATORS_SHARE * rounds.rounds
        assert rounds.several_initiators >= enough, f"too few initiators: {rounds}"


def main() -> None:
    comm, options = MPI.COMM_WORLD, parse()
    passed = failed = 0
    with pp.Context(comm, seed=options.seed, window=options.window) as ctx:
        for name, deliver in itertools.product(options.policy, options.deliver):
            began = time.monotonic()
            try:
                result, good = str(run(ctx, policy_of(name), deliver, options)), True
            except AssertionError as error:
                result, good = f"FAILED: {error}", False
            passed, failed = passed + good, failed + (not good)
            if comm.rank == 0:
                seconds = time.monotonic() - began
                print(f"{name:10} {deliver:6} {seconds:6.1f} s  {result}", flush=True)
    if comm.rank == 0:
        print(f"{passed} passed, {failed} failed", flush=True)
    sys.exit(failed > 0)


if __name__ == "__main__":
    try:
        main()
    except Exception:
        sys.stderr.write(f"rank {MPI.COMM_WORLD.rank}:\n{traceback.format_exc()}")
        sys.stderr.flush()
        MPI.COMM_WORLD.Abort(1)
