"""For which parameters a vector has a gradient: one element for each parameter.

An element is 1 if the rank that wrote it has a gradient. Ranks add up and average the elements
together with the gradients, so in a reduced vector it is above 0 if any rank had one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy.typing as npt
import torch

from ..status import Status

__all__ = ["DeviceFlags", "Flags", "HostFlags"]


class Flags(ABC):
    """The flags in one vector."""

    @abstractmethod
    def write(self, present: list[bool]) -> None:
        """Write this rank's flags, which are contributed next."""

    @abstractmethod
    def lack(self) -> None:
        """Note that zeros were written in place of the flags, and are contributed next."""

    @abstractmethod
    def read(self, status: Status | None) -> Sequence[float]:
        """Return what the vector has now; 0 where no rank had a gradient.

        Parameters
        ----------
        status : Status or None
            Of the round whose result the vector is. None: it is what this rank wrote.
        """


class HostFlags(Flags):
    """Flags in host memory, which are read as they are."""

    def __init__(self, part: npt.NDArray[Any]) -> None:
        self._part = part

    def write(self, present: list[bool]) -> None:
        """Write this rank's flags."""
        self._part[:] = present

    def lack(self) -> None:
        """Do nothing: the zeros are read."""

    def read(self, status: Status | None) -> Sequence[float]:
        """Return what the vector has now."""
        flags: list[float] = self._part.tolist()
        return flags


class DeviceFlags(Flags):
    """Flags on a device, for which the host waits only if it cannot know them.

    It knows that a round has a gradient for each parameter if this rank is in the round, and has
    contributed one for each since the rounds before. That is nearly every round of most models.

    Parameters
    ----------
    part : torch.Tensor
        The vector's elements.
    rank : int
        This rank.
    """

    def __init__(self, part: torch.Tensor, rank: int) -> None:
        self._part, self._rank = part, rank
        self._present = [True] * part.numel()
        self._own: torch.Tensor | None = None  # made on the stream that first writes it
        self._may_lack = False  # in one of the contributions that the next round can have

    def write(self, present: list[bool]) -> None:
        """Write this rank's flags. The host waits for the device if they are not the last ones."""
        if self._own is None:
            self._own = torch.ones_like(self._part)
        if present != self._present:
            self._own.copy_(torch.tensor(present, device="cpu"))
            self._present = present
        self._part.copy_(self._own)
        self._may_lack |= not all(present)

    def lack(self) -> None:
        """Note that the next contribution has no gradient."""
        self._may_lack = True

    def read(self, status: Status | None) -> Sequence[float]:
        """Return what the vector has now, in numbers above 0, if the host knows it; or wait."""
        if status is None:
            return self._present
        is_known = not self._may_lack and self._rank in (status.contributors or ())
        if status.included:  # later rounds have only what is contributed from now on
            self._may_lack = False
        if is_known:
            return [1.0] * len(self._present)
        flags: list[float] = self._part.tolist()
        return flags
