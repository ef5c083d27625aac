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
from dataclasses import dataclass
from typing import Any

import numpy as np

from pypartial._core import ffi, lib

TYPES = {
    "int8": lib.PP_INT8,
    "int32": lib.PP_INT32,
    "int64": lib.PP_INT64,
    "float16": lib.PP_FLOAT16,
    "float32": lib.PP_FLOAT32,
    "float64": lib.PP_FLOAT64,
}
OPS = {"sum": lib.PP_SUM, "max": lib.PP_MAX, "min": lib.PP_MIN, "bor": lib.PP_BOR}
DELIVER = {"latest": lib.PP_LATEST, "sum": lib.PP_DELIVER_SUM, "each": lib.PP_EACH}
AVERAGE = {
    None: lib.PP_AVERAGE_NONE,
    "size": lib.PP_AVERAGE_SIZE,
    "contributors": lib.PP_AVERAGE_CONTRIBUTORS,
    "contributions": lib.PP_AVERAGE_CONTRIBUTIONS,
}
ALGORITHMS = {
    "auto": lib.PP_ALGORITHM_AUTO,
    "recursive_doubling": lib.PP_RECURSIVE_DOUBLING,
    "rabenseifner": lib.PP_RABENSEIFNER,
    "ring": lib.PP_RING,
}
CAUSES = ("policy", "departed", "deadline", "flush")
NOTHING_UNDER_WAY = 2**64 - 1


class CoreError(Exception):
    """The core returned an error status."""

    def __init__(self, status: int) -> None:
        self.status = status
        self.text = ffi.string(lib.pp_error_text()).decode()
        super().__init__(status, self.text)


class Deadlock(AssertionError):
    """Programs wait and nothing is under way."""


def check(status: int) -> int:
    """Return a non-negative status; raise otherwise."""
    if status < 0:
        raise CoreError(status)
    return status


@dataclass(frozen=True)
class Options:
    """The arguments of an Allreduce_init."""

    count: int = 1
    dtype: str = "int64"
    op: str = "sum"
    policy: str = "first_of"  # or "quorum"
    k: int = 1
    deliver: str = "latest"
    max_lag: int = -1
    average: str | None = None
    algorithm: str = "auto"
    pieces: int = 1  # the vector as a list of so many buffers
    in_place: bool = False  # the contribution is read from the receive buffer
    raw: tuple[tuple[str, int], ...] = ()  # members of the core's struct, as they should not be


@dataclass(frozen=True)
class Round:
    """What a request completed with, and the vector."""

    round: int
    first: int
    data: bytes
    contributions: int
    active: int
    cause: str
    initiator: int
    contributors: tuple[int, ...] | None
    missed: int
    staleness: int
    included: bool
    external: bool

    def status(self) -> tuple[object, ...]:
        """What describes `round` and must be identical on every rank."""
        return (
            self.round,
            self.contributions,
            self.active,
            self.cause,
            self.initiator,
            self.contributors,
        )

    def common(self) -> tuple[object, ...]:
        """The same with the result, for single rounds."""
        return (*self.status(), self.data)


class Handle:
    """One rank's end of a partial allreduce."""

    def __init__(self, options: Options, context: int = 0) -> None:
        self.options = options
        self.context = context
        self.recv = np.zeros(options.count, options.dtype)
        self.send = self.recv if options.in_place else np.zeros_like(self.recv)
        self.pieces = ffi.new("pp_piece_t[]", options.pieces)
        bounds = [i * options.count // options.pieces for i in range(options.pieces + 1)]
        for i, piece in enumerate(self.pieces):
            at = bounds[i] * self.send.itemsize
            if not options.in_place:
                piece.send = ffi.cast("void *", self.send.ctypes.data + at)
            piece.recv = ffi.cast("void *", self.recv.ctypes.data + at)
            piece.count = bounds[i + 1] - bounds[i]
        self.result = ffi.new("pp_result_t *")
        self.coll: Any = ffi.NULL

    def config(self) -> Any:
        options = self.options
        config = ffi.new("pp_allreduce_config_t *")
        config.pieces = self.pieces
        config.piece_count = options.pieces
        config.type = TYPES[options.dtype]
        config.op = OPS[options.op]
        config.policy = lib.PP_FIRST_OF if options.policy == "first_of" else lib.PP_QUORUM
        config.policy_k = options.k
        config.deliver = DELIVER[options.deliver]
        config.max_lag = options.max_lag
        config.average = AVERAGE[options.average]
        config.algorithm = ALGORITHMS[options.algorithm]
        for member, value in options.raw:
            setattr(config, member, value)
        return config

    def collected(self) -> Round:
        r = self.result
        bits = sum(word << 64 * w for w, word in enumerate(r.contributors))
        return Round(
            round=r.round,
            first=r.first,
            data=self.recv.tobytes(),
            contributions=r.contributions,
            active=r.active,
            cause=CAUSES[r.cause],
            initiator=r.initiator,
            contributors=(
                tuple(b for b in range(bits.bit_length()) if bits >> b & 1)
                if r.contributors_known
                else None
            ),
            missed=r.missed,
            staleness=r.staleness,
            included=bool(r.included),
            external=bool(r.external),
        )


Program = Generator[Any, Any, None]
Poll = Callable[[], tuple[bool, Any]]
DONE: Poll = lambda: (True, None)  # noqa: E731


class World:
    """Runs one program a rank over the simulated transport.

    With `quantum` > 0, programs notice what messages brought them only every so many nanoseconds:
    that makes a thousand ranks affordable.
    """

    def __init__(
        self,
        ranks: int,
        *,
        seed: int = 0,
        latency: tuple[int, int] = (500, 5000),
        window: int = 4,
        contexts: int = 1,
        quantum: int = 0,
    ) -> None:
        config = ffi.new("pp_sim_config_t *")
        config.ranks = ranks
        config.latency_min_ns, config.latency_max_ns = latency
        config.ctx.seed = seed
        config.ctx.window = window
        self.ranks = ranks
        self.quantum = quantum
        self.sims = []
        for i in range(contexts):
            config.seed = seed + i
            out = ffi.new("pp_sim_t **")
            check(lib.pp_sim_open(config, out))
            self.sims.append(ffi.gc(out[0], lib.pp_sim_free))
        self.contexts = [[lib.pp_sim_ctx(sim, r) for r in range(ranks)] for sim in self.sims]
        self.now = 0
        self._stats = ffi.new("pp_stats_t *")
        self._blocked: dict[int, Poll] = {}
        self._what: dict[int, tuple[Any, ...]] = {}
        self._begun: dict[int, Poll] = {}
        self._ready: list[tuple[int, int, int, Any]] = []
        self._programs: list[Program] = []
        self._sequence = 0

    # ---- looking ------------------------------------------------------------------------------

    def stats(self, rank: int, context: int = 0) -> Any:
        """The counters of one rank; valid until the next call."""
        lib.pp_ctx_stats(self.contexts[context][rank], self._stats)
        return self._stats

    def state(self, rank: int, handle: Handle) -> Any:
        """What this rank says of itself when it is asked (sends questions to all the others)."""
        states = ffi.new("pp_rank_state_t[]", self.ranks)
        context = self.contexts[handle.context][rank]
        check(lib.pp_ask(context, lib.pp_coll_id(handle.coll), 0, states))
        self._keep = states
        return states[rank]

    def ask(self, rank: int, context: int = 0) -> None:
        """Send every other rank the question what it is doing."""
        states = ffi.new("pp_rank_state_t[]", self.ranks)
        check(lib.pp_ask(self.contexts[context][rank], 0, 0, states))

    def quiet(self) -> bool:
        """No message is under way."""
        return all(lib.pp_sim_next_ns(sim) == NOTHING_UNDER_WAY for sim in self.sims)

    # ---- what programs yield ------------------------------------------------------------------

    def _call(self, rank: int, context: int, finish: Callable[[], Any]) -> Poll:
        def poll() -> tuple[bool, Any]:
            if check(lib.pp_call_wait(self.contexts[context][rank], 0)) == lib.PP_PENDING:
                return False, None
            return True, finish()

        return poll

    def _begin_init(self, rank: int, argument: Options | str, context: int = 0) -> Poll:
        complaint, config, handle = ffi.NULL, ffi.NULL, None
        if isinstance(argument, str):
            complaint = ffi.new("char[]", argument.encode())
        else:
            handle = Handle(argument, context)
            config = handle.config()
        out = ffi.new("pp_coll_t **")
        check(lib.pp_allreduce_init_begin(self.contexts[context][rank], config, complaint, out))
        if handle:
            handle.coll = out[0]
        return self._call(rank, context, lambda: handle)

    def _begin(self, rank: int, request: tuple[Any, ...]) -> Poll:
        kind, *arguments = request
        if kind == "begin":
            self._begun[rank] = self._begin(rank, arguments[0])
            return DONE
        if kind == "finish":
            return self._begun.pop(rank)
        if kind == "init":
            return self._begin_init(rank, *arguments)
        if kind == "ctx_free":
            context = arguments[0] if arguments else 0
            check(lib.pp_ctx_free_begin(self.contexts[context][rank]))
            return self._call(rank, context, lambda: None)
        handle: Handle = arguments[0]
        if kind == "start":
            check(lib.pp_start(handle.coll))
            return DONE
        if kind in ("wait", "test"):

            def poll() -> tuple[bool, Any]:
                done = check(lib.pp_test(handle.coll, handle.result)) == lib.PP_OK
                return done or kind == "test", handle.collected() if done else None

            return poll
        if kind in ("flush", "drain"):
            check(getattr(lib, f"pp_{kind}_begin")(handle.coll))

            def collect() -> Round:
                check(lib.pp_collect(handle.coll, handle.result))
                return handle.collected()

            return self._call(rank, handle.context, collect)
        assert kind == "free", f"a program yielded {request!r}"
        discarded = ffi.new("uint64_t *")
        check(lib.pp_coll_free_begin(handle.coll, discarded))
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
            try:
                if request[0] == "late":
                    poll = self._begin(rank, request[2])
                    self._what[rank] = request[2]
                    self._schedule(rank, self.now + request[1], poll)
                    return
                poll = self._begin(rank, request)
                done, value = poll()
            except CoreError as failed:
                error = failed
                continue
            if not done:
                self._blocked[rank] = poll
                self._what[rank] = request
                return

    def _poll(self, rank: int, poll: Poll) -> bool:
        """Whether the rank went on."""
        try:
            done, value = poll()
        except CoreError as error:
            self._blocked.pop(rank, None)
            self._advance(rank, None, error)
            return True
        if not done:
            self._blocked[rank] = poll
            return False
        self._blocked.pop(rank, None)
        self._advance(rank, value)
        return True

    def _poll_blocked(self) -> None:
        again = True
        while again:
            again = False
            for rank, poll in list(self._blocked.items()):
                again |= self._poll(rank, poll)

    def _wake(self) -> None:
        time, _, rank, what = heapq.heappop(self._ready)
        for sim in self.sims:
            if time > lib.pp_sim_now_ns(sim):
                check(lib.pp_sim_run_until(sim, time))
        self.now = max(time, self.now)
        if what is None:
            self._advance(rank, None)
        else:
            self._poll(rank, what)

    def _deliver(self, sim: Any, message: int, wake: int) -> None:
        """Deliver the earliest message, or all those of a quantum."""
        if self.quantum == 0:
            check(lib.pp_sim_step(sim))
            self.now = max(self.now, message)
            return
        self.now = max(self.now, min(message + self.quantum, wake))
        check(lib.pp_sim_run_until(sim, self.now))

    def explain(self) -> str:
        lines = [f"nothing is under way at {self.now} ns, and there wait"]
        for rank in sorted(self._blocked):
            request = self._what[rank]
            line = f"rank {rank} in {request[0]}"
            if len(request) > 1 and isinstance(request[1], Handle):
                handle = request[1]
                s = self.state(rank, handle)
                line += (
                    f" of handle {lib.pp_coll_id(handle.coll)}: completed {s.completed}, joined "
                    f"{s.joined}, ready {s.ready}, drawn {s.drawn}, withholding {s.withholding}, "
                    f"calls {s.calls}"
                )
            lines.append(line)
        return "\n  ".join(lines)

    def run(self, programs: Sequence[Program]) -> None:
        """Run to the end, messages included; raise Deadlock when nothing moves any more."""
        self._programs = list(programs)
        assert len(self._programs) == self.ranks
        for rank in range(self.ranks):
            self._schedule(rank, self.now, None)
        while True:
            wake = self._ready[0][0] if self._ready else NOTHING_UNDER_WAY
            times = [lib.pp_sim_next_ns(sim) for sim in self.sims]
            message = min(times)
            if wake == message == NOTHING_UNDER_WAY:
                break
            if wake < message or (wake == message and wake <= self.now):
                self._wake()
            else:
                self._deliver(self.sims[times.index(message)], message, wake)
            if self._blocked:
                self._poll_blocked()
        if self._blocked:
            raise Deadlock(self.explain())
