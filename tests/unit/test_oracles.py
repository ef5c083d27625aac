"""The oracle of `Status.staleness` on logs made by hand: it can fail, and allows what may be."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.oracles import check_staleness, record_type

# One rank's requests under "latest": given rounds 3 and 9.  Rounds 4 to 9 completed with its second
# contribution in the last of them; its call could have been given any of them, and was given 9
# because the result it would have got had been overwritten.
OWN = np.array([0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 2])  # contributions in the rounds before


def log(staleness: int, missed: int) -> np.ndarray[Any, Any]:
    records = np.zeros(2, record_type(2))
    records["round"] = records["first"] = [3, 9]
    records["start"] = [1, 2]
    records["missed"] = [3, missed]
    records["staleness"] = [0, staleness]
    return records


def request(deliver: str) -> Any:
    stats = SimpleNamespace(neighbours=2, shares_memory=True)
    context = SimpleNamespace(size=2, stats=lambda: stats)
    return SimpleNamespace(
        deliver=deliver, max_lag=None, algorithm="shared_memory", context=context
    )


def good(staleness: int, *, missed: int = 0, left: bool, deliver: str = "latest") -> bool:
    try:
        check_staleness("", log(staleness, missed), OWN, request(deliver), left)
    except AssertionError:
        return False
    return True


def test_an_overwritten_result_may_count_from_what_the_call_would_have_been_given() -> None:
    assert [s for s in range(8) if good(s, left=False)] == [0, 5]  # from 9, or from 4
    assert [s for s in range(8) if good(s, missed=3, left=False)] == [0, 3]  # from 9, or from 6


def test_what_completed_while_the_rank_had_left_is_not_in_missed() -> None:
    assert [s for s in range(8) if good(s, left=True)] == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("left", [False, True])
def test_results_that_are_not_overwritten_have_one_age(left: bool) -> None:
    assert [s for s in range(8) if good(s, left=left, deliver="sum")] == [0]
