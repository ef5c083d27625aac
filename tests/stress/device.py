"""Random programs with buffers on a device, judged by the oracles of the contract.

    PYPARTIAL_CUDA_DRIVER=.../fakecuda.so mpirun -n 3 python -m mpi4py tests/stress/device.py

If LD_PRELOAD names tests/support/cuda_mpi.c, compiled, MPI takes addresses of the device.

The device is that of the stand-in for the CUDA driver, whose streams pause at random. Each program
has up to three handles of its own kind. Their send buffers may be arrays of `Context.alloc`, or
parts of them. The ranks make Starts and Waits with random delays, on two streams. One of them is
now and then held for a moment; in some programs all have room for a few operations only. The ranks
overwrite what a Start has read at once, or an array of the library's after its Wait, and read a
result as soon as Wait has returned; a view again, by work that is held until the next result is on
its way. Then they flush and compare everything that they were given
(tests/support/oracles.py). Every fourth program also has a handle of P-Reduce, whose groups are
replayed as by tests/stress/preduce.py; every other fourth one has groups on communicators, whose
members must agree, and which keep the mean. Afterwards nothing may be left on the device. The last
line is "N programs passed"; the first program that does not pass ends the run, and is named.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import random
import sys
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support" / "standin"))

import numpy as np
from checks import HANGS_S
from mpi4py import MPI
from preduce import GENERATORS, WEIGHTS, Case, Judge, Rank, agree
from support.device import Array, Stream, Viewed, driver
from support.oracles import Log, check_groups, judge

import pypartial as pp

KERNELS = "PYPARTIAL_CUDA_KERNELS" in os.environ  # else devices share no memory
CUDA_MPI = hasattr(ctypes.CDLL(None), "cuda_mpi_taken")  # else MPI takes no addresses of devices
EXTRAS = (0, 3, 4000, 20_000)  # elements besides the counts: above 64 KiB copies are made unlocked
MANY, LARGE = 400_000, 0.05  # chunks of such results are copied early; the share of such programs
LONGEST_S = 3e-4
HELD = 0.2  # share of the Starts whose stream is held for a moment
CROWDED = 0.2  # share of the programs whose streams have little room: the driver waits for some
ROOMS, ROOM = (1, 2, 5), 1024  # for operations; else
SLOW = 0.2  # share of the programs with a slow consumer
QUEUED = 7  # results of it; eight are the most on their way
TESTED = 0.2  # share of the requests that are collected by Test
VIEWED = 0.2  # ... by View
LATER = 0.5  # share of the views that are read again, after the next result is on its way
IMPATIENT = 0.2  # ... whose first Waits may time out; and of the Flushes,
AGAIN = 0.95  # which then are called again
TYPES = ("i8", "i8", "i4", "f8", "f4", "c8", "f2")
HALF_MAX = 4  # sums of such numbers are exact in half precision


class Driver:
    """How many operations streams have room for, and whether memory is freed at once.

    Else that waits for all streams of the device.
    """

    little = frees_at_once = False

    @classmethod
    def draw(cls, seed: int) -> None:
        draw = np.random.default_rng((seed, 3))
        cls.little = draw.random() < CROWDED
        driver().fake_room(int(draw.choice(ROOMS)) if cls.little else ROOM)
        cls.frees_at_once = bool(seed % 2)
        driver().fake_free_at_once(cls.frees_at_once)


def hold_for_a_moment(own: np.random.Generator, stream: Stream) -> bool:
    """Now and then hold a stream; not one on which this thread would wait for room."""
    held = own.random() < HELD and not Driver.little
    if held:
        stream.hold(True)
    return held


@dataclass
class Loop:
    """A handle, its arrays, and what its requests completed with."""

    request: pp.AllreduceRequest
    send: Array
    out: Array
    values: np.ndarray
    log: Log
    reader: Stream  # of views that are read later; nothing else is queued there
    unread: tuple[Array, np.ndarray] | None = None  # what such a view is copied to, and its result

    def view(self, status: pp.Status, stream: Stream, later: bool) -> np.ndarray:
        """Wait for the request by View; read the view at once, and now and then once more, later.

        The second time the next result is already on its way by then.
        """
        later &= self.send is not self.out
        if Driver.little or not Driver.frees_at_once:  # this thread would wait for what it holds
            later = False
        used = self.reader if later else stream
        request: Any = self.request
        view = Viewed(request.View(status, HANGS_S, used), used)
        self.read_again()
        result = view.get()
        if later:
            kept = Array(view.count, view.dtype, used)
            used.hold(True)
            kept.copy_from(view.address, used)
            self.unread = kept, result
        return result

    def read_again(self) -> None:
        """Let the view before be read for the second time."""
        if self.unread:
            (kept, result), self.unread = self.unread, None
            self.reader.hold(False)
            assert (kept.get() == result).all(), "a view was overwritten"
            kept.close()

    def result(self, stream: Stream | None = None) -> np.ndarray:
        """Return what is in the receive buffer."""
        self.read_again()
        return self.out.get(stream)

    def close(self) -> None:
        """Free the arrays."""
        self.out.close()
        if self.send is not self.out:
            self.send.close()
        self.reader.close()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--programs", type=int, default=100, help="how many (100)")
    parser.add_argument("--seed", type=int, default=0, help="of the first one")
    return parser.parse_args()


def open_loop(
    ctx: pp.Context, comm: MPI.Comm, draw: np.random.Generator, home: Stream, way: str
) -> Loop:
    """Make a handle, now and then with the path `way`; `draw` is the same on all ranks."""
    policies = [pp.Solo(), pp.Majority(), pp.FirstOf(min(2, comm.size)), pp.Full()]
    policies.append(pp.Quorum(max(1, comm.size // 2)))
    policies.append(pp.Quorum(comm.size, deadline=2e-3))
    extra = MANY if draw.random() < LARGE else int(draw.choice(EXTRAS))
    dtype = np.dtype(str(draw.choice(TYPES)))
    numbers = np.arange(comm.size + extra)
    values = (numbers % HALF_MAX if dtype == "f2" else numbers).astype(dtype)
    values[: comm.size] = 0
    values[comm.rank] = 1
    out = Array(values.size, dtype, home)
    send = out if draw.random() < 0.2 else Array(values.size, dtype, home)
    path = way if KERNELS and draw.random() < 0.7 else "auto"
    request = ctx.Allreduce_init(
        None if send is out else send,
        out,
        policy=policies[int(draw.integers(len(policies)))],
        deliver=str(draw.choice(["latest", "sum", "each"])),  # type: ignore[arg-type]
        device_path=path,  # type: ignore[arg-type]
    )
    assert path != "direct" or request.device_path == path  # type: ignore[attr-defined]
    return Loop(request, send, out, values, Log(comm.size, 4000), Stream())


def whole_numbers(values: np.ndarray) -> np.ndarray:
    return values.real.astype(np.int64)


def collect(
    loop: Loop, own: np.random.Generator, streams: list[Stream], stream: Stream, status: pp.Status
) -> np.ndarray:
    """Wait for the request in one of the ways that there are, on `stream`; return its result.

    A Wait that may time out is on any of the streams.
    """
    request: Any = loop.request
    if own.random() < IMPATIENT:
        for _ in range(int(own.integers(1, 4))):
            chosen = streams[int(own.integers(len(streams)))]
            try:
                request.Wait(status, own.uniform(0, LONGEST_S), chosen)
            except pp.TimeoutError:
                continue
            return loop.result(chosen)
    drawn = own.random()
    if drawn < VIEWED:
        return loop.view(status, stream, own.random() < LATER)
    if drawn < VIEWED + TESTED:
        while not request.Test(status, stream):
            time.sleep(LONGEST_S / 10)
    else:
        request.Wait(status, HANGS_S, stream)
    return loop.result(stream)


def step(loop: Loop, own: np.random.Generator, streams: list[Stream], status: pp.Status) -> None:
    """Make a Start and a Wait."""
    first, second = own.permutation(streams)  # type: ignore[arg-type]
    held = hold_for_a_moment(own, first)
    loop.send.put(loop.values, first)
    loop.request.Start(stream=first)  # type: ignore[call-arg]
    if loop.send is not loop.out:
        loop.send.put(-999, first)
    loop.log.started()
    time.sleep(own.uniform(0, LONGEST_S))
    if held:
        first.hold(False)
    result = collect(loop, own, streams, second, status)
    loop.log.given(status, whole_numbers(result))
    first.wait()
    second.wait()
    loop.send.settle()


def flush(
    request: Any, own: np.random.Generator | random.Random, status: pp.Status, *stream: Stream
) -> None:
    """Flush; at times by several calls, each of which goes on with the one that timed out."""
    impatient = own.random() < IMPATIENT
    while impatient and own.random() < AGAIN:
        try:
            request.Flush(status, own.uniform(0, LONGEST_S) if own.random() < 0.5 else 0, *stream)
        except pp.TimeoutError:
            continue
        return
    request.Flush(status, HANGS_S, *stream)


class Member(Rank):
    """One rank's life with a handle of P-Reduce, whose model is on a device."""

    def __init__(
        self,
        ctx: pp.Context,
        case: Case,
        seed: int,
        streams: list[Stream],
        longest_s: float,
        path: str,
    ) -> None:
        self.streams, self.first, self.path = streams, streams[0], path
        super().__init__(ctx, case, argparse.Namespace(delay_us=longest_s * 1e6), seed)

    def init(self, generator: pp.groups.Generator, options: dict[str, Any]) -> pp.PreduceRequest:
        self.array = Array(self.model.size, "f8", self.streams[0])
        self.array.put(self.model)
        request = self.ctx.Preduce_init(
            self.array,
            generator,
            device_path=self.path,  # type: ignore[arg-type]
            **options,
        )
        self.array.settle()
        return request

    def begin(self, iteration: int | None, group: list[int] | None) -> None:
        first = self.first = self.own.choice(self.streams)
        hold_for_a_moment(self.own, first)
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
        flush(self.request, self.own, self.status, second)
        self.model[:] = self.array.get(second)


def average(ctx: pp.Context, draw: np.random.Generator, seed: int, streams: list[Stream]) -> None:
    """Run a part of P-Reduce, and judge it; `draw` is the same on all ranks."""
    comm = ctx.comm
    names = [name for name in GENERATORS if comm.size > 1 or name in ("static", "given")]
    extra = int(draw.choice(EXTRAS))
    case = Case(str(draw.choice(names)), str(draw.choice(WEIGHTS)), 8 * (1 + extra), 40)
    path = "ipc" if KERNELS and draw.random() < 0.7 else "staged"
    member = Member(ctx, case, seed, streams, LONGEST_S, path)
    initials = comm.gather(member.initial)
    judge = Judge(case, member, initials) if initials is not None else None
    logs = comm.gather(member.part())
    agree(comm, (lambda: judge.part(logs)) if judge and logs else None)
    member.request.Free()
    member.array.close()


def average_by_mpi(
    ctx: pp.Context, draw: np.random.Generator, own: np.random.Generator, streams: list[Stream]
) -> None:
    """Run groups on communicators, with MPI at addresses of the device if it takes them."""
    comm, ranks = ctx.comm, range(ctx.size)
    generators: list[pp.groups.Generator] = [
        pp.groups.Table([[ranks], [[rank] for rank in ranks], [sorted({0, comm.size - 1})]]),
    ]
    if comm.size > 1:
        few = min(3, comm.size)
        generators += [pp.groups.Random(2), pp.groups.Smart(few), pp.groups.Controller(few)]
    generator = generators[int(draw.integers(len(generators)))]
    path = "direct" if KERNELS and CUDA_MPI and draw.random() < 0.8 else "staged"
    values = own.standard_normal(1 + int(draw.choice(EXTRAS)))
    mean = np.mean(comm.allgather(values), axis=0)
    model, status, log = Array(values.size, "f8", streams[0]), pp.Status(), []
    request = ctx.Preduce_init(model, generator, backend="comm", device_path=path)  # type: ignore[arg-type]
    assert request.device_path == path  # type: ignore[attr-defined]
    for _ in range(int(own.integers(1, 10))):
        first, second = own.permutation(streams)  # type: ignore[arg-type]
        hold_for_a_moment(own, first)
        model.put(values, first)
        request.Start(stream=first)  # type: ignore[call-arg]
        model.put(-999, first)
        time.sleep(own.uniform(0, LONGEST_S))
        first.hold(False)
        first.wait()  # P-Reduce works in place
        request.Wait(status, HANGS_S, second)  # type: ignore[call-arg]
        values = model.get(second)
        log.append((status.round, status.group, status.weights, crc32(values.tobytes())))
    model.put(values)
    flush(request, own, status)
    found = model.get()
    assert comm.allgather(found.tobytes()) == [found.tobytes()] * comm.size
    np.testing.assert_allclose(found, mean, rtol=0, atol=1e-12)
    check_groups(comm, log)
    request.Free()
    model.close()


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
        if shared.random() < SLOW and not Driver.little:
            consume_slowly(comm, ctx, own, streams[0])
        way = "direct" if transport == "mpi" and CUDA_MPI else "ipc"
        count = int(shared.integers(1, 4))
        loops = [open_loop(ctx, comm, shared, streams[0], way) for _ in range(count)]
        for _ in range(int(shared.integers(2, 8))):
            for loop in loops:
                step(loop, own, streams, status)
        for loop in loops:
            finish(comm, loop, own, status, len(loops) > 1)
        for loop in loops:
            loop.request.Free()
        if seed % 4 == 1:
            average(ctx, shared, seed, streams)
        if seed % 4 == 3:
            average_by_mpi(ctx, shared, own, streams)
    for loop in loops:
        loop.close()
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


def finish(
    comm: MPI.Comm, loop: Loop, own: np.random.Generator, status: pp.Status, several: bool
) -> None:
    """Have everything be given, and judge it; a rank that waits on another handle has left."""
    if loop.request.deliver == "each":
        for drained in loop.request.Drain():
            loop.log.given(drained, whole_numbers(loop.result()))
        loop.read_again()  # before there was nothing to drain
    else:
        flush(loop.request, own, status)
        loop.log.given(status, whole_numbers(loop.result()))
    judge(comm, loop.log, loop.request, left=several)


def main() -> None:
    options, comm = parse(), MPI.COMM_WORLD
    warnings.filterwarnings("ignore", "device_path='ipc' is not possible", RuntimeWarning)
    stand_in = driver()
    before = stand_in.fake_leaks()
    for seed in range(options.seed, options.seed + options.programs):
        stand_in.fake_seed(1 + seed * comm.size + comm.rank)
        Driver.draw(seed)
        try:
            program(comm, seed)
            limit = time.monotonic() + HANGS_S  # a thread of the library's gives back what is left
            while stand_in.fake_leaks() != before and time.monotonic() < limit:
                time.sleep(0.001)
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
