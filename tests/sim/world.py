"""Many simulated ranks in one process: programs, oracles, virtual time.

A *program* is a generator, one a rank, that yields what it waits for:

- an integer: sleep so many nanoseconds of virtual time;
- ``("start", handle)``: trigger the handle (never waits);
- ``("wait", handle)``: collect the request; the generator receives a :class:`Round`;
- ``("flush", handle)`` / ``("drain", handle)`` / ``("free", handle)``: collective; a `Round`, a
  `Round`, the number of contributions discarded;
- ``("init", options)``: collective; receives a :class:`Handle`;
- ``("ctx_free",)``: collective.

The world interleaves programs and messages by virtual time, and reports a deadlock when nothing is
under way and somebody still waits.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

import numpy as np
from pypartial._core import ffi, lib

TYPES = {
    "int8": lib.PP_INT8,
    "int32": lib.PP_INT32,
    "int64": lib.PP_INT64,
    "float32": lib.PP_FLOAT32,
    "float64": lib.PP_FLOAT64,
}
OPS = {"sum": lib.PP_SUM, "max": lib.PP_MAX, "min": lib.PP_MIN}
DELIVER = {"latest": lib.PP_LATEST, "sum": lib.PP_DELIVER_SUM, "each": lib.PP_EACH}
AVERAGE = {
    None: lib.PP_AVERAGE_NONE,
    "size": lib.PP_AVERAGE_SIZE,
    "contributors": lib.PP_AVERAGE_CONTRIBUTORS,
    "contributions": lib.PP_AVERAGE_CONTRIBUTIONS,
}
CAUSES = ("policy", "departed", "deadline", "flush")


class CoreError(Exception):
    """The core returned an error status."""

    def __init__(self, status: int) -> None:
        super().__init__(status, ffi.string(lib.pp_error_text()).decode())
        self.status = status


class Deadlock(AssertionError):
    """Programs wait and nothing is under way."""


def check(status: int) -> int:
    """Return a non-negative status; raise otherwise."""
    if status < 0:
        raise CoreError(status)
    return status


@dataclass(frozen=True)
class Options:
    """The arguments of an Allreduce_init, the same on all ranks."""

    count: int = 1
    dtype: str = "int64"
    op: str = "sum"
    policy: str = "first_of"
    k: int = 1
    deliver: str = "latest"
    max_lag: int = -1
    average: str | None = None
    algorithm: int = 0


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
    contributors: tuple[int, ...]
    missed: int
    staleness: int
    included: bool
    external: bool

    def common(self) -> tuple[object, ...]:
        """What must be identical on every rank, for single rounds."""
        return (
            self.round,
            self.data,
            self.contributions,
            self.active,
            self.cause,
            self.initiator,
            self.contributors,
        )


class Handle:
    """One rank's end of a partial allreduce."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.send = np.zeros(options.count, options.dtype)
        self.recv = np.zeros(options.count, options.dtype)
        self.piece = ffi.new("pp_piece_t[1]")
        self.piece[0].send = ffi.cast("void *", self.send.ctypes.data)
        self.piece[0].recv = ffi.cast("void *", self.recv.ctypes.data)
        self.piece[0].count = options.count
        self.result = ffi.new("pp_result_t *")
        self.coll: Any = ffi.NULL

    def config(self) -> Any:
        options = self.options
        config = ffi.new("pp_allreduce_config_t *")
        config.pieces = self.piece
        config.piece_count = 1
        config.type = TYPES[options.dtype]
        config.op = OPS[options.op]
        config.policy = lib.PP_FIRST_OF if options.policy == "first_of" else lib.PP_QUORUM
        config.policy_k = options.k
        config.deliver = DELIVER[options.deliver]
        config.max_lag = options.max_lag
        config.average = AVERAGE[options.average]
        config.algorithm = options.algorithm
        return config

    def collected(self) -> Round:
        r = self.result
        words = list(r.contributors)
        return Round(
            round=r.round,
            first=r.first,
            data=self.recv.tobytes(),
            contributions=r.contributions,
            active=r.active,
            cause=CAUSES[r.cause],
            initiator=r.initiator,
            contributors=tuple(
                64 * w + b for w, word in enumerate(words) for b in range(64) if word >> b & 1
            ),
            missed=r.missed,
            staleness=r.staleness,
            included=bool(r.included),
            external=bool(r.external),
        )


Program = Generator[Any, Any, None]


class World:
    """Runs one program a rank over the simulated transport."""

    def __init__(
        self,
        ranks: int,
        *,
        seed: int = 0,
        latency: tuple[int, int] = (500, 5000),
        window: int = 4,
    ) -> None:
        config = ffi.new("pp_sim_config_t *")
        config.seed = seed
        config.ranks = ranks
        config.latency_min_ns, config.latency_max_ns = latency
        config.ctx.seed = seed
        config.ctx.window = window
        out = ffi.new("pp_sim_t **")
        check(lib.pp_sim_open(config, out))
        self.ranks = ranks
        self.sim = ffi.gc(out[0], lib.pp_sim_free)
        self.contexts = [lib.pp_sim_ctx(self.sim, r) for r in range(ranks)]
        self._blocked: dict[int, Callable[[], tuple[bool, Any]]] = {}
        self._what: dict[int, Any] = {}
        self._ready: list[tuple[int, int, int, Any]] = []
        self._programs: list[Program] = []
        self._sequence = 0

    @property
    def now(self) -> int:
        return int(lib.pp_sim_now_ns(self.sim))

    # ---- what programs yield ------------------------------------------------------------------

    def _call(self, rank: int, finish: Callable[[], Any]) -> Callable[[], tuple[bool, Any]]:
        def poll() -> tuple[bool, Any]:
            if check(lib.pp_call_wait(self.contexts[rank], 0)) == lib.PP_PENDING:
                return False, None
            return True, finish()

        return poll

    def _begin(self, rank: int, request: tuple[Any, ...]) -> Callable[[], tuple[bool, Any]]:
        kind = request[0]
        if kind == "start":
            check(lib.pp_start(request[1].coll))
            return lambda: (True, None)
        if kind == "wait":
            handle = request[1]

            def poll() -> tuple[bool, Any]:
                done = check(lib.pp_test(handle.coll, handle.result)) == lib.PP_OK
                return done, handle.collected() if done else None

            return poll
        if kind == "init":
            handle = Handle(request[1])
            out = ffi.new("pp_coll_t **")
            check(
                lib.pp_allreduce_init_begin(self.contexts[rank], handle.config(), ffi.NULL, out)
            )
            handle.coll = out[0]
            return self._call(rank, lambda: handle)
        if kind in ("flush", "drain"):
            handle = request[1]
            check(getattr(lib, f"pp_{kind}_begin")(handle.coll))

            def collect() -> Round:
                check(lib.pp_collect(handle.coll, handle.result))
                return handle.collected()

            return self._call(rank, collect)
        if kind == "free":
            discarded = ffi.new("uint64_t *")
            check(lib.pp_coll_free_begin(request[1].coll, discarded))
            return self._call(rank, lambda: int(discarded[0]))
        if kind == "ctx_free":
            check(lib.pp_ctx_free_begin(self.contexts[rank]))
            return self._call(rank, lambda: None)
        raise AssertionError(f"a program yielded {request!r}")

    # ---- running ------------------------------------------------------------------------------

    def _schedule(self, rank: int, time: int, value: Any) -> None:
        self._sequence += 1
        heapq.heappush(self._ready, (time, self._sequence, rank, value))

    def _advance(self, rank: int, value: Any) -> None:
        """Run the rank's program until it sleeps, blocks or ends."""
        while True:
            try:
                request = self._programs[rank].send(value)
            except StopIteration:
                return
            if isinstance(request, int):
                self._schedule(rank, self.now + request, None)
                return
            poll = self._begin(rank, request)
            done, value = poll()
            if not done:
                self._blocked[rank] = poll
                self._what[rank] = request
                return

    def _poll_blocked(self) -> None:
        again = True
        while again:
            again = False
            for rank in list(self._blocked):
                done, value = self._blocked[rank]()
                if done:
                    del self._blocked[rank]
                    self._advance(rank, value)
                    again = True

    def run(self, programs: list[Program]) -> None:
        """Run to the end; raise Deadlock when nothing moves any more."""
        self._programs = programs
        for rank in range(self.ranks):
            self._schedule(rank, self.now, None)
        while self._ready or self._blocked:
            wake = self._ready[0][0] if self._ready else None
            message = lib.pp_sim_next_ns(self.sim)
            if wake is not None and wake <= message:
                check(lib.pp_sim_run_until(self.sim, max(wake, self.now)))
                _, _, rank, value = heapq.heappop(self._ready)
                self._advance(rank, value)
            elif lib.pp_sim_step(self.sim) == lib.PP_PENDING:
                waits = {r: self._what[r][0] for r in sorted(self._blocked)}
                raise Deadlock(f"nothing is under way at {self.now} ns; waiting: {waits}")
            self._poll_blocked()
