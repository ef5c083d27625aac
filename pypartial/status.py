"""What a request completed with."""

from __future__ import annotations

import struct
from enum import Enum
from typing import Any

from .errors import Error

__all__ = ["Activation", "Cause", "Status"]


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
_CAUSES = (Cause.POLICY, Cause.DEPARTED, Cause.DEADLINE, Cause.FLUSH)
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
