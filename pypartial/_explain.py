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
    """What a rank said about itself and one handle (pp_rank_state_t)."""

    rank: int
    answered: bool
    activity: str
    handle: int
    round: int
    calls: int
    completed: int
    joined: int
    ready: bool
    drawn: bool
    withholding: bool
    device_wait: str


COMPUTING, WAITING, IN_CALL = "computing", "waiting", "in a call"
CONTRIBUTION, PART = "contribution", "part"
_OF_DEVICES = {
    CONTRIBUTION: "; its contribution is on its way from its device",
    PART: "; its device has yet to do its part of a round",
}
LISTED = 16  # ranks named one by one in a report


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
        names = ACTIVITY.values(self._native.lib)
        device_waits = DEVICE_WAIT.values(self._native.lib)
        return [
            RankState(
                rank=rank,
                answered=bool(state.answered),
                activity=names.get(state.activity, COMPUTING),
                handle=state.handle,
                round=state.round,
                calls=state.calls,
                completed=state.completed,
                joined=state.joined,
                ready=bool(state.ready),
                drawn=bool(state.drawn),
                withholding=bool(state.withholding),
                device_wait=device_waits.get(state.device_wait, "none"),
            )
            for rank, state in enumerate(self._states)
        ]


class Explainer:
    """Says which ranks a wait waits for: by asking them, or at once by what this rank knows.

    Parameters
    ----------
    ask : callable
        Asks the ranks, and returns the question.
    obstacles : callable
        Returns what keeps the wait from going on, as far as this rank knows, one line for each.
    report : callable
        Returns in words which ranks the wait waits for, given the seconds waited and the answers.
    what : str
        The wait, such as "Wait on handle 2".
    handle : int
        The handle's number; 0: none.
    """

    def __init__(
        self,
        ask: Callable[[], Question],
        obstacles: Callable[[], list[str]],
        report: Callable[[float, list[RankState] | str], str],
        what: str,
        handle: int,
    ) -> None:
        self._ask, self._obstacles, self._report = ask, obstacles, report
        self._what, self._handle = what, handle
        self._question: Question | None = None
        self._heard: tuple[float, list[RankState]] | None = None

    @property
    def asking(self) -> bool:
        """Whether a question is open."""
        return self._question is not None

    def ask(self) -> None:
        """Ask the ranks, without waiting for their answers."""
        if self._question is None:
            self._question = self._ask()

    def told(self, waited_s: float) -> str | None:
        """Return the report once the question is complete; None before."""
        if self._question is None or not self._question.complete():
            return None
        return self._report(waited_s, self._take())

    def here(self, waited_s: float) -> str:
        """Return at once what this rank knows, and the newest answers if there are any."""
        if self._question is not None and (self._heard is None or self._question.complete()):
            self._take()
        text = f"{self._what}: not complete after {format_duration(waited_s * 1e9)}"
        obstacles = self._obstacles()
        if obstacles:
            text += f"; as seen from here: {'; '.join(obstacles)}"
        if self._heard is not None:
            at, states = self._heard
            text += (
                f"; the ranks' answers {format_duration((time.monotonic() - at) * 1e9)} ago: "
                f"{each_does(states, self._handle)}"
            )
        return text

    def end(self) -> None:
        """Take no more answers."""
        if self._question is not None:
            self._question.end()
            self._question = None

    def _take(self) -> list[RankState] | str:
        assert self._question is not None
        asked_at, answers = self._question.asked_at, self._question.answers()
        self._question = None
        if not isinstance(answers, str):
            self._heard = asked_at, answers
        return answers


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
    name: str, handle: int, waited_s: float, states: Sequence[RankState], me: int, policy: Policy
) -> str:
    """Say which ranks keep a Wait on a handle waiting, and what each of them is doing."""
    current = states[me].completed
    activated = any(state.answered and state.joined > current for state in states)
    silent = [state for state in states if not state.answered]
    drawn = [state for state in states if state.answered and state.drawn]
    if activated:
        why = "it is activated, but these ranks have not joined it"
        blamed = [state for state in states if not state.answered or state.joined <= current]
    elif policy.trigger(len(states)).kind == "quorum":
        ready = sum(state.ready for state in states)
        why = f"it is not activated: {ready} of {len(states)} ranks are ready; not ready"
        blamed = [state for state in states if not state.answered or not state.ready]
    else:
        why = "it is not activated; drawn to trigger it"
        blamed = drawn + silent
    on_device = [state for state in states if state.device_wait == PART]
    if not blamed and on_device:
        why, blamed = "no rank is missing, but devices have yet to do their part", on_device
    elif not blamed:
        why, blamed = "no rank is missing; all ranks", list(states)
    return (
        f"{name}: round {current} is not complete after {waited_s:.1f} s; "
        f"{why}: {each_does(blamed, handle)}"
    )


def report_call(
    call: str, handle: int, waited_s: float, states: Sequence[RankState], me: int
) -> str:
    """Say which ranks keep a collective call waiting, and what each of them is doing."""
    calls = states[me].calls
    missing, inside = [], []
    for state in states:
        if state.answered and state.calls == calls and state.activity == IN_CALL:
            inside.append(state)
        elif not state.answered or state.calls <= calls:
            missing.append(state)
    reasons = []
    if len({state.handle for state in inside}) > 1:
        reasons.append(f"the ranks are in different collective calls: {each_is_inside(inside)}")
    if missing:
        reasons.append(f"not in it yet: {each_does(missing, handle)}")
    if not reasons:
        reasons.append(f"every rank has called it; all ranks: {each_does(states, handle)}")
    return (
        f"{call}: not complete after {waited_s:.1f} s (it is collective call number {calls + 1} of "
        f"this context); {'; '.join(reasons)}"
    )


def each_is_inside(states: Sequence[RankState]) -> str:
    """List the ranks inside collective calls, by the handle of the call."""
    texts = []
    for handle in sorted({state.handle for state in states}):
        ranks = [state.rank for state in states if state.handle == handle]
        names = ", ".join(map(str, ranks[:LISTED]))
        if len(ranks) > LISTED:
            names += f" and {len(ranks) - LISTED} more"
        # A handle has no number while it is made, and a call of the context belongs to no handle.
        which = (
            f"a call of handle {handle}"
            if handle
            else "Allreduce_init, Preduce_init, Free of the context, or the end of the script"
        )
        texts.append(f"{'rank' if len(ranks) == 1 else 'ranks'} {names} in {which}")
    return "; ".join(texts)


def each_does(states: Sequence[RankState], handle: int) -> str:
    """List the ranks, and what each of them is doing."""
    texts = [f"rank {state.rank} ({does(state, handle)})" for state in states[:LISTED]]
    if len(states) > LISTED:
        texts.append(f"and {len(states) - LISTED} more")
    return ", ".join(texts)


def does(state: RankState, handle: int) -> str:
    """Say what a rank is doing; `handle` is the one that the report is about."""
    if not state.answered:
        return "no answer: outside the library with progress='caller', stopped, or gone"
    calls = f"{state.calls} collective calls done"
    if state.activity == IN_CALL:
        which = f" of handle {state.handle}" if state.handle else ""
        text = f"inside a collective call{which}, {calls}"
    elif state.activity == WAITING:
        here = "this handle" if state.handle == handle else f"handle {state.handle}"
        text = f"waiting on {here} for round {state.round}, {calls}"
    else:
        text = f"computing, {calls}"
    if state.withholding:
        text += "; its max_lag keeps it from joining the round"
    return text + _OF_DEVICES.get(state.device_wait, "")
