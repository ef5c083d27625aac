"""The serial replay: what every rank's buffer must hold after groups that ran in their order.

All groups of a handle are replayed one after the other in the order of their serial numbers, with
NumPy, one operation at a time, so the bits are those of the library:

- constant weights: the sum, divided by the number of members;
- weights by iteration: the sum of the rounded products of weight and model; the part of the lowest
  member is that of its model plus that of its initial model;
- the association of the sum is the backend's: "node" goes in the order of ranks, lower operand
  left. "schedule" is that of its algorithm (docs/algorithms.md).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

__all__ = ["Asked", "Formed", "Replay", "average", "mean_is_kept"]

Array = np.ndarray[Any, Any]
Add = Callable[[list[Array | None]], Array | None]

_MEAN_KEPT = 1e-12


@dataclass(frozen=True)
class Formed:
    """A group that has run, or a flush.

    Attributes
    ----------
    serial : int
    members : tuple of int
    weights : tuple of float
        One for each member.
    initial : float
        The weight of the initial model of the lowest member.
    flush : bool
    ranks : tuple of int
        The ranks that the sum has gone through, if there are more than the members: by messages
        ranks that have left stand in the groups of a table with nothing.
    """

    serial: int
    members: tuple[int, ...]
    weights: tuple[float, ...]
    initial: float = 0.0
    flush: bool = False
    ranks: tuple[int, ...] = ()


@dataclass
class Asked:
    """A request of a rank, or its flush.

    Attributes
    ----------
    before : bytes or None
        The application's elements when it began; None for a flush that has dropped a request: it
        goes on with what this one had.
    iteration : int
        As the core counts.
    serial : int or None
        The group that completed it, 0 for none; None: a collective call has dropped the request.
    after : bytes
        What it gave.
    begun, ended : int
        Times.
    last : int or None
        Of a request that was alone: the last group of others that it ran before, 0 for none; None:
        to be found out by the bits.
    ran : list of int
        Filled in by the replay: the serial numbers of the groups that ran meanwhile.
    """

    before: bytes | None
    iteration: int = 0
    serial: int | None = None
    after: bytes = b""
    flush: bool = False
    begun: int = 0
    ended: int = 0
    last: int | None = None
    ran: list[int] | None = None


def _fail(what: str, *things: Any) -> NoReturn:
    raise AssertionError("\n  ".join([what, *map(str, things)]))


# ---- averages ------------------------------------------------------------------------------------


def _plus(left: Array | None, right: Array | None) -> Array | None:
    if left is None or right is None:
        return right if left is None else left
    total: Array = left + right
    return total


def _in_order(parts: list[Array | None]) -> Array | None:
    return functools.reduce(_plus, parts)


def _tree(parts: list[Array | None]) -> Array | None:
    """Recursive doubling, and Rabenseifner's algorithm: neighbouring blocks, the surplus first."""
    size = 1 << (len(parts).bit_length() - 1)
    pairs = len(parts) - size
    blocks = [_plus(parts[2 * i], parts[2 * i + 1]) for i in range(pairs)] + parts[2 * pairs :]
    while len(blocks) > 1:
        blocks = [_plus(low, high) for low, high in zip(blocks[::2], blocks[1::2], strict=True)]
    return blocks[0]


def _ring(parts: list[Array | None]) -> Array | None:
    """Chunk c begins at position c; what a position receives is the left operand."""
    size = len(parts)
    total: Array = next(part for part in parts if part is not None).copy()
    count = len(total)
    ends = [chunk * (count // size) + min(chunk, count % size) for chunk in range(size + 1)]
    for chunk in range(size):
        of = slice(ends[chunk], ends[chunk + 1])
        path = [parts[(chunk + step) % size] for step in range(size)]
        total[of] = functools.reduce(_plus, [None if part is None else part[of] for part in path])
    return total


_ADD: dict[str, Add] = {
    "node": _in_order,
    "recursive_doubling": _tree,
    "rabenseifner": _tree,
    "ring": _ring,
}


def average(
    models: Sequence[Array],
    association: str,
    weights: Sequence[float] | None = None,
    initial: Array | None = None,
    initial_weight: float = 0.0,
    positions: Sequence[int] | None = None,
    size: int = 0,
) -> Array:
    """Return the average of models, bit for bit as the core computes it.

    Parameters
    ----------
    models : sequence of array
        By member, in the order of ranks: of float32 or float64.
    association : str
        "node" or the algorithm of the schedule; "ring" for vectors of one segment.
    weights : sequence of float, optional
        None: equal shares.
    initial : array, optional
        The initial model of the lowest member.
    initial_weight : float
    positions : sequence of int, optional
        Of the members among `size` that the sum goes through; None: these are the members.
    size : int
    """
    if len(models) == 1:
        return models[0]
    kind = models[0].dtype.type
    given = list(models)
    if weights is not None:
        given = [kind(weight) * model for weight, model in zip(weights, models, strict=True)]
    if weights is not None and initial is not None and initial_weight > 0:
        given[0] = given[0] + kind(initial_weight) * initial
    parts: list[Array | None] = [None] * (size or len(given))
    for at, part in zip(positions or range(len(given)), given, strict=True):
        parts[at] = part
    total = _ADD[association](parts)
    assert total is not None
    if weights is None:
        total = np.asarray(total / kind(len(models)))
    return total


def mean_is_kept(models: Sequence[Array], result: Array) -> bool:
    """Return whether the members' mean is the same afterwards; for constant weights."""
    mean = np.mean(np.stack([model.astype(np.float64) for model in models]), axis=0)
    largest = max((float(np.abs(model).max(initial=0.0)) for model in models), default=0.0)
    return bool((np.abs(mean - result) <= _MEAN_KEPT * max(largest, 1e-300)).all())


# ---- all groups of a handle ----------------------------------------------------------------------


class Replay:
    """Replays the groups of one handle.

    Parameters
    ----------
    logs : sequence of sequence of Asked
        By rank, in order. `ran` of each is filled in.
    dtype : str
        Of the buffers. Halves are averaged as float32.
    association : callable
        Of the number of ranks that a sum goes through: as `average` takes it.
    dynamic : bool
        Whether weights are by iteration.
    initials : sequence of bytes, optional
        By rank: the initial model.
    """

    def __init__(
        self,
        logs: Sequence[Sequence[Asked]],
        dtype: str,
        association: Callable[[int], str],
        *,
        dynamic: bool = False,
        initials: Sequence[bytes] | None = None,
    ) -> None:
        self.logs, self.dtype, self.association = logs, np.dtype(dtype), association
        self.dynamic = dynamic
        self.initials = initials
        self.at = [-1] * len(logs)  # by rank: the request that runs groups now
        self.models: list[Any] = [None] * len(logs)
        # By serial number: what the members were given whose requests it completed.
        self.results = {asked.serial: asked.after for log in logs for asked in log if asked.serial}
        for asked in (asked for log in logs for asked in log):
            asked.ran = []
        for rank in range(len(logs)):
            self._next(rank)

    def run(self, groups: Iterable[Formed]) -> int:
        """Replay the groups, and compare with what the ranks were given; return how many.

        Raises
        ------
        AssertionError
            If a rank was given something else.
        """
        ordered = sorted(groups, key=lambda group: group.serial)
        for group in ordered:
            self._perform(group)
        for rank in range(len(self.logs)):
            while (asked := self._current(rank)) is not None and asked.serial is not None:
                if asked.serial != 0:
                    _fail(f"rank {rank} was given a group that did not run", asked)
                self._compare(rank, asked)
                self._next(rank)
        return len(ordered)

    def _load(self, elements: bytes) -> Array:
        array: Array = np.frombuffer(elements, self.dtype)
        if self.dtype == np.float16:
            array = array.astype(np.float32)
        return array

    def _bytes(self, rank: int) -> bytes:
        found: bytes = self.models[rank].astype(self.dtype).tobytes()
        return found

    def _current(self, rank: int) -> Asked | None:
        log, at = self.logs[rank], self.at[rank]
        return log[at] if at < len(log) else None

    def _next(self, rank: int) -> None:
        self.at[rank] += 1
        asked = self._current(rank)
        if asked is not None and asked.before is not None:
            self.models[rank] = self._load(asked.before)

    def _compare(self, rank: int, asked: Asked) -> None:
        if self._bytes(rank) != asked.after:
            wanted, given = self.models[rank], np.frombuffer(asked.after, self.dtype)
            _fail(f"rank {rank} was given another average", asked, wanted, given)

    def _reach(self, rank: int, group: Formed) -> Asked:
        """Go to the request of a rank in which the group ran."""
        while (asked := self._current(rank)) is not None:
            if asked.serial == 0:
                if not group.flush and self._precedes(group, rank, asked):
                    return asked
            elif asked.serial is None:
                rest = self.logs[rank][self.at[rank] + 1 :]
                if not (rest and rest[0].flush and (rest[0].serial or 0) <= group.serial):
                    return asked
            else:
                if asked.serial < group.serial:
                    _fail(f"rank {rank} was given a group that did not run", asked)
                return asked
            self._next(rank)
        _fail(f"group {group.serial} ran while rank {rank} had no request", group)

    def _precedes(self, group: Formed, rank: int, asked: Asked) -> bool:
        """Return whether a rank ran a group of others in a request that left it alone then."""
        if asked.last is not None:
            return group.serial <= asked.last
        own = self._bytes(rank)
        if own != asked.after:
            return True
        if group.serial in self.results:
            return self.results[group.serial] == own  # else it has changed the model
        # Members of the same model have been in a group together: an average that changes nothing.
        others = (self._bytes(r) for r in group.members if r != rank and self.models[r] is not None)
        return own in others

    def _perform(self, group: Formed) -> None:
        asked = [self._reach(rank, group) for rank in group.members]
        models = [self.models[rank] for rank in group.members]
        lowest = group.members[0]
        result = average(
            models,
            self.association(len(group.ranks or models)),
            group.weights if self.dynamic and not group.flush else None,
            self._load(self.initials[lowest]) if self.initials is not None else None,
            group.initial,
            [group.ranks.index(rank) for rank in group.members] if group.ranks else None,
            len(group.ranks),
        )
        constant = group.flush or not self.dynamic
        if constant and self.dtype == np.float64 and not mean_is_kept(models, result):
            _fail(f"the mean of group {group.serial} is not kept", group, models, result)
        for rank, one in zip(group.members, asked, strict=True):
            assert one.ran is not None
            one.ran.append(group.serial)
            self.models[rank] = result
            if one.serial == group.serial:
                self._compare(rank, one)
                self._next(rank)
