"""``tune``: time the algorithms of rounds made of messages, for ``algorithm="auto"``.

The measurement runs Full allreduces with ``transport="mpi"`` in the balanced loop of
``bench latency``: at each size the algorithms take turns in blocks of calls, and are verified. If
the ranks are on several nodes, one rank of each takes part, as in the rounds between nodes.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from mpi4py import MPI

import pypartial as pp

from .. import tuning
from .._names import algorithms
from .._native import load
from ..statistics import Latency
from ..tuning import Entry, Measured, Table
from .conditions import named_in_memory_errors, no_garbage_collection, versions
from .contenders import buffer_pair, contender
from .fit import fit_cost, model_us, switch_points
from .latency import BITS_NEEDED, most_blocks, run_blocks
from .ledger import LoopLedger
from .options import Buffers, LatencyOptions, TuneOptions
from .pace import Pace, meet
from .pattern import Pattern
from .results import Outcome, Report, TuneMeta, TuneRow
from .trials import Loop, Progress

if TYPE_CHECKING:
    from .._native import Native


@dataclass(frozen=True)
class _Sample:
    """The measured times of one algorithm at one size."""

    algorithm: str
    bytes: int
    latency: Latency
    verified: bool


def _algorithms() -> list[str]:
    native = load()
    return list(algorithms(native.ffi, native.lib))


def turns(options: TuneOptions, ranks: int) -> int:
    """Return how often `measure` reports progress, if the budget allows."""
    numbers = options.ranks or (ranks,)
    return len(numbers) * len(options.sizes) * len(_algorithms()) * most_blocks(_loop(options))


def participants(comm: MPI.Intracomm) -> tuple[str, list[int]]:
    """Return the kind of link, and the ranks that take part: all, or one a node. Collective."""
    node = comm.Split_type(MPI.COMM_TYPE_SHARED)
    leads = comm.allgather(node.rank == 0)
    node.Free()
    if sum(leads) == 1:
        return "node", list(range(comm.size))
    return "network", [rank for rank, lead in enumerate(leads) if lead]


def measure(
    options: TuneOptions, comm: MPI.Intracomm, native: Native, table: Table, progress: Progress
) -> tuple[Outcome[TuneMeta, TuneRow], list[Entry]] | None:
    """Run the measurement; collective.

    Parameters
    ----------
    options : TuneOptions
        The same on every rank; `ranks` must not exceed the ranks that can take part.
    comm : mpi4py.MPI.Intracomm
    native : Native
    table : Table
        The table that "auto" has used so far; only rank 0 reads it.
    progress : callable
        Called on this rank with what is being measured.

    Returns
    -------
    (Outcome, list of Entry) or None
        The results and the new entries on rank 0; None elsewhere.
    """
    link, able = participants(comm)
    rows: list[TuneRow] = []
    failures: list[str] = []
    entries: list[Entry] = []
    date = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    for ranks in options.ranks or (len(able),):
        takes_part = comm.rank in able[:ranks]
        part = comm.Split(0 if takes_part else MPI.UNDEFINED, comm.rank)
        if takes_part:
            assert isinstance(part, MPI.Intracomm)
            samples, wrong = _measure_on(part, options, progress)
            failures += wrong
            part.Free()
            if comm.rank == 0:
                entry = _entry(native, samples, ranks, link, date)
                entries.append(entry)
                rows += _rows(native, samples, entry, table)
        meet(comm)
    if comm.rank != 0:
        return None
    meta = TuneMeta(
        **versions(),
        host=os.uname().nodename,
        cores=os.cpu_count() or 1,
        link=link,
        date=date,
        before=table.why,
    )
    return Outcome(Report(meta, rows), failures), entries


def _loop(options: TuneOptions) -> LatencyOptions:
    """Return the options of the loop in which one algorithm is measured at one size."""
    cells = len(options.sizes) * len(_algorithms()) * max(1, len(options.ranks))
    return LatencyOptions(
        policies=(pp.Full(),),
        sizes=options.sizes,
        skew_ns=0,
        buffers=(Buffers.NUMPY,),
        budget_ns=max(1, options.budget_ns // cells),
    )


def _measure_on(
    comm: MPI.Intracomm, options: TuneOptions, progress: Progress
) -> tuple[list[_Sample], list[str]]:
    """Measure all algorithms at all sizes, and return the results on rank 0. Collective."""
    loop = _loop(options)
    way = loop.policies[0]
    pace = Pace(comm, loop)
    samples: list[_Sample] = []
    failures: list[str] = []
    with pp.Context(comm, transport="mpi", patience=None) as ctx:
        for size in options.sizes:
            pattern = Pattern(
                ctx.size, size // loop.dtype.itemsize, loop.dtype, bits_needed=BITS_NEEDED
            )
            with named_in_memory_errors(size):
                pair = buffer_pair(ctx, Buffers.NUMPY, pattern.contribution(ctx.rank))
                trials = [
                    Loop(
                        way,
                        contender(way, ctx, comm, pair, algorithm),
                        pace,
                        comm,
                        pair.receive,
                        LoopLedger(pattern, way, ctx.rank),
                    )
                    for algorithm in _algorithms()
                ]
                with no_garbage_collection():
                    run_blocks(trials, loop, comm, progress)
                for algorithm, trial in zip(_algorithms(), trials, strict=True):
                    sample, wrong = _finish(algorithm, trial, comm)
                    samples += sample
                    failures += [f"{algorithm}, {text}" for text in wrong]
    pace.free()
    return samples, failures


def _finish(algorithm: str, trial: Loop, comm: MPI.Intracomm) -> tuple[list[_Sample], list[str]]:
    """Finish a trial, and return its sample on rank 0 and its failures. Collective."""
    trial.finish()
    wrong: list[str] = comm.allreduce(trial.ledger.failures)
    by_rank = comm.gather(trial.turn_ns)
    if by_rank is None:
        return [], wrong
    latency = Latency.of(np.array(by_rank).max(axis=0))
    return [_Sample(algorithm, trial.receive.nbytes, latency, not wrong)], wrong


def _entry(native: Native, samples: Sequence[_Sample], ranks: int, link: str, date: str) -> Entry:
    times: dict[int, dict[str, float]] = {}
    for sample in samples:
        times.setdefault(sample.bytes, {})[sample.algorithm] = sample.latency.p50
    measured = tuple(Measured(size, us) for size, us in sorted(times.items()))
    software = versions()
    return Entry(
        ranks=ranks,
        link=link,
        mpi=software["mpi"],
        version=software["version"],
        host=os.uname().nodename,
        cores=os.cpu_count() or 1,
        date=date,
        cost=fit_cost(native, measured, ranks),
        switches=switch_points(measured, native.lib.PP_SWITCHES_MAX),
        measured=measured,
    )


def _rows(native: Native, samples: Sequence[_Sample], entry: Entry, table: Table) -> list[TuneRow]:
    def chosen(entries: Sequence[Entry], size: int) -> str:
        return tuning.choose(native, entries, size, 4, entry.ranks, entry.link).algorithm

    return [
        TuneRow(
            algorithm=sample.algorithm,
            bytes=sample.bytes,
            ranks=entry.ranks,
            link=entry.link,
            latency_us=sample.latency,
            model_us=model_us(native, entry.cost, sample.algorithm, sample.bytes, entry.ranks),
            chosen=chosen([entry], sample.bytes),
            chosen_before=chosen(table.entries, sample.bytes),
            verified=sample.verified,
        )
        for sample in samples
    ]
