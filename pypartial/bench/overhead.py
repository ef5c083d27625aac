"""``bench overhead``: the cost of calls from Python on one rank, beside mpi4py's.

Short loops of every kind of call take turns, in an order that rotates; results are medians over the
loops. Start+Wait and Allreduce are timed as whole loops. Start, Wait and Test are halves of a pair:
the clock is read before, between and after the two calls. The time of a reading itself, measured in
the same run with nothing in between, is subtracted. A Wait with a timeout is timed until its
TimeoutError is caught; it waits for a round whose grace period does not end. mpi4py's calls are
those on MPI_COMM_SELF.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
from mpi4py import MPI

import pypartial as pp

from ..statistics import Spread
from .clock import clock_cost, timed, timed_halves
from .conditions import no_garbage_collection, versions
from .contenders import Contender, Pair, buffer_pair, contender, has_persistent
from .options import Buffers, DType, OverheadOptions, Rival, Way
from .pattern import Pattern
from .results import Outcome, OverheadMeta, OverheadRow, Report, ratio
from .trials import Progress

_MPI_CALL = ("Allreduce", "mpi4py")
_PERSISTENT_CALL = ("Start+Wait", "mpi4py")
_TIMEOUT_S = 0.005
_TIMED_OUT_CALL = f"Wait(timeout={_TIMEOUT_S})"
_TIMED_OUT_SHARE = 100  # one such Wait replaces this many calls, because it takes milliseconds
_ENDLESS_S = 1e6
_LACKING = "mpi4py's persistent Start and Wait (MPI_Allreduce_init, MPI-4)"


@dataclass
class _Meter:
    """Loops of one kind of call, or of two that are timed together.

    Attributes
    ----------
    calls : tuple of str
        Names of the calls; "" for a half that is not reported.
    of : str
        The library of the calls: "pypartial" or "mpi4py".
    buffers : Buffers
    pair : Pair
    loop : callable
        Takes a number of calls; returns mean nanoseconds of each.
    reads_clock : bool
        Whether these times include a reading of the clock.
    samples : list of tuple of float
    wrong : int
        Loops after which the result was wrong.
    """

    calls: tuple[str, ...]
    of: str
    buffers: Buffers
    pair: Pair
    loop: Callable[[int], tuple[float, ...]]
    reads_clock: bool
    samples: list[tuple[float, ...]] = field(default_factory=list)
    wrong: int = 0

    def turn(self, calls: int) -> None:
        """Run a loop."""
        self.pair.receive.fill(-1)
        self.samples.append(self.loop(calls))
        # On one rank the sum is the contribution.
        self.wrong += not np.array_equal(self.pair.receive, self.pair.send)

    def rows(self, clock_ns: float) -> list[OverheadRow]:
        """Return a row for each call."""
        reading = clock_ns if self.reads_clock else 0.0
        return [
            OverheadRow(
                call=call,
                of=self.of,
                buffers=self.buffers.value,
                bytes=self.pair.send.nbytes,
                ns=Spread.of(np.array(samples) - reading),
                ratio_to_mpi=None,
                ratio_to_mpi_persistent=None,
                verified=not self.wrong,
            )
            for call, samples in zip(self.calls, zip(*self.samples, strict=True), strict=True)
            if call
        ]


def measure(options: OverheadOptions, progress: Progress) -> Outcome[OverheadMeta, OverheadRow]:
    """Run the benchmark on this rank alone.

    Parameters
    ----------
    options : OverheadOptions
    progress : callable
        Called after each of the `turns` with what was measured.

    Returns
    -------
    Outcome
    """
    persistent = has_persistent(MPI.COMM_SELF)
    clock: list[float] = []
    with pp.Context(MPI.COMM_SELF, patience=None) as ctx:
        contenders: list[Contender] = []
        meters = _meters(options, ctx, persistent, contenders)
        with no_garbage_collection():
            _take_turns(meters, clock, options, progress)
        for each in contenders:
            each.free()
    meters.append(_timeouts(options))
    clock_ns = Spread.of(clock).median
    rows = [row for meter in meters for row in meter.rows(clock_ns)]
    meta = OverheadMeta(
        **versions(),
        policy=str(options.policy),
        loops=options.loops,
        calls=options.calls,
        clock_ns=clock_ns,
        lacking=[] if persistent else [_LACKING],
    )
    failures = [
        f"{meter.of}, {meter.buffers.value} buffers, {'+'.join(filter(None, meter.calls))}: "
        f"{meter.wrong} loops ended with a wrong sum"
        for meter in meters
        if meter.wrong
    ]
    return Outcome(Report(meta, with_overhead_ratios(rows)), failures)


def turns(options: OverheadOptions) -> int:
    """Return how often `measure` reports progress."""
    return options.loops


def with_overhead_ratios(rows: Sequence[OverheadRow]) -> list[OverheadRow]:
    """Return the rows, each compared with mpi4py's Allreduce and its persistent Start+Wait."""
    medians = {(row.call, row.of): row.ns.median for row in rows}
    return [
        dataclasses.replace(
            row,
            ratio_to_mpi=ratio(row.ns.median, medians.get(_MPI_CALL)),
            ratio_to_mpi_persistent=ratio(row.ns.median, medians.get(_PERSISTENT_CALL)),
        )
        for row in rows
    ]


def _meters(
    options: OverheadOptions, ctx: pp.Context, persistent: bool, contenders: list[Contender]
) -> list[_Meter]:
    """Return the meters; append their contenders, which the caller must free, to the list."""
    pattern = Pattern(1, options.size // DType.FLOAT32.itemsize, DType.FLOAT32)

    def make(way: Way, buffers: Buffers) -> tuple[Contender, Pair]:
        pair = buffer_pair(ctx, buffers, pattern.contribution(0))
        contenders.append(contender(way, ctx, MPI.COMM_SELF, pair))
        return contenders[-1], pair

    meters = []
    for buffers in options.buffers:
        ours, pair = make(options.policy, buffers)
        start, _ = ours.halves()
        meters += _pair_meters(ours, "pypartial", buffers, pair)
        tests = functools.partial(timed_halves, start, ours.test())
        meters.append(_Meter(("", "Test"), "pypartial", buffers, pair, tests, True))
    allreduce, pair = make(Rival.MPI, Buffers.NUMPY)
    meters.append(_whole(_MPI_CALL[0], allreduce, "mpi4py", Buffers.NUMPY, pair))
    if persistent:
        theirs, pair = make(Rival.MPI_PERSISTENT, Buffers.NUMPY)
        meters += _pair_meters(theirs, "mpi4py", Buffers.NUMPY, pair)
    return meters


def _timeouts(options: OverheadOptions) -> _Meter:
    """Measure a Wait that ends by its timeout, and return its meter. Call it last.

    The rounds are made of messages, because there a grace period lasts although no rank is missing.
    """
    pattern = Pattern(1, options.size // DType.FLOAT32.itemsize, DType.FLOAT32)
    with pp.Context(MPI.COMM_SELF, transport="mpi", patience=None) as ctx:
        pair = buffer_pair(ctx, Buffers.NUMPY, pattern.contribution(0))
        endless = ctx.Allreduce_init(pair.send, pair.receive, policy=pp.Solo(grace=_ENDLESS_S))
        endless.Start()

        def time_out(number: int) -> None:
            for _ in range(number):
                with suppress(pp.TimeoutError):
                    endless.Wait(timeout=_TIMEOUT_S)
                    pair.receive.fill(-1)  # the Wait gave a result: make the check fail

        def loop(calls: int) -> tuple[float, ...]:
            pair.receive[:] = pair.send
            number = max(1, calls // _TIMED_OUT_SHARE)
            return (timed(functools.partial(time_out, number)).ns / number,)

        meter = _Meter((_TIMED_OUT_CALL,), "pypartial", Buffers.NUMPY, pair, loop, False)
        with no_garbage_collection():
            for _ in range(options.loops):
                meter.turn(options.calls)
        endless.Free()
    return meter


def _pair_meters(what: Contender, of: str, buffers: Buffers, pair: Pair) -> list[_Meter]:
    """Return the meters of Start and Wait, apart and together."""
    halves = functools.partial(timed_halves, *what.halves())
    return [
        _Meter(("Start", "Wait"), of, buffers, pair, halves, True),
        _whole(_PERSISTENT_CALL[0], what, of, buffers, pair),
    ]


def _whole(call: str, what: Contender, of: str, buffers: Buffers, pair: Pair) -> _Meter:
    """Return the meter of a call that is timed as a whole loop."""

    def loop(calls: int) -> tuple[float, ...]:
        return (timed(functools.partial(what.repeat, calls)).ns / calls,)

    return _Meter((call,), of, buffers, pair, loop, False)


def _take_turns(
    meters: Sequence[_Meter], clock: list[float], options: OverheadOptions, progress: Progress
) -> None:
    """Run all loops in turns, after one of each that does not count."""
    order = list(meters)
    for meter in order:
        meter.turn(options.calls)
        meter.samples.clear()
    for number in range(options.loops):
        clock.append(clock_cost(options.calls))
        for meter in order:
            meter.turn(options.calls)
        order.append(order.pop(0))
        progress(f"loop {number + 1}")
