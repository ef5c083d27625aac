"""What a request completed with, and what a context has done."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import Enum
from typing import Any

from ._names import CAUSE
from .errors import Error

__all__ = ["Activation", "Cause", "Stats", "Status"]


class Cause(str, Enum):
    """Why a round was activated: the strongest cause of all ranks, in ascending order.

    Members compare equal to their values: ``status.cause == "policy"``.
    """

    POLICY = "policy"  #: the policy was satisfied
    DEPARTED = "departed"  #: ranks that were needed have left; those that remain were enough
    DEADLINE = "deadline"  #: a rank had waited for its deadline
    FLUSH = "flush"  #: the last, synchronous round of `Flush`, `Drain` or `Free`

    def __str__(self) -> str:
        return self.value


class Activation(str, Enum):
    """What activated a round on this rank. Members compare equal to their values."""

    INTERNAL = "internal"  #: this rank's own call
    EXTERNAL = "external"  #: a message of another rank

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


class Status:
    """What a request completed with; filled by `Wait`, `Test`, `Flush` and `Drain`.

    ``Status()`` makes an empty one, to be passed to those calls any number of times; each
    overwrites it. The attributes up to `initiator` describe the round and are identical on every
    rank; the others are this rank's own. Reading an attribute of an empty status raises `Error`. A
    status owns its values: it can be copied, compared and pickled, and outlives the request.

    Attributes
    ----------
    round : int
        The newest round delivered. Rounds of a handle are counted from 0.
    active : int
        Ranks that were ready when the round took their contributions (NAP of eager-SGD, 6.1).
    contributors : tuple of int or None
        Ranks with data in the round, in ascending order, late data included. None above 1024 ranks.
    contributions : int
        Number of `Start` calls, of all ranks, whose data the round contains.
    cause : Cause
        Why the round was activated: ``"policy"``, ``"departed"``, ``"deadline"`` or ``"flush"``.
    initiator : int or None
        Lowest rank that triggered the round. None for `Quorum`, `Full` and flush rounds.
    first : int
        The oldest round delivered: below `round` only for ``deliver="sum"``.
    included : bool
        Whether the contribution of this call is in a round up to `round`.
    missed : int
        Rounds that completed between the completion of this rank's previous request and this
        `Start`.
    staleness : int
        Age in rounds of the oldest contribution of this rank in `round`; 0 if it is fresh or there
        is none.
    activation : Activation
        ``"internal"`` if a call of this rank activated the round here, ``"external"`` if a message
        did.
    """

    __slots__ = ("_data", "_values")

    _data: bytes
    _values: tuple[int, ...] | None

    def __init__(self) -> None:
        self._data = b""
        self._values = None

    def _fill(self, data: bytes) -> None:
        """Take over the bytes of a pp_result_t; they are decoded when first looked at."""
        self._data = data
        self._values = None

    def _decode(self) -> tuple[int, ...]:
        values = self._values
        if values is None:
            if not self._data:
                raise Error("this Status is empty: no call has filled it yet")
            values = self._values = RESULT.unpack(self._data)
        return values

    @property
    def round(self) -> int:
        """The newest round delivered."""
        return self._decode()[0]

    @property
    def contributions(self) -> int:
        """Number of `Start` calls, of all ranks, whose data the round contains."""
        return self._decode()[1]

    @property
    def active(self) -> int:
        """Ranks that were ready when the round took their contributions."""
        return self._decode()[2]

    @property
    def cause(self) -> Cause:
        """Why the round was activated."""
        return _CAUSES[self._decode()[3]]

    @property
    def initiator(self) -> int | None:
        """Lowest rank that triggered the round; None for `Quorum`, `Full` and flush rounds."""
        rank = self._decode()[4]
        return None if rank < 0 else rank

    @property
    def contributors(self) -> tuple[int, ...] | None:
        """Ranks with data in the round, ascending; None above 1024 ranks."""
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
        """The oldest round delivered: below `round` only for ``deliver="sum"``."""
        return self._decode()[22]

    @property
    def missed(self) -> int:
        """Rounds completed between this rank's previous completion and this `Start`."""
        return self._decode()[23]

    @property
    def staleness(self) -> int:
        """Age in rounds of the oldest contribution of this rank in `round`."""
        return self._decode()[24]

    @property
    def included(self) -> bool:
        """Whether the contribution of this call is in a round up to `round`."""
        return bool(self._decode()[25])

    @property
    def activation(self) -> Activation:
        """What activated the round on this rank."""
        return Activation.EXTERNAL if self._decode()[26] else Activation.INTERNAL

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Status) and self._data == other._data

    __hash__ = None  # type: ignore[assignment]  # mutable

    def __setstate__(self, data: bytes) -> None:
        self._fill(data)

    def __reduce__(self) -> tuple[Any, ...]:
        return Status, (), self._data

    def __repr__(self) -> str:
        if not self._data:
            return "Status(empty)"
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
    """What a context has done so far on this rank.

    Attributes
    ----------
    rounds : int
        Rounds completed here, over all handles.
    shared_rounds, shared_led : int
        Of those, the rounds that were made in shared memory, and the ones this rank began.
    messages_sent, messages_received : int
        Small messages: headers, control, and payloads that travel with their header.
    bytes_sent : int
        Headers included.
    bulk_sent : int
        Payloads that travelled as messages of their own.
    rings : int
        Wake-ups of sleeping ranks of this node.
    sleeps : int
        Times a thread of the library went to sleep.
    unheard : int
        Sleeps that ended by their timeout although a neighbour had rung; more than a few are a
        defect of the library.
    progress_cpu_ns : int
        CPU time of the progress thread, in nanoseconds.
    buffer_bytes : int
        Memory of this rank held for contributions, rounds and results, over all handles. What they
        have in memory that the ranks of the node share belongs to all of them, and is not counted.
    neighbours : int
        Ranks, this one included, that can be woken without a message.
    shares_memory : int
        1 if the context's rounds may be made in memory that all its ranks share.
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
    neighbours: int
    shares_memory: int
    thread_level: int
