"""What a request completed with, and what a context has done."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import Enum, EnumMeta
from typing import Any, NamedTuple

from ._names import CAUSE
from .errors import Error

__all__ = ["Activation", "Cause", "Stats", "Status"]


class _OwnNames(EnumMeta):
    """Lists the members of an enumeration of strings, and not what `str` has: `help` reads this."""

    def __dir__(cls) -> list[str]:
        return ["__class__", "__doc__", "__members__", "__module__", *cls.__members__]


class Cause(str, Enum, metaclass=_OwnNames):
    """Why a round was activated: the value of `Status.cause`.

    If several ranks activate a round for different causes, the strongest cause counts. The members
    below are in ascending order. A member is a string and equals its value:
    ``status.cause == "policy"``.

    Attributes
    ----------
    POLICY
        ``"policy"``: the handle's policy was satisfied.
    DEPARTED
        ``"departed"``: ranks that the policy needed have left the handle, because they are inside a
        collective call of the context or their patience was over. The round went on without them.
    DEADLINE
        ``"deadline"``: a rank had waited for as long as the policy's ``deadline=``.
    FLUSH
        ``"flush"``: the round is the last, synchronous one of `Request.Flush`,
        `AllreduceRequest.Drain` or `Request.Free`.

    Examples
    --------
    >>> import pypartial as pp
    >>> pp.Cause.DEPARTED == "departed"
    True
    """

    POLICY = "policy"
    DEPARTED = "departed"
    DEADLINE = "deadline"
    FLUSH = "flush"

    def __str__(self) -> str:
        return self.value


class Activation(str, Enum, metaclass=_OwnNames):
    """Whether this rank or another one activated a round: the value of `Status.activation`.

    A member is a string and equals its value: ``status.activation == "internal"``. The value is
    this rank's own; other ranks may have another one for the same round. See eager-SGD (Li et al.,
    PPoPP 2020), section 4.1.1.

    Attributes
    ----------
    INTERNAL
        ``"internal"``: this rank triggered the round by its own call. Several ranks may trigger the
        same round.
    EXTERNAL
        ``"external"``: other ranks triggered the round. This rank was told by a message, or found
        the round in the memory that the ranks of its node share.

    Examples
    --------
    >>> import pypartial as pp
    >>> pp.Activation.EXTERNAL == "external"
    True
    """

    INTERNAL = "internal"
    EXTERNAL = "external"

    def __str__(self) -> str:
        return self.value


# The C struct pp_result_t, which `_native.load` compares with these names.
RESULT = struct.Struct("=QQiiii16QQQQii")
RESULT_FIELDS = (
    "round",
    "contributions",
    "active",
    "cause",
    "initiator",
    "contributors_known",
    "contributors",
    "first",
    "missed",
    "staleness",
    "included",
    "external",
)
_CAUSES = tuple(Cause(name) for name in CAUSE)  # in the core's order
_WORDS = slice(6, 22)


class GroupResult(NamedTuple):
    """What a request of P-Reduce, or of gossip, completed with; `Status` describes the fields."""

    round: int
    iteration: int
    group: tuple[int, ...]
    weights: tuple[float, ...]
    initial: float
    staleness: int | None = None  # None: of P-Reduce


class QueueResult(NamedTuple):
    """What a request of queues completed with; `Status` describes the fields."""

    iteration: int
    gap: int
    staleness: int
    received: int
    dropped: int
    skipped: int


class Status:
    """What a request completed with: a round and its contributors, or a group and its weights.

    ``Status()`` makes an empty one. Pass it to `Request.Wait`, `Request.Test`, `Request.Flush`,
    `AllreduceRequest.View` or `AllreduceRequest.More`; each call overwrites it, so one status
    serves a whole loop. `AllreduceRequest.Drain` gives a new one for each round.

    A status owns its values. It can be copied, compared and pickled, and it outlives the request.
    It describes a round, or, if the request averages in groups, a group: it then has `round`,
    `group`, `weights`, `initial` and `iteration` only. That of queues has `iteration`, `gap`,
    `staleness`, `received`, `dropped` and `skipped` only.

    Attributes
    ----------
    gap : int
        Of queues, as the next three: how many iterations this rank is ahead of its slowest
        out-neighbour, as far as it knows; with ``protocol="none"`` of the slowest in-neighbour.
    received : int
        How many neighbours' updates the average contains.
    dropped : int
        How many updates came and were in no average, since the request before.
    skipped : int
        How many iterations this rank did not enter, since the request before.
    group : tuple of int
        Of a group: the ranks whose models the average contains, in ascending order, this rank among
        them. This rank only, if it was alone. After a Flush: the ranks that took part in it. The
        attributes from here to `iteration` are those of P-Reduce.
    weights : tuple of float
        What the models of these ranks counted, in the same order.
    initial : float
        What the initial model counted: 0 except with ``missing="initial"``.
    iteration : int
        The iteration of this rank's model. With ``weights="dynamic"`` this rank has taken over the
        newest one of the group. -1: it has not started yet. Of queues: the one that it has entered.
    round : int
        Of a group: its serial number. The groups and flushes of a handle are numbered from 1 in the
        order in which they were formed; 0 if this rank was alone. In gossip making the models,
        `Read` and `locked` have numbers, too; by messages, where no rank counts them all, numbers
        are only different, and ascend for each rank that asks. Of a round: the newest one that was
        delivered. The rounds of a handle are numbered from 0. The attributes from here to
        `initiator` describe this round and are identical on every rank.
    active : int
        How many ranks were ready when the round took their contributions (NAP of eager-SGD, section
        6.1).
    contributors : tuple of int or None
        The ranks with data in the round, in ascending order, ranks with late data included. None
        above 1,024 ranks, where rounds do not carry this list.
    contributions : int
        How many `Request.Start` calls, of all ranks together, the round contains.
    cause : Cause
        Why the round was activated: ``"policy"``, ``"departed"``, ``"deadline"`` or ``"flush"``.
    initiator : int or None
        The lowest rank that triggered the round. None for the rounds of `Quorum` and `Full`, and
        for a flush.
    first : int
        The oldest round that was delivered; below `round` only with ``deliver="sum"``. This
        attribute and the following ones are this rank's own.
    included : bool
        Whether this call's contribution is in a round up to `round`. False for a late request: its
        contribution goes into the next round.
    missed : int
        How many rounds completed between the completion of this rank's previous request and this
        request's Start.
    staleness : int
        How old this rank's oldest contribution in `round` is: `round` minus the round that the
        contribution's own call was given. 0 if the contribution is fresh, or if this rank has none.
        Of gossip: how many averages had changed this rank's model between the last result and this
        Start.
        Of queues: how much older than the iteration averaged the oldest update was.
    activation : Activation
        ``"internal"`` if this rank triggered the round by its own call, ``"external"`` if other
        ranks did.

    Raises
    ------
    Error
        If an attribute of an empty status is read, or one that what it describes does not have.

    Examples
    --------
    >>> status = pp.Status()  # doctest: +SKIP
    >>> request.Start()  # doctest: +SKIP
    >>> request.Wait(status)  # doctest: +SKIP
    True
    >>> status.round, status.contributors, status.included  # doctest: +SKIP
    (17, (0, 2, 3), True)
    """

    __slots__ = ("_data", "_values")

    _data: bytes | GroupResult | QueueResult
    _values: tuple[int, ...] | None

    def __init__(self) -> None:
        self._data = b""
        self._values = None

    def _fill(self, data: bytes | GroupResult | QueueResult) -> None:
        """Keep a group, or the bytes of a pp_result_t, which are decoded when they are read."""
        self._data = data
        self._values = None

    def _decode(self) -> tuple[int, ...]:
        values = self._values
        if values is None:
            data = self._data
            if isinstance(data, GroupResult):
                of = "P-Reduce" if data.staleness is None else "gossip"
                has = "initial" if data.staleness is None else "staleness"
                raise Error(
                    f"this Status describes a group of {of}, which has round, group, weights, "
                    f"{has} and iteration only"
                )
            if isinstance(data, QueueResult):
                raise Error(f"this Status describes queues, which have {', '.join(data._fields)}")
            self._refuse_empty()
            values = self._values = RESULT.unpack(data)
        return values

    def _group(self) -> GroupResult:
        """Return the group; raise if the status describes none."""
        if isinstance(self._data, GroupResult):
            return self._data
        self._decode()  # raises if it is empty, or of queues
        raise Error(
            "this Status describes a round of an allreduce, which has no group, weights, initial "
            "and iteration: those are of P-Reduce"
        )

    def _queue(self) -> QueueResult:
        """Return what queues gave; raise if the status describes something else."""
        if isinstance(self._data, QueueResult):
            return self._data
        self._refuse_empty()
        raise Error("this Status has no gap, received, dropped and skipped: those are of queues")

    def _refuse_empty(self) -> None:
        if not self._data:
            raise Error("this Status is empty: pass it to Wait, Test, Flush or View first")

    @property
    def group(self) -> tuple[int, ...]:
        """The ranks whose models the average contains, ascending."""
        return self._group().group

    @property
    def weights(self) -> tuple[float, ...]:
        """What the models of these ranks counted."""
        return self._group().weights

    @property
    def initial(self) -> float:
        """What the initial model counted: 0 except with ``missing="initial"``."""
        return self._group().initial

    @property
    def iteration(self) -> int:
        """The iteration of this rank's model; -1: it has not started yet."""
        if isinstance(self._data, QueueResult):
            return self._data.iteration
        return self._group().iteration

    @property
    def gap(self) -> int:
        """How many iterations this rank is ahead of its slowest neighbour."""
        return self._queue().gap

    @property
    def received(self) -> int:
        """How many neighbours' updates the average contains."""
        return self._queue().received

    @property
    def dropped(self) -> int:
        """How many updates came and were in no average."""
        return self._queue().dropped

    @property
    def skipped(self) -> int:
        """How many iterations this rank did not enter."""
        return self._queue().skipped

    @property
    def round(self) -> int:
        """The newest round that was delivered, from 0; of a group its serial number, 0: alone."""
        if isinstance(self._data, GroupResult):
            return self._data.round
        return self._decode()[0]

    @property
    def contributions(self) -> int:
        """How many `Request.Start` calls, of all ranks together, the round contains."""
        return self._decode()[1]

    @property
    def active(self) -> int:
        """How many ranks were ready when the round took their contributions."""
        return self._decode()[2]

    @property
    def cause(self) -> Cause:
        """Why the round was activated."""
        return _CAUSES[self._decode()[3]]

    @property
    def initiator(self) -> int | None:
        """The lowest rank that triggered the round; None for `Quorum`, `Full` and a flush."""
        rank = self._decode()[4]
        return None if rank < 0 else rank

    @property
    def contributors(self) -> tuple[int, ...] | None:
        """The ranks with data in the round, ascending; None above 1,024 ranks."""
        values = self._decode()
        if not values[5]:
            return None
        ranks = []
        for index, word in enumerate(values[_WORDS]):
            while word:
                low = word & -word
                ranks.append(64 * index + low.bit_length() - 1)
                word ^= low
        return tuple(ranks)

    @property
    def first(self) -> int:
        """The oldest round that was delivered; below `round` only with ``deliver="sum"``."""
        return self._decode()[22]

    @property
    def missed(self) -> int:
        """Rounds completed between the completion of the previous request and this Start."""
        return self._decode()[23]

    @property
    def staleness(self) -> int:
        """How many rounds old this rank's oldest contribution in `round` is; 0 if fresh or none."""
        data = self._data
        if isinstance(data, (GroupResult, QueueResult)) and data.staleness is not None:
            return data.staleness
        return self._decode()[24]

    @property
    def included(self) -> bool:
        """Whether this call's contribution is in a round up to `round`."""
        return bool(self._decode()[25])

    @property
    def activation(self) -> Activation:
        """Whether this rank or another one triggered the round."""
        return Activation.EXTERNAL if self._decode()[26] else Activation.INTERNAL

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Status) and self._data == other._data

    __hash__ = None  # type: ignore[assignment]  # mutable

    def __setstate__(self, data: bytes | GroupResult | QueueResult) -> None:
        self._fill(data)

    def __reduce__(self) -> tuple[Any, ...]:
        return Status, (), self._data

    def __repr__(self) -> str:
        if not self._data:
            return "Status(empty)"
        if isinstance(self._data, (GroupResult, QueueResult)):
            values = self._data._asdict().items()
            told = (f"{name}={value}" for name, value in values if value is not None)
            return f"Status({', '.join(told)})"
        rounds = f"round={self.round}"
        if self.first != self.round:
            rounds += f", first={self.first}"
        return (
            f"Status({rounds}, included={self.included}, active={self.active}, "
            f"contributors={self.contributors}, contributions={self.contributions}, "
            f"missed={self.missed}, staleness={self.staleness}, cause='{self.cause}', "
            f"initiator={self.initiator}, activation='{self.activation}')"
        )


@dataclass(frozen=True)
class Stats:
    """Counters of a context on this rank, from `Context.stats`.

    Attributes
    ----------
    rounds : int
        Rounds completed on this rank, over all handles.
    shared_rounds : int
        How many of `rounds` the ranks of this node made in the memory that they share: the whole
        round if all ranks are on this node, else this node's part of it.
    shared_led : int
        How many of `shared_rounds` this rank claimed, and so began, for its node.
    messages_sent, messages_received : int
        Small messages: headers, control messages, and payloads that travel with their header.
    bytes_sent : int
        Bytes sent, headers included.
    bulk_sent : int
        Payloads that travelled as messages of their own.
    rings : int
        How often this rank woke a thread that slept, of its own or of another rank of its node.
    sleeps : int
        How often a thread of the library went to sleep on this rank.
    unheard : int
        Sleeps that ended by their timeout although a neighbour had rung. More than a few are a
        defect of the library.
    progress_cpu_ns : int
        CPU time of the progress thread, in nanoseconds.
    buffer_bytes : int
        Bytes of this process's own memory that all handles hold for contributions, rounds and
        results. What the handles hold in the memory that the ranks of a node share is not counted:
        see the notes of `Context.Allreduce_init`.
    buffer_bytes_used : int
        How many of `buffer_bytes` are in use now. Handles keep the others for their next rounds.
    staged_bytes : int
        Bytes of contributions and results copied between devices and pinned memory of the host.
    bounced_bytes : int
        How many of `staged_bytes` went by a bounce buffer, from which or to which the host copied
        them once more. With float32 and larger vectors they are few, unless the driver does not pin
        the memory that the ranks of the node share.
    ipc_bytes : int
        The same, between buffers and memory of devices that the ranks share.
    direct_bytes : int
        Bytes that were given to MPI at addresses of devices, to send or to receive them.
    pooled_bytes : int
        Bytes of devices, and of pinned memory, that freed handles have left. Later handles of the
        context use them again. The driver gets them when the context is freed.
    device_rounds : int
        Rounds that this rank had its device reduce.
    device_wait_ns : int
        Nanoseconds that threads waited for copies to and from devices before a collective call of
        the context, or `Context.away`, began.
    neighbours : int
        Ranks of this node, this one included, that can be woken without a message.
    shares_memory : int
        1 if the ranks of each node share memory and make their part of a round there. The context
        may have several nodes. 0 if all ranks exchange messages instead: with ``transport="mpi"``,
        above 1,024 ranks, if every rank is alone on its node, or if ranks of a node cannot share
        memory. A single handle may use messages although this is 1: see `Context.Allreduce_init`.
    thread_level : int
        MPI's thread level: 0 single, 1 funneled, 2 serialized, 3 multiple.
    """

    rounds: int
    shared_rounds: int
    shared_led: int
    messages_sent: int
    messages_received: int
    bytes_sent: int
    bulk_sent: int
    rings: int
    sleeps: int
    unheard: int
    progress_cpu_ns: int
    buffer_bytes: int
    buffer_bytes_used: int
    staged_bytes: int
    bounced_bytes: int
    ipc_bytes: int
    direct_bytes: int
    pooled_bytes: int
    device_rounds: int
    device_wait_ns: int
    neighbours: int
    shares_memory: int
    thread_level: int
