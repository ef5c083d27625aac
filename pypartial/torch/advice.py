"""What rank 0 warns of when an optimizer is made: where rounds do not suit it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from ..methods import EagerSGD, Method
from ..policy import as_policy
from .overlap import is_lockstep
from .replicas import is_plain
from .schedule import fixed_length

__all__ = ["advice"]


def advice(
    method: Method,
    optimizer: torch.optim.Optimizer,
    scheduler: Any,
    clip_norm: float | None,
    size: int,
) -> Iterator[str]:
    """Give the texts of the warnings; the arguments are those of the optimizer, and right."""
    if not isinstance(method, EagerSGD) or method.sync_every is not None:
        return
    name, is_linear = type(optimizer).__name__, is_plain(optimizer) and clip_norm is None
    if method.deliver != "each":
        if method.deliver == "latest" or not is_linear:
            yield (
                f"with deliver={method.deliver!r} the models of the ranks drift apart until "
                f"finish(): ranks apply different rounds by each step of {name}, and of a "
                "scheduler. Use deliver='each', or average models and states from time to time by "
                "sync_every"
            )
        return
    if as_policy(method.policy).drawn(size) > 1 and not is_linear:
        yield (
            f"with {method.policy!r} there are more rounds than a rank has batches, each of fewer "
            f"gradients and a whole step of {name}: what is not linear in gradients, such as Adam, "
            "weight decay and clip_norm, acts more often than with Synchronous(). Use Majority(), "
            "a lower rate, or plain SGD"
        )
    length = fixed_length(scheduler)
    if length is not None and size > 1 and not is_lockstep(method):
        yield (
            f"the scheduler, {length}, makes a step for each round, and with {method.policy!r} "
            "there may be more rounds than a rank has batches: it comes to its end early then. Use "
            "a schedule without a fixed end, or Synchronous(), or set its length by the rounds of "
            "a run"
        )
