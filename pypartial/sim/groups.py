"""Generators of groups: which ranks average with each other, and when (``csrc/groups``).

A `Machine` is the state of a generator, to which a program tells events.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple

from .._core_sim import ffi, lib
from .generators import Plan
from .handle import check

__all__ = ["Action", "Alone", "Begin", "Complete", "Machine", "static_group", "weights"]

WEIGHTS = {
    "constant": lib.PP_WEIGHTS_CONSTANT,
    "closest": lib.PP_WEIGHTS_CLOSEST,
    "initial": lib.PP_WEIGHTS_INITIAL,
}
PLANTS = {
    "none": lib.PP_GROUPS_PLANT_NONE,
    "lost-release": lib.PP_GROUPS_PLANT_LOST_RELEASE,
    "other-order": lib.PP_GROUPS_PLANT_OTHER_ORDER,
}
_KINDS = {
    "random": lib.PP_GENERATOR_RANDOM,
    "smart": lib.PP_GENERATOR_SMART,
    "controller": lib.PP_GENERATOR_CONTROLLER,
}


class Begin(NamedTuple):
    """The members of a group average their parts."""

    serial: int
    members: list[int]
    iterations: list[int]
    weights: list[float]
    initial: float
    newest: int


class Complete(NamedTuple):
    """The request of a rank is complete, with this group."""

    rank: int
    serial: int


class Alone(NamedTuple):
    """The request of a rank is complete without a group."""

    rank: int


Action = Begin | Complete | Alone


class Machine:
    """The state of a generator.

    Parameters
    ----------
    plan : Plan
        Of any generator but ``static``, whose table has no state.
    ranks : int
    seed : int
        Of the numbers that it draws.
    node_of : sequence of int, optional
        The node of each rank; by default all are on one.
    weights : str
        One of `WEIGHTS`.
    alpha : float
        Of weights by iteration, in [0, 1).
    plant : str
        A defect of `PLANTS`, for tests.

    Raises
    ------
    CoreError
        If a value is wrong, and by every event that the state of its rank does not permit.
    """

    def __init__(
        self,
        plan: Plan,
        ranks: int,
        seed: int = 0,
        node_of: Sequence[int] | None = None,
        weights: str = "constant",
        alpha: float = 0.5,
        plant: str = "none",
    ) -> None:
        described = ffi.new("pp_groups_plan_t *")
        for name, value in dataclasses.asdict(plan).items():
            setattr(described, name, _KINDS[value] if name == "generator" else int(value))
        described.ranks, described.seed = ranks, seed
        described.weights, described.alpha = WEIGHTS[weights], alpha
        described.plant = PLANTS[plant]
        nodes = ffi.NULL if node_of is None else ffi.new("int32_t[]", list(node_of))
        opened = ffi.new("pp_sim_groups_t **")
        check(lib.pp_sim_groups_open(described, nodes, opened))
        self._groups = ffi.gc(opened[0], lib.pp_sim_groups_free)
        self._count = ffi.new("int32_t *")

    def start(self, rank: int, iteration: int = 0, now_ns: int = 0) -> list[Action]:
        """Let a rank ask for a group; iteration 0 is one more than its last."""
        return self._event(lib.PP_GROUPS_START, rank, iteration, now_ns)

    def finish(self, rank: int, serial: int, now_ns: int = 0) -> list[Action]:
        """Say that a rank has the result of a group that has begun."""
        return self._event(lib.PP_GROUPS_FINISH, rank, serial, now_ns)

    def leave(self, rank: int, now_ns: int = 0) -> list[Action]:
        """Say that a rank has left."""
        return self._event(lib.PP_GROUPS_LEAVE, rank, 0, now_ns)

    def back(self, rank: int, now_ns: int = 0) -> list[Action]:
        """Say that a rank is back."""
        return self._event(lib.PP_GROUPS_BACK, rank, 0, now_ns)

    def reset(self, now_ns: int = 0) -> list[Action]:
        """Say that a flush, for which all ranks left, has served all requests."""
        return self._event(lib.PP_GROUPS_RESET, 0, 0, now_ns)

    def _event(self, event: int, rank: int, number: int, now_ns: int) -> list[Action]:
        check(lib.pp_sim_groups_event(self._groups, event, rank, number, now_ns, self._count))
        return [self._action(index) for index in range(self._count[0])]

    def _action(self, index: int) -> Action:
        told = lib.pp_sim_groups_action(self._groups, index)
        if told.kind == lib.PP_GROUPS_COMPLETE:
            return Complete(told.rank, told.serial)
        if told.kind == lib.PP_GROUPS_ALONE:
            return Alone(told.rank)
        return Begin(
            told.serial,
            ffi.unpack(told.members, told.count),
            ffi.unpack(told.iterations, told.count),
            ffi.unpack(told.weights, told.count),
            told.initial,
            told.newest,
        )

    def move(self) -> None:
        """Move the state to another address."""
        check(lib.pp_sim_groups_move(self._groups))

    @property
    def alive(self) -> int:
        """Groups that are formed and not over."""
        return int(lib.pp_sim_groups_alive(self._groups))

    @property
    def most(self) -> int:
        """How many groups can be alive at once."""
        return int(lib.pp_sim_groups_most(self._groups))


def static_group(nodes: int, per_node: int) -> Callable[[int, int], list[int]]:
    """Return a function of phase and rank: the rank's group in the static table, [] if idle."""
    members = ffi.new("int32_t[]", max(nodes, per_node, 1))
    count = ffi.new("int32_t *")

    def group(phase: int, rank: int) -> list[int]:
        check(lib.pp_sim_groups_static(nodes, per_node, phase, rank, members, count))
        found: list[int] = ffi.unpack(members, count[0]) if count[0] else []
        return found

    return group


def weights(kind: str, alpha: float, iterations: Sequence[int]) -> tuple[list[float], float]:
    """Return the weights of ranks of these iterations, and that of the initial model."""
    given = ffi.new("double[]", max(len(iterations), 1))
    initial = ffi.new("double *")
    told = ffi.new("uint64_t[]", list(iterations))
    check(lib.pp_sim_groups_weights(WEIGHTS[kind], alpha, len(iterations), told, given, initial))
    return ffi.unpack(given, len(iterations)), initial[0]
