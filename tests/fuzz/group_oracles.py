"""The oracles of handles of P-Reduce: what groups, and what ranks were given, must look like."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from pypartial._core_sim import ffi, lib
from pypartial._names import algorithms
from pypartial.sim.groups import weights
from pypartial.sim.preduce_handle import Group, PreduceOptions

from .group_program import initial_model
from .replay import Asked, Formed, Replay

if TYPE_CHECKING:
    from pypartial.sim.world import Begun

    from .plan import Scenario
    from .scenario import Log, Outcome

__all__ = ["association", "judge_groups", "note_lasts", "occurred"]


_NAMES = algorithms(ffi, lib)
_WHOLE_BYTES = 32  # of all vectors of a simulated group: above this it is averaged in chunks
_TABLE_RANK_BITS = 12  # of serial numbers of groups of a table by messages
_ELSEWHERE_NS = 5_000_000  # a rank that waits elsewhere for longer is taken out of groups


def _fail(what: str, *things: Any) -> NoReturn:
    raise AssertionError("\n  ".join([what, *map(str, things)]))


def association(node: bool, count: int, element_bytes: int) -> Any:
    """Return a function of the number of members: how the core associates the sum of a group."""
    if node:
        return lambda members: "node"
    names = {number: name for name in _NAMES for number in [_NAMES.constant(lib, name)]}

    def chosen(members: int) -> str:
        choice = ffi.new("pp_choice_t *")
        at = ffi.NULL, 0, count, element_bytes, members, lib.PP_LINK_NETWORK
        assert lib.pp_choose(*at, choice) == lib.PP_OK
        return names[choice.algorithm]

    return chosen


def judge_groups(
    scenario: Scenario, index: int, logs: Sequence[Log], begun: Sequence[Begun]
) -> None:
    """Check the logs of a handle by every oracle.

    Raises
    ------
    AssertionError
        For the first oracle that does not hold.
    """
    options = scenario.handles[index]
    assert isinstance(options, PreduceOptions)
    formed = not scenario.by_table(options)  # else no rank knows when a group begins
    note_lasts([log.asked for log in logs], begun if formed else ())
    begun = [group for group in begun if group.members]
    if formed:
        _order(scenario.ranks, begun)
    for group in begun:
        _shape(scenario.ranks, options, group)
    begun = [group for group in begun if group.flush or len(group.members) > 1]  # not alone
    known = {group.serial: group for group in begun}
    for rank, log in enumerate(logs):
        for given in log.groups:
            _agrees(options, rank, given, known)
    dynamic = options.weights != "constant"
    keeps = options.weights == "initial"
    replay = Replay(
        [log.asked for log in logs],
        options.dtype,
        association(scenario.in_memory(options), options.count, _element_bytes(options)),
        dynamic=dynamic,
        initials=[initial_model(scenario, index, r).tobytes() for r in range(scenario.ranks)]
        if keeps
        else None,
    )
    replay.run(
        Formed(
            *(group.serial, group.members, group.weights, group.initial, group.flush),
            ranks=_stand_in(scenario, options, group),
        )
        for group in begun
    )
    for rank, log in enumerate(logs if formed else ()):
        for asked in log.asked:
            _times(rank, asked, known)
    if dynamic:
        _iterations(options, [log.asked for log in logs], begun)


def note_lasts(logs: Sequence[Sequence[Asked]], begun: Sequence[Begun]) -> None:
    """Note in requests that were alone which groups of others they ran before."""
    last = [0] * len(logs)
    lasts: list[list[list[int]]] = [[[]] for _ in logs]  # by rank and flush
    for group in begun:
        alone = group.members if len(group.members) == 1 and not group.flush else ()
        for rank in (group.rank,) if not group.members else alone:
            lasts[rank][-1].append(last[rank])
        for rank in () if alone else group.members:
            last[rank] = group.serial
            if group.flush:
                lasts[rank].append([])
    for log, parts in zip(logs, lasts, strict=True):
        flushes = 0
        for asked in log:
            if asked.serial == 0:
                part = parts[flushes] if flushes < len(parts) else []
                asked.last = part.pop(0) if part else 0
            flushes += asked.flush


def _element_bytes(options: PreduceOptions) -> int:
    return max(np.dtype(options.dtype).itemsize, 4)  # halves are averaged as float32


def _order(ranks: int, begun: Sequence[Begun]) -> None:
    """Each rank runs its groups in the order of their numbers."""
    last = [0] * ranks
    for group in begun:
        for rank in group.members:
            if not last[rank] < group.serial:
                _fail(f"rank {rank} runs group {group.serial} after group {last[rank]}", group)
            last[rank] = group.serial


def _shape(ranks: int, options: PreduceOptions, group: Begun) -> None:
    """Check members and weights of a group."""
    if list(group.members) != sorted(set(group.members)) or not group.members:
        _fail("members that are not a set of ranks", group)
    if group.flush and len(group.members) != ranks:
        _fail("a flush without all ranks", group)
    if group.flush or options.weights == "constant":
        if set(group.weights) != {1 / len(group.members)} or group.initial != 0:
            _fail("unequal weights", group)
        if group.flush:
            return
    plan = options.plan()
    if plan.size:
        more = plan.inter_intra or plan.generator == "smart"  # one without a partner joins them
        if len(group.members) > plan.size + (ranks if plan.inter_intra else more):
            _fail(f"a group of more than {plan.size}", group)
    if options.generator == "table":
        members = set(group.members)
        if not any(members <= set(circle) for phase in options.table for circle in phase):
            _fail("a group that is not in the table", group)


def _agrees(options: PreduceOptions, rank: int, given: Group, known: dict[int, Begun]) -> None:
    """Check what a rank was told against the group that began."""
    if given.round == 0:
        if (given.members, given.weights, given.initial) != ((rank,), (1.0,), 0.0):
            _fail(f"rank {rank} was alone, and was told otherwise", given)
        return
    group = known.get(given.round)
    if group is None or rank not in group.members:
        _fail(f"rank {rank} was given a group in which it is not", given, group)
    told = given.members, given.weights, given.initial
    if told != (group.members, group.weights, group.initial):
        _fail(f"rank {rank} was told another group than the one that began", given, group)
    if options.weights != "constant" and given.iteration != group.newest:
        _fail(f"rank {rank} did not take over the newest iteration", given, group)


def _stand_in(scenario: Scenario, options: PreduceOptions, group: Begun) -> tuple[int, ...]:
    """Return the ranks of a group of a table by messages, of which some may have left."""
    if not scenario.by_table(options):
        return ()
    if group.flush:
        return tuple(range(scenario.ranks))
    k = group.serial >> _TABLE_RANK_BITS & 0xFFFFFFFF  # the number of the request since a flush
    phase = options.table[(k - 1) % len(options.table)]
    return next(circle for circle in phase if group.members[0] in circle)


def _times(rank: int, asked: Asked, known: dict[int, Begun]) -> None:
    """A group begins when all its members have started, never in a rank's computation."""
    for serial in asked.ran or ():
        if not asked.begun <= known[serial].time <= asked.ended:
            _fail(f"group {serial} began while rank {rank} computed", asked, known[serial])


def _iterations(
    options: PreduceOptions, logs: Sequence[Sequence[Asked]], begun: Sequence[Begun]
) -> None:
    """Check the weights by the members' iterations, and the newest of these."""
    requests = {(rank, s): a for rank, log in enumerate(logs) for a in log for s in a.ran or ()}
    took = [0] * len(logs)  # by rank: the iteration that it has taken over
    for group in sorted(begun, key=lambda group: group.serial):
        own = [max(took[r], requests[r, group.serial].iteration) for r in group.members]
        if group.newest != max(own):
            _fail(f"the newest iteration of {own} is not {group.newest}", group)
        if not group.flush:
            wanted, initial = weights(options.weights, options.alpha, own)
            if (tuple(wanted), initial) != (group.weights, group.initial):
                _fail(f"weights of iterations {own}", group, wanted, initial)
        for rank in group.members:
            took[rank] = group.newest


# ---- what a case covers --------------------------------------------------------------------------


def occurred(scenario: Scenario, outcome: Outcome) -> dict[str, bool]:
    """Return what has occurred in a case, by the names that the fuzzer counts.

    The logs have been judged: their replay has noted which groups ran in which request.
    """
    found = dict.fromkeys(("chains", "alone", "dropped", "averaged", "at_once", "shrunk"), False)
    found |= dict.fromkeys(("chunks", "left"), False)
    for index, options in enumerate(scenario.handles):
        if not isinstance(options, PreduceOptions):
            continue
        begun = [group for group in outcome.begun[index] if group.members]
        asked = [one for log in outcome.logs[index] for one in log.asked]
        found["chains"] |= any(len(one.ran or ()) > 1 for one in asked)
        found["alone"] |= any(one.serial == 0 for one in asked)
        found["dropped"] |= any(one.serial is None for one in asked)
        found["averaged"] |= any(group.flush for group in begun)
        ends = {one.serial: one.ended for one in asked if one.serial}
        found["at_once"] |= any(
            later.time < ends.get(group.serial, 0) and not set(later.members) & set(group.members)
            for group, later in itertools.pairwise(begun)
        )
        size, bytes_ = options.plan().size, options.count * _element_bytes(options)
        found["shrunk"] |= any(len(group.members) < size for group in begun)
        found["chunks"] |= scenario.in_memory(options) and any(
            len(group.members) > 1 and len(group.members) * bytes_ > _WHOLE_BYTES for group in begun
        )
    handles = scenario.groups
    beside = len(handles) < len(scenario.handles)
    waits = [r.ended - r.begun for logs in outcome.logs for log in logs for r in log.records]
    found["left"] = beside and max(waits, default=0) > _ELSEWHERE_NS
    then = {action for phase in scenario.phases for action in phase.then}
    away = not then.isdisjoint(("away", "aside", "apart"))
    timeouts = (log.timeouts for logs in outcome.logs for log in logs if log.asked)
    return found | {
        "in_memory": any(map(scenario.in_memory, handles)),
        "by_messages": not all(map(scenario.in_memory, handles)),
        "dynamic": any(h.weights != "constant" for h in handles),
        "given": any(h.generator == "given" for h in handles),
        "renamed": len(handles) > 1
        and scenario.names_vary()
        and any(h.generator == "given" for h in handles),
        "table": any(h.generator == "table" for h in handles),
        "two": len(handles) > 1,
        "beside": beside,
        "groups_away": scenario.ranks > 1 and away,
        "groups_timeouts": sum(timeouts) > 0,
        "groups_polling": not scenario.blocking,
        "groups_patience": scenario.needs_patience(),
        "groups_contexts": scenario.contexts > 1 and not scenario.blocking,
    }
