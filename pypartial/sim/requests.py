"""Calls of the core for the requests that programs of simulated ranks yield.

Each request becomes its context and a *poll*: a function that returns whether the request is done,
and the program's result. Ranks that share memory make their calls through ``pp_sim_do()``, because
another rank may go on in the middle of a call.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from .._core_sim import ffi, lib
from .allreduce_handle import Handle
from .gossip_handle import GossipHandle
from .handle import AnyHandle, Call, check
from .preduce_handle import PreduceHandle
from .queue_handle import QueueHandle

__all__ = ["DONE", "STARTS", "Poll", "Requests"]

# The kinds of handles, by the word before "init" and "start" in the requests of programs. The words
# name a kind where a program gives only a complaint.
KINDS: dict[str, Callable[..., AnyHandle]] = {
    "": Handle,
    "groups_": PreduceHandle,
    "gossip_": GossipHandle,
    "queue_": QueueHandle,
}

_INITS = {f"{word}init": kind for word, kind in KINDS.items()}
STARTS = {f"{word}start" for word in KINDS}

Poll = Callable[[], tuple[bool, Any]]
DONE: Poll = lambda: (True, None)  # noqa: E731


def _none(_status: int) -> None:
    """Return None: the result of calls without a result."""


def _make(call: Call) -> int:
    """Make a call for a rank that shares no memory; return its status."""
    status = check(getattr(lib, call.function)(*call.arguments))
    return _make(call.then) if status == lib.PP_OK and call.then else status


@functools.cache
def _address(function: str) -> Any:
    return ffi.cast("pp_sim_function_t", ffi.addressof(lib, function))


def _in_c(call: Call) -> list[Any]:
    """Return a call as ``pp_sim_do()`` takes it, and what must live as long as it."""
    after = _in_c(call.then) if call.then else [ffi.NULL]
    words = [int(ffi.cast("intptr_t", argument)) for argument in call.arguments]
    made = ffi.new("pp_sim_call_t *", (_address(call.function), words, call.timeout_ns, after[0]))
    return [made, call, *after]


class Requests:
    """Begins the requests of programs, except those to the simulation itself.

    Parameters
    ----------
    sims : sequence
        The simulation of each context.
    contexts : sequence
        The core's ``pp_ctx_t``, by context and rank.
    memory : bool
        Whether the ranks share memory.
    groups_plant : str
        A defect of the generators of groups.
    """

    def __init__(
        self, sims: Sequence[Any], contexts: Sequence[Any], memory: bool, groups_plant: str
    ) -> None:
        self.sims, self.contexts, self.memory = sims, contexts, memory
        self.groups_plant = groups_plant

    def begin(self, rank: int, request: tuple[Any, ...]) -> tuple[int, Poll]:
        """Begin a request; return its context and its poll."""
        kind, *arguments = request
        if kind in _OF_A_CONTEXT:
            context = arguments[0] if arguments else 0
            return context, getattr(self, f"_{kind}")(rank, context)
        if kind in _INITS:
            context = arguments[1] if len(arguments) > 1 else 0
            return context, self._init(rank, _INITS[kind], arguments[0], context, *arguments[2:])
        handle: AnyHandle = arguments[0]
        if kind in STARTS:
            return handle.context, self._do(rank, handle.context, handle.start(*arguments[1:]))
        assert kind in _OF_A_HANDLE, f"a program yielded {request!r}"
        return handle.context, getattr(self, f"_{kind}")(rank, *arguments)

    def forget(self, rank: int, request: tuple[Any, ...]) -> None:
        """Drop a request that the program no longer waits for, although it is not done."""
        handle: AnyHandle = request[1]
        lib.pp_sim_unwatch(self.sims[handle.context], rank, handle.coll)

    # ---- calls

    def _do(self, rank: int, context: int, call: Call, give: Callable[[int], Any] = _none) -> Poll:
        """Return a poll for a call that does not wait; `give` makes its result of its status."""
        if self.memory:
            return self._shared(rank, context, call, give=give)
        result = give(_make(call))
        return lambda: (True, result)

    def _shared(self, rank: int, context: int, *calls: Call, give: Callable[[int], Any]) -> Poll:
        """Return a poll for calls, made one after the other, of a rank that shares memory."""
        sim, left = self.sims[context], list(calls)
        status = ffi.new("int32_t *")
        under_way: list[Any] = []

        def begin() -> None:
            under_way[:] = _in_c(left.pop(0))  # alive until the call has ended
            check(lib.pp_sim_do(sim, rank, under_way[0]))

        def poll() -> tuple[bool, Any]:
            while left or under_way:
                if not under_way:
                    begin()
                if check(lib.pp_sim_done(sim, rank, status)) == lib.PP_PENDING:
                    return False, None
                under_way.clear()
                check(status[0])
            return True, give(status[0])

        begin()
        return poll

    def _collective(
        self, rank: int, context: int, begin: Call, *then: Call, give: Callable[[int], Any] = _none
    ) -> Poll:
        """Return a poll for a collective call, and the calls after it."""
        ctx = self.contexts[context][rank]
        if self.memory:
            wait = Call("pp_call_wait", (ctx, -1))
            return self._shared(rank, context, begin, wait, *then, give=give)
        _make(begin)

        def poll() -> tuple[bool, Any]:
            status = check(lib.pp_call_wait(ctx, 0))
            if status == lib.PP_PENDING:
                check(lib.pp_sim_watch(self.sims[context], rank, ffi.NULL))
                return False, None
            for call in then:
                status = _make(call)
            return True, give(status)

        return poll

    # ---- of a context

    def _init(self, rank: int, kind: Any, argument: Any, context: int, *more: Any) -> Poll:
        handle, config, complaint = None, ffi.NULL, ffi.NULL
        if isinstance(argument, str):
            complaint = ffi.new("char[]", argument.encode())
        else:
            handle = kind(argument, context, *more)
            config = handle.config(len(self.contexts[context]), self.groups_plant)
        out = ffi.new("pp_handle_t **")

        def give(_status: int) -> AnyHandle | None:
            if handle:
                handle.coll = out[0]
            return handle

        ctx = self.contexts[context][rank]
        begin = Call(kind.begins, (ctx, config, complaint, out))
        return self._collective(rank, context, begin, give=give)

    def _of_context(self, function: str, rank: int, context: int, *more: int) -> Call:
        return Call(function, (self.contexts[context][rank], *more))

    def _ctx_free(self, rank: int, context: int) -> Poll:
        return self._collective(rank, context, self._of_context("pp_ctx_free_begin", rank, context))

    def _away(self, rank: int, context: int) -> Poll:
        return self._do(rank, context, self._of_context("pp_away_begin", rank, context))

    def _back(self, rank: int, context: int) -> Poll:
        return self._do(rank, context, self._of_context("pp_away_end", rank, context))

    def _aside(self, rank: int, context: int) -> Poll:
        return self._do(rank, context, self._of_context("pp_sim_aside", rank, context, 1))

    def _beside(self, rank: int, context: int) -> Poll:
        return self._do(rank, context, self._of_context("pp_sim_aside", rank, context, -1))

    def _abandon(self, rank: int, context: int) -> Poll:
        lib.pp_ctx_abandon(self.contexts[context][rank], b"an exception")
        return DONE

    def _end_script(self, rank: int, context: int) -> Poll:
        check(lib.pp_sim_end_script(self.sims[context], rank))
        return DONE

    # ---- of a handle

    def _wait(self, rank: int, handle: AnyHandle, timeout_ns: int = 0) -> Poll:
        if self.memory:
            call = handle.collect("pp_wait", -1, timeout_ns=timeout_ns)
            return self._given(rank, handle, call)
        test, sim = handle.collect("pp_test"), self.sims[handle.context]

        def poll() -> tuple[bool, Any]:
            if _make(test) == lib.PP_OK:
                return True, handle.collected()
            check(lib.pp_sim_watch(sim, rank, handle.coll))
            return False, None

        return poll

    _wait_for = _wait  # of ranks that share no memory the simulation ends it

    def _given(self, rank: int, handle: AnyHandle, call: Call) -> Poll:
        """Return a poll for a call that may end without a result."""

        def give(status: int) -> Any:
            return handle.collected() if status == lib.PP_OK else None

        return self._do(rank, handle.context, call, give)

    def _test(self, rank: int, handle: AnyHandle) -> Poll:
        return self._given(rank, handle, handle.collect("pp_test"))

    def _call(self, rank: int, handle: AnyHandle, call: Call) -> Poll:
        return self._do(rank, handle.context, call, give=int)

    def _more(self, rank: int, handle: AnyHandle) -> Poll:
        return self._given(rank, handle, handle.collect("pp_more"))

    def _timed_out(self, rank: int, handle: AnyHandle) -> Poll:
        return self._do(rank, handle.context, handle.call("pp_timed_out"))

    def _flush(self, rank: int, handle: AnyHandle) -> Poll:
        return self._ended(rank, handle, "pp_flush_begin")

    def _drain(self, rank: int, handle: AnyHandle) -> Poll:
        return self._ended(rank, handle, "pp_drain_begin")

    def _ended(self, rank: int, handle: AnyHandle, begin: str) -> Poll:
        """Return a poll for a collective call that delivers a round."""
        calls = handle.call(begin), handle.collect("pp_collect")
        return self._collective(
            rank, handle.context, *calls, give=lambda _status: handle.collected()
        )

    def _free(self, rank: int, handle: AnyHandle) -> Poll:
        discarded = ffi.new("uint64_t *")
        begin = handle.call("pp_handle_free_begin", discarded)
        return self._collective(rank, handle.context, begin, give=lambda _status: int(discarded[0]))


_OF_A_CONTEXT = ("ctx_free", "away", "back", "aside", "beside", "abandon", "end_script")
_OF_A_HANDLE = ("wait", "wait_for", "test", "more", "timed_out", "flush", "drain", "free", "call")
