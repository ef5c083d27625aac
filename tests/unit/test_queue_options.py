"""Which options of queues go together."""

from __future__ import annotations

from typing import Any

import pytest

import pypartial as pp
from pypartial._queue_options import Mode, read_mode

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"max_ig": 0}, "max_ig=0 is not in 1"),
    ({"backup": [0, -1]}, "backup=-1 is not in 0"),
    ({"staleness": -1}, "staleness=-1 is not in 0"),
    ({"skip": 3}, "skip=3 needs backup or staleness"),
    ({"skip": 1, "backup": 1}, "skip=1 is not in 2"),
    ({"skip": 2, "backup": 1, "skip_trigger": 4}, "skip_trigger=4 .* below max_ig=4"),
    ({"skip": 2, "backup": 1, "skip_trigger": -1}, "skip_trigger=-1 is not in 0"),
    ({"skip": 2, "staleness": 1, "protocol": "none"}, "skip=2 needs protocol"),
    ({"protocol": "notify-ack", "backup": 1}, "notify-ack.*backup"),
    ({"protocol": "notify-ack", "staleness": 1}, "notify-ack.*staleness"),
    ({"protocol": "none", "backup": (0, 1)}, "none.*backup"),
]


@pytest.mark.parametrize(("options", "text"), WRONG)
def test_hop_refuses_what_queues_refuse(options: dict[str, Any], text: str) -> None:
    for make in (read_mode, lambda **given: pp.methods.Hop("ring", **given)):
        with pytest.raises(pp.ArgumentError, match=text):
            make(**options)


@pytest.mark.parametrize("loose", ["backup", "staleness"])
def test_weights_of_the_topology(loose: str) -> None:
    with pytest.raises(pp.ArgumentError, match=f"weights='topology' does not go with {loose}"):
        read_mode(weights="topology", **{loose: 1})


@pytest.mark.parametrize(("staleness", "max_ig"), [(None, 4), (0, 4), (3, 4), (4, 5), (9, 10)])
def test_by_default_tokens_do_not_bind_before_staleness(staleness: int | None, max_ig: int) -> None:
    assert read_mode(staleness=staleness).max_ig == max_ig
    assert pp.methods.Hop("ring", staleness=staleness).max_ig == max_ig
    assert read_mode(max_ig=2, staleness=staleness).max_ig == 2


def test_backup_workers_of_each_rank() -> None:
    star, one = pp.topology.star().on(3), pp.topology.ring().on(1)
    assert Mode(backup=(1, 0, 0)).backups(star) == (1, 0, 0)
    assert Mode(backup=5).backups(one) == (5,)
    for backup, text in (
        (1, "backup=1 is not below the number of in-neighbours of rank 1, 1"),
        ((2, 0, 0), "backup=2 is not below the number of in-neighbours of rank 0, 2"),
        ((0, 0), "backup has 2 numbers for 3 ranks"),
    ):
        with pytest.raises(pp.ArgumentError, match=text):
            Mode(backup=backup).backups(star)
