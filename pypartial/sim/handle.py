"""One rank's handle of a partial allreduce, for programs of the simulation.

It calls the core's functions directly, without the package's API: an error is a `CoreError`, and
options may be wrong on purpose.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .._core_sim import ffi, lib
from .._names import (
    AVERAGE,
    CAUSE,
    DELIVER,
    OP,
    TYPE,
    algorithm_options,
    describe_policy,
)
from ..policy import Majority, Policy

ALGORITHMS = algorithm_options(ffi, lib)
_CAUSES = CAUSE.values(lib)


class CoreError(Exception):
    """An error status of the core, with its text."""

    def __init__(self, status: int) -> None:
        self.status = status
        self.text = ffi.string(lib.pp_error_text()).decode()
        super().__init__(status, self.text)


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


class Handle:
    """One rank's handle of a partial allreduce."""

    def __init__(self, options: Options, context: int = 0) -> None:
        self.options = options
        self.context = context
        self.recv = np.zeros(options.count, options.dtype)
        self.send = self.recv if options.in_place else np.zeros_like(self.recv)
        self.pieces = ffi.new("pp_piece_t[]", options.pieces)
        fence = options.fenced << lib.PP_FENCE_SHIFT
        bounds = [i * options.count // options.pieces for i in range(options.pieces + 1)]
        for i, piece in enumerate(self.pieces):
            at = bounds[i] * self.send.itemsize
            if not options.in_place:
                piece.send = ffi.cast("void *", self.send.ctypes.data + at | fence)
            piece.recv = ffi.cast("void *", self.recv.ctypes.data + at | fence)
            piece.count = bounds[i + 1] - bounds[i]
        self.result = ffi.new("pp_result_t *")
        self.coll: Any = ffi.NULL
        self.policy_text: Any = None

    def config(self, ranks: int) -> Any:
        """Return the core's ``pp_allreduce_config_t``, which points into this object."""
        options = self.options
        config = ffi.new("pp_allreduce_config_t *")
        config.pieces = self.pieces
        config.piece_count = options.pieces
        config.type = TYPE.constant(lib, options.dtype)
        config.op = OP.constant(lib, options.op.upper())
        self.policy_text = describe_policy(ffi, lib, options.policy, ranks, config)
        config.deliver = DELIVER.constant(lib, options.deliver)
        config.max_lag = options.max_lag
        config.average = AVERAGE.constant(lib, options.average)
        config.algorithm = ALGORITHMS.constant(lib, options.algorithm)
        config.segments = options.segments
        config.memory = lib.PP_MEMORY_FENCED if options.fenced else lib.PP_MEMORY_HOST
        for member, value in options.raw:
            setattr(config, member, value)
        return config

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
