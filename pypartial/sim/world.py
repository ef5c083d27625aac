"""Many simulated ranks in one process: programs, virtual time, the core's functions.

A *program* is a generator, one a rank, that yields what it wants next:

- an integer: sleep so many nanoseconds of virtual time; ``("at", time)``: sleep until then;
- ``("start", handle)``: trigger the handle (never waits);
- ``("wait", handle)``: collect the request; the generator receives a :class:`Round`;
- ``("test", handle)``: a :class:`Round`, or None if the request is not complete;
- ``("flush", handle)`` / ``("drain", handle)`` / ``("free", handle)``: collective; a `Round`, a
  `Round`, the number of contributions discarded;
- ``("init", options)``: collective; receives a :class:`Handle`. ``("init", complaint)`` with a
  string takes part with bad arguments. A context other than 0 is named by a third element;
- ``("ctx_free",)`` or ``("ctx_free", context)``: collective;
- ``("barrier",)``: until all programs are here; of the simulation, so it costs no message;
- ``("late", delay, request)``: a collective call that the application returns from only after
  `delay`, although the engine may be through with it earlier;
- ``("begin", request)`` and ``("finish",)``: the two halves of a collective call, with whatever the
  program does wrong in between.

An error of the core is thrown into the program as a :class:`CoreError`.

The world interleaves programs and messages by virtual time. When nothing is under way and somebody
still waits, that is a :class:`Deadlock`, which says who waits for what.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Generator, Sequence
from typing import Any

from .._core_sim import ffi, lib
from .handle import CoreError, Handle, Options, Round, check
from .network import Link, Network

NOTHING_UNDER_WAY = 2**64 - 1


class Deadlock(AssertionError):
    """Programs wait and nothing is under way."""


Program = Generator[Any, Any, None]
Poll = Callable[[], tuple[bool, Any]]
DONE: Poll = lambda: (True, None)  # noqa: E731


def _none() -> None:
    """Give nothing: the value of calls that have none."""


_DIES = object()  # what a rank wakes up for when it is killed
_INLINE_BYTES = 17408  # the longest message: what is longer goes by rendezvous
_EXPLAINED = 32  # waiting ranks that a deadlock's report names


def _dead() -> Program:
    """Give the program of a rank that was killed: it does nothing."""
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
    """Return what keeps a rank from going on, one thing a line."""
    text = ffi.new("char **")
    if ask(of, text) < 0:
        return []  # its context has failed, or is freed
    lines = ffi.string(text[0]).decode().splitlines()
    lib.pp_text_free(text[0])
    return lines


class World:
    """Runs one program a rank over the simulated network.

    Parameters
    ----------
    ranks : int
    seed : int
        Of the network's draws and of the policies'.
    network : Network or None
        None for the one of the tests: messages take a time drawn from `latency`, and nothing else.
    latency : tuple of int
        Shortest and longest time of a message in nanoseconds, without a `network`.
    window : int
        Rounds of a handle in flight at once.
    contexts : int
        Contexts of every rank, each over a network of its own with the same clock.
    plant : int
        A defect (``PP_PLANT_...``) that all ranks have.
    memory : tuple of int
        The ranks share memory and make their rounds in it: at so many of a thousand accesses to
        it a rank is interrupted, for a time drawn from 0 to so many nanoseconds. A third number:
        each so many ranks are on one node; without it, all are. A fourth: how they are laid out
        (``PP_LAYOUT_...``). Empty: they share none.
    magnify : int
        For so many bytes each one of a vector counts in that memory, where rounds of large vectors
        wait for ranks that come a little later, and are cut into chunks.
    patience : int or None
        How many nanoseconds a rank may hold a round up; -1: by its habit; None: for ever.

    Attributes
    ----------
    now : int
        The virtual time in nanoseconds.

    Notes
    -----
    Programs run when nothing else is due at their time, or before it: which of the two the seed
    decides.  So with messages that take no time, ranks call at once without having heard of each
    other in one run, and one after the other in the next.
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
        patience: int | None = None,
    ) -> None:
        config = ffi.new("pp_sim_config_t *")
        config.ranks = ranks
        config.plant = plant
        if memory:
            config.pace.per_mille, config.pace.longest_ns = memory[:2]
            config.pace.magnify = magnify
            config.node_ranks = memory[2] if len(memory) > 2 else ranks
            config.layout = memory[3] if len(memory) > 3 else lib.PP_LAYOUT_BLOCKS
        describe_network(config.network, network or _jittering(*latency))
        config.ctx.seed = seed
        config.ctx.window = window
        config.ctx.patience_ns = 0 if patience is None else patience
        self.ranks = ranks
        self.memory = bool(memory)
        self.sims = []
        for i in range(contexts):
            config.seed = seed + i
            out = ffi.new("pp_sim_t **")
            check(lib.pp_sim_open(config, out))
            self.sims.append(ffi.gc(out[0], lib.pp_sim_free))
        self.contexts = [[lib.pp_sim_ctx(sim, r) for r in range(ranks)] for sim in self.sims]
        self.now = 0
        self._programs_first = seed & 1
        self._stats = ffi.new("pp_stats_t *")
        self._rank = ffi.new("int32_t *")
        self._blocked: dict[int, tuple[int, Poll]] = {}  # by rank: context, poll
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
        """Return the counters of one rank; valid until the next call."""
        lib.pp_ctx_stats(self.contexts[context][rank], self._stats)
        return self._stats

    def coverage(self) -> dict[str, int]:
        """Return how often the interleavings occurred that are hard to get right."""
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

    def turns(self) -> int:
        """Return how often ranks were interrupted at an access to the memory that they share."""
        return sum(int(lib.pp_sim_turns(sim)) for sim in self.sims)

    def staleness(self) -> list[int]:
        """Return how many parts of rounds were so many rounds stale, from 0 on.

        A part is what one rank gave to one round; its staleness is that of its oldest contribution.
        The last entry counts everything above.
        """
        counts = ffi.new("pp_coverage_t *")
        sums = [0] * lib.PP_STALENESS_BINS
        for sim in self.sims:
            lib.pp_sim_coverage(sim, counts)
            sums = [old + int(new) for old, new in zip(sums, counts.staleness, strict=True)]
        return sums

    def agreed(self, options: Options) -> list[Handle]:
        """Open a handle at every rank, without the messages of an agreement on its arguments.

        Before `run`, and instead of every ``("init", ...)``.
        """
        handles = []
        out = ffi.new("pp_handle_t **")
        for context in self.contexts[0]:
            handle = Handle(options)
            check(lib.pp_sim_allreduce(context, handle.config(self.ranks), out))
            handle.coll = out[0]
            handles.append(handle)
        return handles

    def stop(self) -> None:
        """End the run here and now, whatever is under way."""
        self._stopped = True

    def state(self, rank: int, handle: Handle) -> Any:
        """Return what this rank says of itself when asked (sends questions to all the others)."""
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
        """Whether no message is under way."""
        return all(lib.pp_sim_next_ns(sim) == NOTHING_UNDER_WAY for sim in self.sims)

    def kill(self, rank: int, time: int, detected_after: int | None = None) -> None:
        """Let a rank die at a virtual time, in all contexts.

        Parameters
        ----------
        rank : int
        time : int
            Nanoseconds.
        detected_after : int or None
            So many nanoseconds later every other rank's context fails; None: nobody is told.
        """
        after = NOTHING_UNDER_WAY if detected_after is None else detected_after
        for sim in self.sims:
            check(lib.pp_sim_kill(sim, rank, time, after))
        self._schedule(rank, time, _DIES)

    # ---- what programs yield ------------------------------------------------------------------

    def _do(self, rank: int, context: int, *calls: Any, give: Callable[[], Any]) -> Poll:
        """Return a poll for calls of ranks that share memory, made one after the other."""
        sim, left = self.sims[context], list(calls)
        status = ffi.new("int32_t *")
        under_way: list[Any] = []

        def begin() -> None:
            call = ffi.new("pp_sim_call_t *", left.pop(0))
            under_way.append(call)
            check(lib.pp_sim_do(sim, rank, call))

        def poll() -> tuple[bool, Any]:
            while left or under_way:
                if not under_way:
                    begin()
                if check(lib.pp_sim_done(sim, rank, status)) == lib.PP_PENDING:
                    return False, None
                under_way.clear()
                check(status[0])
            return True, give()

        begin()
        return poll

    def _begin_shared(self, rank: int, request: tuple[Any, ...]) -> tuple[int, Poll]:
        """Begin what the program of a rank that shares memory yields: see `_begin`."""
        kind, *arguments = request
        if kind == "init":
            argument, context = arguments[0], arguments[1] if len(arguments) > 1 else 0
            out = ffi.new("pp_handle_t **")
            made, begin = None, {"kind": lib.PP_SIM_INIT_BEGIN, "out": out}
            if isinstance(argument, str):
                begin["complaint"] = text = ffi.new("char[]", argument.encode())
            else:
                made = Handle(argument, context)
                begin["config"] = text = made.config(self.ranks)

            def give() -> Handle | None:
                assert text is not None  # alive until now
                if made:
                    made.coll = out[0]
                return made

            return self._collective(rank, context, begin, give=give)
        if kind == "ctx_free":
            context = arguments[0] if arguments else 0
            return self._collective(rank, context, {"kind": lib.PP_SIM_CTX_FREE_BEGIN}, give=_none)
        handle: Handle = arguments[0]
        context, call = handle.context, {"coll": handle.coll, "result": handle.result}
        if kind == "start":
            call["kind"] = lib.PP_SIM_START
            return context, self._do(rank, context, call, give=_none)
        if kind == "wait":
            call["kind"] = lib.PP_SIM_WAIT
            return context, self._do(rank, context, call, give=handle.collected)
        if kind in ("flush", "drain"):
            begin = call | {"kind": getattr(lib, f"PP_SIM_{kind.upper()}_BEGIN")}
            call["kind"] = lib.PP_SIM_COLLECT
            return self._collective(rank, context, begin, call, give=handle.collected)
        assert kind == "free", f"a program yielded {request!r}"
        discarded = ffi.new("uint64_t *")
        begin = call | {"kind": lib.PP_SIM_FREE_BEGIN, "discarded": discarded}
        return self._collective(rank, context, begin, give=lambda: int(discarded[0]))

    def _collective(
        self, rank: int, context: int, begin: Any, *then: Any, give: Callable[[], Any]
    ) -> tuple[int, Poll]:
        wait = {"kind": lib.PP_SIM_CALL_WAIT}
        return context, self._do(rank, context, begin, wait, *then, give=give)

    def _test_shared(self, rank: int, handle: Handle) -> tuple[int, Poll]:
        call = {"kind": lib.PP_SIM_TEST, "coll": handle.coll, "result": handle.result}
        sim, status = self.sims[handle.context], ffi.new("int32_t *")
        begun: list[Any] = []

        def poll() -> tuple[bool, Any]:
            if not begun:
                begun.append(ffi.new("pp_sim_call_t *", call))
                check(lib.pp_sim_do(sim, rank, begun[0]))
            if check(lib.pp_sim_done(sim, rank, status)) == lib.PP_PENDING:
                return False, None
            done = check(status[0]) == lib.PP_OK
            return True, handle.collected() if done else None

        return handle.context, poll

    def _call(self, rank: int, context: int, finish: Callable[[], Any]) -> tuple[int, Poll]:
        def poll() -> tuple[bool, Any]:
            if check(lib.pp_call_wait(self.contexts[context][rank], 0)) == lib.PP_PENDING:
                lib.pp_sim_watch(self.sims[context], rank, ffi.NULL)
                return False, None
            return True, finish()

        return context, poll

    def _begin_init(self, rank: int, argument: Options | str, context: int = 0) -> tuple[int, Poll]:
        complaint, config, handle = ffi.NULL, ffi.NULL, None
        if isinstance(argument, str):
            complaint = ffi.new("char[]", argument.encode())
        else:
            handle = Handle(argument, context)
            config = handle.config(self.ranks)
        out = ffi.new("pp_handle_t **")
        check(lib.pp_allreduce_init_begin(self.contexts[context][rank], config, complaint, out))
        if handle:
            handle.coll = out[0]
        return self._call(rank, context, lambda: handle)

    def _wait(self, rank: int, handle: Handle) -> tuple[int, Poll]:
        coll, result, sim = handle.coll, handle.result, self.sims[handle.context]

        def poll() -> tuple[bool, Any]:
            status = lib.pp_test(coll, result)
            if status == lib.PP_OK:
                return True, handle.collected()
            check(status)
            lib.pp_sim_watch(sim, rank, coll)
            return False, None

        return handle.context, poll

    def _begin(self, rank: int, request: tuple[Any, ...]) -> tuple[int, Poll]:
        kind, *arguments = request
        if kind == "begin":
            self._begun[rank] = self._begin(rank, arguments[0])
            self._begun_what[rank] = arguments[0]
            return 0, DONE
        if kind == "finish":
            return self._begun.pop(rank)
        if self.memory:
            shared = self._test_shared if kind == "test" else None
            return shared(rank, arguments[0]) if shared else self._begin_shared(rank, request)
        if kind == "init":
            return self._begin_init(rank, *arguments)
        if kind == "ctx_free":
            context = arguments[0] if arguments else 0
            check(lib.pp_ctx_free_begin(self.contexts[context][rank]))
            return self._call(rank, context, lambda: None)
        handle: Handle = arguments[0]
        if kind == "start":
            check(lib.pp_start(handle.coll))
            return handle.context, DONE
        if kind == "wait":
            return self._wait(rank, handle)
        if kind == "test":

            def test() -> tuple[bool, Any]:
                done = check(lib.pp_test(handle.coll, handle.result)) == lib.PP_OK
                return True, handle.collected() if done else None

            return handle.context, test
        if kind in ("flush", "drain"):
            check(getattr(lib, f"pp_{kind}_begin")(handle.coll))

            def collect() -> Round:
                check(lib.pp_collect(handle.coll, handle.result))
                return handle.collected()

            return self._call(rank, handle.context, collect)
        assert kind == "free", f"a program yielded {request!r}"
        discarded = ffi.new("uint64_t *")
        check(lib.pp_handle_free_begin(handle.coll, discarded))
        return self._call(rank, handle.context, lambda: int(discarded[0]))

    # ---- running ------------------------------------------------------------------------------

    def _schedule(self, rank: int, time: int, what: Any) -> None:
        self._sequence += 1
        heapq.heappush(self._ready, (time, self._sequence, rank, what))

    def _advance(self, rank: int, value: Any, error: CoreError | None = None) -> None:
        """Run the rank's program until it sleeps, blocks or ends."""
        program = self._programs[rank]
        while True:
            try:
                request = program.throw(error) if error else program.send(value)
            except StopIteration:
                return
            error = value = None
            if isinstance(request, int):
                request = ("at", self.now + request)
            if request[0] == "at":
                self._schedule(rank, max(request[1], self.now), None)
                return
            if request[0] == "barrier":
                self._enter_barrier(rank)
                return
            try:
                if request[0] == "late":
                    began = self._begin(rank, request[2])
                    self._what[rank] = request[2]
                    self._schedule(rank, self.now + request[1], began)
                    return
                context, poll = self._begin(rank, request)
                done, value = poll()
            except CoreError as failed:
                error = failed
                continue
            if not done:
                self._blocked[rank] = context, poll
                self._what[rank] = request
                return

    def _enter_barrier(self, rank: int) -> None:
        self._at_barrier.append(rank)
        if len(self._at_barrier) == self.ranks:
            for member in sorted(self._at_barrier):
                self._schedule(member, self.now, None)
            self._at_barrier = []

    def _poll(self, rank: int, context: int, poll: Poll) -> None:
        """Let the rank's program go on if what it waits for is there."""
        try:
            done, value = poll()
        except CoreError as error:
            self._blocked.pop(rank, None)
            self._advance(rank, None, error)
            return
        if done:
            self._blocked.pop(rank, None)
            self._advance(rank, value)
        else:
            self._blocked[rank] = context, poll

    def _set_now(self, time: int) -> None:
        self.now = max(time, self.now)
        for sim in self.sims:
            if self.now > lib.pp_sim_now_ns(sim):
                check(lib.pp_sim_set_now(sim, self.now))

    def _wake(self) -> None:
        time, _, rank, what = heapq.heappop(self._ready)
        self._set_now(time)
        if what is _DIES:
            self._programs[rank] = _dead()
            next(self._programs[rank])
            self._blocked.pop(rank, None)
            self._at_barrier = [member for member in self._at_barrier if member != rank]
            self._ready = [entry for entry in self._ready if entry[2] != rank]
            heapq.heapify(self._ready)
        elif what is None:
            self._advance(rank, None)
        else:
            self._poll(rank, *what)

    def _earliest(self) -> tuple[int, int]:
        """Return the context in which something happens next, and when."""
        if len(self.sims) == 1:
            return 0, lib.pp_sim_next_ns(self.sims[0])
        times = [lib.pp_sim_next_ns(sim) for sim in self.sims]
        return times.index(min(times)), min(times)

    def _deliver(self, context: int, time: int, wake: int) -> None:
        """Let happen what happens before the next program wakes by itself."""
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
            rank = self._rank[0]
            blocked = self._blocked.get(rank)
            if blocked and blocked[0] == context:
                self._poll(rank, *blocked)
            if self._stopped or (self._ready and self._ready[0][0] <= until):
                return

    def explain(self) -> str:
        """Say who waits, and for what."""
        lines = [f"nothing is under way at {self.now} ns, and there wait"]
        for rank in sorted(self._blocked)[:_EXPLAINED]:
            request = self._what[rank]
            if request[0] == "finish":
                request = self._begun_what.get(rank, request)
            line = f"rank {rank} in {request[0]}"
            context = self._blocked[rank][0]
            if len(request) > 1 and isinstance(request[1], Handle):
                handle = request[1]
                number = lib.pp_handle_id(handle.coll)
                line += f" of handle {number}: {self._described(rank, handle)}"
                found = _obstacles(lib.pp_handle_obstacles, handle.coll)
            else:
                found = _obstacles(lib.pp_ctx_obstacles, self.contexts[context][rank])
            lines.append("\n    ".join([line, *found]))
        for rank in sorted(self._at_barrier)[:_EXPLAINED]:
            lines.append(f"rank {rank} in a barrier, with {len(self._at_barrier)} of {self.ranks}")
        if len(self._blocked) > _EXPLAINED:
            lines.append(f"and {len(self._blocked) - _EXPLAINED} more")
        return "\n  ".join(lines)

    def _described(self, rank: int, handle: Handle) -> str:
        try:
            s = self.state(rank, handle)
        except CoreError as error:
            return error.text  # it has failed, and waits all the same
        return (
            f"completed {s.completed}, joined {s.joined}, ready {s.ready}, drawn {s.drawn}, "
            f"withholding {s.withholding}, calls {s.calls}"
        )

    def run(self, programs: Sequence[Program]) -> None:
        """Run to the end, messages included.

        Raises
        ------
        Deadlock
            Nothing moves any more, and a program waits.
        """
        self._programs = list(programs)
        assert len(self._programs) == self.ranks
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
