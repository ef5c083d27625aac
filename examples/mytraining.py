"""A training loop as one's own might be; `test_mytraining.py` tests it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

import pypartial as pp

_MAJORITY = pp.Majority()


def train(
    ctx: pp.Context,
    target: np.ndarray,
    steps: int,
    *,
    policy: pp.Policy = _MAJORITY,
    before_step: Callable[[int], object] = lambda _step: None,
) -> tuple[np.ndarray, int]:
    """Fit a model to the mean of the ranks' targets; collective.

    Returns
    -------
    w : array
        The model, the same on all ranks up to rounding.
    contributions : int
        How many gradients of all ranks went into it.
    """
    w, gradient, total = (np.zeros_like(target) for _ in range(3))
    counted = np.ones(1)
    number = np.zeros(1)
    contributions = 0
    status = pp.Status()
    with ctx.Allreduce_init([gradient, counted], [total, number], policy=policy) as request:
        for step in range(steps):
            before_step(step)
            gradient[:] = w - target
            request.Start()
            request.Wait(status)
            w -= 0.1 * total / ctx.size
            contributions += int(number[0])
        request.Flush(status)
        w -= 0.1 * total / ctx.size
        contributions += int(number[0])
    return w, contributions
