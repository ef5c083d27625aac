"""Which communicators the groups of ``backend="comm"`` have; MPI is faked."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pypartial._group_comm import CommGroups

RANKS = 4
# Two phases in each of which ranks 0 and 1 are a group, and one of all.  See groups.groups_of().
PHASES = [(1, 0, 2, 3), (1, 0, 3, 2), (1, 2, 3, 0)]
GROUPS = {0: [(0, 1), (0, 1, 2, 3)], 2: [(2, 3), (0, 1, 2, 3)]}


class Comm:
    """A communicator; `made` has all that were not freed."""

    def __init__(self, made: list[Comm], rank: int, colours: list[int | None]) -> None:
        self.rank, self.made, self.colours = rank, made, colours
        made.append(self)

    def Dup(self) -> Comm:
        return Comm(self.made, self.rank, self.colours)

    def Split(self, colour: int | None, key: int) -> Comm | None:
        assert key == self.rank
        self.colours.append(colour)
        return None if colour is None else self.Dup()

    def Get_group(self) -> Any:
        return SimpleNamespace(Free=lambda: None)

    def Free(self) -> None:
        self.made.remove(self)


@pytest.mark.parametrize("rank", [0, 2])
def test_a_group_of_several_phases_has_one_communicator(rank: int) -> None:
    """Every rank takes part in the split of each phase, and all are freed."""
    made: list[Comm] = []
    comm = Comm(made, rank, [])
    table = [after for phase in PHASES for after in phase]
    native: Any = SimpleNamespace(
        MPI=SimpleNamespace(UNDEFINED=None), ffi=SimpleNamespace(unpack=lambda data, count: data)
    )
    settings: Any = SimpleNamespace(
        weights="uniform", splits=1, groups=SimpleNamespace(_table=lambda *arguments: table)
    )
    context: Any = SimpleNamespace(comm=comm, size=RANKS, _ctx=None)
    groups = CommGroups(context, native, SimpleNamespace(), settings)  # type: ignore[arg-type]
    assert sorted(groups._splits) == sorted(GROUPS[rank])
    assert len(comm.colours) == len(PHASES)
    assert [colour for colour in comm.colours if colour is not None] == [
        members[0] for members in GROUPS[rank]
    ]
    groups.free()
    assert made == [comm]
