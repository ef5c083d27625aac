"""Thousands of groups of P-Reduce with random delays, replayed one after the other.

    mpirun -n 7 python -m mpi4py tests/stress/preduce.py --groups 10000
    mpirun -n 7 python -m mpi4py tests/stress/preduce.py --short

Every rank works for a random time of up to 1 ms before each call, changes its model, and averages
it over a group. Ranks make different numbers of calls. At random moments, which differ between the
ranks, they are away for a while, or in a collective call of the context; one may leave a request
uncollected. A flush ends each part, after some hundred calls at most. Rank 0 then judges the part:

members    all members of a group say the same of it, and have the same bits
order      the serial numbers of a rank's groups ascend
replay     the groups are replayed in the order of their numbers, and every rank was given what the
           replay gives, bit for bit (`fuzz.replay`)
mean       equal weights keep the mean of a group: to 1e-12 of its largest element, in float64
weights    by iteration, they are those of the members' iterations, and members take over the newest
served     every rank was in a group with others
memory     after each part all buffers have been put back but the rank's own; no more of them were
           made than groups that a rank can be in at once need; the process's memory does not grow
           in the second half of a run of `ENOUGH_GROUPS` or more

The rows are those of the table: every generator with equal weights; fewer groups with weights by
iteration, and with vectors of 24 KB and 200 KB. "alone" counts the requests of a rank that no other
one was there for, "shrunk" the groups that some rank had left. The last line is "N passed, N
failed".
"""

from __future__ import annotations

import argparse
import functools
import itertools
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import numpy as np
from checks import HANGS_S, Checks, run
from fuzz.replay import Asked, Formed, Replay
from mpi4py import MPI

import pypartial as pp
from pypartial._core import ffi, lib
from pypartial._names import algorithms
from pypartial.groups import groups_of
from pypartial.sim.groups import weights as weights_of

WEIGHTS = ("constant", "closest", "initial")
ALPHA = 0.5
# With 2 members the first is averaged under the node's lock, the others in chunks; by messages the
# last one is not in the message that announces it.
SIZES = (16, 24_000, 200_008)
TABLE_RANK_BITS = 12  # of the serial number of a group of a table by messages
PARTS_MAX = 20  # for every rank to be in a group
ENOUGH_GROUPS = 5000  # from which memory is judged
GROWTH_BYTES = 1 << 20  # what Python itself may need more in the second half
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
NAMES = algorithms(ffi, lib)
ALGORITHMS = {NAMES.constant(lib, name): name for name in NAMES}


# ---- what is run ---------------------------------------------------------------------------------


def halves(ranks: int) -> pp.groups.Table:
    """Return a table in which all ranks meet, then neighbours, and one may be idle."""
    pairs = [[rank, rank + 1] for rank in range(0, ranks - 1, 2)]
    return pp.groups.Table([[list(range(ranks))], pairs, [[0, ranks - 1]]])


GENERATORS: dict[str, Callable[[int], pp.groups.Generator]] = {
    "random": lambda ranks: pp.groups.Random(min(3, ranks)),
    "random,reuse": lambda ranks: pp.groups.Random(min(3, ranks), reuse=True),
    "smart": lambda ranks: pp.groups.Smart(min(3, ranks)),
    "smart,inter-intra": lambda ranks: pp.groups.Smart(2, inter_intra=True),
    "controller": lambda ranks: pp.groups.Controller(min(3, ranks)),
    "static": lambda ranks: pp.groups.Static(nodes=1, per_node=ranks),
    "table": halves,
    "given": lambda ranks: pp.groups.Given(),
}


@dataclass(frozen=True)
class Case:
    generator: str
    weights: str
    size_bytes: int
    groups: int  # at least

    @property
    def is_given(self) -> bool:
        return self.generator == "given"

    @property
    def calls(self) -> int:
        """The most calls that a rank makes in a part: rank 0 keeps what all of them gave."""
        return min(200 if self.size_bytes < 1000 else 12, max(10, self.groups // 4))


@dataclass
class Tally:
    groups: int = 0
    members: int = 0
    requests: int = 0
    alone: int = 0
    shrunk: int = 0
    dropped: int = 0
    served: set[int] = field(default_factory=set)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--groups", type=int, help="of each generator (10000)")
    parser.add_argument("--short", action="store_true", help="300 groups: under 40 s on 2 cores")
    parser.add_argument("--generator", action="append", choices=tuple(GENERATORS))
    parser.add_argument("--weights", action="append", choices=WEIGHTS)
    parser.add_argument("--size", type=int, action="append", help="bytes of the model")
    parser.add_argument("--delay-us", type=float, default=1000, help="longest delay")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit", type=float, default=3600, help="seconds until it counts as hung")
    options = parser.parse_args()
    options.groups = options.groups or (300 if options.short else 10_000)
    options.generator = options.generator or list(GENERATORS)
    return options


def cases(options: argparse.Namespace) -> Iterator[Case]:
    groups = options.groups
    if options.weights or options.size:
        for generator in options.generator:
            for weights in options.weights or ["constant"]:
                for size_bytes in options.size or SIZES[:1]:
                    yield Case(generator, weights, size_bytes, groups)
        return
    for generator in options.generator:
        yield Case(generator, "constant", SIZES[0], groups)
    turns = itertools.cycle(WEIGHTS)
    for generator in options.generator:
        for weights in WEIGHTS[1:]:
            yield Case(generator, weights, SIZES[0], max(20, groups // 5))
        for size_bytes in SIZES[1:]:
            yield Case(generator, next(turns), size_bytes, max(20, groups // 20))


# ---- a part, on every rank -----------------------------------------------------------------------


@dataclass(frozen=True)
class Given:
    """What a request or a flush was told."""

    round: int
    iteration: int
    members: tuple[int, ...]
    weights: tuple[float, ...]
    initial: float


def given(status: pp.Status) -> Given:
    return Given(status.round, status.iteration, status.group, status.weights, status.initial)


@dataclass(frozen=True)
class Entry:
    asked: Asked
    given: Given | None  # None: the flush has dropped the request


class Rank:
    """One rank's life with a handle."""

    def __init__(self, ctx: pp.Context, case: Case, options: argparse.Namespace, seed: int) -> None:
        self.ctx, self.case, self.longest_s = ctx, case, options.delay_us * 1e-6
        self.common = random.Random(seed)  # the same on all ranks
        self.own = random.Random(f"{seed} {ctx.rank}")
        self.values = np.random.default_rng((seed, ctx.rank))
        self.model = self.values.standard_normal(max(1, case.size_bytes // 8))
        self.initial = self.model.tobytes()
        dynamic: dict[str, Any] = {"weights": "dynamic", "alpha": ALPHA, "missing": case.weights}
        self.request = self.init(
            GENERATORS[case.generator](ctx.size), {} if case.weights == "constant" else dynamic
        )
        self.status = pp.Status()
        self.iteration = 0  # of the last request, as the core counts

    # What tests/stress/device.py does with buffers on a device.

    def init(self, generator: pp.groups.Generator, options: dict[str, Any]) -> pp.PreduceRequest:
        return self.ctx.Preduce_init(self.model, generator, **options)

    def begin(self, iteration: int | None, group: list[int] | None) -> None:
        self.request.Start(iteration, group)

    def wait(self) -> None:
        self.request.Wait(self.status, HANGS_S)

    def flush_all(self) -> None:
        self.request.Flush(self.status, HANGS_S)

    def work(self) -> None:
        if self.own.random() > 0.4:
            time.sleep(self.own.uniform(0, self.longest_s))
        self.model *= 0.75
        self.model += self.values.standard_normal(self.model.size)

    def start(self, group: list[int] | None) -> Asked:
        self.work()
        ahead = self.own.choice((0, 0, 0, 1, 2)) if self.case.weights != "constant" else 0
        self.iteration += 1 + ahead
        asked = Asked(self.model.tobytes(), self.iteration)
        self.begin(self.iteration - 1 if ahead else None, group)
        return asked

    def collect(self, asked: Asked) -> Entry:
        self.wait()
        return self.done(asked)

    def done(self, asked: Asked) -> Entry:
        found = given(self.status)
        asked.serial, asked.after = found.round, self.model.tobytes()
        self.iteration = found.iteration + 1
        return Entry(asked, found)

    def leave(self, how: str) -> None:
        """Make one of the context's collective calls, which the others make at other times."""
        if how == "away" and self.ctx._progress == "thread":  # the other has no away()
            with self.ctx.away():
                time.sleep(self.own.uniform(0, self.longest_s))
        else:
            self.ctx.Allreduce_init(np.zeros(1), np.zeros(1)).Free()

    def part(self) -> list[Entry]:
        """Make some calls, and flush."""
        if self.case.is_given:
            log = [self.collect(self.start(group)) for group in self.named()]
            return [*log, self.flush(drop=False)]
        calls = self.own.randint(self.case.calls // 2, self.case.calls)
        leaves = [self.common.choice(("away", "init")) for _ in range(self.common.randint(0, 4))]
        at = sorted(self.own.randint(0, calls - 1) for _ in leaves)
        # One rank only: nobody describes a group of two that have dropped their requests.
        drops = self.common.randrange(2 * self.ctx.size) == self.ctx.rank
        log = []
        for call in range(calls):
            here = [how for moment, how in zip(at, leaves, strict=True) if moment == call]
            # A request that is asked anew after its rank was away may have run a group of its own
            # draw that nobody else describes.
            between = self.own.random() < 0.5 and self.case.generator != "random"
            if not between:
                for how in here:
                    self.leave(how)
            asked = self.start(None)
            if between:
                for how in here:
                    self.leave(how)
            log.append(self.collect(asked))
        drop = drops and not self.case.generator.startswith("random")
        if drop:
            log.append(Entry(self.start(None), None))
        return [*log, self.flush(drop)]

    def named(self) -> Iterator[list[int]]:
        """Yield the groups of this rank, of those that all ranks know."""
        everybody = range(self.ctx.size)
        for _ in range(self.case.calls):
            group = self.common.sample(everybody, self.common.randint(1, self.ctx.size))
            if self.ctx.rank in group:
                yield group

    def flush(self, drop: bool) -> Entry:
        before = None if drop else self.model.tobytes()
        self.flush_all()
        return self.done(Asked(before, self.iteration, flush=True))

    def check_buffers(self) -> None:
        """Check what the library keeps between two parts, when all ranks have completed a flush."""
        vector = self.model.nbytes
        own = vector * (2 if self.case.weights == "initial" else 1)
        until = time.monotonic() + HANGS_S
        while (stats := self.ctx.stats()).buffer_bytes_used > own:
            where = f"rank {self.ctx.rank}: {stats.buffer_bytes_used} bytes of buffers"
            assert time.monotonic() < until, f"{where} were not put back; {own} are its own"
            time.sleep(0)  # the progress thread retires the last groups
        # A rank is in a group of its own, and stands in for itself in one of each other rank: each
        # needs the sum, and at most as much again to receive into.
        most = own + 2 * vector * self.ctx.size
        held = stats.buffer_bytes
        assert held <= most, f"rank {self.ctx.rank}: {held} bytes of buffers are more than {most}"


# ---- judged by rank 0 ----------------------------------------------------------------------------


class Judge:
    """Judges the parts of a case; keeps what it knows of the ranks between them."""

    def __init__(self, case: Case, rank: Rank, initials: list[bytes]) -> None:
        self.case, self.ranks = case, len(initials)
        self.generator = rank.request.generator
        self.phases = phases(rank)
        self.association = associations(rank)
        self.initials = initials if case.weights == "initial" else None
        self.took = [0] * self.ranks  # the iteration that each has taken over
        self.last = [0] * self.ranks  # serial number of its last group
        self.tally = Tally()

    def part(self, logs: list[list[Entry]]) -> None:
        formed, newest = self._groups(logs)
        asked = [[entry.asked for entry in log] for log in logs]
        dynamic = self.case.weights != "constant"
        Replay(asked, "f8", self.association, dynamic=dynamic, initials=self.initials).run(
            formed.values()
        )
        if dynamic:
            self._iterations(asked, formed, newest)
        self._count(logs, formed)

    def _groups(self, logs: list[list[Entry]]) -> tuple[dict[int, Formed], dict[int, int]]:
        """Return the groups by serial number, and their newest iterations."""
        formed: dict[int, Formed] = {}
        told: dict[int, tuple[object, ...]] = {}
        newest: dict[int, int] = {}
        for rank, log in enumerate(logs):
            for entry in log:
                given, asked = entry.given, entry.asked
                if given is None:
                    continue
                assert rank in given.members, f"rank {rank} is not in its group: {given}"
                assert list(given.members) == sorted(set(given.members)), f"members: {given}"
                if given.round == 0:
                    assert given.members == (rank,), f"rank {rank} alone: {given}"
                    assert (given.weights, given.initial) == ((1.0,), 0.0), f"rank {rank}: {given}"
                    continue
                assert given.round > self.last[rank], f"rank {rank}: another order: {given}"
                self.last[rank] = given.round
                iteration = given.iteration if self.case.weights != "constant" else 0
                all_of_it = (given.members, given.weights, given.initial, iteration, asked.after)
                assert told.setdefault(given.round, all_of_it) == all_of_it, (
                    f"rank {rank} was told something else of group {given.round}: {given}"
                )
                formed[given.round] = Formed(
                    *(given.round, given.members, given.weights, given.initial, asked.flush),
                    ranks=self._ranks(given, asked.flush),
                )
                newest[given.round] = given.iteration + 1
        for group in formed.values():
            if group.flush or self.case.weights == "constant":
                assert group.weights == (1 / len(group.members),) * len(group.members), f"{group}"
                assert group.initial == 0, f"{group}"
            assert not group.flush or len(group.members) == self.ranks, f"a flush without {group}"
        return formed, newest

    def _ranks(self, given: Given, flush: bool) -> tuple[int, ...]:
        """Return the ranks of a group of a table by messages, of which some may have left."""
        if not self.phases:
            return ()
        if flush:
            return tuple(range(self.ranks))
        call = given.round >> TABLE_RANK_BITS & 0xFFFFFFFF  # since the last flush
        phase = self.phases[(call - 1) % len(self.phases)]
        return next(group for group in phase if given.members[0] in group)

    def _iterations(
        self, logs: list[list[Asked]], formed: dict[int, Formed], newest: dict[int, int]
    ) -> None:
        """Check weights against the members' iterations, as the replay has ordered the groups."""
        requests = {(r, s): one for r, log in enumerate(logs) for one in log for s in one.ran or ()}
        for serial, group in sorted(formed.items()):
            own = [max(self.took[r], requests[r, serial].iteration) for r in group.members]
            assert newest[serial] == max(own), f"the newest of {own} is not {newest[serial]}"
            if not group.flush:
                wanted, initial = weights_of(self.case.weights, ALPHA, own)
                assert (tuple(wanted), initial) == (group.weights, group.initial), f"{own}: {group}"
            for rank in group.members:
                self.took[rank] = newest[serial]

    def _count(self, logs: list[list[Entry]], formed: dict[int, Formed]) -> None:
        tally = self.tally
        size = getattr(self.generator, "size", 0)
        for group in formed.values():
            if not group.flush:
                tally.groups += 1
                tally.members += len(group.members)
                tally.shrunk += len(group.members) < size
                tally.served |= set(group.members) if len(group.members) > 1 else set()
        for log in logs:
            tally.requests += len(log) - 1
            tally.dropped += sum(entry.given is None for entry in log)
            tally.alone += sum(
                entry.given is not None and len(entry.given.members) == 1 for entry in log
            )


def phases(rank: Rank) -> list[list[tuple[int, ...]]]:
    """Return the groups of a table by messages, which have no other record; none otherwise."""
    request, ranks = rank.request, rank.ctx.size
    by_messages = request.backend == "schedule" and rank.case.weights == "constant"
    table = request.generator._table(rank.ctx._native, rank.ctx._ctx, ranks)
    if table is None or not by_messages:
        return []
    following = ffi.unpack(table, len(table))
    return [groups_of(following[at : at + ranks]) for at in range(0, len(following), ranks)]


def associations(rank: Rank) -> Callable[[int], str]:
    """Return a function of the number of members: how the sum of a group is associated."""
    if rank.request.backend == "node":
        return lambda members: "node"
    link, count = lib.pp_ctx_link(rank.ctx._ctx), rank.model.size

    def chosen(members: int) -> str:
        choice = ffi.new("pp_choice_t *")
        assert lib.pp_choose(ffi.NULL, 0, count, 8, members, link, choice) == lib.PP_OK
        return ALGORITHMS[choice.algorithm]

    return chosen


def agree(comm: MPI.Comm, check: Callable[[], None] | None) -> None:
    """Let ranks check something; raise AssertionError on every rank if one of them fails."""
    complaint = None
    if check:
        try:
            check()
        except AssertionError as error:
            complaint = str(error)
    complaints = [one for one in comm.allgather(complaint) if one is not None]
    assert not complaints, complaints[0]


def process_bytes() -> int:
    """Return the memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES


def check_growth(comm: MPI.Comm, seen: list[int]) -> None:
    """Compare the most of each half, on every rank."""
    half = len(seen) // 2
    for rank, grown in enumerate(comm.allgather(max(seen[half:]) - max(seen[:half]))):
        assert grown <= GROWTH_BYTES, f"rank {rank} has grown by {grown} bytes"


def live(ctx: pp.Context, case: Case, options: argparse.Namespace, seed: int) -> tuple[Tally, str]:
    """Run one case; raise AssertionError on every rank if something is wrong."""
    comm = ctx.comm
    rank = Rank(ctx, case, options, seed)
    backend = rank.request.backend
    initials = comm.gather(rank.initial)
    judge = Judge(case, rank, initials) if initials is not None else None
    tally, seen = Tally(), []
    everybody = set(range(comm.size))
    try:
        # On a busy machine a rank may sleep through the only part: then there is another one.
        while tally.groups < case.groups or (tally.served != everybody and len(seen) < PARTS_MAX):
            logs = comm.gather(rank.part())

            agree(comm, functools.partial(judge.part, logs) if judge and logs else None)
            del logs
            tally = comm.bcast(judge.tally if judge else None)
            agree(comm, rank.check_buffers)
            seen.append(process_bytes())
    finally:
        rank.request.Free(HANGS_S)
    assert tally.served == everybody, f"only ranks {tally.served} were in groups"
    if case.groups >= ENOUGH_GROUPS and len(seen) > 3:
        check_growth(comm, seen)
    return tally, backend


# ---- all of them ---------------------------------------------------------------------------------

COLUMNS = "{:18} {:9} {:>7} {:9} {:>7} {:>6} {:>7} {:>7} {:>8} {:>8}  {}"
HEAD = COLUMNS.format(
    "generator", "weights", "bytes", "backend", "groups", "size", "alone", "shrunk", "dropped",
    "seconds", "oracles",
)  # fmt: skip


def row(case: Case, tally: Tally, backend: str, seconds: float, verdict: str) -> str:
    size = f"{tally.members / max(1, tally.groups):.2f}"
    return COLUMNS.format(
        case.generator, case.weights, case.size_bytes, backend, tally.groups, size, tally.alone,
        tally.shrunk, tally.dropped, f"{seconds:.1f}", verdict,
    )  # fmt: skip


def main() -> None:
    comm, options = MPI.COMM_WORLD, parse()
    checks = Checks(comm)
    began = time.monotonic()
    checks.say(HEAD)
    with pp.Context(comm, seed=options.seed) as ctx:
        for number, case in enumerate(cases(options)):
            case_began = time.monotonic()
            tally, backend = Tally(), ""
            try:
                tally, backend = live(ctx, case, options, 1000 * options.seed + number)
                verdict = "ok"
            except AssertionError as error:  # raised by all ranks
                verdict = f"FAILED: {error}"
            checks.count(verdict == "ok")
            checks.say(row(case, tally, backend, time.monotonic() - case_began, verdict))
    checks.say(f"\n{time.monotonic() - began:.0f} s on {comm.size} ranks\n")
    checks.end()


if __name__ == "__main__":
    run(main, parse().limit)
