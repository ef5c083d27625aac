"""Replicas of a model on every rank, one rank slow: they must be equal at the end.

    mpirun -n 4 python tests/stress/replicas.py [--part slow] [--part buckets] [--steps 10000]

slow: one rank is 20 times slower than the others. With deliver="sum" the sum of all that a rank was
given, Flush included, is the same integer vector on all ranks; with deliver="each" the float32
replicas are the same bit for bit. And the fast ranks were slowed only as far as max_lag says.

buckets: two and three handles in one loop (gradient buckets), both patterns of the contract's point
9, every policy, a Flush of all handles every 500 steps: no deadlock, and equal replicas.

The last line is "N passed, N failed".
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
from mpi4py import MPI

import pypartial as pp

HANGS_S = 120.0
SLOWER = 20
WORK_S = 2e-4  # a step of a fast rank
FLUSH_EVERY = 500
ELEMENTS = 1000
POLICIES: dict[str, Callable[[int], pp.Policy]] = {
    "solo": lambda ranks: pp.Solo(),
    "majority": lambda ranks: pp.Majority(),
    "quorum": lambda ranks: pp.Quorum(max(1, ranks // 2)),
    "full": lambda ranks: pp.Full(),
}
comm = MPI.COMM_WORLD
SLOW_RANK = comm.size - 1


def agree(what: Any) -> bool:
    """Whether all ranks have the same bytes."""
    return len(set(comm.allgather(bytes(what)))) == 1


# ---- one slow rank --------------------------------------------------------------------------------


def slow(ctx: pp.Context, policy: pp.Policy, deliver: str, max_lag: int, steps: int) -> str:
    """Return a line about the loop; raise AssertionError on every rank if something is wrong."""
    integers = deliver == "sum"
    dtype = np.int64 if integers else np.float32
    send, out = np.zeros(ELEMENTS, dtype), np.zeros(ELEMENTS, dtype)
    request = ctx.Allreduce_init(send, out, policy=policy, deliver=deliver, max_lag=max_lag)
    replica, status = np.zeros(ELEMENTS, dtype), pp.Status()
    random = np.random.default_rng(comm.rank)
    total = np.zeros(ELEMENTS, np.int64)
    is_slow = comm.rank == SLOW_RANK
    # The bound lets at most max_lag + 1 rounds complete in a step of the slow rank: with so many
    # steps it is there for as long as the fast ranks are.
    slow_steps = -(-steps // min(max_lag + 1, SLOWER))
    most_missed, work_s = 0, 0.0
    comm.barrier()
    began = time.monotonic()
    for _ in range(slow_steps if is_slow else steps):
        start = time.monotonic()
        time.sleep(WORK_S * (SLOWER if is_slow else 1))
        if integers:
            send[:] = random.integers(-1000, 1000, ELEMENTS)
            total += send
        else:
            send[:] = random.standard_normal(ELEMENTS)
        work_s += time.monotonic() - start
        request.Start()
        request.Wait(status, HANGS_S)
        replica += out
        most_missed = max(most_missed, status.missed)
    seconds = time.monotonic() - began
    if deliver == "each":
        for _ in request.Drain():
            replica += out
    else:
        request.Flush()
        replica += out
    request.Free()
    times, works = comm.allgather(seconds), comm.allgather(work_s)
    missed = comm.allgather(most_missed)
    expected = comm.allreduce(total)
    assert agree(replica), "the replicas differ"
    assert not integers or np.array_equal(replica, expected), "the replicas are not the sum"
    assert max(missed) <= max_lag, f"missed {max(missed)} rounds, max_lag={max_lag}"
    fast = max(seconds for rank, seconds in enumerate(times) if rank != SLOW_RANK)
    # Their own work, or the slow rank's for every max_lag + 1 rounds.
    bound = max(*works, steps / (max_lag + 1) * works[SLOW_RANK] / slow_steps)
    verdict = (
        f"fast ranks {fast:.2f} s, slow rank {times[SLOW_RANK]:.2f} s, work and max_lag ask for "
        f"{bound:.2f} s, missed at most {max(missed)}"
    )
    # Under the other policies a fast rank waits for others as well. Twice: the machine may be busy.
    assert not isinstance(policy, pp.Solo) or fast < 2 * bound + 1, f"slowed too much: {verdict}"
    return verdict


def slow_cases(steps: int) -> Iterator[tuple[str, Callable[[], str]]]:
    for window, (name, policy), deliver in itertools.product(
        (4, 32), POLICIES.items(), ("sum", "each")
    ):

        def case(window=window, policy=policy, deliver=deliver) -> str:
            with pp.Context(comm, seed=3, window=window) as ctx:
                return slow(ctx, policy(comm.size), deliver, window - 1, steps)

        yield f"slow rank, {name}, {deliver}, max_lag={window - 1}", case


# ---- several handles ------------------------------------------------------------------------------


def buckets(ctx: pp.Context, policy: pp.Policy, number: int, together: bool, steps: int) -> str:
    requests, outs, replicas = [], [], []
    send = np.arange(1, ELEMENTS + 1) * (comm.rank + 1)
    for _ in range(number):
        out = np.zeros_like(send)
        requests.append(ctx.Allreduce_init(send, out, policy=policy, deliver="sum"))
        outs.append(out)
        replicas.append(np.zeros_like(send))
    random = np.random.default_rng((number, comm.rank))
    longest = 1e-3 if comm.rank == SLOW_RANK else 1e-3 / SLOWER
    done_by_all = np.arange(1, ELEMENTS + 1) * sum(range(1, comm.size + 1))
    wrong = 0
    for step in range(1, steps + 1):
        time.sleep(random.uniform(0, longest))
        if together:
            pp.Startall(requests)
            pp.Waitall(requests, timeout=HANGS_S)
            for replica, out in zip(replicas, outs, strict=True):
                replica += out
        else:
            for request, replica, out in zip(requests, replicas, outs, strict=True):
                request.Start()
                request.Wait(timeout=HANGS_S)
                replica += out
        if step % FLUSH_EVERY == 0 or step == steps:
            for request, replica, out in zip(requests, replicas, outs, strict=True):
                request.Flush()
                replica += out
                wrong += not np.array_equal(replica, step * done_by_all)
    for request in requests:
        request.Free()
    everywhere = comm.allgather(wrong)
    assert not any(everywhere), f"wrong replicas after a Flush, by rank: {everywhere}"
    return f"{steps} steps"


def buckets_cases(steps: int) -> Iterator[tuple[str, Callable[[], str]]]:
    for number, together, (name, policy) in itertools.product(
        (2, 3), (False, True), POLICIES.items()
    ):

        def case(number=number, together=together, policy=policy) -> str:
            with pp.Context(comm, seed=4) as ctx:
                return buckets(ctx, policy(comm.size), number, together, steps)

        pattern = "all starts, all waits" if together else "start-wait"
        yield f"{number} buckets, {name}, {pattern}", case


PARTS = {"slow": slow_cases, "buckets": buckets_cases}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--part", action="append", choices=PARTS)
    parser.add_argument("--steps", type=int, default=10_000, help="of a fast rank")
    options = parser.parse_args()
    passed = failed = 0
    for part in options.part or PARTS:
        for name, case in PARTS[part](options.steps):
            began = time.monotonic()
            try:
                result, good = case(), True
            except AssertionError as error:  # raised by all ranks, from what they have gathered
                result, good = f"FAILED: {error}", False
            passed, failed = passed + good, failed + (not good)
            if comm.rank == 0:
                print(f"{name}: {time.monotonic() - began:.1f} s: {result}", flush=True)
    if comm.rank == 0:
        print(f"{passed} passed, {failed} failed", flush=True)
    sys.exit(failed > 0)


if __name__ == "__main__":
    try:
        main()
    except Exception:
        sys.stderr.write(f"rank {comm.rank}:\n{traceback.format_exc()}")
        sys.stderr.flush()
        comm.Abort(1)
