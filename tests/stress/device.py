"""Random programs with buffers on a device, judged by the oracles of the contract.

    PYPARTIAL_CUDA_DRIVER=.../fakecuda.so mpirun -n 3 python -m mpi4py tests/stress/device.py

The device is that of the stand-in for the CUDA driver, whose streams pause at random. Each program
has up to three handles of its own kind. The ranks make Starts and Waits with random delays, on two
streams, one of which is now and then held for a moment; they overwrite what a Start has read at
once, and read a result as soon as Wait has returned. Then they flush and compare everything that
they were given (tests/support/oracles.py). Every fourth program also has a handle of P-Reduce,
whose groups are replayed as by tests/stress/preduce.py. Afterwards nothing may be left on the
device. The last line is "N programs passed"; the first program that does not pass ends the run, and
is named.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import numpy as np
from checks import HANGS_S
from mpi4py import MPI
from preduce import GENERATORS, WEIGHTS, Case, Judge, Rank, agree
from support.device import Array, Stream, driver
from support.oracles import Log, judge

import pypartial as pp

KERNELS = "PYPARTIAL_CUDA_KERNELS" in os.environ  # else devices share no memory
EXTRAS = (0, 3, 4000, 20_000)  # elements besides the counts: above 64 KiB copies are made unlocked
LONGEST_S = 3e-4
HELD = 0.2  # share of the Starts whose stream is held for a moment
SLOW = 0.2  # share of the programs with a slow consumer
QUEUED = 7  # results of it; eight are the most on their way
TESTED = 0.2  # share of the requests that are collected by Test


@dataclass
class Loop:
    """A handle, its arrays, and what its requests completed with."""

    request: pp.AllreduceRequest
    send: Array
    out: Array
    values: np.ndarray
    log: Log


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--programs", type=int, default=100, help="how many (100)")
    parser.add_argument("--seed", type=int, default=0, help="of the first one")
    return parser.parse_args()


def open_loop(ctx: pp.Context, comm: MPI.Comm, draw: np.random.Generator, home: Stream) -> Loop:
    """Make a handle; `draw` is the same on all ranks."""
    policies = [pp.Solo(), pp.Majority(), pp.FirstOf(min(2, comm.size)), pp.Full()]
    policies.append(pp.Quorum(max(1, comm.size // 2)))
    policies.append(pp.Quorum(comm.size, deadline=2e-3))
    extra = int(draw.choice(EXTRAS))
    values = np.arange(comm.size + extra, dtype=np.int64)
    values[: comm.size] = 0
    values[comm.rank] = 1
    out = Array(values.size, "i8", home)
    send = out if draw.random() < 0.2 else Array(values.size, "i8", home)
    path = "ipc" if KERNELS and draw.random() < 0.5 else "auto"
    request = ctx.Allreduce_init(
        None if send is out else send,
        out,
        policy=policies[int(draw.integers(len(policies)))],
        deliver=str(draw.choice(["latest", "sum", "each"])),  # type: ignore[arg-type]
        device_path=path,  # type: ignore[arg-type]
    )
    return Loop(request, send, out, values, Log(comm.size, 4000))


def step(loop: Loop, own: np.random.Generator, streams: list[Stream], status: pp.Status) -> None:
    """Make a Start and a Wait."""
    first, second = own.permutation(streams)  # type: ignore[arg-type]
    held = own.random() < HELD
    if held:
        first.hold(True)
    loop.send.put(loop.values, first)
    loop.request.Start(stream=first)  # type: ignore[call-arg]
    if loop.send is not loop.out:
        loop.send.put(-999, first)
    loop.log.started()
    time.sleep(own.uniform(0, LONGEST_S))
    if held:
        first.hold(False)
    if loop.send is loop.out:
        first.wait()
    if own.random() < TESTED:
        while not loop.request.Test(status, stream=second):  # type: ignore[call-arg]
            time.sleep(LONGEST_S / 10)
    else:
        loop.request.Wait(status, stream=second)  # type: ignore[call-arg]
    loop.log.given(status, loop.out.get(second))
    first.wait()
    loop.send.settle()


class Member(Rank):
    """One rank's life with a handle of P-Reduce, whose model is on a device."""

    def __init__(
        self, ctx: pp.Context, case: Case, seed: int, streams: list[Stream], longest_s: float
    ) -> None:
        self.streams, self.first = streams, streams[0]
        super().__init__(ctx, case, argparse.Namespace(delay_us=longest_s * 1e6), seed)

    def init(self, generator: pp.groups.Generator, options: dict[str, Any]) -> pp.PreduceRequest:
        self.array = Array(self.model.size, "f8", self.streams[0])
        self.array.put(self.model)
        request = self.ctx.Preduce_init(self.array, generator, **options)
        self.array.settle()
        return request

    def begin(self, iteration: int | None, group: list[int] | None) -> None:
        first = self.first = self.own.choice(self.streams)
        first.hold(self.own.random() < HELD)
        self.array.put(self.model, first)
        self.request.Start(iteration, group, first)  # type: ignore[call-arg]
        self.array.put(-999, first)
        time.sleep(self.own.uniform(0, self.longest_s))
        first.hold(False)

    def wait(self) -> None:
        second = self.own.choice(self.streams)
        if second is not self.first:  # P-Reduce works in place
            self.first.wait()
        if self.own.random() < TESTED:
            while not self.request.Test(self.status, second):  # type: ignore[call-arg]
                time.sleep(self.longest_s / 10)
        else:
            self.request.Wait(self.status, HANGS_S, second)  # type: ignore[call-arg]
        self.model[:] = self.array.get(second)

    def flush_all(self) -> None:
        second = self.own.choice(self.streams)
        self.first.wait()  # of a request that is dropped
        self.array.put(self.model, second)
        self.request.Flush(self.status, HANGS_S, second)  # type: ignore[call-arg]
        self.model[:] = self.array.get(second)


def average(ctx: pp.Context, draw: np.random.Generator, seed: int, streams: list[Stream]) -> None:
    """Run a part of P-Reduce, and judge it; `draw` is the same on all ranks."""
    comm = ctx.comm
    names = [name for name in GENERATORS if comm.size > 1 or name in ("static", "given")]
    extra = int(draw.choice(EXTRAS))
    case = Case(str(draw.choice(names)), str(draw.choice(WEIGHTS)), 8 * (1 + extra), 40)
    member = Member(ctx, case, seed, streams, LONGEST_S)
    initials = comm.gather(member.initial)
    judge = Judge(case, member, initials) if initials is not None else None
    logs = comm.gather(member.part())
    agree(comm, (lambda: judge.part(logs)) if judge and logs else None)
    member.request.Free()
    member.array.close()


def program(comm: MPI.Comm, seed: int) -> None:
    """Run one program; raise what the oracles find."""
    shared, own = np.random.default_rng((seed, 1)), np.random.default_rng((seed, 2, comm.rank))
    streams, status = [Stream(), Stream()], pp.Status()
    transport = str(shared.choice(["auto", "mpi"]))
    progress = "thread" if shared.random() < 0.8 else "caller"
    patience = 20.0 if progress == "thread" else None
    with pp.Context(
        comm,
        seed=seed,
        transport=transport,  # type: ignore[arg-type]
        progress=progress,  # type: ignore[arg-type]
        patience=patience,
    ) as ctx:
        if shared.random() < SLOW:
            consume_slowly(comm, ctx, own, streams[0])
        loops = [open_loop(ctx, comm, shared, streams[0]) for _ in range(shared.integers(1, 4))]
        for _ in range(int(shared.integers(2, 8))):
            for loop in loops:
                step(loop, own, streams, status)
        for loop in loops:
            finish(comm, loop, status, len(loops) > 1)
        for loop in loops:
            loop.request.Free()
        if seed % 4 == 1:
            average(ctx, shared, seed, streams)
    for loop in loops:
        loop.out.close()
        if loop.send is not loop.out:
            loop.send.close()
    for stream in streams:
        stream.close()


def consume_slowly(comm: MPI.Comm, ctx: pp.Context, own: np.random.Generator, home: Stream) -> None:
    """Have results queue up on a stream that is held; each must still be that of its round."""
    count, slow = int(own.choice(EXTRAS)) + 1, Stream()
    count = comm.bcast(count)
    send, out, *seen = (Array(count, "i8", home) for _ in range(2 + QUEUED))
    request = ctx.Allreduce_init(send, out, policy=pp.Full())
    slow.hold(True)
    for step, kept in enumerate(seen):
        send.put(step)
        request.Start()
        request.Wait(stream=slow)  # type: ignore[call-arg]
        kept.copy(out, slow)
    slow.hold(False)
    slow.wait()
    for step, kept in enumerate(seen):
        found = kept.get()
        assert (found == step * comm.size).all(), f"result {step} became {found[:4]}"
    request.Free()
    for array in (send, out, *seen):
        array.close()
    slow.close()


def finish(comm: MPI.Comm, loop: Loop, status: pp.Status, several: bool) -> None:
    """Have everything be given, and judge it; a rank that waits on another handle has left."""
    if loop.request.deliver == "each":
        for drained in loop.request.Drain():
            loop.log.given(drained, loop.out.get())
    else:
        loop.request.Flush(status)
        loop.log.given(status, loop.out.get())
    judge(comm, loop.log, loop.request, left=several)


def main() -> None:
    options, comm = parse(), MPI.COMM_WORLD
    warnings.filterwarnings("ignore", "device_path='ipc' is not possible", RuntimeWarning)
    stand_in = driver()
    before = stand_in.fake_leaks()
    for seed in range(options.seed, options.seed + options.programs):
        stand_in.fake_seed(1 + seed * comm.size + comm.rank)
        try:
            program(comm, seed)
            assert stand_in.fake_leaks() == before, f"left: {stand_in.fake_leaks().decode()}"
            assert stand_in.fake_misuses() == 0, "memory was freed under a copy"
            assert stand_in.fake_pageable_copies() == 0, "memory was not pinned"
        except BaseException:
            print(f"program {seed} failed on rank {comm.rank}", file=sys.stderr, flush=True)
            raise
    comm.Barrier()
    if comm.rank == 0:
        print(f"{options.programs} programs passed on {comm.size} ranks", flush=True)


main()
