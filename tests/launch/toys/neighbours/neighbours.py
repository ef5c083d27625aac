from dataclasses import dataclass
from typing import ClassVar

from pypartial.groups import _Sized


@dataclass(frozen=True)
class Neighbours(_Sized):
    """The rank that asks, and those with the next numbers that have not left.

    Parameters
    ----------
    size : int
        Ranks of a group, from 2 to the ranks of the context. In a context of one rank any size
        counts as 1.
    """

    word: ClassVar[str] = "neighbours"
