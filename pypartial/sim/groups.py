"""Generators of groups: which ranks average with each other, and when (``csrc/groups``).

A `Machine` is the state of a generator, to which a program tells events.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from .._core_sim import ffi, lib
from .generators import Plan
from .handle import check

if TYPE_CHECKING:
    from .._core import CData

__all__ = [
    *("Action", "Alone", "Begin", "Complete", "Differ", "End", "Flush", "Machine"),
    *(
        "BY_ITSELF",
        "REASONS",
        "circles",
        "describe_plan",
        "static_group",
        "static_table",
        "untangle",
        "weights",
    ),
]

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
REASONS = {
    "in-call": lib.PP_GROUPS_IN_CALL,
    "flushes": lib.PP_GROUPS_FLUSHES,
    "frees": lib.PP_GROUPS_FREES,
    "out": lib.PP_GROUPS_OUT,
}

BY_ITSELF = (1 << 64) - 1  # the number of a start that is for a group of the rank alone


class Begin(NamedTuple):
    """The members of a group average their parts."""

    serial: int
    members: list[int]
    iterations: list[int]
    weights: list[float]
    initial: float
    newest: int
    goals: list[int]  # 1: the member's request will be complete with this group
    kept: int  # the number of this list of members; -1: none
    fresh: bool  # no group had this number before


class Complete(NamedTuple):
    """The request of a rank is complete, with this group."""

    rank: int
    serial: int


class Alone(NamedTuple):
    """The request of a rank is complete without a group."""

    rank: int


class Flush(NamedTuple):
    """All ranks that flush average their parts."""

    serial: int
    members: list[int]
    iterations: list[int]
    weights: list[float]
    newest: int


class End(NamedTuple):
    """All ranks free the handle."""


class Differ(NamedTuple):
    """Two ranks wait for different groups that contain both."""

    rank: int
    other: int


Action = Begin | Complete | Alone | Flush | End | Differ


class Machine:
    """The state of a generator.

    Parameters
    ----------
    plan : Plan
        Of any generator but ``static``; ``table``, ``given`` and ``neighbour``, too, which texts do
        not name.
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
    cache : int
        So many lists of members get a number.
    table : sequence of sequence of int, optional
        Of ``table``: in each phase the next rank of each rank's group, as `circles` returns it. Of
        ``neighbour``: where each rank's neighbours begin, and the neighbours.
    splits : bool
        Of ``table``: only groups that have shrunk get a number.

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
        cache: int = 0,
        table: Sequence[Sequence[int]] | None = None,
        splits: bool = False,
    ) -> None:
        described = ffi.new("pp_groups_plan_t *")
        describe_plan(plan, described)
        described.ranks, described.seed = ranks, seed
        described.weights, described.alpha = WEIGHTS[weights], alpha
        described.plant, described.cache, described.splits = PLANTS[plant], cache, splits
        flat = [rank for phase in table or [] for rank in phase]
        described.phases = len(table or [])
        told = ffi.NULL if table is None else ffi.new("int32_t[]", flat)
        nodes = ffi.NULL if node_of is None else ffi.new("int32_t[]", list(node_of))
        opened = ffi.new("pp_sim_groups_t **")
        check(lib.pp_sim_groups_open(described, told, nodes, opened))
        self._groups = ffi.gc(opened[0], lib.pp_sim_groups_free)
        self._count = ffi.new("int32_t *")

    def start(self, rank: int, iteration: int = 0, now_ns: int = 0) -> list[Action]:
        """Let a rank ask for a group; iteration 0 is one more than its last.

        With ``neighbour`` it may be `BY_ITSELF`.
        """
        return self._event(lib.PP_GROUPS_START, rank, iteration, now_ns)

    def finish(self, rank: int, serial: int, now_ns: int = 0) -> list[Action]:
        """Say that a rank has the result of a group that has begun."""
        return self._event(lib.PP_GROUPS_FINISH, rank, serial, now_ns)

    def give(self, rank: int, members: Sequence[int]) -> None:
        """Name the group of a rank's next request; only ``given``."""
        told = ffi.new("int32_t[]", list(members))
        check(lib.pp_sim_groups_give(self._groups, rank, told, len(members)))

    def asks(self, rank: int) -> bool:
        """Whether a rank has an outstanding request."""
        return bool(lib.pp_sim_groups_asks(self._groups, rank))

    def leave(
        self, rank: int, now_ns: int = 0, reason: str = "in-call", call: int = 0
    ) -> list[Action]:
        """Say that a rank has left, or has left already but for another one of `REASONS`.

        `call` is the number of the collective call that it is in, from 1 on; 0: of none.
        """
        number = REASONS[reason] + lib.PP_GROUPS_CALL * call
        return self._event(lib.PP_GROUPS_LEAVE, rank, number, now_ns)

    def completed(self, rank: int, calls: int, now_ns: int = 0) -> list[Action]:
        """Say that a rank has completed so many collective calls."""
        return self._event(lib.PP_GROUPS_COMPLETED, rank, calls, now_ns)

    def back(self, rank: int, now_ns: int = 0) -> list[Action]:
        """Say that a rank is back."""
        return self._event(lib.PP_GROUPS_BACK, rank, 0, now_ns)

    def _event(self, event: int, rank: int, number: int, now_ns: int) -> list[Action]:
        check(lib.pp_sim_groups_event(self._groups, event, rank, number, now_ns, self._count))
        return self._actions(self._count[0])

    def _actions(self, count: int) -> list[Action]:
        return [_action(lib.pp_sim_groups_action(self._groups, at)) for at in range(count)]

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


def describe_plan(plan: Plan, into: CData) -> None:
    """Fill in the generator of the core's ``pp_groups_plan_t``."""
    for name, value in dataclasses.asdict(plan).items():
        number = lib.pp_generator_number(value.encode()) if name == "generator" else int(value)
        setattr(into, name, number)


def _action(told: CData) -> Action:
    if told.kind == lib.PP_GROUPS_COMPLETE:
        return Complete(told.rank, told.serial)
    if told.kind == lib.PP_GROUPS_ALONE:
        return Alone(told.rank)
    if told.kind == lib.PP_GROUPS_END:
        return End()
    if told.kind == lib.PP_GROUPS_DIFFER:
        return Differ(told.rank, told.other)
    members = ffi.unpack(told.members, told.count)
    iterations = ffi.unpack(told.iterations, told.count)
    given = ffi.unpack(told.weights, told.count)
    if told.kind == lib.PP_GROUPS_FLUSH:
        return Flush(told.serial, members, iterations, given, told.newest)
    goals = ffi.unpack(told.goals, told.count)
    how = told.initial, told.newest, goals, told.kept, bool(told.fresh)
    return Begin(told.serial, members, iterations, given, *how)


def untangle(machines: Sequence[Machine], now_ns: int = 0) -> list[list[Action]]:
    """End circles of ranks that wait for each other; return what each machine answers."""
    groups = ffi.new("pp_sim_groups_t *[]", [machine._groups for machine in machines])
    counts = ffi.new("int32_t[]", len(machines))
    check(lib.pp_sim_groups_untangle(groups, len(machines), now_ns, counts))
    return [machine._actions(counts[at]) for at, machine in enumerate(machines)]


def circles(ranks: int, groups: Sequence[Sequence[int]]) -> list[int]:
    """Return a phase of a table: the next rank of each rank's group; the others have none."""
    following = list(range(ranks))
    for group in groups:
        members = sorted(group)
        for at, rank in enumerate(members):
            following[rank] = members[(at + 1) % len(members)]
    return following


def static_table(nodes: int, per_node: int) -> list[list[int]]:
    """Return the four phases of the static table, as `circles` does."""
    ranks = nodes * per_node
    table = ffi.new("int32_t[]", max(lib.PP_STATIC_PHASES * ranks, 1))
    check(lib.pp_groups_static_table(nodes, per_node, table))
    flat: list[int] = ffi.unpack(table, lib.PP_STATIC_PHASES * ranks)
    return [flat[phase * ranks : (phase + 1) * ranks] for phase in range(lib.PP_STATIC_PHASES)]


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
