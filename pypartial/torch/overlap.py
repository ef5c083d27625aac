"""Gradients in several pieces, each of which leaves as soon as backward has computed it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import torch

from .._arguments import in_range
from ..errors import Error, PeerFailedError
from ..methods import Method
from ..methods.asked import Asked
from ..methods.checkpoint import lacking, rounds_of, worker_state
from ..methods.meeting import Meeting
from ..policy import Policy
from ..status import Status
from .agreement import allocated
from .driver import BETWEEN, Apply, Driver
from .gradients import Gradients
from .layout import Layout
from .replicas import unite
from .state import common_state

if TYPE_CHECKING:
    from .._handle import Request
    from ..context import Context

__all__ = ["Pieces", "check_overlap", "keeps_replicas"]


def check_overlap(overlap: Any, method: Method) -> int:
    """Return the number of pieces.

    Raises
    ------
    ArgumentError
        If it is not a positive integer, or the method needs one round for all parameters.
    """
    pieces = in_range("overlap", overlap, 1, 1 << 16)
    method._in_pieces()
    return pieces


def keeps_replicas(method: Method, overlap: int | None) -> bool:
    """Return whether all ranks apply the same rounds, one by one, and nothing averages models."""
    return method.replicas or (overlap is not None and method.lockstep)


class Piece:
    """Consecutive parameters, with a vector and a handle of their own.

    The vector's last element counts the ranks that are in a flush. `open` makes the handle.

    Attributes
    ----------
    status : Status
        Of the round whose result is in the vector.
    """

    request: Request
    asked: Asked

    def __init__(self, ctx: Context, places: Sequence[tuple[str, torch.Tensor]]) -> None:
        layout = Layout(places)
        self._places = layout.places
        self.parameters, self._home = layout.parameters, layout.home
        self.vector = self._home.zeros(ctx, Gradients.length(layout) + 1, layout.dtype)
        self.gradients = Gradients(layout, self.vector, ctx.rank, Gradients.others(layout))
        self.status = Status()
        self._streams: list[Any] = []  # on which gradients have arrived
        self._contributed: list[_AsItIs] = []  # of each parameter: the gradient that has left
        self.missing = self._all = frozenset(range(len(places)))

    def open(self, ctx: Context, policy: Policy, device_path: Any) -> None:
        """Make the handle. Collective."""
        self.request = ctx.Allreduce_init(
            None, self.vector, policy=policy, average="size", device_path=device_path
        )
        self.asked = Asked(self.request)

    def arrive(self, number: int) -> None:
        """Note that a gradient is there, or is to be computed by what is on the stream."""
        self.missing -= {number}
        self._streams.append(self._home.stream())

    def start(self) -> None:
        """Contribute the parameters' gradients."""
        if self.asked.is_open:  # an exception has ended this call behind it
            return
        has_others = self._home.follow(self._streams)
        self._streams.clear()
        self.gradients.collect()
        if has_others:
            self.gradients.keep()
        self._start(0)
        self._contributed = [_as_it_is(parameter) for parameter in self.parameters]

    def edited(self) -> str | None:
        """Return the name of a parameter whose gradient was changed since it was contributed."""
        for place, contributed in zip(self._places, self._contributed, strict=False):  # [] before
            now = _as_it_is(place.parameter)
            if now[0] is not contributed[0] or now[1:] != contributed[1:]:
                return place.name
        return None

    def accept(self, number: int) -> None:
        """Take a gradient for what was contributed, although it has changed: that was told."""
        if self._contributed:
            self._contributed[number] = _as_it_is(self.parameters[number])

    def start_flush(self) -> None:
        """Contribute zeros, as a rank that has no more gradients."""
        self.gradients.clear()
        self._start(1)

    def _start(self, is_flushing: int) -> None:
        self.vector[-1:] = is_flushing  # on a device without a wait, unlike [-1]
        self._home.keep(self.vector)
        self.request.Start()

    def wait(self) -> None:
        """Have the result in the vector, or on its way there."""
        self._home.keep(self.vector)
        self.status = self.asked.wait()

    def flush(self) -> None:
        """Have everything in the vector that is on its way, on all ranks. Collective."""
        self._home.keep(self.vector)
        self.status = Status()
        self.request.Flush(self.status)

    @property
    def is_untouched(self) -> bool:
        """Whether no gradient has arrived since the last step."""
        return self.missing == self._all

    def renew(self) -> None:
        """Expect all gradients again."""
        self.missing = self._all
        self._contributed = []


class Pieces(Driver):
    """A handle for each of several pieces of the parameters, the last parameters first.

    All ranks start the pieces in the same order, whatever the order in which their gradients
    arrive: a piece starts when all its gradients are there and the piece before it has started, and
    in `step` at the latest.

    With `Full` all ranks make the same rounds. A rank in a flush takes part with zeros, and says so
    in the vector, until all ranks are in a flush. So the rounds of all pieces remain the same ones.

    Parameters
    ----------
    optimizer, ctx, method, layout, meeting, apply, device_path
        As for `Whole`.
    count : int
        How many pieces, at most; no more than there are parameters.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        ctx: Context,
        method: Method,
        layout: Layout,
        meeting: Meeting,
        apply: Apply,
        device_path: str,
        count: int,
    ) -> None:
        self._optimizer, self._meeting, self._apply = optimizer, meeting, apply
        self._ctx, self._method, self._parameters = ctx, method, layout.parameters
        self.ends_in_rounds = method.lockstep
        parts = _cut(layout, count)
        self._pieces = allocated(meeting.gather, lambda: [Piece(ctx, part) for part in parts])
        opened = []
        try:
            for piece in self._pieces:
                piece.open(ctx, method._in_pieces(), device_path)
                opened.append(piece)
        except (MemoryError, Error):  # on all ranks, at the same piece
            with suppress(Error):  # of a context that has failed
                for piece in opened:
                    piece.request.Free()
            raise
        self._started = 0  # pieces, since the last step
        self._steps = 0  # since the last flush
        self._newest = -1  # round of the last flush
        self._has_settled = False  # the optimizer's step, in this step
        self._defect: str | None = None  # why this rank's model has parted from the others'
        self._status: Status | None = None
        self._rounds = 0
        self._hooks = [
            p.register_post_accumulate_grad_hook(self._hook(piece, number))  # type: ignore[no-untyped-call]
            for piece in self._pieces
            for number, p in enumerate(piece.parameters)
        ]

    @property
    def requests(self) -> Sequence[Request]:
        """Those of the pieces."""
        return [piece.request for piece in self._pieces]

    @property
    def status(self) -> Status | None:
        """Of the round of the last piece."""
        return self._status

    @property
    def rounds(self) -> int:
        """How many steps of the optimizer were applied."""
        return self._rounds

    # ---- backward --------------------------------------------------------------------------------

    def _hook(self, piece: Piece, number: int) -> Any:
        def arrived(_: torch.Tensor) -> None:
            if self.is_paused:
                return
            self._sound()
            if number not in piece.missing:
                piece.accept(number)
                raise Error(
                    "a second backward before step(): its gradients would be too late, because the "
                    "first one's were contributed already. To add up gradients, put all but the "
                    "last backward into no_sync(). If the first one failed, call step() behind it: "
                    "what has left cannot be taken back. If there is only one, a layer that is "
                    "used twice is checkpointed: use checkpoint(..., use_reentrant=False)"
                )
            piece.arrive(number)
            self._start_ready()

        return arrived

    def _start_ready(self) -> None:
        while self._started < len(self._pieces) and not self._pieces[self._started].missing:
            self._start_next()

    def _start_next(self) -> None:
        self._pieces[self._started].start()
        self._started += 1

    # ---- steps -----------------------------------------------------------------------------------

    def step(self, factor: float | None, skip: bool) -> None:
        """Contribute the gradients, and apply what is there."""
        if factor is not None or skip:
            raise Error(
                "overlap contributes gradients during backward, before a GradScaler has unscaled "
                "and checked them: use overlap=None"
            )
        self._sound()
        for name in filter(None, (piece.edited() for piece in self._pieces)):
            raise Error(
                f"the gradient of parameter {name} was changed behind the backward pass, which had "
                "contributed it already: with overlap no other rank would see the change. Use "
                "clip_norm=, or Tensor.register_hook, which changes a gradient while it is "
                "computed; or overlap=None"
            )
        self._steps += 1
        self._has_settled = False
        try:
            while self._started < len(self._pieces):
                self._start_next()
            self._collect()
        except BaseException:
            if self._has_settled:
                for piece in self._pieces:
                    piece.gradients.expect_others()
            raise

    def _collect(self) -> Status:
        """Wait for all pieces, and apply what they bring; return the last one's status."""
        with self._noting_loss():
            self._wait()
            return self._end_round()

    @contextmanager
    def _noting_loss(self, *, repeatable: bool = True) -> Iterator[None]:
        """Take it for a defect if a block ends with results that were not applied.

        `repeatable`: whether waits without results can be repeated by a further call.
        """
        try:
            yield
        except PeerFailedError:  # each further call says so, too
            raise
        except BaseException as error:  # such as Ctrl-C
            asked = [piece.asked for piece in self._pieces]
            is_lost = any(one.lost is not None or (one.is_open and not repeatable) for one in asked)
            if is_lost and self._defect is None:
                self._defect = lacking(error, self._rounds, "a step was ended by")
            raise

    def _wait(self) -> None:
        for piece in self._pieces:
            piece.wait()
            status = piece.status
            if self.ends_in_rounds and not status.included:
                raise Error(
                    f"the other ranks made round {status.round} while this rank was away: with "
                    "overlap and Full all ranks make the same number of steps before a collective "
                    "call"
                )

    def _end_round(self) -> Status:
        """Apply what is in the vectors; return the last piece's status."""
        self._started = 0
        status = self._pieces[-1].status
        for piece in self._pieces:
            piece.renew()
        flags = [piece.gradients.read(piece.status) for piece in self._pieces]
        if not any(map(any, flags)):
            for piece in self._pieces:  # gradients that were contributed wait for no step
                piece.gradients.forget()
                piece.gradients.settle()
            self._note_applied()
            return status
        for piece, own in zip(self._pieces, flags, strict=True):
            piece.gradients.give(own)
        self._status = status
        try:
            self._apply()
        except BaseException as error:
            self._defect = lacking(error, status.round)
            raise
        self._rounds += 1
        self._note_applied()
        return status

    def settle(self) -> None:
        """Note that the optimizer has made its step with the gradients that there are now."""
        self._has_settled = True
        for piece in self._pieces:
            piece.gradients.settle()

    def note_written(self) -> None:
        """Note that the program has written the gradients."""
        for piece in self._pieces:
            piece.gradients.note_written()

    def _note_applied(self) -> None:
        for piece in self._pieces:
            piece.asked.apply()

    # ---- ends ------------------------------------------------------------------------------------

    def flush(self, is_end: bool) -> None:
        """Apply all that is on its way."""
        if not all(piece.is_untouched for piece in self._pieces):
            raise Error(BETWEEN)  # at the end, too: pieces have been contributed already
        self._sound()
        if not is_end and any(piece.gradients.is_waiting for piece in self._pieces):
            raise Error(BETWEEN)  # added up in no_sync()
        with self._noting_loss(repeatable=False):
            newest = self._take_part() if self.ends_in_rounds else self._flush_handles()
        for piece in self._pieces:
            piece.gradients.forget()
        self._steps, self._newest = 0, newest

    def _take_part(self) -> int:
        """Make rounds with zeros until all ranks do; return the last one's number."""
        if any(piece.asked.is_open for piece in self._pieces):  # of a step that was interrupted
            while self._started < len(self._pieces):
                self._start_next()
            self._collect()
        while True:
            for piece in self._pieces:
                piece.start_flush()
            status = self._collect()
            if self._pieces[-1].vector[-1] == 1:
                return status.round

    def _flush_handles(self) -> int:
        """Flush all pieces, and average the models; return the last piece's newest round."""
        for piece in self._pieces:
            piece.flush()
        status = self._end_round()
        state = common_state(self._optimizer, self._meeting)
        unite(self._meeting, self._parameters + state)
        return status.round

    def leave(self) -> None:
        """Remove the hooks."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def close(self) -> None:
        """Free all."""
        self.leave()
        for piece in self._pieces:
            piece.request.Free()
        self._pieces = []

    # ---- checkpoints -----------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint needs."""
        self._sound()
        return worker_state(
            *(self._method, self._ctx), rounds=self._rounds, steps=self._steps, newest=self._newest
        )

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what a checkpoint has."""
        has_begun = self._steps > 0 or self._newest >= 0
        self._rounds = rounds_of(state, self._method, has_begun=has_begun)

    def _sound(self) -> None:
        if self._defect is not None:
            raise Error(self._defect)


_AsItIs = tuple[torch.Tensor | None, int, int]


def _as_it_is(parameter: torch.Tensor) -> _AsItIs:
    """Return a parameter's gradient, how often torch has written it, and where it lies."""
    grad = parameter.grad
    return (None, 0, 0) if grad is None else (grad, grad._version, grad.data_ptr())


def _cut(layout: Layout, count: int) -> list[list[tuple[str, torch.Tensor]]]:
    """Cut the parameters, the last one first, into at most `count` pieces of similar sizes."""
    pieces: list[list[tuple[str, torch.Tensor]]] = []
    done = 0
    for place in reversed(layout.places):
        elements = place.parameter.numel()
        if not pieces or (done + elements / 2) * count >= layout.size * len(pieces):
            pieces.append([])
        pieces[-1].append((place.name, place.parameter))
        done += elements
    return pieces
