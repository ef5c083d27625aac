"""Training loops whose ranks also meet in blocking calls of the program's own, outside `away()`.

    metrics.py [--patience S] [--limit S] CASE...

A case is LOOP/CALL/EVERY/TRANSPORT. `LOOPS` and `CALLS` below are the loops, each with a policy
that its name draws, and the calls, which come every so many steps. The last rank is slow. The calls
`plain` and `gloo` the library does not see: a rank there has the patience of the option. It sees
all others, and no rank has patience there: one that held a round up would do so for ever.
With `mean`, ranks have different numbers of steps, those with fewer are in finish() earlier.

Rank 0 prints a line for each case: its name, "ok", and how long it took.
"""

from __future__ import annotations

import argparse
import faulthandler
import random
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # `support`

from support.live import LOOPS as NAMES
from support.oracles import Log, judge

import pypartial as pp
from pypartial.methods import EagerSGD, PartialReduce, Ripples, Synchronous

try:
    import torch
    import torch.distributed as dist

    import pypartial.torch
except ImportError:
    torch = dist = None

ELEMENTS = 8
SLOW_S, LONGEST_WORK_S = 2e-3, 4e-4
LEAST_STEPS = 20
UNSEEN = ("plain", "gloo")

comm = MPI.COMM_WORLD
P, ME = comm.size, comm.rank
Step = Callable[[int], None]


# ---- loops: each returns its step, its mean(), and what ends it ----------------------------------


def request(ctx: pp.Context, policy: pp.Policy, stack: ExitStack, deliver: str) -> Any:
    log, send, out = Log(P, 1000), np.eye(P, dtype=np.int64)[ME].copy(), np.zeros(P, np.int64)
    made = ctx.Allreduce_init(send, out, policy=policy, deliver=deliver)

    def given(status: pp.Status) -> None:
        log.given(status, out)

    def step(number: int) -> None:
        status = pp.Status()
        made.Start()
        log.started()
        made.Wait(status)
        given(status)

    def end() -> None:
        status = pp.Status()
        if deliver == "each":
            for status in made.Drain():
                given(status)
        else:
            made.Flush(status)
            given(status)
        judge(comm, log, made, left=True)
        assert made.Free() == 0

    stack.callback(end)
    return step, None


def worker(ctx: pp.Context, policy: pp.Policy, stack: ExitStack, name: str) -> Any:
    x = np.zeros(ELEMENTS)
    made = method(name, policy).worker(ctx, x)
    target = np.arange(ELEMENTS) + ME

    def update(gradient: Any) -> None:
        x[:] -= 0.1 * gradient[:ELEMENTS]

    def end() -> None:
        made.finish(update)
        same(x)

    stack.callback(end)
    return (lambda number: made.step(x - target, update)), None


def optimizer(ctx: pp.Context, policy: pp.Policy, stack: ExitStack, name: str) -> Any:
    model = net()
    inner = torch.optim.AdamW(model.parameters(), 1e-2)
    pieces = 2 if name.startswith("overlap") else None
    made = stack.enter_context(
        pp.torch.DistributedOptimizer(inner, ctx, method(name, policy), overlap=pieces, model=model)
    )

    def step(number: int) -> None:
        made.zero_grad()
        backward(model)
        made.step()

    stack.callback(lambda: (made.finish(), same(parameters(model))))
    return step, made.mean


def hook(ctx: pp.Context, policy: pp.Policy, stack: ExitStack, deliver: str) -> Any:
    model = net()
    ddp = torch.nn.parallel.DistributedDataParallel(model)
    inner = torch.optim.SGD(model.parameters(), 1e-2)
    sync = {"sync_every": 7, "optimizer": inner} if deliver == "meets" else {}
    state = pp.torch.HookState(
        ctx, ddp, policy=policy, deliver="latest" if deliver == "latest" else "sum", **sync
    )
    ddp.register_comm_hook(state, pp.torch.partial_allreduce_hook)

    def step(number: int) -> None:
        inner.zero_grad()
        backward(ddp)
        inner.step()

    stack.callback(lambda: (state.finish(inner), same(parameters(model))))
    return step, state.mean


def method(name: str, policy: pp.Policy) -> Any:
    return {
        "each": lambda: EagerSGD(policy),
        "sum": lambda: EagerSGD(policy, "sum"),
        "latest": lambda: EagerSGD(policy, "latest"),
        "meets": lambda: EagerSGD(policy, "sum", sync_every=7),
        "synchronous": Synchronous,
        "overlap": Synchronous,
        "overlap-sum": lambda: EagerSGD(policy, "sum"),
        "preduce": lambda: PartialReduce(2),
        "ripples": lambda: Ripples(pp.groups.Random(2)),
    }[name]()


def net() -> Any:
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(ELEMENTS, 4), torch.nn.Linear(4, 1))


def backward(model: Any) -> None:
    inputs = torch.randn(8, ELEMENTS)
    (model(inputs) - inputs.sum(1, keepdim=True)).square().mean().backward()


def parameters(model: Any) -> Any:
    return torch.cat([p.detach().flatten() for p in model.parameters()]).numpy()


def same(model: Any) -> None:
    """Ranks have one model after finish(), which waits for all: no rank is in a round."""
    models = comm.allgather(model.tobytes())
    assert models == models[:1] * P, "the ranks' models differ"


LOOPS = {
    f"{make.__name__}-{name}": partial(make, **{argument: name})
    for make, argument in (
        (request, "deliver"),
        (worker, "name"),
        (optimizer, "name"),
        (hook, "deliver"),
    )
    for name in NAMES[make.__name__].split()
}


# ---- calls: each gets the number of the step, and checks its result ------------------------------


def plain(seen: Any, number: int) -> None:
    assert comm.allreduce(number) == number * P


def gloo(seen: Any, number: int) -> None:
    reduce(number, groups["gloo"])


def ctx(seen: Any, number: int) -> None:
    assert seen.allreduce(number) == number * P


def backend(seen: Any, number: int) -> None:
    reduce(number, None)


def reduce(number: int, group: Any) -> None:
    total = torch.tensor([float(number)])
    dist.all_reduce(total, group=group)
    assert total.item() == number * P, total


def barrier(seen: Any, number: int) -> None:
    dist.barrier()


def checkpoint(seen: Any, number: int) -> None:
    if ME == 0:
        time.sleep(5 * SLOW_S)
    seen.Barrier()


def empty(seen: Any, number: int) -> None:
    seen.Allreduce(np.empty(0), np.empty(0))


def scan(seen: Any, number: int) -> None:
    assert seen.scan(number) == number * (ME + 1)


def gather(seen: Any, number: int) -> None:
    assert seen.gather(number) == (None if ME else [number] * P)


def allgatherv(seen: Any, number: int) -> None:
    counts = [0] * P
    counts[number % P] = 3
    got = np.zeros(3)
    seen.Allgatherv(np.full(counts[ME], float(number)), [got, counts])
    assert (got == number).all()


CALLS = {
    made.__name__: made
    for made in (plain, gloo, ctx, backend, barrier, checkpoint, empty, scan, gather, allgatherv)
}
groups: dict[str, Any] = {}


def check_mean(mean: Any, number: int, steps: list[int]) -> None:
    """Only ranks that have not finished count."""
    values = [number + rank for rank in range(P) if number <= steps[rank]]
    assert mean(number + ME) == sum(values) / len(values)
    wide = torch.full((2, 700), float(number + ME), dtype=torch.float64)
    assert (mean(wide) == sum(values) / len(values)).all()


# ---- all cases of a run --------------------------------------------------------------------------


def run(case: str, patience: float) -> None:
    loop, call, every, transport = case.split("/")
    chance, began = random.Random(case), time.monotonic()
    policy = chance.choice([pp.Solo(), pp.Majority(), pp.FirstOf(2), pp.Quorum(max(1, P - 1))])
    least = max(LEAST_STEPS, 3 * int(every))
    steps = [least + (7 * rank if call == "mean" else 0) for rank in range(P)]
    chance.seed(f"{case} {ME}")
    with (
        pp.Context(
            comm,
            transport=transport,
            patience=patience if call in UNSEEN else None,
            stall_warning=10.0,
        ) as context,
        ExitStack() as stack,
    ):
        step, mean = LOOPS[loop](context, policy, stack)
        for number in range(1, steps[ME] + 1):
            time.sleep(SLOW_S if ME == P - 1 else chance.uniform(0, LONGEST_WORK_S))
            step(number)
            if number % int(every):
                continue
            if call == "mean":
                check_mean(mean, number, steps)
            else:
                CALLS[call](context.comm, number)
    if ME == 0:
        print(f"{case} ok {time.monotonic() - began:.2f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="+", metavar="CASE")
    parser.add_argument("--patience", type=float, default=0.2)
    parser.add_argument("--limit", type=float, default=60, help="seconds for a case")
    options = parser.parse_args()
    if dist is not None:
        torch.set_num_threads(1)
        dist.init_process_group("pypartial", init_method="mpi://")
        groups["gloo"] = dist.new_group(backend="gloo")
    for case in options.cases:
        faulthandler.dump_traceback_later(options.limit, exit=True)
        try:
            run(case, options.patience)
        except Exception:
            sys.stderr.write(f"rank {ME} in {case}:\n{traceback.format_exc()}")
            sys.stderr.flush()
            comm.Abort(1)
    faulthandler.cancel_dump_traceback_later()
    if dist is not None:
        dist.destroy_process_group()
    if ME == 0:
        print(f"{len(options.cases)} passed, 0 failed", flush=True)


main()
