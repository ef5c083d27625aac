"""The serial replay of gossip: what every rank's model must be, bit for bit.

The log has the events of a handle in the order of the node's lock: what ranks add, and averages.
What was added to a rank since the last average that took it is summed up first, in order. A member
gives its model plus that sum. The lower rank's operand is the left one, and the sum is divided by
the number of members. By messages each member gives its part at a time of its own, and a flush adds
up in the order of its schedule, which is not replayed.
"""

from __future__ import annotations

import functools
import operator
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from pypartial.sim.world import Begun

Array = np.ndarray[Any, Any]
_MEAN_KEPT = 1e-12


@dataclass
class Own:
    """What one rank did, in order."""

    first: Array  # its model at first
    adds: deque[Array] = field(default_factory=deque)
    given: dict[int, bytes] = field(default_factory=dict)  # what its requests gave, by group
    # By itself: what it found (None: nobody has seen it, nor whether it was done), and what it left
    # in place of it (None: the same).
    alone: deque[tuple[bytes | None, Array | None]] = field(default_factory=deque)


class Replay:
    """Replays the log of a handle.

    Parameters
    ----------
    ranks : sequence of Own
        Deques are emptied.
    by_messages : bool
        Whether no memory is shared by all ranks.
    """

    def __init__(self, ranks: Sequence[Own], by_messages: bool = False) -> None:
        self.ranks, self.dtype, self.by_messages = ranks, ranks[0].first.dtype, by_messages
        self.parts: dict[int, dict[int, Array]] = {}  # by messages: by group and rank
        self.models = [self._wide(own.first) for own in ranks]
        self.slots: list[Array | None] = [None] * len(ranks)
        self.busy = [False] * len(ranks)  # something is being added to the slot
        self.averages = self.overlaps = 0
        self.last = [0] * len(ranks)  # by rank: the average that began last

    def _wide(self, array: Array) -> Array:
        return array.astype(np.float32) if self.dtype == np.float16 else array.copy()

    def run(self, log: Iterable[Begun]) -> None:
        """Replay the log, and compare with what the ranks were given.

        Raises
        ------
        AssertionError
            If a rank was given something else, or what it added is lost.
        """
        for event in log:
            if event.members and self.by_messages:
                self._give(event)
            elif event.members:
                parts = [self._take(rank) for rank in event.members]
                self._average(event.serial, event.members, event.flush, parts)
            elif event.serial:
                self.busy[event.rank] = True
                self.overlaps += 1
            else:
                self._add(event.rank)
        for rank, own in enumerate(self.ranks):
            seen = [found for found, _ in own.alone if found is not None]
            assert not own.adds and not seen, f"rank {rank} did what no log has\n  {own}"
            last = max((serial for serial in own.given), default=0)
            assert last == 0, f"rank {rank} was given average {last}, which the log does not have"
        assert not self.parts, f"averages have not happened: {self.parts}"

    def _add(self, rank: int) -> None:
        found, slot = self._wide(self.ranks[rank].adds.popleft()), self.slots[rank]
        self.slots[rank] = found if slot is None else slot + found
        self.busy[rank] = False

    def _take(self, rank: int) -> Array:
        slot = self.slots[rank]
        if slot is None or self.busy[rank]:
            return self.models[rank]
        self.slots[rank] = None
        total: Array = self.models[rank] + slot
        return total

    def _give(self, event: Begun) -> None:
        if event.rank < 0:
            return  # rank 0 tells that a flush begins
        other = [serial for serial, given in self.parts.items() if event.rank in given]
        assert not other, f"rank {event.rank} is in {event.serial} and {other} at once"
        parts = self.parts.setdefault(event.serial, {})
        parts[event.rank] = self._take(event.rank)
        if len(parts) == len(event.members):
            del self.parts[event.serial]
            ordered = [parts[rank] for rank in event.members]
            self._average(event.serial, event.members, event.flush, ordered)

    def _average(
        self, serial: int, members: Sequence[int], flush: bool, parts: Sequence[Array]
    ) -> None:
        for rank in members if not self.by_messages else ():
            assert self.last[rank] < serial, f"rank {rank} is in {serial} after {self.last[rank]}"
            self.last[rank] = serial
        model = functools.reduce(operator.add, parts)
        if len(members) > 1:
            model = np.asarray(model / model.dtype.type(len(members)))
            self.averages += 1
        if flush and self.by_messages:
            found = np.frombuffer(self.ranks[members[0]].given[serial], self.dtype)
            np.testing.assert_allclose(found, model, rtol=1e-5, atol=1e-5)
            model = self._wide(found)
        if self.dtype == np.float64:
            self._check_mean(parts, model)
        for rank in members:
            self.models[rank] = model
        if len(members) == 1 and not flush:
            self._by_itself(members[0])
        for rank in members:
            given = self.ranks[rank].given.pop(serial, None)
            assert given in (None, self._narrow(model)), self._differs(rank, serial, given, model)

    def _by_itself(self, rank: int) -> None:
        found, left = self.ranks[rank].alone.popleft()
        model = self.models[rank]
        assert found in (None, self._narrow(model)), self._differs(rank, 0, found, model)
        if left is not None:
            self.models[rank] = self._wide(left)

    def _narrow(self, model: Array) -> bytes:
        data: bytes = model.astype(self.dtype).tobytes()
        return data

    def _differs(self, rank: int, serial: int, given: bytes | None, model: Array) -> str:
        found = None if given is None else np.frombuffer(given, self.dtype)
        return f"rank {rank} was given another average by {serial}\n  {found}\n  {model}"

    def _check_mean(self, parts: Sequence[Array], model: Array) -> None:
        mean = np.mean(np.stack(parts), axis=0)
        bound = _MEAN_KEPT * max(float(np.abs(part).max(initial=1e-300)) for part in parts)
        assert (np.abs(mean - model) <= bound).all(), f"the mean is not kept\n  {parts}\n  {model}"
