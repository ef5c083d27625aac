"""What communicates for a `DistributedOptimizer`; one worker for all parameters."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from .._native import CORE_ERRORS
from ..errors import Error
from ..methods import Method, Worker
from ..methods.meeting import Meeting
from .agreement import allocated
from .flat import FlatParameters
from .gradients import Gradients
from .layout import Layout
from .on_device import OnDevice
from .state import Arrays, common_state

if TYPE_CHECKING:
    from .._handle import Request
    from ..context import Context
    from ..status import Status

__all__ = ["BETWEEN", "Driver", "Whole"]

BETWEEN = (
    "a gradient waits for its step, and a flush would lose it: call step() or zero_grad() before"
)

Apply = Callable[[], None]


class Driver(ABC):
    """Takes gradients from ``p.grad`` to other ranks, and puts reduced ones there.

    Attributes
    ----------
    is_paused : bool
        Backward passes only add up gradients now.
    meets_in_steps : bool
        A step of another rank may be a collective call: ranks flush before one of their own.
    ends_in_rounds : bool
        A rank that has come to its end makes rounds: it is in no collective call meanwhile.
    is_closed : bool
        The optimizer has finished.
    """

    is_paused = meets_in_steps = ends_in_rounds = is_closed = False

    @property
    @abstractmethod
    def requests(self) -> Sequence[Request]:
        """The requests by which it communicates, as far as they may be of a device."""

    @property
    def held(self) -> Sequence[torch.Tensor]:
        """The parameters that lie in its memory, and must stay there."""
        return []

    @property
    def weights(self) -> Sequence[int] | None:
        """How much each rank counted in the last flush; None: all the same."""
        return None

    @property
    @abstractmethod
    def status(self) -> Status | None:
        """As a `pypartial.methods.Worker`'s."""

    @property
    @abstractmethod
    def rounds(self) -> int:
        """As a `pypartial.methods.Worker`'s."""

    @abstractmethod
    def settle(self) -> None:
        """Note that the optimizer has made its step with the gradients that there are now."""

    @abstractmethod
    def note_written(self) -> None:
        """Note that the program has written the gradients, though torch may not count it."""

    @abstractmethod
    def step(self, factor: float | None, skip: bool) -> None:
        """Contribute the gradients, and apply what is there.

        Parameters
        ----------
        factor : float or None
            Multiplies the gradients. None: a GradScaler has nothing to do with this step.
        skip : bool
            Contribute nothing but zeros.
        """

    @abstractmethod
    def flush(self, is_end: bool) -> None:
        """Apply all that is on its way, and set all gradients to None.

        Collective, blocking; other ranks may make more steps before.

        Parameters
        ----------
        is_end : bool
            This rank makes no more steps: gradients that wait for one may be dropped.
        """

    def leave(self) -> None:  # noqa: B027  most have nothing there
        """Leave the parameters to the program: the context was given up. Local."""

    @abstractmethod
    def close(self) -> None:
        """Free all, and keep no vector. Collective, blocking.

        It comes after a flush which no rank has gone on from. `status`, `rounds` and `state_dict`
        stay.
        """

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint needs beside models and optimizers."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what a checkpoint has."""


class Whole(Driver):
    """One worker, with one vector for all parameters.

    Parameters
    ----------
    optimizer : torch.optim.Optimizer
    ctx : Context
    method : Method
    layout : Layout
    meeting : Meeting
    apply : callable
        Makes one step of the optimizer with the gradients that the parameters have.
    device_path : str
        As for `DistributedOptimizer`.
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
    ) -> None:
        self._optimizer, self._ctx = optimizer, ctx
        self._meeting, self._apply = meeting, apply
        self._home = layout.home
        self.meets_in_steps = method.meets_in_steps
        self._arrays = Arrays()
        self._averaged: list[torch.Tensor] = []
        self._flat: FlatParameters | None = None
        self._is_ahead = False  # the worker's vector may be newer than parameters that are no views
        self._has_settled = False  # the optimizer's step, in this step
        count = Gradients.length(layout)

        def make() -> tuple[Any, list[torch.Tensor | None]]:
            none = np.empty(0, layout.dtype)
            is_needed = method.averages_models
            x = self._home.zeros(ctx, layout.size, layout.dtype) if is_needed else none
            return x, Gradients.others(layout)

        x, others = allocated(meeting.gather, make)
        if method.averages_models:
            self._flat = FlatParameters(layout, x)
        else:
            self._averaged = layout.parameters  # where models are averaged, as part of the state
        self._requests: list[Request] = []
        self._worker: Worker
        if self._home.is_device:
            place = OnDevice(self._home, x, layout.dtype, device_path)
            worker = method._worker_at(place, ctx, count, self._state)
            self._worker, self._requests = worker, [worker._request]
        else:
            self._worker = method.worker(ctx, x, extra=count - x.size, state=self._state)
        self._gradients = Gradients(layout, self._worker.gradient, ctx.rank, others)

    @property
    def requests(self) -> Sequence[Request]:
        """That of a worker on a device."""
        return self._requests

    @property
    def held(self) -> Sequence[torch.Tensor]:
        """Those of methods that average models, as far as they are views of the model's vector."""
        return [] if self._flat is None else self._flat.views

    @property
    def weights(self) -> Sequence[int] | None:
        """The worker's."""
        return self._worker._state_weights

    @property
    def status(self) -> Status | None:
        """The worker's."""
        return self._worker.status

    @property
    def rounds(self) -> int:
        """The worker's."""
        return self._worker.rounds

    def step(self, factor: float | None, skip: bool) -> None:
        """Contribute the gradients, and apply what is there."""
        self._worker._sound()
        self._keep()
        self._resume()
        is_given = not skip and self._gradients.are_there
        self._has_settled = False
        try:
            if is_given:
                self._gradients.collect(factor)
                self._gradients.keep()  # a backward pass on another stream may have made them
            else:
                self._gradients.skip()
                self._gather()  # no update does it
            self._worker.step(self._worker.gradient if is_given else None, self._update)
            self.settle()
            self._take_over()
        except BaseException:
            is_asking = self._worker._is_asking
            if is_asking and self._flat is None:  # for gradients: nobody may write to views of them
                self._gradients.forget()
            else:
                self._gradients.take_back()
            if self._has_settled:
                self._gradients.expect_others()
            if self._is_ahead and not is_asking:
                self._take_over()  # before the application writes to the parameters
            raise

    def settle(self) -> None:
        """Note that the optimizer has made its step with the gradients that there are now."""
        self._has_settled = True
        self._gradients.settle()

    def note_written(self) -> None:
        """Note that the program has written the gradients."""
        self._gradients.note_written()

    def flush(self, is_end: bool) -> None:
        """Apply all that is on its way."""
        if self._gradients.is_waiting and not is_end:
            raise Error(BETWEEN)
        if self._flat is not None:
            self._resume()
            self._gather()
        self._keep()
        try:
            self._worker.flush(self._update)
        except CORE_ERRORS:
            if self._is_ahead:
                self._take_over()
            raise
        self._take_over()
        self._gradients.forget()

    def close(self) -> None:
        """Free all."""
        self._worker.finish(self._update)
        self._arrays.write_back()
        # The worker stays, for what it knows; its vectors may be as large as the model.
        self._worker.gradient = self._worker.x = np.empty(0)
        del self._gradients, self._flat
        self._requests = []

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint needs."""
        return self._worker.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what a checkpoint has."""
        self._worker.load_state_dict(state)

    def _keep(self) -> None:
        """Keep the vectors' memory for the current stream, which the requests use."""
        self._home.keep(self._worker.gradient)
        if self._flat is not None:
            self._home.keep(self._flat.vector)

    def _update(self, reduced: Any) -> None:
        """Apply what is in the worker's memory, which is `reduced`."""
        self._arrays.write_back()
        # A method that averages models applies the gradient that this rank wrote.
        flags = self._gradients.read(self._worker.status if self._flat is None else None)
        self._gradients.give(flags)
        if any(flags):
            self._apply()
        self._gather()

    def _gather(self) -> None:
        """Write the parameters to the worker's vector, which from now on is as new as they are."""
        if self._flat is not None:
            self._flat.gather()
            self._is_ahead = True

    def _resume(self) -> None:
        """Take over what a call has averaged that an exception has ended."""
        self._worker._resume()
        if self._is_ahead:
            self._take_over()

    def _take_over(self) -> None:
        """Give the parameters and the optimizer what the worker has averaged."""
        self._arrays.write_back()
        if self._flat is not None:
            self._flat.scatter()
        self._is_ahead = False

    def _state(self) -> list[npt.NDArray[Any]]:
        self._arrays.write_back()  # of the meeting before, if no round was between them
        is_any = self._flat is not None  # the others average without a rank that has no state yet
        tensors = self._averaged + common_state(self._optimizer, self._meeting, is_any=is_any)
        return self._arrays.of(tensors)
