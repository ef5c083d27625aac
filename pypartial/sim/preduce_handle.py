"""One rank's handle of P-Reduce, for programs of the simulation.

It calls the core's functions directly, as `handle.Handle` does for a partial allreduce.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .._core_sim import ffi, lib
from .._names import BACKEND, TYPE
from ..errors import ArgumentError
from ..groups import Table, next_members
from .generators import Plan, parse_generator
from .group_options import plan_complaint
from .groups import PLANTS, WEIGHTS, describe_plan
from .handle import check

__all__ = ["Group", "PreduceHandle", "PreduceOptions"]


@dataclass(frozen=True)
class PreduceOptions:
    """The arguments of a Preduce_init.

    Attributes
    ----------
    generator : str
        As `parse_generator` reads it, without ``static``; or "table" or "given".
    table : tuple
        Of "table": for each phase its groups. They are "given" by the steps of the programs, too.
    weights : str
        "constant", "closest" or "initial".
    """

    generator: str = "random:2"
    count: int = 1
    dtype: str = "float64"
    table: tuple[tuple[tuple[int, ...], ...], ...] = ()
    weights: str = "constant"
    alpha: float = 0.5
    backend: str = "auto"
    cache: int = 0
    pieces: int = 1
    fenced: bool = False
    raw: tuple[tuple[str, int], ...] = ()  # wrong values for members of the core's struct

    def plan(self) -> Plan:
        """Return the generator as values."""
        if self.generator in ("table", "given"):
            return Plan(self.generator)
        return parse_generator(self.generator)

    def complaint(self, ranks: int) -> str | None:
        """Return why the generator does not fit so many ranks; None if it does."""
        try:
            if self.generator == "table":
                Table(self.table).check(ranks)
            elif self.generator != "given":
                return plan_complaint(self.plan(), ranks, 1)
        except (ArgumentError, ValueError) as error:
            return str(error)
        return None


@dataclass(frozen=True)
class Group:
    """The group that a request completed with, and its average.

    Attributes
    ----------
    round : int
        The serial number; 0: the rank was alone.
    iteration : int
        As the core counts: the first one that a Start takes by itself is 1.
    """

    round: int
    members: tuple[int, ...]
    weights: tuple[float, ...]
    iteration: int
    initial: float
    data: bytes

    def common(self) -> tuple[object, ...]:
        """What is identical at all members that this group has served."""
        return (self.round, self.members, self.weights, self.initial, self.data)


class PreduceHandle:
    """One rank's handle of P-Reduce. Its vector is `recv`."""

    def __init__(self, options: PreduceOptions, context: int = 0) -> None:
        self.options = options
        self.context = context
        self.recv = np.zeros(options.count, options.dtype)
        self.pieces = ffi.new("pp_piece_t[]", options.pieces)
        fence = options.fenced << lib.PP_FENCE_SHIFT
        bounds = [i * options.count // options.pieces for i in range(options.pieces + 1)]
        for i, piece in enumerate(self.pieces):
            at = bounds[i] * self.recv.itemsize
            piece.recv = ffi.cast("void *", self.recv.ctypes.data + at | fence)
            piece.count = bounds[i + 1] - bounds[i]
        self.result = ffi.new("pp_result_t *")
        self.group = ffi.new("pp_group_result_t *")
        self.members = ffi.NULL  # of the last Start
        self.coll: Any = ffi.NULL
        self._kept: list[Any] = []  # what the configuration points to

    def config(self, ranks: int, plant: str = "none") -> Any:
        """Return the core's ``pp_preduce_config_t``, which points into this object."""
        options = self.options
        config = ffi.new("pp_preduce_config_t *")
        config.pieces = self.pieces
        config.piece_count = options.pieces
        config.type = TYPE.constant(lib, options.dtype)
        config.backend = BACKEND.constant(lib, options.backend)
        config.memory = lib.PP_MEMORY_FENCED if options.fenced else lib.PP_MEMORY_HOST
        describe_plan(options.plan(), config.plan)
        config.plan.weights, config.plan.alpha = WEIGHTS[options.weights], options.alpha
        config.plan.plant, config.plan.cache = PLANTS[plant], options.cache
        if options.generator == "table":
            config.plan.phases = len(options.table)
            config.table = self._keep(ffi.new("int32_t[]", next_members(options.table, ranks)))
        config.generator_text = self._keep(ffi.new("char[]", options.generator.encode()))
        for member, value in options.raw:
            setattr(config, member, value)
        return config

    def _keep(self, value: Any) -> Any:
        self._kept.append(value)
        return value

    def given(self, members: Sequence[int] | None) -> tuple[Any, int]:
        """Return the group that a Start is for, as the core takes it."""
        self.members = ffi.NULL if members is None else ffi.new("int32_t[]", list(members))
        return self.members, 0 if members is None else len(members)

    def collected(self) -> Group:
        """Return what the core has just filled in."""
        found = self.group
        return Group(
            round=found.round,
            members=tuple(ffi.unpack(found.members, found.count)),
            weights=tuple(ffi.unpack(found.weights, found.count)),
            iteration=found.iteration,
            initial=found.initial,
            data=self.recv.tobytes(),
        )

    def describe(self) -> Group:
        """Ask the core what its last call gave; only for ranks that share no memory."""
        check(lib.pp_preduce_result(self.coll, self.group))
        return self.collected()
