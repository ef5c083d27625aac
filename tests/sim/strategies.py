"""Hypothesis strategies for scenarios, and the settings of the tests that use them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fuzz.scenario import Phase, Scenario
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from pypartial.policy import FirstOf, Full, Majority, Policy, Quorum, Solo
from pypartial.sim.allreduce_handle import ALGORITHMS, Options

DEEP_FACTOR = 100
LATENCIES = ((500, 5000), (1000, 1000), (0, 0), (1, 200_000), (100, 2_000_000))
TIMINGS = ("uniform", "slow", "skew", "ties", "zero", "heavy")
SCALES = (20_000, 0, 2_000, 60_000, 500_000)
POLICIES: tuple[Callable[..., Policy], ...] = (Solo, Majority, Quorum, Full, FirstOf)
DELIVER = ("latest", "sum", "each")


def examples(count: int) -> settings:
    """Settings for `count` examples in the bounded run."""
    deep = settings.get_current_profile_name() == "deep"
    return settings(
        max_examples=count * (DEEP_FACTOR if deep else 1),
        derandomize=not deep,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )


@st.composite
def options(
    draw: Any,
    ranks: int,
    window: int,
    *,
    policies: tuple[Callable[..., Policy], ...] = POLICIES,
    deliver: tuple[str, ...] = DELIVER,
    bulk: bool = False,
) -> Options:
    kind = draw(st.sampled_from(policies))
    policy = kind(draw(st.integers(1, ranks))) if kind in (Quorum, FirstOf) else kind()
    delivery = draw(st.sampled_from(deliver))
    unbounded = delivery == "latest" and draw(st.booleans())
    op = draw(st.sampled_from(("sum", "sum", "sum", "max")))
    dtype = draw(st.sampled_from(("int64", "int32", "float32", "float64")))
    average = None
    if op == "sum" and dtype.startswith("float"):
        average = draw(st.sampled_from((None, "size", "contributors", "contributions")))
    lengths = [2 * ranks, 2 * ranks + 1, 3 * ranks + 5, 300]
    lengths += [4300, 9001, 17001] if bulk else [0, 1, ranks]
    return Options(
        count=draw(st.sampled_from(lengths)),
        dtype=dtype,
        op=op,
        policy=policy,
        deliver=delivery,
        max_lag=-1 if unbounded else draw(st.integers(0, window - 1)),
        average=average,
        algorithm=draw(st.sampled_from(tuple(ALGORITHMS))),
        segments=draw(st.integers(0, 4)),
        pieces=draw(st.integers(1, 3)),
        in_place=draw(st.booleans()),
        fenced=draw(st.booleans()),
    )


STEPS = st.lists(st.integers(0, 7), min_size=1, max_size=4).map(tuple)


@st.composite
def phases(draw: Any, handles: int, opened: int, *, collective: bool = True) -> tuple[Phase, ...]:
    """Phases whose collective calls are possible: nothing is used before open or after free."""
    alive, unopened, result = list(range(opened)), list(range(opened, handles)), []
    for _ in range(draw(st.integers(1, 4 if collective else 2))):
        actions = []
        for _ in range(draw(st.integers(0, 3)) if collective else 0):
            what = draw(st.sampled_from(("flush", "open", "free")))
            if what == "open" and unopened:
                alive.append(unopened.pop(0))
                actions.append(f"open {alive[-1]}")
            elif what == "flush" and alive:
                actions.append(f"flush {draw(st.sampled_from(alive))}")
            elif what == "free" and len(alive) > 1:
                index = draw(st.sampled_from(alive))
                alive.remove(index)
                actions.append(f"free {index}")
        steps, hold = draw(STEPS), draw(st.booleans())
        if handles > 1 and hold:  # else a rank may wait for a round that is nobody else's
            steps = steps[:1]
        result.append(Phase(steps, tuple(actions), hold))
    return tuple(result)


@st.composite
def scenarios(
    draw: Any,
    *,
    ranks: tuple[int, int] = (1, 9),
    handles: tuple[int, int] = (1, 1),
    collective: bool = True,
    noise: bool = False,
    **kind: Any,
) -> Scenario:
    size = draw(st.integers(*ranks))
    window = draw(st.integers(1, 5))
    count = draw(st.integers(*handles))
    opened = draw(st.integers(1, count)) if collective else count
    late = draw(st.sampled_from((0.0, 0.0, 0.5)))
    plan = draw(phases(count, opened, collective=collective))
    # Several handles: Start-Wait in all steps, or all Starts first in all; to hold is the latter.
    held = count > 1 and any(phase.hold for phase in plan)
    return Scenario(
        ranks=size,
        seed=draw(st.integers(0, 2**32)),
        handles=tuple(draw(options(size, window, **kind)) for _ in range(count)),
        phases=plan,
        opened=opened,
        window=window,
        latency=draw(st.sampled_from(LATENCIES)),
        timing=draw(st.sampled_from(TIMINGS)),
        scale=draw(st.sampled_from(SCALES)),
        together=held or draw(st.booleans()),
        blocking=draw(st.booleans()),
        late=late if collective else 0.0,
        # With several handles, a Wait without a Start is outside the patterns that never deadlock.
        extra=draw(st.sampled_from((0.0, 0.0, 0.2))) if count == 1 else 0.0,
        ask=draw(st.booleans()),
        last_flush=draw(st.sampled_from((True, True, False))),
        noise=noise,
    )
