"""The options of ``pypartial sim gain``, in types that need no compiled module."""

from __future__ import annotations

from dataclasses import dataclass

from .group_options import GroupsOptions
from .options import SkewOptions

__all__ = ["GainOptions"]


@dataclass(frozen=True)
class GainOptions:
    """Two simulations of one recording.

    Attributes
    ----------
    file : str
        The recording.
    recorded : int
        The steps that it has.
    rounds : SkewOptions
        The policies. The files for the results and the plot are among these options.
    groups : GroupsOptions
        The generators of groups.
    """

    file: str
    recorded: int
    rounds: SkewOptions
    groups: GroupsOptions

    def complaint(self) -> str | None:
        """Return what is wrong with these options; None if nothing is."""
        return self.rounds.complaint() or (self.groups.complaint() if self.groups.plans else None)
