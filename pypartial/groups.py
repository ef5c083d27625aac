"""Generators of groups: which ranks average with each other, and when.

A *generator* is an argument of `Context.Preduce_init`. `Smart` and `Controller` suit ranks of
different speeds, `Static` ranks of equal speed. With `Given` the application names each group.

References
----------
Q. Luo et al., "Prague: High-Performance Heterogeneity-Aware Asynchronous Decentralized Training"
(Ripples), ASPLOS 2020, sections 3 to 6. X. Miao et al., "Heterogeneity-Aware Distributed Machine
Learning Training via Partial Reduce", SIGMOD 2021, sections 3 and 4.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from ._arguments import INT32_MAX, in_range, listed, whole_number
from .errors import ArgumentError

if TYPE_CHECKING:
    from ._core import CData
    from ._native import Native

__all__ = ["Controller", "Generator", "Given", "Random", "Smart", "Static", "Table"]

FORESIGHT_MOST = 100_000  # the generator computes with 64 bits


@dataclass(frozen=True)
class Generator(ABC):
    """Which ranks average with each other: the base of all generators.

    Use one of `Static`, `Random`, `Smart`, `Controller`, `Given` and `Table`. A generator is
    immutable, and generators are compared by value. What depends on the number of ranks is checked
    by `pypartial.Context.Preduce_init`.
    """

    word: ClassVar[str] = ""

    @abstractmethod
    def check(self, ranks: int) -> None:
        """Check that the generator fits a context.

        Parameters
        ----------
        ranks : int
            Ranks of the context.

        Raises
        ------
        ArgumentError
            If it does not.
        """

    def options(self) -> dict[str, int]:
        """Return the options by the names that the C core has for them."""
        return {field.name: int(getattr(self, field.name)) for field in fields(self)}

    def _table(self, native: Native, ctx: CData, ranks: int) -> CData | None:
        """Return the core's table of phases; None if the generator has none."""
        return None


# ---- groups that are known beforehand ------------------------------------------------------------


@dataclass(frozen=True)
class Given(Generator):
    """Each Start names its group: ``Start(group=[0, 4, 5])``.

    All members pass the same list. If the lists of two ranks that wait for each other differ, both
    raise `pypartial.MismatchError`. Lists in a circle wait: of 0 and 1, 1 and 2, 0 and 2 no two
    ranks wait for each other.
    """

    word: ClassVar[str] = "given"

    def check(self, ranks: int) -> None:
        """Accept any number of ranks."""


@dataclass(frozen=True)
class Table(Generator):
    """A table of phases, which the application has made.

    The k-th Start of a rank since the last Flush is phase k mod n of n phases.

    Parameters
    ----------
    phases : sequence of sequences of sequences of int
        For each phase its groups, and for each group its ranks. A rank in no group of a phase is
        idle: its Start of this phase completes at once, alone.

    Raises
    ------
    ArgumentError
        If there is no phase, if a group is empty, if a rank is not an integer from 0 on, or if it
        is in a phase twice.

    Examples
    --------
    >>> import pypartial as pp
    >>> pp.groups.Table([[[0, 1], [2, 3]], [[1, 2]]])  # in the second phase 0 and 3 are idle
    Table(phases=(((0, 1), (2, 3)), ((1, 2),)))
    """

    word: ClassVar[str] = "table"

    phases: Sequence[Sequence[Sequence[int]]]

    def __post_init__(self) -> None:
        """Check the table, and keep it as tuples, the ranks of a group in ascending order."""
        given = listed("phases", self.phases)
        if not given:
            raise ArgumentError(f"phases must have at least one phase, not {self.phases!r}")
        phases = tuple(_phase(f"phases[{number}]", phase) for number, phase in enumerate(given))
        object.__setattr__(self, "phases", phases)

    def check(self, ranks: int) -> None:
        """Check that all ranks of the table are ranks of the context."""
        for number, phase in enumerate(self.phases):
            for group in phase:
                if group[-1] >= ranks:
                    raise ArgumentError(
                        f"groups: phases[{number}] of the table has rank {group[-1]}, but the "
                        f"context has {ranks} ranks"
                    )

    def options(self) -> dict[str, int]:
        """Return the number of phases."""
        return {"phases": len(self.phases)}

    def _table(self, native: Native, ctx: CData, ranks: int) -> CData:
        return native.ffi.new("int32_t[]", next_members(self.phases, ranks))


@dataclass(frozen=True)
class Static(Generator):
    """The table of Ripples, section 4.2, Figures 9 and 10: four phases, by nodes.

    The k-th Start of a rank since the last Flush is phase k mod 4. In phases 1 and 3 whole nodes
    average; in phases 0 and 2 ranks of different nodes, and pairs inside the nodes.
    ``pypartial groups show static`` prints the table, docs/groups.md describes it. A slow rank
    makes all ranks slow in the end.

    Parameters
    ----------
    nodes, per_node : int, optional
        How many nodes there are, and how many consecutive ranks each has. One of them follows from
        the other. If both are None, they are those of the context, whose nodes must then have
        equally many and consecutive ranks. A context with ``transport="mpi"`` or more than 1,024
        ranks, or whose ranks are all alone on their nodes, counts as one node here.

    Raises
    ------
    ArgumentError
        If one of them is not a positive integer.
    """

    word: ClassVar[str] = "table"

    nodes: int | None = None
    per_node: int | None = None

    def __post_init__(self) -> None:
        """Check the fields, and keep them as int."""
        for name in ("nodes", "per_node"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, in_range(name, value, 1, INT32_MAX))

    def check(self, ranks: int) -> None:
        """Check that the nodes have as many ranks as the context, as far as they are given."""
        nodes, per_node = self.nodes, self.per_node
        if nodes is None and per_node is None:
            return
        if nodes is None or per_node is None:
            fits = ranks % (nodes or per_node or 1) == 0
        else:
            fits = nodes * per_node == ranks
        if not fits:
            raise ArgumentError(
                f"groups: {self!r} does not fit the context's {ranks} ranks: nodes times per_node "
                f"must be {ranks}"
            )

    def options(self) -> dict[str, int]:
        """Return the number of phases."""
        return {"phases": 4}

    def layout(self, node_of: Sequence[int]) -> tuple[int, int]:
        """Return how many nodes there are, and how many ranks each has.

        Parameters
        ----------
        node_of : sequence of int
            The node of each rank of the context, from 0.

        Returns
        -------
        tuple of int

        Raises
        ------
        ArgumentError
            If `nodes` and `per_node` do not fit, or are needed and not given.
        """
        ranks = len(node_of)
        self.check(ranks)
        if self.nodes is not None:
            return self.nodes, ranks // self.nodes
        if self.per_node is not None:
            return ranks // self.per_node, self.per_node
        nodes = max(node_of) + 1
        per_node = ranks // nodes
        if list(node_of) != [rank // per_node for rank in range(ranks)]:
            raise ArgumentError(
                f"groups: {self!r}: the context's {nodes} nodes are not equally large blocks of "
                "consecutive ranks; pass nodes= and per_node="
            )
        return nodes, per_node

    def _table(self, native: Native, ctx: CData, ranks: int) -> CData:
        ffi, lib = native.ffi, native.lib
        node_of = ffi.new("int32_t[]", ranks)
        native.check(lib.pp_ctx_nodes(ctx, node_of))
        nodes, per_node = self.layout(ffi.unpack(node_of, ranks))
        table = ffi.new("int32_t[]", lib.PP_STATIC_PHASES * ranks)
        native.check(lib.pp_groups_static_table(nodes, per_node, table))
        return table


# ---- groups that are formed when ranks ask -------------------------------------------------------


@dataclass(frozen=True)
class _Sized(Generator):
    """A generator whose groups have a size.

    Parameters
    ----------
    size : int
        Ranks of a group, from 2 to the ranks of the context. In a context of one rank any size
        counts as 1.
    """

    size: int

    def __post_init__(self) -> None:
        """Check the fields, and keep them as int and bool."""
        object.__setattr__(self, "size", whole_number("size", self.size))
        for field in fields(self):
            if isinstance(field.default, bool):
                flag = getattr(self, field.name)
                if not isinstance(flag, (bool, np.bool_)):
                    raise ArgumentError(f"{field.name} must be True or False, not {flag!r}")
                object.__setattr__(self, field.name, bool(flag))

    def check(self, ranks: int) -> None:
        """Check that the context has enough ranks for a group."""
        if self.size < min(2, ranks) or self.size > ranks > 1:
            raise ArgumentError(
                f"groups: {self!r}: size must be at least 2, and at most the context's {ranks} "
                f"ranks, not {self.size}"
            )


@dataclass(frozen=True)
class Random(_Sized):
    """The rank that asks, and others at random (Ripples, section 4.1).

    A rank runs the groups that others drew it into, up to the one of its own Start, in its next
    Wait. The status describes the last of them.

    Parameters
    ----------
    size : int
        Ranks of a group, from 2 to the ranks of the context. In a context of one rank any size
        counts as 1.
    reuse : bool, optional
        Whether a group that the rank is in already serves its Start (Ripples, section 5.1). False:
        every Start makes a group.

    Raises
    ------
    ArgumentError
        If a value is not of its type.
    """

    word: ClassVar[str] = "random"

    reuse: bool = False


@dataclass(frozen=True)
class Smart(_Sized):
    """Group buffers, division of all idle ranks, and filters for slow ones (Ripples, section 5).

    A rank that is in a group already gets that one. Else it and all other idle ranks are divided
    into groups at random. A rank that finds no other one idle goes on alone, at most twice in a
    row. If the last groups leave the ranks unconnected, the next one connects them. docs/groups.md,
    "smart", says more.

    Parameters
    ----------
    size : int
        Ranks of a group, from 2 to the ranks of the context. In a context of one rank any size
        counts as 1.
    division : bool, optional
        Whether all idle ranks are divided at once (5.1). False: one group is made, for the rank
        that asks.
    inter_intra : bool, optional
        Whether a division gives a rank two groups (5.2): one between nodes, for one rank of each
        node, or inside its node, and then its whole node.
    c_thres : int, optional
        A rank that is this many Starts behind the asking one, or more, is left out (5.3). From 1.
    foresight : int, optional
        A rank whose next Start is further ahead than this is left out, in hundredths of a mean
        computation, 0 to 100,000. 0: no such filter. It is ours, not Ripples'.
    unfreeze : bool, optional
        Whether it connects ranks that the last groups leave unconnected. It is ours, too.

    Raises
    ------
    ArgumentError
        If a value is not of its type or in its range.
    """

    word: ClassVar[str] = "smart"

    division: bool = True
    inter_intra: bool = False
    c_thres: int = 4
    foresight: int = 100
    unfreeze: bool = True

    def __post_init__(self) -> None:
        """Check the fields, and keep them as int and bool."""
        super().__post_init__()
        c_thres = in_range("c_thres", self.c_thres, 1, INT32_MAX)
        object.__setattr__(self, "c_thres", c_thres)
        foresight = in_range("foresight", self.foresight, 0, FORESIGHT_MOST)
        object.__setattr__(self, "foresight", foresight)


@dataclass(frozen=True)
class Controller(_Sized):
    """Ranks in the order in which they ask (Partial Reduce, section 4).

    When `size` ranks ask, or all that have not left, they are a group. If the last groups leave the
    ranks unconnected, so that they could stay in two halves for ever, the next group connects them.

    Parameters
    ----------
    size : int
        Ranks of a group, from 2 to the ranks of the context. In a context of one rank any size
        counts as 1.
    history : int or "auto", optional
        How many groups the controller looks back (T of Partial Reduce). At least
        ⌈(P - 1) / (size - 1)⌉ for P ranks, because fewer groups cannot connect all ranks.
        ``"auto"``: four times as many.
    unfreeze : bool, optional
        Whether it connects ranks that the last groups leave unconnected.

    Raises
    ------
    ArgumentError
        If a value is not of its type or in its range.
    """

    word: ClassVar[str] = "controller"

    history: int | Literal["auto"] = "auto"
    unfreeze: bool = True

    def __post_init__(self) -> None:
        """Check the fields, and keep them as int and bool."""
        super().__post_init__()
        if isinstance(self.history, str):
            if self.history != "auto":
                raise ArgumentError(f"history must be 'auto' or an integer, not {self.history!r}")
        else:
            history = in_range("history", self.history, 1, INT32_MAX)
            object.__setattr__(self, "history", history)

    def check(self, ranks: int) -> None:
        """Check that the context has enough ranks, and that `history` is long enough."""
        super().check(ranks)
        least = least_history(ranks, self.size)
        if self.history != "auto" and self.history < least:
            raise ArgumentError(
                f"groups: {self!r}: history must be at least {least}, the groups of {self.size} "
                f"that connect {ranks} ranks, not {self.history}"
            )

    def options(self) -> dict[str, int]:
        """Return the options by the names that the C core has for them."""
        history = 0 if self.history == "auto" else self.history
        return {"size": self.size, "history": history, "unfreeze": int(self.unfreeze)}


def least_history(ranks: int, size: int) -> int:
    """Return how many groups of a size can connect the ranks."""
    return -((1 - ranks) // max(size - 1, 1))


# ---- tables --------------------------------------------------------------------------------------


def next_members(phases: Sequence[Sequence[Sequence[int]]], ranks: int) -> list[int]:
    """Return a table as the core takes it: by phase and rank, the next rank of the rank's group.

    The lowest rank of a group follows the highest; a rank without a group follows itself. The ranks
    of each group ascend.
    """
    table = []
    for phase in phases:
        following = list(range(ranks))
        for group in phase:
            for one, other in zip(group, [*group[1:], group[0]], strict=True):
                following[one] = other
        table += following
    return table


def groups_of(following: Sequence[int]) -> list[tuple[int, ...]]:
    """Return the groups of two or more ranks of one phase of such a table."""
    groups = []
    for lowest, after in enumerate(following):
        members = [lowest]
        while after > members[-1]:
            members.append(after)
            after = following[after]
        if len(members) > 1 and after == lowest:
            groups.append(tuple(members))
    return groups


def members_of(group: Any, rank: int, ranks: int) -> list[int]:
    """Return the group of one Start in ascending order.

    Raises
    ------
    ArgumentError
        If it is not a list of different ranks of the context, `rank` among them.
    """
    members = sorted(_group("group", group))
    if members[-1] >= ranks:
        raise ArgumentError(f"group: rank {members[-1]} is not in 0..{ranks - 1}")
    if rank not in members:
        raise ArgumentError(f"group must contain this rank, {rank}: {group!r} does not")
    return members


def _phase(name: str, phase: Any) -> tuple[tuple[int, ...], ...]:
    groups = []
    seen: set[int] = set()
    for number, group in enumerate(listed(name, phase)):
        members = sorted(_group(f"{name}[{number}]", group))
        for rank in members:
            if rank in seen:
                raise ArgumentError(f"{name}: rank {rank} is in two groups of one phase")
        seen.update(members)
        groups.append(tuple(members))
    return tuple(groups)


def _group(name: str, group: Any) -> list[int]:
    """Return the ranks of a group; raise unless they are different integers from 0 on."""
    ranks = [whole_number(f"a rank of {name}", rank) for rank in listed(name, group)]
    if not ranks:
        raise ArgumentError(f"{name} must have at least one rank, not {group!r}")
    seen: set[int] = set()
    for rank in ranks:
        if not 0 <= rank <= INT32_MAX:
            raise ArgumentError(f"{name}: {rank} is not a rank")
        if rank in seen:
            raise ArgumentError(f"{name}: rank {rank} is in the group twice")
        seen.add(rank)
    return ranks
