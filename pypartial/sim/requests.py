"""Calls of the core for the requests that programs of simulated ranks yield.

Each request becomes its context and a *poll*: a function that returns whether the request is done,
and the program's result. Ranks that share memory make their calls through ``pp_sim_do()``, because
another rank may go on in the middle of a call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .._core_sim import ffi, lib
from .handle import Handle, Options, Round, check
from .preduce_handle import Group, PreduceHandle, PreduceOptions

__all__ = ["DONE", "AnyHandle", "Poll", "Requests"]

AnyHandle = Handle | PreduceHandle

Poll = Callable[[], tuple[bool, Any]]
DONE: Poll = lambda: (True, None)  # noqa: E731


def _none() -> None:
    """Return None: the result of calls without a result."""


def _collected(handle: AnyHandle) -> Round | Group:
    """Return what a call has just given to a rank that shares no memory."""
    return handle.describe() if isinstance(handle, PreduceHandle) else handle.collected()


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
        if kind in ("ctx_free", "away", "back", "aside", "beside", "abandon", "end_script"):
            context = arguments[0] if arguments else 0
            return context, getattr(self, f"_{kind}")(rank, context)
        if kind == "init":
            context = arguments[1] if len(arguments) > 1 else 0
            return context, self._init(rank, arguments[0], context)
        if kind == "groups_init":
            context = arguments[1] if len(arguments) > 1 else 0
            model = arguments[2] if len(arguments) > 2 else None
            return context, self._groups_init(rank, arguments[0], context, model)
        handle: AnyHandle = arguments[0]
        assert kind in _OF_A_HANDLE, f"a program yielded {request!r}"
        return handle.context, getattr(self, f"_{kind}")(rank, *arguments)

    def forget(self, rank: int, request: tuple[Any, ...]) -> None:
        """Drop a request that the program no longer waits for, although it is not done."""
        handle: AnyHandle = request[1]
        lib.pp_sim_unwatch(self.sims[handle.context], rank, handle.coll)

    # ---- calls

    def _shared(
        self, rank: int, context: int, *calls: Any, give: Callable[[int], Any], keep: Any = None
    ) -> Poll:
        """Return a poll for calls, made one after the other, of a rank that shares memory."""
        sim, left = self.sims[context], list(calls)
        status = ffi.new("int32_t *")
        under_way: list[Any] = []

        def begin() -> None:
            call = ffi.new("pp_sim_call_t *", left.pop(0))
            under_way.append((call, keep))  # alive until the call has ended
            check(lib.pp_sim_do(sim, rank, call))

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
        self, rank: int, context: int, begin: Any, *then: Any, give: Callable[[], Any], keep: Any
    ) -> Poll:
        wait = {"kind": lib.PP_SIM_CALL_WAIT}
        return self._shared(
            rank, context, begin, wait, *then, give=lambda _status: give(), keep=keep
        )

    def _call(self, rank: int, context: int, finish: Callable[[], Any]) -> Poll:
        """Return a poll for the collective call in progress."""

        def poll() -> tuple[bool, Any]:
            if check(lib.pp_call_wait(self.contexts[context][rank], 0)) == lib.PP_PENDING:
                check(lib.pp_sim_watch(self.sims[context], rank, ffi.NULL))
                return False, None
            return True, finish()

        return poll

    # ---- of a context

    def _init(self, rank: int, argument: Options | str, context: int) -> Poll:
        handle, config, complaint = None, ffi.NULL, ffi.NULL
        if isinstance(argument, str):
            complaint = ffi.new("char[]", argument.encode())
        else:
            handle = Handle(argument, context)
            config = handle.config(len(self.contexts[context]))
        out = ffi.new("pp_handle_t **")
        if self.memory:

            def give() -> Handle | None:
                if handle:
                    handle.coll = out[0]
                return handle

            begin = {"kind": lib.PP_SIM_INIT_BEGIN, "out": out}
            begin |= {"config": config, "complaint": complaint}
            return self._collective(rank, context, begin, give=give, keep=(config, complaint))
        check(lib.pp_allreduce_init_begin(self.contexts[context][rank], config, complaint, out))
        if handle:
            handle.coll = out[0]
        return self._call(rank, context, lambda: handle)

    def _groups_init(
        self, rank: int, argument: PreduceOptions | str, context: int, model: Any
    ) -> Poll:
        handle, config, complaint = None, ffi.NULL, ffi.NULL
        if isinstance(argument, str):
            complaint = ffi.new("char[]", argument.encode())
        else:
            handle = PreduceHandle(argument, context)
            if model is not None:
                handle.recv[:] = model
            config = handle.config(len(self.contexts[context]), self.groups_plant)
        out = ffi.new("pp_handle_t **")

        def give() -> PreduceHandle | None:
            if handle:
                handle.coll = out[0]
            return handle

        if self.memory:
            begin = {"kind": lib.PP_SIM_PREDUCE_INIT_BEGIN, "out": out}
            begin |= {"groups": config, "complaint": complaint}
            return self._collective(rank, context, begin, give=give, keep=(config, complaint))
        check(lib.pp_preduce_init_begin(self.contexts[context][rank], config, complaint, out))
        give()
        return self._call(rank, context, lambda: handle)

    def _ctx_free(self, rank: int, context: int) -> Poll:
        if self.memory:
            begin = {"kind": lib.PP_SIM_CTX_FREE_BEGIN}
            return self._collective(rank, context, begin, give=_none, keep=None)
        check(lib.pp_ctx_free_begin(self.contexts[context][rank]))
        return self._call(rank, context, _none)

    def _away(self, rank: int, context: int) -> Poll:
        if self.memory:
            call = {"kind": lib.PP_SIM_AWAY_BEGIN}
            return self._shared(rank, context, call, give=lambda _status: None)
        check(lib.pp_away_begin(self.contexts[context][rank]))
        return DONE

    def _back(self, rank: int, context: int) -> Poll:
        if self.memory:
            call = {"kind": lib.PP_SIM_AWAY_END}
            return self._shared(rank, context, call, give=lambda _status: None)
        check(lib.pp_away_end(self.contexts[context][rank]))
        return DONE

    def _abandon(self, rank: int, context: int) -> Poll:
        lib.pp_ctx_abandon(self.contexts[context][rank], b"an exception")
        return DONE

    def _end_script(self, rank: int, context: int) -> Poll:
        check(lib.pp_sim_end_script(self.sims[context], rank))
        return DONE

    def _aside(self, rank: int, context: int, begins: bool = True) -> Poll:
        if self.memory:
            call = {"kind": lib.PP_SIM_ASIDE_BEGIN if begins else lib.PP_SIM_ASIDE_END}
            return self._shared(rank, context, call, give=lambda _status: None)
        check(lib.pp_sim_aside(self.contexts[context][rank], 1 if begins else -1))
        return DONE

    def _beside(self, rank: int, context: int) -> Poll:
        return self._aside(rank, context, begins=False)

    # ---- of a handle

    def _of(self, handle: AnyHandle, kind: int, **more: Any) -> dict[str, Any]:
        if isinstance(handle, PreduceHandle):
            more["group"] = handle.group
        return {"kind": kind, "coll": handle.coll, "result": handle.result, **more}

    def _groups_start(
        self,
        rank: int,
        handle: PreduceHandle,
        iteration: int = 0,
        members: Sequence[int] | None = None,
    ) -> Poll:
        named, count = handle.given(members)
        if self.memory:
            call = {"iteration": iteration, "members": named, "count": count}
            call |= {"kind": lib.PP_SIM_PREDUCE_START, "coll": handle.coll}
            return self._shared(rank, handle.context, call, give=lambda _status: None)
        check(lib.pp_preduce_start(handle.coll, iteration, named, count))
        return DONE

    def _start(self, rank: int, handle: AnyHandle) -> Poll:
        if self.memory:
            call = self._of(handle, lib.PP_SIM_START)
            return self._shared(rank, handle.context, call, give=lambda _status: None)
        check(lib.pp_start(handle.coll))
        return DONE

    def _wait(self, rank: int, handle: AnyHandle) -> Poll:
        if self.memory:
            return self._given(rank, handle, lib.PP_SIM_WAIT)
        coll, result, sim = handle.coll, handle.result, self.sims[handle.context]

        def poll() -> tuple[bool, Any]:
            status = lib.pp_test(coll, result)
            if status == lib.PP_OK:
                return True, _collected(handle)
            check(status)
            check(lib.pp_sim_watch(sim, rank, coll))
            return False, None

        return poll

    def _wait_for(self, rank: int, handle: AnyHandle, timeout_ns: int) -> Poll:
        if self.memory:  # else the simulation ends the wait
            return self._given(rank, handle, lib.PP_SIM_WAIT, timeout_ns=timeout_ns)
        return self._wait(rank, handle)

    def _given(self, rank: int, handle: AnyHandle, kind: int, **more: Any) -> Poll:
        """Return a poll for a call that may end without a result."""

        def give(status: int) -> Round | Group | None:
            return handle.collected() if status == lib.PP_OK else None

        return self._shared(rank, handle.context, self._of(handle, kind, **more), give=give)

    def _test(self, rank: int, handle: AnyHandle) -> Poll:
        if self.memory:
            return self._given(rank, handle, lib.PP_SIM_TEST)

        def test() -> tuple[bool, Any]:
            done = check(lib.pp_test(handle.coll, handle.result)) == lib.PP_OK
            return True, _collected(handle) if done else None

        return test

    def _more(self, rank: int, handle: AnyHandle) -> Poll:
        if self.memory:
            return self._given(rank, handle, lib.PP_SIM_MORE)
        done = check(lib.pp_more(handle.coll, handle.result)) == lib.PP_OK
        return lambda: (True, _collected(handle) if done else None)

    def _timed_out(self, rank: int, handle: AnyHandle) -> Poll:
        if self.memory:
            call = self._of(handle, lib.PP_SIM_TIMED_OUT)
            return self._shared(rank, handle.context, call, give=lambda _status: None)
        check(lib.pp_timed_out(handle.coll))
        return DONE

    def _flush(self, rank: int, handle: AnyHandle) -> Poll:
        return self._ended(rank, handle, lib.PP_SIM_FLUSH_BEGIN, lib.pp_flush_begin)

    def _drain(self, rank: int, handle: AnyHandle) -> Poll:
        return self._ended(rank, handle, lib.PP_SIM_DRAIN_BEGIN, lib.pp_drain_begin)

    def _ended(self, rank: int, handle: AnyHandle, kind: int, begin: Callable[[Any], int]) -> Poll:
        """Return a poll for a collective call that delivers a round."""
        if self.memory:
            calls = self._of(handle, kind), self._of(handle, lib.PP_SIM_COLLECT)
            return self._collective(
                rank, handle.context, *calls, give=handle.collected, keep=handle
            )
        check(begin(handle.coll))

        def collect() -> Round | Group:
            check(lib.pp_collect(handle.coll, handle.result))
            return _collected(handle)

        return self._call(rank, handle.context, collect)

    def _free(self, rank: int, handle: AnyHandle) -> Poll:
        discarded = ffi.new("uint64_t *")
        if self.memory:
            begin = self._of(handle, lib.PP_SIM_FREE_BEGIN, discarded=discarded)
            return self._collective(
                rank, handle.context, begin, give=lambda: int(discarded[0]), keep=discarded
            )
        check(lib.pp_handle_free_begin(handle.coll, discarded))
        return self._call(rank, handle.context, lambda: int(discarded[0]))


_OF_A_HANDLE = (
    "start",
    "groups_start",
    "wait",
    "wait_for",
    "test",
    "more",
    "timed_out",
    "flush",
    "drain",
    "free",
)
