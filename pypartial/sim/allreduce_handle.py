"""One rank's handle of a partial allreduce, for programs of the simulation."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from .._core_sim import ffi, lib
from .._names import AVERAGE, CAUSE, DELIVER, OP, algorithm_options, describe_policy
from ..policy import Majority, Policy
from .handle import AnyHandle

ALGORITHMS = algorithm_options(ffi, lib)
_CAUSES = CAUSE.values(lib)


@dataclass(frozen=True)
class Options:
    """The arguments of an Allreduce_init."""

    count: int = 1
    dtype: str = "int64"
    op: str = "sum"
    policy: Policy = Majority()  # noqa: RUF009  # frozen
    deliver: str = "latest"
    max_lag: int = -1
    average: str | None = None
    algorithm: str = "auto"
    segments: int = 0  # of the vector in rounds made of messages; 0: by its size
    pieces: int = 1  # the number of buffers that form the vector
    in_place: bool = False  # Start reads the receive buffer
    fenced: bool = False  # buffers that only the table of their kind of memory can reach
    raw: tuple[tuple[str, int], ...] = ()  # wrong values for members of the core's struct

    def handle(self) -> Handle:
        """Return a handle, not open yet, with these arguments."""
        return Handle(self)


@dataclass(frozen=True)
class Round:
    """The status that a request completed with, and its result vector."""

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
        """The members that describe `round` and must be identical on every rank."""
        return (
            self.round,
            self.contributions,
            self.active,
            self.cause,
            self.initiator,
            self.contributors,
        )

    def common(self) -> tuple[object, ...]:
        """The same members and the result, for a single round."""
        return (*self.status(), self.data)


@functools.lru_cache(maxsize=256)
def _members(bits: int) -> tuple[int, ...]:
    """Return the ranks whose bits are set; all ranks of a round ask for the same."""
    return tuple(b for b in range(bits.bit_length()) if bits >> b & 1)


class Handle(AnyHandle):
    """One rank's handle of a partial allreduce."""

    options: Options
    begins = "pp_allreduce_init_begin"
    pretends = "pp_sim_allreduce"

    def __init__(self, options: Options, context: int = 0) -> None:
        super().__init__(options, context, options.in_place)

    def config(self, ranks: int, plant: str = "none") -> Any:
        """Return the core's ``pp_allreduce_config_t``; it has no generator to plant a defect in."""
        options = self.options
        config = ffi.new("pp_allreduce_config_t *")
        config.op = OP.constant(lib, options.op.upper())
        self._keep(describe_policy(ffi, lib, options.policy, ranks, config))
        config.deliver = DELIVER.constant(lib, options.deliver)
        config.max_lag = options.max_lag
        config.average = AVERAGE.constant(lib, options.average)
        config.algorithm = ALGORITHMS.constant(lib, options.algorithm)
        config.segments = options.segments
        return self._filled(config)

    def collected(self) -> Round:
        """Return the status and the vector that the core has just filled in."""
        r = self.result
        bits = int.from_bytes(ffi.buffer(r.contributors)[:], "little")
        return Round(
            round=r.round,
            first=r.first,
            data=self.recv.tobytes(),
            contributions=r.contributions,
            active=r.active,
            cause=_CAUSES[r.cause],
            initiator=r.initiator,
            contributors=_members(bits) if r.contributors_known else None,
            missed=r.missed,
            staleness=r.staleness,
            included=bool(r.included),
            external=bool(r.external),
        )
