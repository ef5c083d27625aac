from dataclasses import dataclass
from typing import ClassVar

from pypartial.policy import Policy, Trigger


@dataclass(frozen=True, repr=False)
class InTurn(Policy):
    """The first of `m` ranks whose turn it is triggers a round: in round r, from rank r mod P on.

    Parameters
    ----------
    m : int
        Number of ranks whose turn it is, 1 to the size of the context.
    deadline, grace : float, optional
        As for every `Policy`.
    """

    word: ClassVar[str] = "in-turn"

    m: int

    def trigger(self, size: int) -> Trigger:
        """Return the first of m ranks in turn."""
        return Trigger("in_turn", self._at_most(self.m, size))
