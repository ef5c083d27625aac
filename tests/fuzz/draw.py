"""The cases of the fuzzer: which scenarios are drawn, and how often.

The fuzzer's table of coverage counts the features of the cases, so that none of them becomes rare
unnoticed.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from pypartial._core_sim import lib
from pypartial.policy import FirstOf, Full, Majority, Policy, Quorum, Solo
from pypartial.sim.allreduce_handle import ALGORITHMS, Options

from .group_draw import draw_calls, draw_groups_scenario, draw_neighbours_scenario
from .plan import TIMINGS, Phase, Scenario

__all__ = ["WHAT", "draw_scenario"]

WHAT = ("rounds", "groups", "neighbours", "all")
_SHARES_OF_ALL = {"groups": 0.25, "neighbours": 0.15}
_LIVELY_GROUPS = 0.3  # of the cases with groups

# Features that make a case long are rare: otherwise there would be few cases.
_RANKS = (range(1, 2), range(2, 6), range(6, 10), range(10, 18), range(18, 65))
_RANKS_WEIGHTS = (2, 67, 27.5, 3, 0.5)
_WINDOWS = (1, 1, 2, 2, 3, 4, 5)
_LATENCIES = ((500, 5000), (500, 5000), (1000, 1000), (0, 0), (1, 200_000), (100, 2_000_000))
# Mostly no network: messages that only jitter overtake each other more.
_NETWORKS = (
    "",
    "L=2us,o=500ns,g=300ns,G=0.1ns,S=64",
    "L=1us,o=200ns,g=2us,G=3ns,noise=500ns",
    "L=3us,o=400ns,G=1ns,S=4K,jitter=20us,node=3,node.L=200ns,node.o=50ns",
    "L=1us,o=100ns,reduce=0.05GB/s,node=2,node.L=0ns,node.o=0ns,jitter=2us",
    "L=0ns,o=0ns",
)
_NETWORKS_WEIGHTS = (14, 1, 1, 2, 1, 1)
_SCALES = (20_000, 20_000, 0, 2_000, 60_000, 500_000)
_SHARES = (1000, 1000, 300, 50)  # of accesses to shared memory, in a thousand
_PAUSES = (0, 100, 1_000, 20_000)
# Rounds wait for late ranks from 48 KiB on, for a time in proportion: 192 bytes and 12.
_MAGNIFY = (1, 1, 1, 1, 256, 4096)
_ROOMS = (0, 1, 1, 2)
_SELDOM_AND_LONG = [50, 50_000]
_POLICIES: tuple[Callable[..., Policy], ...] = (Solo, Majority, Majority, FirstOf, Quorum, Full)
_DELIVER = ("latest", "latest", "sum", "each")
_PATIENCES = (50_000, 300_000, 2_000_000, 200_000_000, -1)
_DEADLINES = (2e-6, 2e-5, 1e-4, 1e-3)
_GRACES = (0.0, 2e-6, 5e-5)
_TIMEOUTS = (0.0, 0.0, 0.0, 0.0, 0.3)
_MORE = (0.0, 0.6, 0.6)
# Kinds of programs that only patience keeps alive.
_SEVERAL = ("contexts", "only", "only", "threads", "threads", "shuffle", "bare", "bare", "passes")
_DTYPES = ("int64", "int64", "int32", "float32", "float64")
_AVERAGES = (None, "size", "contributors", "contributions")


def draw_scenario(seed: int, index: int, what: str = "rounds") -> Scenario:
    """Draw case `index` of a seed, which is always the same.

    Parameters
    ----------
    seed, index : int
        Not negative.
    what : str
        "rounds": partial allreduces; "groups": P-Reduce, also beside a partial allreduce;
        "neighbours": gossip and queues, also beside the others; "all".
    """
    draw = random.Random(f"{seed} {index}")
    if what == "all":
        share = random.Random(index).random()
        what = "rounds"
        for kind, width in _SHARES_OF_ALL.items():
            what = kind if 0 <= share < width else what
            share -= width
    if what in _SHARES_OF_ALL:
        drawn = draw_groups_scenario if what == "groups" else draw_neighbours_scenario
        scenario = drawn(draw, _draw_options)
        lively = draw.random() < _LIVELY_GROUPS
        return _seen(_lively_groups(draw, scenario) if lively else scenario)
    ranks = draw.choice(draw.choices(_RANKS, _RANKS_WEIGHTS)[0])
    window = draw.choice(_WINDOWS)
    count = draw.choices((1, 2, 3), (12, 5, 3))[0]
    collective = draw.random() < 0.75
    noise = draw.random() < 0.03
    opened = draw.randint(1, count) if collective else count
    phases = _draw_phases(draw, count, opened, collective)
    # With several handles, a step that holds its requests makes all Starts before its Waits. Every
    # step must then do so, or a rank may wait for a round that no other rank waits for.
    together = draw.random() < 0.5 or (count > 1 and any(phase.hold for phase in phases))
    scenario = Scenario(
        ranks=ranks,
        seed=draw.getrandbits(32),
        handles=tuple(_draw_options(draw, ranks, window) for _ in range(count)),
        phases=phases,
        opened=opened,
        window=window,
        latency=draw.choice(_LATENCIES),
        network=draw.choices(_NETWORKS, _NETWORKS_WEIGHTS)[0],
        timing=draw.choice(TIMINGS),
        scale=draw.choice(_SCALES),
        together=together,
        blocking=draw.random() < 0.8,
        late=draw.choice((0.0, 0.0, 0.5)) if collective else 0.0,
        # With several handles, a Wait without a Start may deadlock.
        extra=draw.choice((0.0, 0.0, 0.2)) if count == 1 else 0.0,
        ask=draw.random() < 0.3,
        last_flush=draw.random() < 0.7,
        noise=noise,
        timeout=draw.choice(_TIMEOUTS),
        more=draw.choice(_MORE) if count == 1 else 0.0,
        patience=draw.choice(_PATIENCES) if draw.random() < 0.25 else 0,
    )
    if draw.random() < 0.35:
        scenario = _lively(draw, scenario)
    scenario = _seen(scenario)
    if draw.random() < 0.5 or any(phase.threads for phase in scenario.phases):
        return scenario
    return _sharing(draw, scenario)


def _seen(scenario: Scenario) -> Scenario:
    """Return the scenario, or one whose blocking calls are seen by the library."""
    phases = tuple(
        replace(p, then=tuple("aside" if a == "away" else a for a in p.then))
        for p in scenario.phases
    )
    seen = replace(scenario, phases=phases)
    return seen if scenario.seed % 2 and seen.complaint() is None else scenario


def _sharing(draw: random.Random, scenario: Scenario) -> Scenario:
    """Return the scenario with ranks that share memory."""
    handles = tuple(
        options if draw.random() < 0.1 else replace(options, algorithm="auto")
        for options in scenario.rounds
    )
    memory = [draw.choice(_SHARES), draw.choice(_PAUSES)]
    if draw.random() < 0.5:
        memory += [draw.randint(1, scenario.ranks), draw.randrange(lib.PP_LAYOUT_COUNT)]
    magnify, room = draw.choice(_MAGNIFY), draw.choice(_ROOMS)
    if room:  # it is missing for Starts after a timeout, and these are several for one round
        last = scenario.phases[-1]
        longer = replace(last, steps=tuple(steps + 2 for steps in last.steps))
        timeout = draw.choice((scenario.timeout, 0.9))
        scenario = replace(scenario, timeout=timeout, phases=(*scenario.phases[:-1], longer))
        memory[:2] = draw.choice((memory[:2], _SELDOM_AND_LONG))
    scenario = replace(scenario, handles=handles, memory=tuple(memory), ask=False)
    return replace(scenario, magnify=magnify, room=room)


def _lively(draw: random.Random, scenario: Scenario) -> Scenario:
    """Return the scenario as a program that only patience keeps alive."""
    several = len(scenario.handles) > 1
    kinds = ("barrier", "barrier", "contexts", *(_SEVERAL if several else ()))
    for kind in draw.sample(kinds, draw.choice((1, 1, 2, 3)) if several else 1):
        scenario = _livelier(draw, scenario, kind)
    scenario = replace(scenario, patience=draw.choice(_PATIENCES))
    handles = tuple(
        _not_full(options, scenario) if isinstance(options, Options) else options
        for options in scenario.handles
    )
    scenario = replace(scenario, handles=handles)
    if scenario.complaint() is None:
        return scenario
    # Rounds one by one, and blocking calls of its own: all ranks take equally many.
    phases = tuple(replace(phase, steps=phase.steps[:1]) for phase in scenario.phases)
    return replace(scenario, phases=phases, more=0.0, extra=0.0)


def _lively_groups(draw: random.Random, scenario: Scenario) -> Scenario:
    """Return the scenario as a program that only patience keeps alive, if there is such a one."""
    lively = _lively(draw, scenario)
    if lively.contexts > 1:
        lively = replace(lively, blocking=draw.random() < 0.5)
    if lively.memory and any(phase.threads for phase in lively.phases):
        lively = replace(lively, memory=())
    return lively if lively.complaint() is None else scenario


def _livelier(draw: random.Random, scenario: Scenario, kind: str) -> Scenario:
    def changed(share: float, change: Callable[[Phase], Phase]) -> Scenario:
        phases = (change(p) if draw.random() < share else p for p in scenario.phases)
        return replace(scenario, phases=tuple(phases))

    if kind == "contexts":
        return replace(scenario, contexts=2)
    if kind == "shuffle":
        return replace(scenario, shuffle=True)
    if kind == "bare":
        return replace(scenario, more=draw.choice(_MORE), extra=draw.choice((0.0, 0.2)))
    if kind == "passes":
        held = changed(0.5, lambda phase: replace(phase, hold=not phase.threads))
        return replace(held, together=False)
    if kind == "threads":
        return changed(0.7, lambda phase: replace(phase, threads=True, hold=False))
    if kind == "only":
        index = draw.randrange(len(scenario.handles))
        return changed(0.7, lambda phase: replace(phase, only=(index,)))
    return changed(0.6, lambda phase: replace(phase, then=(*phase.then, "barrier")))


def _not_full(options: Options, scenario: Scenario) -> Options:
    if not scenario.is_full(options):
        return options
    if scenario.seed % 3 == 0:
        return replace(options, policy=replace(options.policy, deadline=_DEADLINES[2]))
    return replace(options, policy=Quorum(scenario.ranks - 1, grace=options.policy.grace))


def _draw_options(draw: random.Random, ranks: int, window: int) -> Options:
    kind = draw.choice(_POLICIES)
    number = [draw.randint(1, ranks)] if kind in (FirstOf, Quorum) else []
    deadline = draw.choice(_DEADLINES) if draw.random() < 0.2 else None
    grace = draw.choice(_GRACES) if draw.random() < 0.2 else None
    policy = kind(*number, deadline=deadline, grace=grace)
    deliver = draw.choice(_DELIVER)
    unbounded = deliver == "latest" and draw.random() < 0.6
    op = draw.choices(("sum", "max"), (4, 1))[0]
    dtype = draw.choice(_DTYPES)
    averaged = op == "sum" and dtype.startswith("float")
    lengths = (2 * ranks, 2 * ranks + 1, 3 * ranks + 5, ranks, 1, 0, 300, 4300, 9000)
    return Options(
        count=draw.choices(lengths, (30, 30, 20, 5, 3, 2, 3, 0.5, 0.1))[0],
        dtype=dtype,
        op=op,
        policy=policy,
        deliver=deliver,
        max_lag=-1 if unbounded else draw.randint(0, window - 1),
        average=draw.choice(_AVERAGES) if averaged else None,
        algorithm=draw.choice(tuple(ALGORITHMS)),
        segments=draw.choice((0, 0, draw.randint(1, lib.PP_LANES_MAX))),
        pieces=draw.choice((1, 1, 2, 3)),
        in_place=draw.random() < 0.3,
        fenced=draw.random() < 0.1,
    )


def _draw_phases(
    draw: random.Random, handles: int, opened: int, collective: bool
) -> tuple[Phase, ...]:
    """Draw phases with possible collective calls: none uses a handle that is not open."""
    live, unopened = list(range(opened)), list(range(opened, handles))
    phases = []
    for _ in range(draw.randint(2, 4)):
        then = draw_calls(draw, live, unopened, flushes=2) if collective else []
        hold = draw.random() < 0.3
        most = draw.choice((4, 7, 9))
        steps = [draw.randint(0, most) for _ in range(draw.randint(1, 4))]
        if handles > 1 and hold:  # all ranks hold alike, for the same reason
            del steps[1:]
        phases.append(Phase(tuple(steps), tuple(then), hold))
    return tuple(phases)
