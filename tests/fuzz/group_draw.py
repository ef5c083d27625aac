"""The cases of the fuzzer with handles of P-Reduce: see `draw`."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from pypartial._core_sim import lib
from pypartial.groups import groups_of
from pypartial.sim.groups import static_table
from pypartial.sim.preduce_handle import PreduceOptions

from .kinds import KINDS
from .plan import TIMINGS, Phase, Scenario

__all__ = ["draw_calls", "draw_groups_scenario", "draw_neighbours_scenario"]

_RANKS = (range(1, 2), range(2, 6), range(6, 10), range(10, 18), range(18, 41))
_RANKS_WEIGHTS = (1.5, 62, 32, 4, 0.5)
_LATENCIES = ((500, 5000), (500, 5000), (1000, 1000), (0, 0), (1, 200_000), (100, 2_000_000))
_NETWORKS = (
    *("", "", "", "", "", ""),
    "L=2us,o=500ns,g=300ns,G=0.1ns,S=64",
    "L=3us,o=400ns,G=1ns,S=4K,jitter=20us,node=3,node.L=200ns,node.o=50ns",
)
# Above 5 ms a rank that waits in an allreduce is taken out of groups.
_SCALES = (20_000, 20_000, 0, 2_000, 500_000, 4_000_000)
_SHARES = (1000, 1000, 300, 50)
_PAUSES = (0, 100, 1_000, 20_000)
_DTYPES = ("float64", "float64", "float32", "float16")
_WEIGHTS = ("constant", "constant", "closest", "initial")
_ALPHAS = (0.0, 0.3, 0.5, 0.9)
_IN_STEP = 0.5  # of the cases with given groups
_GENERATORS = (
    *("random", "random", "random,reuse"),
    *("smart", "smart,no-division", "smart,inter-intra", "smart,inter-intra,foresight=0"),
    *("smart,c-thres=1", "smart,foresight=0", "controller", "controller,no-unfreeze"),
    *("controller,history", "table", "static", "given", "given"),
)


def draw_groups_scenario(draw: random.Random, allreduce: Any) -> Scenario:
    """Draw a case.

    Parameters
    ----------
    draw : random.Random
    allreduce : callable
        Draws the options of an allreduce, of the number of ranks and the window.
    """
    ranks = draw.choice(draw.choices(_RANKS, _RANKS_WEIGHTS)[0])
    window = draw.choice((1, 2, 4))
    handles: list[Any] = [_draw_options(draw, ranks) for _ in range(draw.choice((1, 1, 1, 2, 2)))]
    if draw.random() < 0.35:
        handles.insert(draw.randint(0, len(handles)), allreduce(draw, ranks, window))
    opened = draw.randint(1, len(handles))
    phases = _draw_phases(draw, len(handles), opened)
    if draw.random() < _IN_STEP and any(_is_given(options) for options in handles):
        phases = tuple(map(_in_step, phases))
    return _scenario(draw, ranks, window, handles, opened, phases)


def draw_neighbours_scenario(draw: random.Random, allreduce: Any) -> Scenario:
    """Draw a case with handles of `KINDS`, mostly beside handles of other kinds; as above."""
    ranks = draw.choice(draw.choices(_RANKS, _RANKS_WEIGHTS)[0])
    window, memory = draw.choice((1, 2, 4)), _draw_memory(draw, ranks)
    if draw.random() < 0.4:  # more often on a node, where ranks meet in more ways
        memory = (draw.choice(_SHARES), draw.choice(_PAUSES))
    node = len(memory) == 2 or memory[2:3] == (ranks,)
    kinds = draw.choices(list(KINDS.values()), k=draw.choice((1, 1, 1, 2, 2)))
    handles = [kind.draw(draw, ranks, node) for kind in kinds]
    for other, share in ((allreduce(draw, ranks, window), 0.2), (_draw_options(draw, ranks), 0.2)):
        if draw.random() < share:
            handles.insert(draw.randint(0, len(handles)), other)
    opened = draw.randint(1, len(handles))
    phases = _draw_phases(draw, len(handles), opened)
    if len(handles) > 1 and any(kind.waits_for_computing for kind in kinds):
        phases = tuple(
            replace(p, steps=p.steps[:1], then=tuple(a for a in p.then if a != "apart"))
            for p in phases
        )
        handles = [replace(h, skip=None) if hasattr(h, "skip") else h for h in handles]
    return _scenario(draw, ranks, window, handles, opened, phases, memory)


def _scenario(
    draw: random.Random,
    ranks: int,
    window: int,
    handles: list[Any],
    opened: int,
    phases: tuple[Phase, ...],
    memory: tuple[int, ...] | None = None,
) -> Scenario:
    several = len(handles) > 1
    together = draw.random() < 0.5 or (several and any(phase.hold for phase in phases))
    scenario = Scenario(
        ranks=ranks,
        seed=draw.getrandbits(32),
        handles=tuple(handles),
        phases=phases,
        opened=opened,
        window=window,
        latency=draw.choice(_LATENCIES),
        network=draw.choice(_NETWORKS),
        timing=draw.choice(TIMINGS),
        scale=draw.choice(_SCALES),
        together=together,
        blocking=draw.random() < 0.8,
        late=draw.choice((0.0, 0.0, 0.5)),
        last_flush=draw.random() < 0.7,
        timeout=draw.choice((0.0, 0.0, 0.3)),
        memory=_draw_memory(draw, ranks) if memory is None else memory,
    )
    assert scenario.complaint() is None, (scenario.complaint(), scenario)
    return scenario


def _draw_memory(draw: random.Random, ranks: int) -> tuple[int, ...]:
    if draw.random() < 0.4:
        return ()
    memory = [draw.choice(_SHARES), draw.choice(_PAUSES)]
    if draw.random() < 0.35:
        memory += [draw.randint(1, ranks), draw.randrange(lib.PP_LAYOUT_COUNT)]
    return tuple(memory)


def _draw_options(draw: random.Random, ranks: int) -> PreduceOptions:
    name, *more = draw.choice(_GENERATORS).split(",")
    if ranks == 1 and name not in ("table", "given"):
        name = draw.choice(("table", "given"))
    size = draw.randint(2, min(ranks, draw.choice((2, 3, 4, 9)))) if ranks > 1 else 0
    least = -((1 - ranks) // (size - 1)) if size else 0
    more = [f"history={draw.randint(least, 4 * least)}" if m == "history" else m for m in more]
    table: tuple[tuple[tuple[int, ...], ...], ...] = ()
    if name == "static":
        per_node = draw.choice([n for n in range(1, ranks + 1) if ranks % n == 0])
        table = tuple(tuple(groups_of(p)) for p in static_table(ranks // per_node, per_node))
    elif name == "table":
        table = tuple(_draw_phase(draw, ranks) for _ in range(draw.randint(1, 4)))
    generator = "table" if table else name
    if generator not in ("table", "given"):
        generator = ",".join([f"{name}:{size}", *more])
    dtype = draw.choice(_DTYPES)
    return PreduceOptions(
        generator=generator,
        count=draw.choice((*range(13), 1, 2, 8, 300)),
        dtype=dtype,
        table=table,
        weights=draw.choice(_WEIGHTS),
        alpha=draw.choice(_ALPHAS),
        backend=draw.choice(("auto", "auto", "auto", "schedule")),
        cache=draw.choice((0, 0, 3)),
        pieces=draw.choice((1, 1, 2, 3)),
        fenced=draw.random() < 0.1,
    )


def _draw_phase(draw: random.Random, ranks: int) -> tuple[tuple[int, ...], ...]:
    """Draw the groups of a phase; some ranks are idle."""
    left = draw.sample(range(ranks), ranks)
    groups = []
    while left:
        size = draw.randint(1, min(4, len(left)))
        if size > 1:
            groups.append(tuple(sorted(left[:size])))
        del left[:size]
    return tuple(groups)


def _draw_phases(draw: random.Random, handles: int, opened: int) -> tuple[Phase, ...]:
    """Draw phases with possible collective calls: none uses a handle that is not open."""
    live, unopened = list(range(opened)), list(range(opened, handles))
    phases = []
    for _ in range(draw.randint(1, 4)):
        then = draw_calls(draw, live, unopened, flushes=3)
        hold = draw.random() < 0.3
        most = draw.choice((4, 7, 12))
        steps = [draw.randint(0, most) for _ in range(draw.randint(1, 4))]
        if handles > 1 and hold:
            del steps[1:]
        phases.append(Phase(tuple(steps), tuple(then), hold))
    return tuple(phases)


def _is_given(options: Any) -> bool:
    return isinstance(options, PreduceOptions) and options.generator == "given"


def _in_step(phase: Phase) -> Phase:
    """Return the phase for ranks that make their steps together: see `Scenario.names_vary`."""
    equal = phase.hold or set(phase.then) <= {"apart"}
    return replace(phase, steps=phase.steps[:1] if equal else phase.steps)


def draw_calls(
    draw: random.Random, live: list[int], unopened: list[int], flushes: int
) -> list[str]:
    """Draw what all ranks call behind a phase; note which handles are open then.

    Parameters
    ----------
    draw : random.Random
    live, unopened : list of int
        The handles that are open, and that are not yet; changed in place.
    flushes : int
        How many times as likely a flush is as any other call.
    """
    kinds = ("flush",) * flushes + ("open", "free", "away", "apart")
    then = []
    for _ in range(draw.randint(0, 3)):
        what = draw.choice(kinds)
        if what in ("away", "apart"):
            then.append(what)
        elif what == "open" and unopened:
            live.append(unopened.pop(0))
            then.append(f"open {live[-1]}")
        elif what == "flush":
            then.append(f"flush {draw.choice(live)}")
        elif what == "free" and len(live) > 1:
            then.append(f"free {live.pop(draw.randrange(len(live)))}")
    return then
