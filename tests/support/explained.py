"""What a Wait says that waits for a device."""

from __future__ import annotations

from typing import NamedTuple

import pytest

import pypartial as pp

STALL_WARNING_S = 0.05  # of the context: then its Waits ask the ranks
CONTRIBUTION = "contribution is on its way from its device"
PART = "device has yet to do its part of a round"


class Explained(NamedTuple):
    """What was said: of the rank itself, and of the ranks by their answers."""

    own: list[str]
    ranks: dict[str, list[int]]


def explained(size: int, request: pp.Request) -> Explained:
    """Wait in vain for a request, and read the error."""
    with pytest.raises(pp.TimeoutError) as raised:
        request.Wait(timeout=1.5)
    seen, _, answers = str(raised.value).partition("; the ranks' answers ")
    ranks: dict[str, list[int]] = {CONTRIBUTION: [], PART: []}
    for rank in range(size):
        of_rank = answers.partition(f"rank {rank} (")[2].partition(")")[0]
        assert of_rank, raised.value
        for text in ranks:
            if f"its {text}" in of_rank:
                ranks[text].append(rank)
    return Explained([text for text in ranks if f"this rank's {text}" in seen], ranks)
