"""One rank's handle of P-Reduce, for programs of the simulation.

- ``("groups_init", options, context, model)``: collective; receives a :class:`PreduceHandle`, whose
  elements are those of the initial model; the last two may be left out;
- ``("groups_start", handle, iteration, members)``: asks for a group; the last two may be left out.

Other requests take such a handle, too, and give a :class:`Group`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .._core_sim import ffi, lib
from .._names import BACKEND
from ..errors import ArgumentError
from ..groups import Table, next_members
from .generators import Plan, parse_generator
from .group_options import plan_complaint
from .groups import PLANTS, WEIGHTS, describe_plan
from .handle import AnyHandle, Call

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

    def handle(self) -> PreduceHandle:
        """Return a handle, not open yet, with these arguments."""
        return PreduceHandle(self)

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


class PreduceHandle(AnyHandle):
    """One rank's handle of P-Reduce."""

    options: PreduceOptions
    begins = "pp_preduce_init_begin"
    pretends = "pp_sim_preduce"

    def __init__(self, options: PreduceOptions, context: int = 0, model: Any = None) -> None:
        super().__init__(options, context, in_place=True)
        if model is not None:
            self.recv[:] = model
        self.group = ffi.new("pp_group_result_t *")

    def config(self, ranks: int, plant: str = "none") -> Any:
        """Return the core's ``pp_preduce_config_t``."""
        options = self.options
        config = ffi.new("pp_preduce_config_t *")
        config.backend = BACKEND.constant(lib, options.backend)
        describe_plan(options.plan(), config.plan)
        config.plan.weights, config.plan.alpha = WEIGHTS[options.weights], options.alpha
        config.plan.plant, config.plan.cache = PLANTS[plant], options.cache
        if options.generator == "table":
            config.plan.phases = len(options.table)
            config.table = self._keep(ffi.new("int32_t[]", next_members(options.table, ranks)))
        config.generator_text = self._keep(ffi.new("char[]", options.generator.encode()))
        return self._filled(config)

    def start(self, iteration: int = 0, members: Sequence[int] | None = None) -> Call:
        """Return the call that asks for a group."""
        if members is None:
            return self.call("pp_preduce_start", iteration, ffi.NULL, 0)
        named = ffi.new("int32_t[]", list(members))
        return self.call("pp_preduce_start", iteration, named, len(members))

    def _describe(self) -> Call:
        return self.call("pp_preduce_result", self.group)

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
