"""What all methods have in common: the interface of a method, and of a rank's worker."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

if TYPE_CHECKING:
    from ..context import Context
    from ..status import Status

__all__ = ["Method", "Worker"]

Vector = npt.NDArray[Any]
Update = Callable[[Vector], None]
State = Callable[[], Sequence[Vector]]


@dataclass(frozen=True)
class Method(ABC):
    """How the ranks of a context train a model together: the base of all methods.

    Use one of `Synchronous`, `EagerSGD`, `PartialReduce` and `Ripples`. A method is immutable, and
    methods are compared by value.
    """

    @abstractmethod
    def worker(
        self, ctx: Context, x: Vector, *, extra: int = 0, state: State | None = None
    ) -> Worker:
        """Make this rank's part in the training. Collective, blocking.

        Rank 0's `x` is copied to all ranks.

        Parameters
        ----------
        ctx : Context
        x : numpy.ndarray
            The model: one-dimensional, contiguous, writable, float32 or float64, of the same length
            and type on all ranks. The worker keeps it and writes it inside its own calls only. An
            array of `Context.alloc` saves copies in `PartialReduce` and `Ripples`.
        extra : int, optional
            How many elements gradients have beyond those of `x`. They are summed up and averaged
            like the others; an application counts something in them.
        state : callable, optional
            Returns the optimizer's state as arrays of floating types, the same number and shapes on
            all ranks; they are averaged in place wherever models are averaged over all ranks
            because replicas drift: see `EagerSGD.sync_every`.

        Returns
        -------
        Worker

        Raises
        ------
        ArgumentError
            If an argument of this rank is wrong; the other ranks raise `MismatchError`.
        MismatchError
            If ranks differ in the method, or in the length or type of `x`, or in `extra`.
        """


class Worker(ABC):
    """One rank's part in training a model by a `Method`; `Method.worker` makes it.

    One thread uses it at a time. Ranks may make different numbers of steps; in the end all of them
    call `finish`, those with fewer steps earlier.

    Attributes
    ----------
    x : numpy.ndarray
        The model.
    gradient : numpy.ndarray
        ``x.size + extra`` elements in memory of the library. A gradient that the application
        computes in place here is not copied by `step`. It is the application's, except
        inside calls of the worker, which overwrite it.
    status : Status or None
        Of the round, or group, that was applied last.
    rounds : int
        How many updates were applied to `x` on this rank, those before `load_state_dict` included.
        With `Synchronous` and with ``EagerSGD(deliver="each")`` it is the number of rounds.
    """

    x: Vector
    gradient: Vector
    status: Status | None
    rounds: int

    @abstractmethod
    def step(self, gradient: Vector | None, update: Update) -> int:
        """Contribute a gradient, and apply what other ranks have contributed.

        Blocking, not collective: it waits as the method's policy or generator says.

        Parameters
        ----------
        gradient : numpy.ndarray or None
            This rank's gradient, of `gradient`'s shape and type. None: this rank has none in this
            step, which counts as zeros; it takes part all the same, because others may wait for it.
        update : callable
            Called with a gradient to apply to `x`, once for each, oldest first. What it is given
            belongs to the callee until it returns. All ranks pass the same function of `x`, of the
            gradient and of their own state.

        Returns
        -------
        int
            How often `update` was called.

        Raises
        ------
        ArgumentError
            If `gradient` has another shape or type; nothing was communicated.
        Error
            After `finish`.
        PeerFailedError
            If another rank has failed.
        """

    @abstractmethod
    def flush(self, update: Update | None = None) -> int:
        """Apply everything that is still on its way; the worker goes on afterwards.

        Collective, blocking. All ranks have the same `x` then; save checkpoints here.

        Parameters
        ----------
        update : callable, optional
            As in `step`; that of the last `step` if None.

        Returns
        -------
        int
            How often `update` was called.
        """

    @abstractmethod
    def finish(self, update: Update | None = None) -> int:
        """End the training: `flush`, as often as ranks that still make steps need it.

        Collective, blocking. A rank that has no more batches calls it; it takes part in the rounds
        of the other ranks until all have called it. The worker cannot be used afterwards, except
        for its attributes and `state_dict`.

        Parameters
        ----------
        update : callable, optional
            As in `flush`.

        Returns
        -------
        int
            How often `update` was called.
        """

    @abstractmethod
    def away(self) -> AbstractContextManager[None]:
        """Leave all rounds and groups for the time of a ``with`` block of the application's own.

        Collective, as `Context.away`, which it is; put blocking calls of your own in here. With
        `EagerSGD.sync_every` it begins with a `flush`, which all ranks wait for: the models may be
        averaged at any step, and no rank may be away by then.
        """

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint needs beside `x`: ``method``, ``rounds`` and ``seed``. Local.

        Raises
        ------
        Error
            If steps were made since the last `flush`: their rounds would be lost.
        """

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on counting where a checkpoint was made. Local; before the first step.

        Raises
        ------
        ArgumentError
            If the state is of another method.
        Error
            After the first step.
        """
