"""Programs that are correct if the calls are MPI's, and that hang by the rules of rounds alone.

    live.py [--patience S] [--limit S] [--steps N] CASE...

A case is PROGRAM/POLICY/DELIVER/TRANSPORT/CURE:

metric     a loop that sums a metric with the user's own `comm.allreduce` every so many steps
phases     all rounds of one handle, then all of another
threads    a few threads, with a handle each
passes     a pass of Start-Wait over three handles, then one of all Starts, all Waits
contexts   two contexts in turn

With the cure "patience" nothing else is done about it. With "away" nobody has any patience: ranks
are inside `ctx.away()` while they block in something else; there each thread has a context of its
own, because all threads of a context are away together.

Every rank adds 1 to its own element, and logs what it is given; the oracles judge the logs. Rank 0
prints a line for each case: its name, "ok", how many rounds there were, and how many of them did
without somebody who had left.
"""

from __future__ import annotations

import argparse
import faulthandler
import itertools
import random
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from mpi4py import MPI

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # `support`

from support.oracles import Log, Rounds, judge

import pypartial as pp

HANDLES = 3  # of threads and passes
EVERY = 25  # steps, the user's own call
LONGEST_WORK_S = 4e-4
WINDOW = 4
STALLED_S = 10.0  # then the log says which rank waits for which


@dataclass(frozen=True)
class Case:
    program: str
    policy: str
    deliver: str
    transport: str
    cure: str

    def __str__(self) -> str:
        return "/".join((self.program, self.policy, self.deliver, self.transport, self.cure))

    def make_policy(self, ranks: int) -> pp.Policy:
        if self.policy == "quorum":  # of all it would be Full, which waits as MPI does
            return pp.Quorum(max(1, ranks - 1))
        return {"solo": pp.Solo(), "majority": pp.Majority(), "first": pp.FirstOf(2)}[self.policy]


class Handle:
    """A request with its buffers and its log."""

    def __init__(self, job: Job, ctx: pp.Context) -> None:
        comm, case = job.comm, job.case
        self.ctx, self.log = ctx, Log(comm.size, 2 * job.steps)
        send = np.zeros(comm.size, np.int64)
        send[comm.rank] = 1
        self.out = np.zeros_like(send)
        policy = case.make_policy(comm.size)
        self.request = ctx.Allreduce_init(send, self.out, policy=policy, deliver=case.deliver)

    def start(self) -> None:
        self.request.Start()
        self.log.started()

    def wait(self) -> None:
        status = pp.Status()
        self.request.Wait(status)
        self.log.given(status, self.out)

    def finish(self) -> None:
        if self.request.deliver == "each":
            for status in self.request.Drain():
                self.log.given(status, self.out)
            return
        status = pp.Status()
        self.request.Flush(status)
        self.log.given(status, self.out)


class Job:
    """One case on this rank: its contexts, handles and work."""

    def __init__(self, comm: MPI.Intracomm, case: Case, patience: float, steps: int) -> None:
        self.comm, self.case, self.steps = comm, case, steps
        self.patience = patience if case.cure == "patience" else None
        self.contexts: list[pp.Context] = []
        self.handles: list[Handle] = []

    def context(self) -> pp.Context:
        """Make one more.  Collective."""
        number = len(self.contexts)
        self.contexts.append(
            pp.Context(
                self.comm,
                seed=number,
                transport=self.case.transport,
                window=WINDOW,
                patience=self.patience,
                stall_warning=STALLED_S,
            )
        )
        return self.contexts[-1]

    def handle(self, ctx: pp.Context) -> Handle:
        """Make one more.  Collective."""
        self.handles.append(Handle(self, ctx))
        return self.handles[-1]

    def works(self, number: int = 0) -> Iterator[None]:
        """Take a random time, again and again: another on every rank, for every thread."""
        chance = random.Random(f"{self.case} {self.comm.rank} {number}")
        while True:
            if chance.random() < 0.5:
                time.sleep(chance.uniform(0, LONGEST_WORK_S))
            yield

    def blocking(self, *contexts: pp.Context) -> ExitStack:
        """A place for a blocking call of the user's own."""
        stack = ExitStack()
        if self.case.cure == "away":
            for ctx in contexts:
                stack.enter_context(ctx.away())
        return stack

    def meet(self, comm: MPI.Intracomm, *contexts: pp.Context) -> None:
        """With "away" all ranks meet before they go on to other handles; else they do not."""
        if self.case.cure == "away":
            with self.blocking(*contexts):
                comm.Barrier()

    def end(self) -> list[Rounds]:
        """Flush, judge and free."""
        for handle in self.handles:
            handle.finish()
        found = [judge(self.comm, handle.log, handle.request, left=True) for handle in self.handles]
        for handle in self.handles:
            discarded = handle.request.Free()
            assert discarded == 0, f"{discarded} contributions were pending after the flush"
        while self.contexts:
            self.contexts.pop(0).Free()
        return found


# ---- the programs --------------------------------------------------------------------------------


def metric(job: Job) -> None:
    ctx = job.context()
    handle = job.handle(ctx)
    for step, _ in zip(range(1, job.steps + 1), job.works(), strict=False):
        handle.start()
        handle.wait()
        if step % EVERY == 0:
            with job.blocking(ctx):
                total = job.comm.allreduce(step)
            assert total == step * job.comm.size


def phases(job: Job) -> None:
    ctx = job.context()
    for handle in [job.handle(ctx), job.handle(ctx)]:
        for _ in itertools.islice(job.works(), job.steps):
            handle.start()
            handle.wait()
        job.meet(job.comm, ctx)


def threads(job: Job) -> None:
    apart = job.case.cure == "away"
    contexts = [job.context() for _ in range(HANDLES if apart else 1)]
    handles = [job.handle(contexts[i % len(contexts)]) for i in range(HANDLES)]
    comms = [job.comm.Dup() for _ in handles]
    problems: list[str] = []

    def work(number: int) -> None:
        handle = handles[number]
        try:
            for _ in itertools.islice(job.works(number), job.steps):
                handle.start()
                handle.wait()
            job.meet(comms[number], handle.ctx)
        except Exception:
            problems.append(traceback.format_exc())

    started = [threading.Thread(target=work, args=(i,)) for i in range(HANDLES)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
    assert not problems, problems[0]
    for comm in comms:
        comm.Free()


def passes(job: Job) -> None:
    ctx = job.context()
    handles = [job.handle(ctx) for _ in range(HANDLES)]
    for together, _ in itertools.product((False, True), range(2)):
        for _ in itertools.islice(job.works(), job.steps // 4):
            if together:
                for handle in handles:
                    handle.start()
                for handle in handles:
                    handle.wait()
                continue
            for handle in handles:
                handle.start()
                handle.wait()
        job.meet(job.comm, ctx)


def contexts(job: Job) -> None:
    handles = [job.handle(job.context()) for _ in range(2)]
    for step, _ in zip(range(1, job.steps + 1), job.works(), strict=False):
        for handle in handles:
            handle.start()
            handle.wait()
        if step % EVERY == 0:
            job.meet(job.comm, *job.contexts)


PROGRAMS: dict[str, Callable[[Job], None]] = {
    "metric": metric,
    "phases": phases,
    "threads": threads,
    "passes": passes,
    "contexts": contexts,
}


# ---- all cases of a run --------------------------------------------------------------------------


def run(comm: MPI.Intracomm, case: Case, options: argparse.Namespace) -> None:
    began = time.monotonic()
    job = Job(comm, case, options.patience, options.steps)
    PROGRAMS[case.program](job)
    found = job.end()
    if comm.rank == 0:
        rounds, departed = sum(r.rounds for r in found), sum(r.departed for r in found)
        seconds = time.monotonic() - began
        print(f"{case} ok {rounds} rounds {departed} departed {seconds:.2f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="+", metavar="CASE")
    parser.add_argument("--patience", type=float, default=0.2)
    parser.add_argument("--limit", type=float, default=60, help="seconds for a case")
    parser.add_argument("--steps", type=int, default=100)
    options = parser.parse_args()
    comm = MPI.COMM_WORLD
    for text in options.cases:
        faulthandler.dump_traceback_later(options.limit, exit=True)
        try:
            run(comm, Case(*text.split("/")), options)
        except Exception:
            sys.stderr.write(f"rank {comm.rank} in {text}:\n{traceback.format_exc()}")
            sys.stderr.flush()
            comm.Abort(1)
    faulthandler.cancel_dump_traceback_later()
    if comm.rank == 0:
        print(f"{len(options.cases)} passed, 0 failed", flush=True)


main()
