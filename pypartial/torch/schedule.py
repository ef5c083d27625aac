"""Schedulers of torch that are made for a number of steps, which rounds do not keep to."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import Any

from torch.optim.lr_scheduler import ChainedScheduler, OneCycleLR, PolynomialLR, SequentialLR

__all__ = ["fixed_length", "is_over"]


def fixed_length(scheduler: Any) -> str | None:
    """Return in words for how many steps a scheduler, or a part of it, is made; None if for any."""
    for part in _parts(scheduler):
        name = "total_iters" if isinstance(part, PolynomialLR) else "T_max"
        for key in ("total_steps", name):
            length = getattr(part, key, None)
            if length is not None:
                return f"{type(part).__name__} with {key}={length}"
    return None


def _parts(scheduler: Any) -> Iterator[Any]:
    """Yield a scheduler, and those that it is made of."""
    yield scheduler
    if isinstance(scheduler, (ChainedScheduler, SequentialLR)):
        for part in scheduler._schedulers:
            yield from _parts(part)


def is_over(scheduler: Any) -> bool:
    """Return whether the rate is the last of a OneCycleLR, which must make no more steps then.

    At the first step more it leaves its last rate, and at the second it raises.
    """
    if isinstance(scheduler, OneCycleLR):
        return scheduler.last_epoch >= scheduler.total_steps - 1
    if isinstance(scheduler, ChainedScheduler):
        return any(map(is_over, scheduler._schedulers))
    if isinstance(scheduler, SequentialLR):
        milestones, step = scheduler._milestones, scheduler.last_epoch + 1
        if step in milestones:  # where the next one begins
            return False
        return is_over(scheduler._schedulers[bisect_right(milestones, step)])
    return False
