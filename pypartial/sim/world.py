"""Many simulated ranks in one process: programs, virtual time, the core's functions.

A *program* is a generator, one for each rank, that yields its next request:

- an integer: sleep this many nanoseconds of virtual time; ``("at", time)``: sleep until then;
- ``("start", handle)``: trigger the handle (never waits);
- ``("wait", handle)``: collect the request; the generator receives a :class:`Round`;
- ``("test", handle)``: a :class:`Round`, or None if the request is not complete;
- ``("wait_for", handle, ns)``: a :class:`Round`, or None if the request is not complete after this
  time; ``("timed_out", handle)`` then tells the core that the program goes on: a Start may follow;
- ``("more", handle)``: the next complete round that the rank was not given yet, or None;
- ``("flush", handle)`` / ``("drain", handle)`` / ``("free", handle)``: collective; a `Round`, a
  `Round`, the number of contributions discarded;
- ``("init", options)``: collective; receives a :class:`Handle`. ``("init", complaint)`` with a
  string takes part with bad arguments. A context other than 0 is named by a third element;
- ``("ctx_free",)`` or ``("ctx_free", context)``: collective;
- ``("away",)`` and ``("back",)``, or with a context: the program's own blocking calls go between;
- ``("abandon",)``, or with a context: gives it up, as an exception does that leaves its block;
- ``("end_script",)``, or with a context: nothing but the end of MPI follows. Not for ranks that
  share memory, like the one before;
- ``("aside",)`` and ``("beside",)``, or with a context: a blocking call of the program's own that
  the library sees goes between;
- handles of other kinds have requests of their own in place of "init" and "start", which the files
  of these kinds describe (`requests.KINDS`); all other requests take such a handle, too;
- ``("barrier",)``: wait until all programs are here; the simulation does it without a message;
- ``("threads", programs)``: run these programs at the same time on the same rank, each with handles
  of its own, until they have ended. Not for ranks that share memory: each of them has one stack;
- ``("late", delay, request)``: a collective call that the application returns from only after
  `delay`, although the engine may have finished it earlier;
- ``("begin", request)`` and ``("finish",)``: the two halves of a collective call; the program may
  do something wrong in between.

An error of the core is thrown into the program as a :class:`CoreError`.

The world interleaves programs and messages by virtual time. If nothing is under way and a program
still waits, it raises a :class:`Deadlock`, which says which ranks wait for what.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from .._core_sim import ffi, lib
from .handle import AnyHandle, CoreError, check
from .network import Link, Network
from .requests import DONE, STARTS, Poll, Requests

NOTHING_UNDER_WAY = 2**64 - 1


class Deadlock(AssertionError):
    """Programs wait, and nothing is under way."""


Program = Generator[Any, Any, None]


@dataclass(frozen=True)
class _TimeOver:
    """Wakes a program that has waited long enough."""

    poll: Poll


class Begun(NamedTuple):
    """A group that has begun, a flush, or a rank that goes on alone."""

    time: int
    handle: int  # its number
    serial: int
    members: tuple[int, ...]
    weights: tuple[float, ...]
    initial: float
    newest: int  # of the members' iterations
    flush: bool
    rank: int  # that goes on alone; the group has no members


_DIES = object()  # wakes a rank to be killed
_INLINE_BYTES = 17408  # the longest message without rendezvous
_EXPLAINED = 32  # waiting ranks that a deadlock's report names


def _dead() -> Program:
    """Return the program of a rank that was killed: it does nothing."""
    yield 0


def _jittering(least: int, most: int) -> Network:
    return Network("test", Link(least, 0, 0, 0, _INLINE_BYTES, jitter_ns=most - least))


def describe_network(into: Any, network: Network) -> None:
    """Fill in the core's ``pp_network_t``."""
    for link, made in ((into.between, network.between), (into.within, network.within)):
        made = made or network.between
        link.latency_ns = made.latency_ns
        link.overhead_ns = made.overhead_ns
        link.gap_ns = made.gap_ns
        link.byte_ps = made.byte_ps
        never = made.rendezvous_bytes is None
        link.rendezvous_bytes = NOTHING_UNDER_WAY if never else made.rendezvous_bytes
        link.jitter_ns = made.jitter_ns
    into.node_ranks = network.node_ranks
    into.headers_free = network.headers_free
    into.noise_ns = network.noise_ns
    into.reduce_ps = network.reduce_ps


def _obstacles(ask: Callable[[Any, Any], int], of: Any) -> list[str]:
    """Return what keeps a rank from going on, one line for each thing."""
    text = ffi.new("char **")
    if ask(of, text) < 0:
        return []  # its context has failed, or is freed
    lines = ffi.string(text[0]).decode().splitlines()
    lib.pp_text_free(text[0])
    return lines


class World:
    """Runs the programs of all ranks over the simulated network.

    Parameters
    ----------
    ranks : int
    seed : int
        Seed of the draws of network and policies.
    network : Network or None
        None for the network of the tests: a message takes a time drawn from `latency`, and nothing
        else costs time.
    latency : tuple of int
        Shortest and longest time of a message in nanoseconds, without a `network`.
    window : int
        Rounds of a handle that may be in flight at once.
    contexts : int
        Number of contexts of every rank, each over a network of its own with the same clock.
    plant : int
        A defect (``PP_PLANT_...``) of all ranks.
    memory : tuple of int
        Empty: the ranks share no memory. Else they make their rounds in shared memory. The first
        number is the interruptions among 1,000 accesses to it; the second is the longest
        interruption in nanoseconds, whose times are drawn from 0 on. The third is the number of
        ranks on a node; without it, all ranks are on one. The fourth is their layout
        (``PP_LAYOUT_...``).
    magnify : int
        Each byte of a vector counts as this many bytes in that memory, where rounds of large
        vectors wait for ranks that come a little later, and are cut into chunks.
    room : int
        So many Starts of a rank can be pending there one by one: what comes then is added to one of
        them. Nor has the ring entries to spare for views. 0: as much room as processes have.
    patience : int or None
        Nanoseconds for which a rank may hold a round up; -1: by its usual time; None: for ever.
    backlog : int
        Bytes that results may take which are queued while patience is over; 0: no limit.
    groups_plant : str
        A defect of the generators of groups (`groups.PLANTS`).
    keep_groups : bool
        Whether `groups_begun` shall tell what groups begin.

    Attributes
    ----------
    now : int
        The virtual time in nanoseconds.

    Notes
    -----
    The seed decides whether a program runs before or after other events of the same time. So with
    messages that take no time, in one run ranks call at once without having heard of each other,
    and in another run one after the other.
    """

    def __init__(
        self,
        ranks: int,
        *,
        seed: int = 0,
        network: Network | None = None,
        latency: tuple[int, int] = (500, 5000),
        window: int = 4,
        contexts: int = 1,
        plant: int = lib.PP_PLANT_NONE,
        memory: tuple[int, ...] = (),
        magnify: int = 1,
        room: int = 0,
        patience: int | None = None,
        backlog: int = 0,
        groups_plant: str = "none",
        keep_groups: bool = False,
    ) -> None:
        config = ffi.new("pp_sim_config_t *")
        config.ranks = ranks
        config.plant = plant
        if memory:
            config.pace.per_mille, config.pace.longest_ns = memory[:2]
            config.pace.magnify, config.pace.room = magnify, room
            config.node_ranks = memory[2] if len(memory) > 2 else ranks
            config.layout = memory[3] if len(memory) > 3 else lib.PP_LAYOUT_BLOCKS
        describe_network(config.network, network or _jittering(*latency))
        config.ctx.seed = seed
        config.ctx.window = window
        config.ctx.patience_ns = 0 if patience is None else patience
        config.ctx.backlog_bytes = backlog
        self.ranks = ranks
        self.sims = []
        for i in range(contexts):
            config.seed = seed + i
            out = ffi.new("pp_sim_t **")
            check(lib.pp_sim_open(config, out))
            self.sims.append(ffi.gc(out[0], lib.pp_sim_free))
        for sim in self.sims if keep_groups else ():
            lib.pp_sim_keep_groups(sim)
        self._groups_plant = groups_plant
        self.contexts = [[lib.pp_sim_ctx(sim, r) for r in range(ranks)] for sim in self.sims]
        self.now = 0
        self._programs_first = seed & 1
        self._stats = ffi.new("pp_stats_t *")
        self._rank = ffi.new("int32_t *")
        # Programs by number: those of the ranks, then their other threads.
        self._ranks = list(range(ranks))
        self._threads: dict[int, list[int]] = {}  # by rank: its other threads that are alive
        self._parents: dict[int, int] = {}
        self._children: dict[int, int] = {}  # threads that a program waits for
        self._requests = Requests(self.sims, self.contexts, bool(memory), groups_plant)
        self._memory = bool(memory)
        self._waiting: dict[tuple[int, int], int] = {}  # by rank and context: programs in a wait
        self._blocked: dict[int, tuple[int, Poll]] = {}  # context, poll
        self._what: dict[int, tuple[Any, ...]] = {}
        self._begun: dict[int, tuple[int, Poll]] = {}
        self._begun_what: dict[int, tuple[Any, ...]] = {}
        self._ready: list[tuple[int, int, int, Any]] = []
        self._programs: list[Program] = []
        self._sequence = 0
        self._stopped = False
        self._at_barrier: list[int] = []

    # ---- looking ------------------------------------------------------------------------------

    def stats(self, rank: int, context: int = 0) -> Any:
        """Return the counters of one rank; valid until the next call.

        Raises
        ------
        CoreError
            If the rank is interrupted in the middle of a call.
        """
        lib.pp_ctx_stats(self.contexts[context][rank], self._stats)
        if self._stats.neighbours == 0:  # nothing was told
            raise CoreError(lib.PP_ERR_STATE)
        return self._stats

    def handles(self, rank: int, context: int = 0) -> int:
        """Return how many handles a rank looks at whenever something has changed there."""
        return int(lib.pp_sim_handles(self.sims[context], rank))

    def coverage(self) -> dict[str, int]:
        """Return how often each interleaving occurred that is hard to get right."""
        counts = ffi.new("pp_coverage_t *")
        sums = dict.fromkeys(
            (
                "initiators_met",
                "departures",
                "windows_full",
                "draws_handed_on",
                "crossings",
                "announced",
                "landings",
                "graces_met",
                "graces_over",
                "merges",
                "merges_away",
                "asides",
                "deadlines",
            ),
            0,
        )
        for sim in self.sims:
            lib.pp_sim_coverage(sim, counts)
            for name in sums:
                sums[name] += int(getattr(counts, name))
        return sums

    def interruptions(self) -> int:
        """Return how often ranks were interrupted at an access to shared memory."""
        return sum(int(lib.pp_sim_interruptions(sim)) for sim in self.sims)

    def ran_dead(self) -> int:
        """Return how often ranks that share memory went on when they were dead: never."""
        return sum(int(lib.pp_sim_ran_dead(sim)) for sim in self.sims)

    def staleness(self) -> list[int]:
        """Return how many parts of rounds were 0, 1, 2, ... rounds stale.

        A part is what one rank gave to one round; its staleness is that of its oldest contribution.
        The last entry counts all larger values, too.
        """
        counts = ffi.new("pp_coverage_t *")
        sums = [0] * lib.PP_STALENESS_BINS
        for sim in self.sims:
            lib.pp_sim_coverage(sim, counts)
            sums = [old + int(new) for old, new in zip(sums, counts.staleness, strict=True)]
        return sums

    def agreed(self, options: Any) -> list[Any]:
        """Open a handle at every rank, without the messages of an agreement on its arguments.

        Call it before `run`, in place of every request that makes a handle of this kind.
        """
        handles = []
        out = ffi.new("pp_handle_t **")
        for context in self.contexts[0]:
            handle: AnyHandle = options.handle()
            config = handle.config(self.ranks, self._groups_plant)
            check(getattr(lib, handle.pretends)(context, config, out))
            handle.coll = out[0]
            handles.append(handle)
        return handles

    def groups_begun(self, context: int = 0) -> Iterator[Begun]:
        """Yield the groups that have begun since the last call, with `keep_groups` only."""
        while (group := lib.pp_sim_group(self.sims[context])) != ffi.NULL:
            yield Begun(
                group.time_ns,
                group.handle,
                group.serial,
                tuple(ffi.unpack(group.members, group.count)),
                tuple(ffi.unpack(group.weights, group.count)),
                group.initial,
                group.newest,
                bool(group.flush),
                group.rank,
            )

    def stop(self) -> None:
        """End the run at once, although messages may be under way."""
        self._stopped = True

    def state(self, rank: int, handle: AnyHandle) -> Any:
        """Return this rank's state, as it answers questions; it also questions all other ranks."""
        states = ffi.new("pp_rank_state_t[]", self.ranks)
        context = self.contexts[handle.context][rank]
        check(lib.pp_ask(context, lib.pp_handle_id(handle.coll), 0, states))
        self._keep = states
        return states[rank]

    def ask(self, rank: int, context: int = 0) -> None:
        """Send every other rank the question what it is doing."""
        states = ffi.new("pp_rank_state_t[]", self.ranks)
        check(lib.pp_ask(self.contexts[context][rank], 0, 0, states))

    def quiet(self) -> bool:
        """Return whether no message is under way."""
        return all(lib.pp_sim_next_ns(sim) == NOTHING_UNDER_WAY for sim in self.sims)

    def kill(self, rank: int, time: int, detected_after: int | None = None) -> None:
        """Let a rank die at a virtual time, in all contexts.

        Parameters
        ----------
        rank : int
        time : int
            Nanoseconds.
        detected_after : int or None
            Nanoseconds from the death until every other rank's context fails; None: never.
        """
        after = NOTHING_UNDER_WAY if detected_after is None else detected_after
        for sim in self.sims:
            check(lib.pp_sim_kill(sim, rank, time, after))
        self._schedule(rank, time, _DIES)

    # ---- what programs yield ------------------------------------------------------------------

    def _begin(self, thread: int, request: tuple[Any, ...]) -> tuple[int, Poll]:
        kind, *arguments = request
        if kind == "begin":
            self._begun[thread] = self._begin(thread, arguments[0])
            self._begun_what[thread] = arguments[0]
            return 0, DONE
        if kind == "finish":
            return self._begun.pop(thread)
        return self._requests.begin(self._ranks[thread], request)

    # ---- running ------------------------------------------------------------------------------

    def _schedule(self, thread: int, time: int, what: Any) -> None:
        self._sequence += 1
        heapq.heappush(self._ready, (time, self._sequence, thread, what))

    def _advance(self, thread: int, value: Any, error: CoreError | None = None) -> None:
        """Run a program until it sleeps, blocks or ends."""
        program = self._programs[thread]
        while True:
            try:
                request = program.throw(error) if error else program.send(value)
            except StopIteration:
                self._end(thread)
                return
            error = value = None
            if isinstance(request, int):
                request = ("at", self.now + request)
            if request[0] == "at":
                self._schedule(thread, max(request[1], self.now), None)
                return
            if request[0] == "barrier":
                self._enter_barrier(thread)
                return
            if request[0] == "threads":
                self._fork(thread, request[1])
                return
            try:
                if request[0] == "late":
                    began = self._begin(thread, request[2])
                    self._what[thread] = request[2]
                    self._schedule(thread, self.now + request[1], began)
                    return
                context, poll = self._begin(thread, request)
                done, value = poll()
            except CoreError as failed:
                error = failed
                continue
            if not done:
                self._block(thread, request, context, poll)
                return

    def _block(self, thread: int, request: tuple[Any, ...], context: int, poll: Poll) -> None:
        self._what[thread] = request
        self._blocked[thread] = context, poll
        if request[0] == "wait_for" and not self._memory:
            self._schedule(thread, self.now + request[2], _TimeOver(poll))
        if request[0] in ("wait", "wait_for"):
            self._count_waiting(self._ranks[thread], context, 1)

    def _unblock(self, thread: int) -> None:
        blocked = self._blocked.pop(thread, None)
        if blocked and self._what[thread][0] in ("wait", "wait_for"):
            self._count_waiting(self._ranks[thread], blocked[0], -1)

    def _count_waiting(self, rank: int, context: int, change: int) -> None:
        """Tell the other contexts whether the rank's process waits in this one."""
        if len(self.sims) == 1:
            return
        self._waiting[rank, context] = self._waiting.get((rank, context), 0) + change
        waiting = [self._waiting.get((rank, i), 0) for i in range(len(self.sims))]
        for other, sim in enumerate(self.sims):
            if other != context:
                lib.pp_sim_wait_elsewhere(sim, rank, sum(waiting) > waiting[other])

    def _fork(self, parent: int, programs: Sequence[Program]) -> None:
        rank = self._ranks[parent]
        assert programs
        assert not self._memory, "ranks that share memory have one thread each"
        self._children[parent] = len(programs)
        for program in programs:
            thread = len(self._programs)
            self._programs.append(program)
            self._ranks.append(rank)
            self._threads.setdefault(rank, []).append(thread)
            self._parents[thread] = parent
            self._schedule(thread, self.now, None)

    def _end(self, thread: int) -> None:
        parent = self._parents.get(thread)
        if parent is None:
            return
        self._threads[self._ranks[thread]].remove(thread)
        self._children[parent] -= 1
        if self._children[parent] == 0:
            self._schedule(parent, self.now, None)

    def _enter_barrier(self, thread: int) -> None:
        self._at_barrier.append(thread)
        if len(self._at_barrier) == self.ranks:
            for member in sorted(self._at_barrier):
                self._schedule(member, self.now, None)
            self._at_barrier = []

    def _poll(self, thread: int, context: int, poll: Poll) -> None:
        """Let a program go on if its request is done."""
        try:
            done, value = poll()
        except CoreError as error:
            self._unblock(thread)
            self._advance(thread, None, error)
            return
        if done:
            self._unblock(thread)
            self._advance(thread, value)
        else:
            self._blocked[thread] = context, poll

    def _poll_all(self, rank: int, context: int) -> None:
        """Let the programs of a rank go on whose requests of this context are done."""
        for thread in (rank, *self._threads.get(rank, ())):
            blocked = self._blocked.get(thread)
            if blocked and blocked[0] == context:
                self._poll(thread, *blocked)

    def _set_now(self, time: int) -> None:
        self.now = max(time, self.now)
        for sim in self.sims:
            if self.now > lib.pp_sim_now_ns(sim):
                check(lib.pp_sim_set_now(sim, self.now))

    def _wake(self) -> None:
        time, _, thread, what = heapq.heappop(self._ready)
        self._set_now(time)
        if what is _DIES:
            self._die(thread)
        elif what is None:
            self._advance(thread, None)
        elif isinstance(what, _TimeOver):
            self._give_up(thread, what.poll)
        else:
            self._poll(thread, *what)

    def _die(self, rank: int) -> None:
        gone = {rank, *self._threads.pop(rank, ())}
        for thread in gone:
            self._programs[thread] = _dead()
            next(self._programs[thread])
            self._blocked.pop(thread, None)
        self._at_barrier = [member for member in self._at_barrier if member not in gone]
        self._ready = [entry for entry in self._ready if entry[2] not in gone]
        heapq.heapify(self._ready)

    def _give_up(self, thread: int, poll: Poll) -> None:
        """End a wait that has lasted long enough, if the program is still in it."""
        if self._blocked.get(thread, (0, None))[1] is poll:
            self._requests.forget(self._ranks[thread], self._what[thread])
            self._unblock(thread)
            self._advance(thread, None)

    def _earliest(self) -> tuple[int, int]:
        """Return the context of the next event, and its time."""
        if len(self.sims) == 1:
            return 0, lib.pp_sim_next_ns(self.sims[0])
        times = [lib.pp_sim_next_ns(sim) for sim in self.sims]
        return times.index(min(times)), min(times)

    def _deliver(self, context: int, time: int, wake: int) -> None:
        """Handle the events before the next program wakes by itself."""
        until = wake - self._programs_first if wake > time else time
        if len(self.sims) > 1:
            until = time
        sim = self.sims[context]
        while True:
            status = check(lib.pp_sim_advance(sim, until, self._rank))
            if len(self.sims) > 1:
                self._set_now(max(self.now, lib.pp_sim_now_ns(sim)))
            else:
                self.now = max(self.now, lib.pp_sim_now_ns(sim))
            if status == lib.PP_PENDING:
                return
            self._poll_all(self._rank[0], context)
            if self._stopped or (self._ready and self._ready[0][0] <= until):
                return

    def explain(self) -> str:
        """Return in words which ranks wait, and for what."""
        lines = [f"nothing is under way at {self.now} ns, and there wait"]
        for thread in sorted(self._blocked)[:_EXPLAINED]:
            request, rank = self._what[thread], self._ranks[thread]
            if request[0] == "finish":
                request = self._begun_what.get(thread, request)
            line = f"rank {rank} in {request[0]}"
            context = self._blocked[thread][0]
            if len(request) > 1 and isinstance(request[1], AnyHandle):
                handle = request[1]
                number = lib.pp_handle_id(handle.coll)
                line += f" of handle {number}: {self._described(rank, handle)}"
            if request[0] in (*STARTS, "wait", "wait_for"):
                found = _obstacles(lib.pp_handle_obstacles, request[1].coll)
            else:
                found = _obstacles(lib.pp_ctx_obstacles, self.contexts[context][rank])
            lines.append("\n    ".join([line, *found]))
        for rank in sorted(self._at_barrier)[:_EXPLAINED]:
            lines.append(f"rank {rank} in a barrier, with {len(self._at_barrier)} of {self.ranks}")
        if len(self._blocked) > _EXPLAINED:
            lines.append(f"and {len(self._blocked) - _EXPLAINED} more")
        return "\n  ".join(lines)

    def _described(self, rank: int, handle: AnyHandle) -> str:
        try:
            s = self.state(rank, handle)
        except CoreError as error:
            return error.text  # the context has failed, and the program waits nevertheless
        return (
            f"completed {s.completed}, joined {s.joined}, ready {s.ready}, place {s.place}, "
            f"withholding {s.withholding}, calls {s.calls}"
        )

    def run(self, programs: Sequence[Program]) -> None:
        """Run all programs to the end, and deliver all messages.

        Raises
        ------
        Deadlock
            If nothing moves any more and a program waits.
        """
        self._programs = list(programs)
        assert len(self._programs) == self.ranks
        try:
            self._run()
        finally:
            self._programs = []  # they refer to the world: in a circle it would not be freed

    def _run(self) -> None:
        for rank in range(self.ranks):
            self._schedule(rank, self.now, None)
        while not self._stopped:
            wake = self._ready[0][0] if self._ready else NOTHING_UNDER_WAY
            context, time = self._earliest()
            if wake == time == NOTHING_UNDER_WAY:
                break
            if wake < time or (wake == time and self._programs_first):
                self._wake()
            else:
                self._deliver(context, time, wake)
        if (self._blocked or self._at_barrier) and not self._stopped:
            raise Deadlock(self.explain())
