"""What the workers of all methods do alike: agree, meet, average, and keep count."""

from __future__ import annotations

from abc import abstractmethod
from contextlib import AbstractContextManager
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import numpy as np

from .._arguments import as_argument_error, in_range
from .._native import CORE_ERRORS
from ..context import Context
from ..errors import ArgumentError, Error, MismatchError
from .base import Method, State, Update, Vector, Worker
from .checkpoint import rounds_of, worker_state
from .meeting import Meeting
from .place import Place
from .state import Shape, average_state, check_state, shapes

if TYPE_CHECKING:
    from .._handle import Request

__all__ = ["CommonWorker", "Purpose"]

EXTRA_MOST = (1 << 31) - 1


class Purpose(IntEnum):
    """Why a rank comes to a meeting of all ranks. It goes when no rank has come for less."""

    SYNC = 0
    FLUSH = 1
    FINISH = 2


class CommonWorker(Worker):
    """A worker with one handle, and with meetings of all ranks.

    A meeting is the end of the handle's rounds or groups (`Request.Flush`, or a whole Drain), and
    then an exchange of what the ranks came for. All ranks do the same there, so a rank that wants
    to finish can meet one that synchronises; it comes again until all ranks want to finish.

    Parameters
    ----------
    method : Method
    place : Place
        Of the model, and of the gradient.
    ctx, extra, state
        As for `Method.worker`.
    """

    _request: Request

    def __init__(
        self, method: Method, place: Place, ctx: Context, extra: int, state: State | None
    ) -> None:
        if not isinstance(ctx, Context):
            raise ArgumentError(f"ctx must be a pypartial.Context, not {ctx!r}")
        self._method, self._place, self._ctx, self._state = method, place, ctx, state
        self.x, self.status, self.rounds = place.x, None, 0
        self._update: Update | None = None
        self._newest = -1  # round, or group, of the last meeting
        self._steps = 0  # since the last meeting
        self._taught = 0  # those of them that had a gradient
        self._has_finished = False
        self._meeting = Meeting(ctx)
        with self._meeting.kept():
            self._agree(extra)
            self._meeting.copy(self.x)
            self._request = self._open()

    # ---- what methods differ in ------------------------------------------------------------------

    @abstractmethod
    def _open(self) -> Request:
        """Make the handle; collective."""

    @abstractmethod
    def _advance(self, update: Update, is_given: bool) -> int:
        """Make a step with what is in `gradient`; return how often `update` was called.

        It calls `_count`; where models count by their steps, when the step can no longer be
        repeated. `is_given`: whether the caller has a gradient. If not, it is zero.
        """

    @abstractmethod
    def _end_rounds(self) -> tuple[int, int]:
        """End the handle's rounds or groups, and apply them; collective.

        Return how often `update` was called, and the number of the last round, group or iteration.
        """

    def _share(self, steps: list[int]) -> list[int] | None:
        """Return how much each rank counts in the average of a meeting; None: all the same.

        `steps`: how many steps each rank has made since the last meeting. Local; the same on all
        ranks.
        """
        return None

    def _average(self) -> None:
        """Average the model over all ranks, by `_weights`; collective."""
        self._meeting.average(self.x, self._weights)

    # ---- construction ----------------------------------------------------------------------------

    def _agree(self, extra: int) -> None:
        """Check the arguments, make the memory, and raise on all ranks if one has a problem."""
        x, mine, complaint = self.x, "", None
        try:
            _check_model(x)
            if self._state is not None and not callable(self._state):
                raise ArgumentError(f"state must be a function, or None, not {self._state!r}")
            extra = in_range("extra", extra, 0, EXTRA_MOST)
            is_sent = not self._method.averages_models
            self.gradient = self._place.zeros(self._ctx, x.size + extra, is_sent=is_sent)
            state = "" if self._state is None else ", with state"
            mine = f"{self._method!r}, {x.size} {x.dtype.name}, extra {extra}{state}"
        except Exception as error:
            complaint = error if isinstance(error, CORE_ERRORS) else as_argument_error(error)
        given = self._meeting.gather((mine, complaint and _told(complaint)))
        if complaint is not None:
            raise complaint
        for rank, (theirs, problem) in enumerate(given):
            if problem is not None:
                raise MismatchError(f"rank {rank}: {problem}")
            if theirs != given[0][0]:
                raise MismatchError(
                    f"workers differ: rank 0 has {given[0][0]}; rank {rank} has {theirs}"
                )

    # ---- steps -----------------------------------------------------------------------------------

    @property
    def _is_asking(self) -> bool:
        return self._request._is_outstanding()

    def step(self, gradient: Vector | None, update: Update) -> int:
        """Contribute a gradient, and apply what other ranks have contributed."""
        self._live()
        self._update = _check_update(update)
        self._resume()
        self._take(gradient)
        return self._advance(update, gradient is not None)

    def _count(self, is_given: bool) -> None:
        """Count a step, with or without a gradient."""
        self._steps += 1
        self._taught += is_given

    def _take(self, gradient: Vector | None) -> None:
        """Put the caller's gradient into the worker's memory."""
        own = self.gradient
        if gradient is own:
            return
        if gradient is None:
            own[:] = 0
            return
        if not isinstance(gradient, np.ndarray) or (gradient.shape, gradient.dtype) != (
            own.shape,
            own.dtype,
        ):
            raise ArgumentError(
                f"gradient must be an array of {own.size} {own.dtype.name} elements, or None, not "
                f"{_describe(gradient)}"
            )
        if gradient.__array_interface__["data"] != own.__array_interface__["data"]:
            own[:] = gradient

    def _apply(self, update: Update) -> int:
        """Apply what is in the worker's memory."""
        update(self.gradient)
        self.rounds += 1
        return 1

    # ---- meetings --------------------------------------------------------------------------------

    def flush(self, update: Update | None = None) -> int:
        """Apply everything that is still on its way; the worker goes on afterwards."""
        return self._meet(Purpose.FLUSH, update)

    def finish(self, update: Update | None = None) -> int:
        """End the training: `flush`, as often as ranks that still make steps need it."""
        applied = self._meet(Purpose.FINISH, update)
        self._has_finished = True
        self._request.Free()
        self._meeting.close()
        del self._place  # and with it a model on a device
        return applied

    def _meet(self, purpose: Purpose, update: Update | None) -> int:
        """Meet all ranks, again and again until all have come for this purpose, or for more."""
        self._live()
        if update is not None:
            self._update = _check_update(update)
        applied = 0
        while True:
            times, self._newest = self._end_rounds()
            applied += times
            counts, self._steps, self._taught = (self._steps, self._taught), 0, 0
            if self._settle(purpose, counts) >= purpose:
                return applied

    def _settle(self, purpose: Purpose, counts: tuple[int, int]) -> Purpose:
        """Tell all ranks this one's purpose, and average what has drifted; return the least.

        `counts`: how many steps this rank has made since the last meeting, and how many of these
        with a gradient. A model has learned in all of them, from the other ranks; a state only in
        those with a gradient.
        """
        arrays: list[Vector] = []
        complaint = None
        if self._method.drifts and self._state is not None:
            try:
                arrays = check_state(self._state())
            except Exception as error:  # the other ranks must learn of it
                complaint = error
        told: list[tuple[Purpose, tuple[int, int], list[Shape], str | None]]
        told = self._meeting.gather(
            (purpose, counts, shapes(arrays), complaint and repr(complaint))
        )
        if complaint is not None:
            raise complaint
        for rank, (*_, problem) in enumerate(told):
            if problem is not None:
                raise MismatchError(f"state() of rank {rank} raised {problem}")
        self._weights = self._share([steps for _, (steps, _), _, _ in told])
        self._state_weights = self._share([taught for _, (_, taught), _, _ in told])
        if self._method.drifts:
            by_rank = [theirs for _, _, theirs, _ in told]
            average_state(self._meeting, arrays, by_rank, self._state_weights)
            self._average()
        return min(least for least, *_ in told)

    def away(self, update: Update | None = None) -> AbstractContextManager[None]:
        """Leave all rounds for the time of a ``with`` block; collective."""
        self._live()
        return self._ctx.away()

    # ---- checkpoints -----------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint needs beside `x`: ``method``, ``rounds`` and ``seed``. Local."""
        self._sound()
        return worker_state(
            *(self._method, self._ctx), rounds=self.rounds, steps=self._steps, newest=self._newest
        )

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on counting where a checkpoint was made. Local; before the first step."""
        self._live()
        has_begun = self._steps > 0 or self._newest >= 0
        self.rounds = rounds_of(state, self._method, has_begun=has_begun)

    # ---- ends ------------------------------------------------------------------------------------

    def _live(self) -> None:
        if self._has_finished:
            raise Error("the worker has finished: make a new one by the method's worker()")
        self._sound()


def _told(complaint: Exception) -> str:
    """Return what the other ranks are told."""
    told = str(complaint)
    return told if isinstance(complaint, ArgumentError) else f"{type(complaint).__name__}: {told}"


def _check_update(update: Any) -> Update:
    if not callable(update):
        raise ArgumentError(f"update must be a function of a gradient, not {update!r}")
    known: Update = update
    return known


def _check_model(x: Any) -> None:
    if not isinstance(x, np.ndarray):
        raise ArgumentError(f"x must be a NumPy array, not {_describe(x)}")
    if x.ndim != 1 or not x.flags.c_contiguous or not x.flags.writeable:
        raise ArgumentError(
            f"x must be one-dimensional, contiguous and writable; it is {_describe(x)}"
        )
    if x.dtype not in (np.float32, np.float64):
        raise ArgumentError(f"x must have the type float32 or float64, not {x.dtype}")


def _describe(value: Any) -> str:
    """Return in words what an argument is."""
    if not isinstance(value, np.ndarray):
        return f"a {type(value).__name__}"
    words = ["an array of shape", str(value.shape), "and type", str(value.dtype)]
    if not value.flags.c_contiguous:
        words.append("that is not contiguous")
    if not value.flags.writeable:
        words.append("that is read-only")
    return " ".join(words)
