"""Groups on communicators of MPI, the papers' way: ``backend="comm"``, the reference."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from ._group_elements import Share, record
from .errors import Error
from .groups import groups_of

if TYPE_CHECKING:
    from mpi4py import MPI

    from ._group_elements import Elements
    from ._native import Native
    from .context import Context
    from .preduce import Settings
    from .status import GroupResult

# The members of a group agree on a tag below MPI's least upper bound, 32767.
_TAGS = 32749  # a prime


class CommGroups:
    """Runs the groups of one handle on communicators. Making it is collective.

    It duplicates the context's communicator. For `Static` it also splits that once for each
    different phase, because `MPI_Comm_split` is collective over all ranks. Any other group makes
    its communicator when it begins, by `MPI_Comm_create_group`.

    Parameters
    ----------
    context : Context
    native : Native
    elements : Elements
        What it averages.
    settings : Settings
    """

    def __init__(self, context: Context, native: Native, elements: Elements, settings: Settings):
        self._mpi: Any = native.MPI
        self._elements = elements
        self._by_iteration = settings.weights == "dynamic"
        self._kept: dict[int, MPI.Comm] = {}
        self._single: dict[int, MPI.Comm] = {}  # of the last group that has one of its own
        self._splits: dict[tuple[int, ...], MPI.Comm] = {}
        self._comm = cast("MPI.Intracomm", context.comm.Dup())
        self._group = self._comm.Get_group()
        ranks = context.size
        table = settings.groups._table(native, context._ctx, ranks) if settings.splits else None
        if table is not None:
            following = native.ffi.unpack(table, len(table))
            phases = {tuple(following[at : at + ranks]) for at in range(0, len(table), ranks)}
            for phase in sorted(phases):
                self._split(groups_of(phase))

    def _split(self, groups: list[tuple[int, ...]]) -> None:
        """Make the communicators of the groups of a phase that no phase before it has."""
        rank = self._comm.rank
        mine = next((group for group in groups if rank in group), ())
        new = mine and mine not in self._splits  # all its members see that alike
        comm = self._comm.Split(mine[0] if new else self._mpi.UNDEFINED, rank)
        if new:
            self._splits[mine] = comm

    def start(self) -> None:
        """Copy the buffers: they belong to the application after Start."""
        self._elements.start()

    def run(self, group: GroupResult, kept: int) -> None:
        """Average a group; blocks until all its members are in it.

        `kept` is the number under which the members keep the communicator, -1: none. It is the same
        at all members, and no other group has it, so they agree on whether there is one already.

        Ctrl-C raises between any two instructions of Python, and the Wait is then repeated. Three
        steps are made with the other members, once: the communicator, the sum, and the end of a
        communicator that is not kept. None is lost, and none made again alone, because each is one
        call that also notes it: `record`, and Free, which empties the object. The first two notes
        have the number of the group, so they stay until the next one. All else is local, and can be
        done again.
        """
        try:
            comm = self._splits.get(group.group)
            if comm is None:
                comm = self._comm_of(group, kept)
            if self._elements.averaged != group.round:
                self._average(comm, group, self._by_iteration)
            self._end_single(group)
        except self._mpi.Exception as error:
            raise Error(f"MPI failed in group {group.round}, {group.group}: {error}") from error

    def flush(self, group: GroupResult) -> None:
        """Average what `start` has copied over the ranks of a flush, with equal weights."""
        try:
            if len(group.group) == self._comm.size:
                self._average(self._comm, group, False)
            else:
                self._average(self._comm_of(group, -1), group, False)
                self._end_single(group)
        except self._mpi.Exception as error:
            raise Error(f"MPI failed in the flush of {group.group}: {error}") from error
        self.deliver()

    def deliver(self) -> None:
        """Write the model to the buffers."""
        self._elements.deliver()

    def free(self) -> None:
        """Free all communicators; collective."""
        for comm in [*self._kept.values(), *self._splits.values(), self._comm]:
            comm.Free()
        self._group.Free()

    def _comm_of(self, group: GroupResult, kept: int) -> MPI.Comm:
        """Return the communicator of a group, which may be made now."""
        made, number = (self._kept, kept) if kept >= 0 else (self._single, group.round)
        if number not in made:
            self._single.clear()  # the last one has ended
            self._create(made, number, group)
        return made[number]

    def _create(self, made: dict[int, MPI.Comm], number: int, group: GroupResult) -> None:
        members = self._group.Incl(list(group.group))
        try:
            record(made, number, self._comm.Create_group, members, group.round % _TAGS)
        finally:
            members.Free()

    def _end_single(self, group: GroupResult) -> None:
        """Free the communicator of a group if it is not kept, unless that is done."""
        comm = self._single.get(group.round)
        if comm:
            comm.Free()

    def _average(self, comm: MPI.Comm, group: GroupResult, by_iteration: bool) -> None:
        """Average the model over a communicator; the group and its weights say how."""
        if by_iteration:
            weight = group.weights[group.group.index(self._comm.rank)]
            share = Share(weight, group.initial if comm.rank == 0 else 0.0)
        else:
            share = Share(divide_by=len(group.group))
        self._elements.average(comm, group.round, share)
