"""Tests of one's own training code: every rank runs the same tests, in the same order.

    cd examples
    mpirun -n 3 python -m pytest --with-mpi test_mytraining.py

It needs pytest and pytest-mpi (`pip install pytest pytest-mpi`). A rank whose test fails cannot
just go on: the other ranks wait for it in a collective call. `conftest.py` beside this file ends
the job then, and says which rank failed where; it also has the fixture `ctx`.
"""

from __future__ import annotations

import time

import numpy as np
import pytest
from mytraining import train

import pypartial as pp

pytestmark = pytest.mark.mpi


@pytest.mark.parametrize("policy", [pp.Solo(), pp.Majority(), pp.Full()], ids=str)
def test_it_learns(ctx: pp.Context, policy: pp.Policy) -> None:
    target = np.full(5, float(ctx.rank))
    w, _ = train(ctx, target, 100, policy=policy)
    assert np.allclose(w, (ctx.size - 1) / 2, atol=1.0)


def test_no_gradient_is_lost(ctx: pp.Context) -> None:
    """Whatever the timing: as many contributions arrive as all ranks have made."""
    _, contributions = train(ctx, np.zeros(5), 50)
    assert contributions == 50 * ctx.size


def test_all_ranks_end_with_the_same_model(ctx: pp.Context) -> None:
    w, _ = train(ctx, np.full(5, float(ctx.rank)), 50)
    for other in ctx.comm.allgather(w):
        assert np.allclose(w, other)


def test_a_slow_rank_loses_nothing(ctx: pp.Context) -> None:
    slow = ctx.rank == ctx.size - 1
    _, contributions = train(
        ctx, np.zeros(5), 20, before_step=lambda _: time.sleep(0.01 if slow else 0)
    )
    assert contributions == 20 * ctx.size
