"""Which ranks a wait waits for, in words: from what they answer, and from what this rank knows."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ._names import ACTIVITY, DEVICE_WAIT
from .policy import Policy
from .units import format_duration

if TYPE_CHECKING:
    from ._core import CData
    from ._native import Native

# How long a question waits for answers, in seconds; the application's wait goes on meanwhile.
ASK_S = 0.5


class RankState(NamedTuple):
    """What a rank said about itself and one handle: pp_rank_state_t, with names for its numbers."""

    rank: int
    answered: bool
    activity: str
    handle: int
    call: str
    round: int
    calls: int
    last: str
    completed: int
    joined: int
    taken: int
    quiet_ns: int
    place: int
    waits: bool
    overdue: bool
    ready: bool
    left: bool
    aside: bool
    passes: bool
    withholding: bool
    full: bool
    device_wait: str


COMPUTING, WAITING, IN_CALL = "computing", "waiting", "in a call"
CONTRIBUTION, PART = "contribution", "part"
_OF_DEVICES = {
    CONTRIBUTION: "; its contribution is on its way from its device",
    PART: "; its device has yet to do its part of a round",
}
LISTED = 16  # ranks, or ranges of them, named one by one in a report


class Question:
    """A question to every rank about a handle, and the answers so far.

    Asking does not block. Answers arrive while the core is driven, by the wait that the question is
    about or by the progress thread.

    Parameters
    ----------
    native : Native
    ctx : CData
        The context.
    size : int
        Number of ranks.
    handle : int
        The handle's number; 0: none.
    """

    def __init__(self, native: Native, ctx: CData, size: int, handle: int) -> None:
        self._native, self._ctx = native, ctx
        self._states = native.ffi.new("pp_rank_state_t[]", size)
        self._question = native.ffi.new("pp_question_t **")
        self.asked_at = time.monotonic()
        status = native.lib.pp_question_open(ctx, handle, self._states, self._question)
        self.failure = str(native.error(status)) if status < 0 else None
        self._open = status >= 0

    def complete(self) -> bool:
        """Return whether all ranks have answered, or the time for answers is over."""
        if not self._open or time.monotonic() >= self.asked_at + ASK_S:
            return True
        return all(state.answered for state in self._states)

    def end(self) -> None:
        """Take no more answers, and have the core drop the question."""
        if self._open:
            self._open = False
            self._native.lib.pp_question_close(self._ctx, self._question[0])

    def answers(self) -> list[RankState] | str:
        """End the question; return the answers, or a text if the ranks could not be asked."""
        self.end()
        if self.failure is not None:
            return self.failure
        activities = ACTIVITY.values(self._native.lib)
        device_waits = DEVICE_WAIT.values(self._native.lib)
        return [
            RankState(rank, *(getattr(state, name) for name in RankState._fields[1:]))._replace(
                activity=activities.get(state.activity, COMPUTING),
                call=self._name(state.call, state.handle),
                last=self._name(state.last, state.last_handle),
                device_wait=device_waits.get(state.device_wait, "none"),
            )
            for rank, state in enumerate(self._states)
        ]

    def _name(self, call: int, handle: int) -> str:
        name = self._native.text(self._native.lib.pp_call_name(call))
        return f"{name} of handle {handle}" if handle else name


class Explainer:
    """Says which ranks a wait waits for: by their answers, and by what this rank knows.

    Parameters
    ----------
    ask : callable
        Asks the ranks, and returns the question.
    obstacles : callable
        Returns what keeps the wait from going on, as far as this rank knows, one line for each.
    report : callable
        Returns in words which ranks the wait waits for, given the answers, and whether that is all.
    what : str
        The wait, such as "Wait on handle 2".
    """

    def __init__(
        self,
        ask: Callable[[], Question],
        obstacles: Callable[[], list[str]],
        report: Callable[[list[RankState]], tuple[str, bool]],
        what: str,
    ) -> None:
        self._ask, self._obstacles, self._report, self._what = ask, obstacles, report, what
        self._question: Question | None = None
        self._heard: tuple[float, list[RankState] | str] | None = None

    def ask(self) -> None:
        """Ask the ranks, without waiting for their answers."""
        if self._question is None:
            self._question = self._ask()

    def told(self) -> bool:
        """Return whether a question has become complete."""
        if self._question is None or not self._question.complete():
            return False
        self._take(self._question)
        return True

    def text(self, waited_s: float) -> str:
        """Return at once what is known: the newest answers, and what this rank sees."""
        if self._question is not None and (self._heard is None or self._question.complete()):
            self._take(self._question)
        text = f"{self._what}: not complete after {format_duration(waited_s * 1e9)}"
        complete = False
        if self._heard is not None:
            at, states = self._heard
            if isinstance(states, str):
                text += f"; cannot ask the other ranks: {states}"
            else:
                said, complete = self._report(states)
                complete = complete and all(state.answered for state in states)
                ago = format_duration((time.monotonic() - at) * 1e9)
                text += f"; the ranks' answers {ago} ago: {said}"
        obstacles = [] if complete else self._obstacles()
        return text + (f"; as seen from here: {'; '.join(obstacles)}" if obstacles else "")

    def end(self) -> None:
        """Take no more answers."""
        if self._question is not None:
            self._question.end()
            self._question = None

    def _take(self, question: Question) -> None:
        self._heard = question.asked_at, question.answers()
        self._question = None


def obstacles(native: Native, explain: Callable[[Any, Any], int], of: CData) -> list[str]:
    """Return what keeps a handle's rounds or a context's call from going on, a line for each."""
    text = native.ffi.new("char **")
    if explain(of, text) < 0:
        return []  # the handle or context has failed; the wait's own error says why
    try:
        return native.text(text[0]).splitlines()
    finally:
        native.lib.pp_text_free(text[0])


def report_wait(
    handle: int, states: Sequence[RankState], me: int, policy: Policy
) -> tuple[str, bool]:
    """Say which ranks hold the next round up, and why; and whether that explains the wait."""
    current = states[me].completed
    groups = holding_up(states, current, policy)
    on_device = [state for state in states if state.device_wait == PART]
    if not groups and on_device:
        groups["no rank is missing, but devices have yet to do their part"] = on_device
    calls = states[me].calls
    if not groups:
        all_ranks = each_does(states, handle, calls, rounds=True)
        return f"round {current}: no rank is missing; all ranks: {all_ranks}", False
    texts = [f"round {current} is held up"]
    for why, group in groups.items():
        texts.append(f"{why}: {each_does(group, handle, calls, rounds=True)}")
    blamed = {state.rank for group in groups.values() for state in group}
    if any(states[rank].activity == COMPUTING and states[rank].answered for rank in blamed):
        own = "" if waits_for_all(policy, len(states)) else " (or use ctx.comm)"
        texts.append(f"if a rank is in a call of its own, put that into `with ctx.away():`{own}")
    if waiting := [s for s in states if s.waits and s.rank not in blamed]:
        texts.append(f"waiting for the round: {name_ranks(waiting)}")
    return "; ".join(texts), states[me].device_wait not in _OF_DEVICES


def report_group(handle: int, states: Sequence[RankState], me: int) -> tuple[str, bool]:
    """Say which ranks, or their devices, a group may wait for; only rank 0 may know its members."""
    first = [s for s in states if not s.waits or s.device_wait in _OF_DEVICES]
    texts = [each_does(first, handle, states[me].calls)] if first else []
    if waiting := [s for s in states if s not in first]:
        texts.append(f"waiting: {name_ranks(waiting)}")
    return "; ".join(texts), False


def holding_up(
    states: Sequence[RankState], current: int, policy: Policy
) -> dict[str, list[RankState]]:
    """Return the ranks that keep the current round from going on, by the reason."""
    late = [state for state in states if state.answered and state.joined <= current]
    activated = any(state.joined > current for state in states)
    why, lacking = lacks(states, current, policy)
    reasons = {
        "withheld from it by max_lag": [state for state in late if state.withholding],
        why: lacking,
        "yet to take part": [
            s for s in late if not s.waits and (activated or s.completed < current)
        ],
        "perhaps missing": [state for state in states if not state.answered],
    }
    groups, blamed = {}, set[int]()
    for reason, group in reasons.items():
        if new := [state for state in group if state.rank not in blamed]:
            groups[reason] = new
            blamed |= {state.rank for state in new}
    return groups


def waits_for_all(policy: Policy, size: int) -> bool:
    """Return whether the policy is Full, or the same."""
    return policy.needed(size) == size and policy.deadline is None


def lacks(states: Sequence[RankState], current: int, policy: Policy) -> tuple[str, list[RankState]]:
    """Return the ranks that the policy waits for, and why; none if it is satisfied."""
    needed, drawn = policy.needed(len(states)), policy.drawn(len(states))
    if not waits_for_all(policy, len(states)) and any(
        state.joined > current or state.overdue for state in states
    ):
        return "", []
    if needed:
        others = [s for s in states if not s.ready and s.joined <= current]
        ready = len(states) - len(others)
        absent = [s for s in others if s.answered and not s.left and not s.aside]
        why = f"{ready} of {len(states)} ranks are ready; not ready"
        return why, absent if ready < needed else []
    order = {s.place: s for s in states if s.answered and s.completed == current}
    ends = []
    for place in range(drawn):
        while place in order and order[place].passes:
            place += drawn
        ends += [order[place]] if place in order else []
    return "drawn to trigger it", [] if any(state.waits for state in ends) else ends


def report_call(handle: int, states: Sequence[RankState], me: int) -> tuple[str, bool]:
    """Say which ranks keep a collective call waiting, and what each of them is doing."""
    calls = states[me].calls
    missing, inside = [], dict[str, list[RankState]]()
    for state in states:
        if state.answered and state.calls == calls and state.activity == IN_CALL:
            inside.setdefault(state.call, []).append(state)
        elif not state.answered or state.calls <= calls:
            missing.append(state)
    reasons = []
    if len(inside) > 1:
        each = "; ".join(f"{name_ranks(group)} in {call}" for call, group in inside.items())
        reasons.append(f"the ranks are in different collective calls: {each}")
    if missing:
        reasons.append(f"not in it yet: {each_does(missing, handle, calls)}")
    if not reasons:
        reasons.append(f"every rank has called it; all ranks: {each_does(states, handle, calls)}")
    number = f"it is collective call number {calls + 1} of this context"
    return f"{number}; {'; '.join(reasons)}", bool(missing)


def name_ranks(states: Sequence[RankState]) -> str:
    """Return "rank 3", or "ranks 3, 5-9 and 4 more"."""
    ranges: list[list[int]] = []
    for state in states:
        if ranges and ranges[-1][-1] == state.rank - 1:
            ranges[-1].append(state.rank)
        else:
            ranges.append([state.rank])
    text = ", ".join(span(ranks) for ranks in ranges[:LISTED])
    more = sum(map(len, ranges[LISTED:]))
    return f"rank{'s' * (len(states) > 1)} {text}{f' and {more} more' if more else ''}"


def span(numbers: Sequence[int | str]) -> str:
    """Return "3", or "3-7"."""
    least, most = numbers[0], numbers[-1]
    return f"{least}" if least == most else f"{least}-{most}"


def each_does(states: Sequence[RankState], handle: int, calls: int, rounds: bool = False) -> str:
    """List the ranks, those that do the same together, and what they are doing."""
    groups: dict[str, list[RankState]] = {}
    for state in states:
        groups.setdefault(does(state, handle, calls, rounds), []).append(state)
    return ", ".join(
        f"{name_ranks(group)} ({_fill(text, group)})" for text, group in groups.items()
    )


def _fill(text: str, group: Sequence[RankState]) -> str:
    """Fill in what differs between ranks that do the same."""
    return text.format(
        ago=span([f"{ns / 1e9:.1f}" for ns in sorted(state.quiet_ns for state in group)]),
        taken=span(sorted(state.taken - 1 for state in group)),
    )


def does(state: RankState, handle: int, calls: int, rounds: bool) -> str:
    """Say what a rank is doing.

    `handle` is the one that the report is about, `rounds` whether it has rounds, and `calls` are
    the collective calls that this rank has done. What differs between ranks is left to fill in.
    """
    if not state.answered:
        return "no answer: outside the library with progress='caller', stopped, or gone"
    if state.activity == IN_CALL:
        text = f"inside a collective call, {state.call}"
    elif state.activity == WAITING:
        here = "this handle" + f" for round {state.round}" * rounds
        text = f"waiting on {here if state.handle == handle else f'handle {state.handle}'}"
    else:
        text = f"computing, last call {state.last}" if state.last else "computing"
        text += " ({ago} s ago)" if state.quiet_ns else ""
    if state.withholding and state.taken:
        text += ", has not taken its rounds since round {taken}"
    if state.full:
        text += ", its backlog is full"
    if state.calls != calls:
        text += f", {state.calls} collective calls done"
    return text + _OF_DEVICES.get(state.device_wait, "")
