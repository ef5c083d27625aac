"""What a Wait says that waits for a device."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import pytest

import pypartial as pp

from .on_device import LIMIT_S

STALL_WARNING_S = 0.05  # of the context: then its Waits ask the ranks
CONTRIBUTION = "contribution is on its way from its device"
PART = "device has yet to do its part of a round"


class Explained(NamedTuple):
    """What was said: of the rank itself, and of the ranks by their answers."""

    own: list[str]
    ranks: dict[str, list[int]]


def explained(size: int, request: pp.Request, right: Callable[[Explained], bool]) -> Explained:
    """Wait in vain for a request until the error has all answers, and is right.

    A rank that stood still gives no answer in time, or one of what was before; so may this one.
    """
    limit = time.monotonic() + LIMIT_S
    while True:
        with pytest.raises(pp.TimeoutError) as raised:
            request.Wait(timeout=0.6)
        found = _read(size, str(raised.value))
        if found is not None and right(found):
            return found
        assert time.monotonic() < limit, raised.value


def _read(size: int, error: str) -> Explained | None:
    """Return what an error says; None: not all ranks have answered."""
    seen, _, answers = error.partition("; the ranks' answers ")
    ranks: dict[str, list[int]] = {CONTRIBUTION: [], PART: []}
    for rank in range(size):
        of_rank = answers.partition(f"rank {rank} (")[2].partition(")")[0]
        if not of_rank or "no answer" in of_rank:
            return None
        for text in ranks:
            if f"its {text}" in of_rank:
                ranks[text].append(rank)
    return Explained([text for text in ranks if f"this rank's {text}" in seen], ranks)
