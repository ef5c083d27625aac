"""What a Wait says that waits for a device."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import pytest

import pypartial as pp

from .on_device import LIMIT_S
from .reports import said_of_ranks

STALL_WARNING_S = 0.05  # of the context: then its Waits ask the ranks
CONTRIBUTION = "contribution is on its way from its device"
PART = "device has yet to do its part of a round"


class Explained(NamedTuple):
    """What was said: of the rank itself, and of the ranks by their answers."""

    own: list[str]
    ranks: dict[str, list[int]]


def explained(request: pp.Request, right: Callable[[Explained], bool]) -> Explained:
    """Wait in vain for a request until the error has all answers, and is right.

    A rank that stood still gives no answer in time, or one of what was before; so may this one.
    """
    limit = time.monotonic() + LIMIT_S
    while True:
        with pytest.raises(pp.TimeoutError) as raised:
            request.Wait(timeout=0.6)
        found = _read(str(raised.value))
        if found is not None and right(found):
            return found
        assert time.monotonic() < limit, raised.value


def _read(error: str) -> Explained | None:
    """Return what an error says; None: not all ranks have answered."""
    said, _, seen = error.partition("; as seen from here: ")
    if "; the ranks' answers " not in said or "no answer" in said:
        return None
    ranks: dict[str, list[int]] = {CONTRIBUTION: [], PART: []}
    for named, does in said_of_ranks(said):
        for text in ranks:
            if f"its {text}" in does:
                ranks[text] += named
    return Explained([text for text in ranks if f"this rank's {text}" in seen], ranks)
