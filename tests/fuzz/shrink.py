"""Shrinking: make a failing scenario smaller, greedily, while it fails in the same way.

A failure needs an interleaving, and every change of a scenario makes another interleaving. So the
search tries each smaller scenario with a few seeds before it drops it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from pypartial.policy import FirstOf, Majority, Policy, Quorum
from pypartial.sim.allreduce_handle import Options
from pypartial.sim.preduce_handle import PreduceOptions

from .kinds import KINDS
from .scenario import Phase, Scenario

__all__ = ["ATTEMPTS", "shrink"]

ATTEMPTS = 1500
_SEEDS = 6

Find = Callable[[Sequence[Scenario]], int | None]


def shrink(scenario: Scenario, find: Find, *, attempts: int = ATTEMPTS) -> Scenario:
    """Return a scenario that fails in the same way and is as small as greedy steps make it.

    Parameters
    ----------
    scenario : Scenario
        A scenario that fails.
    find : callable
        Runs scenarios in order, and returns the index of the first that fails in the same way, or
        None.
    attempts : int
        Number of scenarios to try at most.

    Returns
    -------
    Scenario
        `scenario` itself if nothing smaller fails.
    """
    left = attempts
    while left > 0:
        simpler = [s for s in _smaller(scenario) if s.complaint() is None]
        tried = [s for smaller in simpler for s in _seeded(smaller)][:left]
        found = find(tried)
        if found is None:
            break
        left -= found + 1
        scenario = tried[found]
    return scenario


def _seeded(scenario: Scenario) -> Iterator[Scenario]:
    """Yield the scenario, and the same with other seeds."""
    yield scenario
    for seed in range(_SEEDS):
        if seed != scenario.seed:
            yield replace(scenario, seed=seed)


def _smaller(s: Scenario) -> Iterator[Scenario]:
    """Yield smaller scenarios, the smallest first; some of them cannot be run."""
    yield from _fewer_ranks(s)
    yield from _fewer_handles(s)
    yield from _fewer_phases(s)
    yield from _fewer_steps(s)
    yield from _simpler_run(s)
    for index, options in enumerate(s.handles):
        for simpler in _simpler_options(options, s):
            yield replace(s, handles=(*s.handles[:index], simpler, *s.handles[index + 1 :]))
    if s.seed > 99:  # a seed that is easy to read; the search tries other seeds anyway
        yield replace(s, seed=s.seed % 100)


def _fewer_ranks(s: Scenario) -> Iterator[Scenario]:
    for ranks in sorted({2, 3, s.ranks // 2, s.ranks - 1}):
        if 0 < ranks < s.ranks:
            handles = tuple(_with_ranks(o, s.ranks, ranks) for o in s.handles)
            nodes_of = tuple(min(number, ranks) for number in s.memory[2:3])
            memory = s.memory[:2] + nodes_of + s.memory[3:]
            yield replace(s, ranks=ranks, handles=handles, memory=memory)


def _with_ranks(options: Any, old: int, new: int) -> Any:
    """Return the options for fewer ranks: named contributions stay named, "all" stays all."""
    if kind := KINDS.get(type(options)):
        return kind.with_ranks(options, new)
    if isinstance(options, PreduceOptions):
        phases = tuple(
            tuple(tuple(rank for rank in group if rank < new) for group in phase if group[0] < new)
            for phase in options.table
        )
        smaller = _sized(options, min(new, options.plan().size))
        return replace(smaller, table=phases)
    tail = options.count - 2 * old
    return replace(
        options,
        policy=_policy_for(options.policy, old, new),
        count=2 * new + tail if tail >= 0 else options.count,
    )


def _policy_for(policy: Policy, old: int, new: int) -> Policy:
    """Return the policy for fewer ranks: "all" stays all, and fewer than all stays fewer."""
    if isinstance(policy, FirstOf):
        return replace(policy, m=_number_for(policy.m, old, new))
    if isinstance(policy, Quorum):
        return replace(policy, k=_number_for(policy.k, old, new))
    return policy


def _number_for(number: int, old: int, new: int) -> int:
    return new if number == old else max(1, min(number, new - 1))


def _fewer_handles(s: Scenario) -> Iterator[Scenario]:
    for gone in reversed(range(len(s.handles))):
        if len(s.handles) > 1 and (gone >= s.opened or s.opened > 1):
            yield replace(
                s,
                handles=(*s.handles[:gone], *s.handles[gone + 1 :]),
                opened=s.opened - (gone < s.opened),
                phases=tuple(_without_handle(phase, gone) for phase in s.phases),
            )


def _without_handle(phase: Phase, gone: int) -> Phase:
    only = tuple(i - (i > gone) for i in phase.only if i != gone)
    return replace(phase, then=tuple(_without(phase.then, gone)), only=only)


def _without(actions: tuple[str, ...], gone: int) -> Iterator[str]:
    """Yield the collective calls without those of a handle, and renumber later handles."""
    for action in actions:
        what, *index = action.split()
        if not index:
            yield action
        elif int(index[0]) != gone:
            yield f"{what} {int(index[0]) - (int(index[0]) > gone)}"


def _fewer_phases(s: Scenario) -> Iterator[Scenario]:
    for gone in reversed(range(len(s.phases))):
        yield replace(s, phases=(*s.phases[:gone], *s.phases[gone + 1 :]))
    for at, phase in enumerate(s.phases):
        for gone in range(len(phase.then)):
            then = (*phase.then[:gone], *phase.then[gone + 1 :])
            shorter = replace(phase, then=then)
            yield replace(s, phases=(*s.phases[:at], shorter, *s.phases[at + 1 :]))


def _fewer_steps(s: Scenario) -> Iterator[Scenario]:
    for at, phase in enumerate(s.phases):
        steps = phase.steps
        most = max(steps)
        tries: list[tuple[int, ...]] = [(n,) for n in sorted({1, 2, most // 2}) if n < most]
        tries += [steps[:1]] if len(steps) > 1 else []
        tries += [
            (*steps[:i], fewer, *steps[i + 1 :])
            for i, n in enumerate(steps)
            for fewer in sorted({0, n // 2, n - 1})
            if 0 <= fewer < n and len(steps) > 1
        ]
        if len(steps) == 1 and steps[0] > 1:
            tries.append((steps[0] - 1,))
        changed = [replace(phase, steps=fewer) for fewer in dict.fromkeys(tries)]
        for name in ("hold", "only", "threads"):
            if getattr(phase, name):
                changed.append(replace(phase, **{name: getattr(Phase((1,)), name)}))
        for simpler in changed:
            yield replace(s, phases=(*s.phases[:at], simpler, *s.phases[at + 1 :]))


def _simpler_run(s: Scenario) -> Iterator[Scenario]:
    simple = Scenario(1, 0, (), ())
    switches = ("ask", "blocking", "together", "last_flush", "shuffle")
    shares = ("late", "extra", "more", "timeout")
    for name in ("network", *shares, "noise", "magnify", "room", "patience", "contexts", *switches):
        default = getattr(simple, name)
        if getattr(s, name) != default:
            yield replace(s, **{name: default})
    if s.window != simple.window:
        yield replace(s, window=simple.window)
    orders: dict[str, tuple[Any, ...]] = {
        "timing": ("zero", "uniform"),
        "latency": ((1000, 1000), (500, 5000)),
        "scale": (0, 20_000),
    }
    for name, values in orders.items():
        value = getattr(s, name)
        simpler = values[: values.index(value)] if value in values else values
        for other in simpler:
            yield replace(s, **{name: other})


def _sized(options: PreduceOptions, size: int) -> PreduceOptions:
    """Return the options with another size of groups, if they have one."""
    name, *more = options.generator.split(",")
    if ":" not in name or size < 2:
        return options
    more = [word for word in more if not word.startswith("history=")]
    return replace(options, generator=",".join([f"{name.partition(':')[0]}:{size}", *more]))


def _simpler_groups(options: PreduceOptions) -> Iterator[PreduceOptions]:
    for at in range(len(options.table)):
        rest = (*options.table[:at], *options.table[at + 1 :])
        if rest:
            yield replace(options, table=rest)
    name, *more = options.generator.split(",")
    for at in range(len(more)):
        yield replace(options, generator=",".join([name, *more[:at], *more[at + 1 :]]))
    if options.plan().size > 2:
        yield _sized(options, 2)
        yield _sized(options, options.plan().size - 1)
    for simpler in ("controller:2", "random:2"):
        if options.generator != simpler:
            yield replace(options, generator=simpler, table=())
    simple = PreduceOptions()
    for name in ("pieces", "fenced", "cache", "weights", "alpha", "dtype", "backend", "count"):
        if getattr(options, name) != getattr(simple, name):
            changed = replace(options, **{name: getattr(simple, name)})
            yield replace(changed, pieces=1) if name == "count" else changed


def _simpler_options(options: Any, s: Scenario) -> Iterator[Any]:
    if isinstance(options, PreduceOptions):
        yield from _simpler_groups(options)
        return
    if kind := KINDS.get(type(options)):
        yield from kind.simpler(options)
        return
    simple = Options(count=2 * s.ranks)
    names = (
        "count",
        "pieces",
        "in_place",
        "fenced",
        "average",
        "dtype",
        "op",
        "algorithm",
        "segments",
        "deliver",
    )
    for name in names:
        value = getattr(simple, name)
        if getattr(options, name) == value:
            continue
        changed = replace(options, **{name: value})
        if name == "dtype":
            changed = replace(changed, average=None)
        if name == "count":
            changed = replace(changed, pieces=1)
        yield changed
    if options.deliver == "latest" and options.max_lag >= 0:
        yield replace(options, max_lag=-1)
    yield from (replace(options, policy=policy) for policy in _simpler_policies(options, s.ranks))


def _simpler_policies(options: Options, ranks: int) -> Iterator[Policy]:
    policy = options.policy
    for name in ("deadline", "grace"):
        if getattr(policy, name) is not None:
            yield replace(policy, **{name: None})
    kind, count = policy.trigger(ranks)
    seconds = {"deadline": policy.deadline, "grace": policy.grace}
    if policy != Majority(**seconds):
        yield Majority(**seconds)
    if kind == "quorum" and count > 1:
        yield Quorum(count - 1, **seconds)
