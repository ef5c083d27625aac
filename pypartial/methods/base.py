"""What all methods have in common: the interface of a method, and of a rank's worker."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from ..errors import ArgumentError, Error

if TYPE_CHECKING:
    from ..context import Context
    from ..policy import Policy
    from ..status import Status
    from .place import Place
    from .worker import CommonWorker

__all__ = ["Method", "Worker"]

Vector = npt.NDArray[Any]
Update = Callable[[Vector], None]
State = Callable[[], Sequence[Vector]]


@dataclass(frozen=True)
class Method(ABC):
    """How the ranks of a context train a model together: the base of all methods.

    Use one of `Synchronous`, `EagerSGD`, `PartialReduce`, `Ripples`, `ADPSGD`, `DPSGD` and `Hop`. A
    method is immutable, and methods are compared by value.
    """

    @property
    def averages_models(self) -> bool:
        """Whether ranks update their models by their own gradients, and average the models.

        If not, they average the gradients.
        """
        return True

    @property
    def drifts(self) -> bool:
        """Whether ranks may have different models until a flush, which averages them."""
        return True

    @property
    def lockstep(self) -> bool:
        """Whether every rank takes part in every round."""
        return False

    @property
    def meets_in_steps(self) -> bool:
        """Whether a step may be a collective call, for which all ranks wait."""
        return False

    @property
    def replicas(self) -> bool:
        """Whether all ranks apply the same rounds, one by one, and nothing averages models."""
        return not (self.averages_models or self.drifts)

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
            array of `Context.alloc` saves copies in `PartialReduce`, `Ripples` and `ADPSGD`.
        extra : int, optional
            How many elements gradients have beyond those of `x`. They are averaged like the others,
            if the method averages gradients; an application counts something in them.
        state : callable, optional
            Returns the optimizer's state as arrays of float16, float32 or float64, the same number
            and shapes on all ranks. They are averaged in place wherever the models of all ranks are
            averaged: in `Worker.flush` and `Worker.finish`, and by `EagerSGD.sync_every`; with
            ``deliver="each"`` and `Synchronous` never, because ranks do not differ. With
            `PartialReduce` and `Ripples` a state counts by its rank's steps with a gradient since
            the last flush, and a model by all its steps. A rank that has made no update yet may
            return no arrays: the others average without it.

        Returns
        -------
        Worker

        Raises
        ------
        ArgumentError
            If an argument of this rank is wrong; the other ranks raise `MismatchError`.
        MismatchError
            If ranks differ in the method, in the length or type of `x`, in `extra`, or in whether
            they have `state`. Every rank raises.
        """

    def _worker_at(
        self, place: Place, ctx: Context, extra: int, state: State | None
    ) -> CommonWorker:
        """Do as `worker`, for a model at a place that may be on a device."""
        raise ArgumentError(f"{self!r} trains models in the memory of the host only")

    def _in_pieces(self) -> Policy:
        """Return the policy of the rounds, if each may reduce a piece of the gradient only.

        Raises
        ------
        ArgumentError
            If they may not: pieces have contributors of their own.
        """
        raise ArgumentError(
            "overlap gives each piece rounds and contributors of its own; it needs Synchronous(), "
            f"EagerSGD(Full()) or deliver='sum', and the method is {self!r}"
        )

    def _advice(
        self, optimizer: str, size: int, *, is_linear: bool, schedule: str | None
    ) -> Iterator[str]:
        """Give the texts to warn of, where the method does not suit an optimizer of PyTorch.

        Parameters
        ----------
        optimizer : str
            Its name.
        size : int
            The number of ranks.
        is_linear : bool
            Whether two gradients one after the other change the model as their sum does.
        schedule : str or None
            The scheduler, if it is made for a number of steps.
        """
        return iter(())


class Worker(ABC):
    """One rank's part in training a model by a `Method`; `Method.worker` makes it.

    One thread uses it at a time. Ranks may make different numbers of steps; in the end all of them
    call `finish`, those with fewer steps earlier. Blocking calls of the application's own, such as
    a barrier or the allreduce of a metric, are made by `Context.comm`, or go into `away`: elsewhere
    a rank that waits in a step and one that waits in such a call wait for each other, until the
    patience of one is over.

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
    # How much the model of each rank counted in the last flush, and its state; None: all the same.
    _weights: Sequence[int] | None = None
    _state_weights: Sequence[int] | None = None
    _defect: str | None = None  # why this rank's model has parted from the others'

    @abstractmethod
    def step(self, gradient: Vector | None, update: Update) -> int:
        """Contribute a gradient, and apply what other ranks have contributed.

        Blocking, not collective: it waits as the method's policy or generator says. If `update`
        raises an exception, that passes on, and communicates nothing. With `Synchronous` and
        `EagerSGD` this rank's model then lacks a round, and every later call raises. With the
        methods that average models the update comes first: after an exception of what follows go on
        with ``step(None, update)``, because the gradient has been applied.

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
            If `gradient` has another shape or type, or `update` cannot be called; nothing was
            communicated.
        MismatchError
            If models are averaged in this step, and the ranks' `state` differs. Every rank raises.
        Error
            After `finish`, and after an update of a round that raised.
        PeerFailedError
            If another rank has failed.
        """

    def _sound(self) -> None:
        """Raise `Error` if this rank's model has parted from the others'. Local."""
        if self._defect is not None:
            raise Error(self._defect)

    def _resume(self) -> None:  # noqa: B027  a method may have nothing there
        """Come to the end of a step that an exception has ended, as Ctrl-C does in its wait.

        Its gradient, or model, may be on its way: nothing is written to them before this call.
        Local.

        Raises
        ------
        Error
            If only a flush can apply what the step has asked for.
        """

    @property
    def _is_asking(self) -> bool:
        """Whether a step has asked for a round, or a group, that was not collected.

        It reads the gradient, or writes to the model.
        """
        return False

    @abstractmethod
    def flush(self, update: Update | None = None) -> int:
        """Apply everything that is still on its way; the worker goes on afterwards.

        Collective, blocking. All ranks have the same `x` then, bit for bit; save checkpoints here.

        With `PartialReduce` and `Ripples` it becomes the average of the ranks' models, in which the
        model of a rank counts by the steps that the rank has made since the last flush, those
        without a gradient included. So that of a rank without steps does not count. If all ranks
        have made as many, or none, all models count the same. What `state` returns counts by the
        steps with a gradient. With their option ``final="equal"``, and with `ADPSGD`, `DPSGD` and
        `Hop`, all count the same.

        Parameters
        ----------
        update : callable, optional
            As in `step`; that of the last `step` if None. Methods that average models need none.

        Returns
        -------
        int
            How often `update` was called.

        Raises
        ------
        ArgumentError
            If no `update` is known on this rank; nothing was communicated.
        MismatchError
            If the ranks' `state` differs. Every rank raises.
        Error
            As `step`.
        PeerFailedError
            As `step`; and if the script of another rank has ended, which then does not come.
        """

    @abstractmethod
    def finish(self, update: Update | None = None) -> int:
        """End the training: `flush`, as often as ranks that still make steps need it.

        Collective, blocking. A rank that has no more batches calls it; with `Synchronous` and
        `EagerSGD` it takes part in the rounds of the other ranks until all have called it. With
        `PartialReduce` and `Ripples` it is in no more groups, and what the others learn does not
        reach its model before they come to a flush, or to their end. There its model counts by its
        few steps; at later ones it does not count. A rank with far fewer batches than others can go
        on by ``step(None, update)`` instead: its model then stays with those of the others, which
        learn more slowly by it. With `ADPSGD` its neighbours go on averaging with its model, with
        `DPSGD` and `Hop` without it. The worker cannot be used afterwards, except for its
        attributes and `state_dict`.

        Parameters
        ----------
        update : callable, optional
            As in `flush`. A rank that may have made no step passes one.

        Returns
        -------
        int
            How often `update` was called.

        Raises
        ------
        ArgumentError, MismatchError, Error, PeerFailedError
            As `flush`.
        """

    @abstractmethod
    def away(self, update: Update | None = None) -> AbstractContextManager[None]:
        """Leave all rounds and groups for the time of a ``with`` block.

        Collective. It is `Context.away`: put blocking calls of your own into the block. With
        `EagerSGD.sync_every` a `flush` comes before it, for which all ranks wait, because any step
        of another rank may be a collective call that averages the models.

        Parameters
        ----------
        update : callable, optional
            As in `flush`.

        Returns
        -------
        context manager
        """

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint needs beside `x`: ``method``, ``rounds`` and ``seed``. Local.

        The method is its text. The seed is for the context of the program that goes on:
        ``pp.Context(comm, seed=state["seed"])``. It follows from this context's seed and from the
        rounds that were made, so that runs from one checkpoint draw alike, and not as this run did
        from its beginning. Rank 0's dict is for all ranks: with some methods ranks have different
        `rounds`.

        Returns
        -------
        dict

        Raises
        ------
        Error
            If steps were made since the last `flush`: their rounds would be lost.
        """

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on counting where a checkpoint was made. Local; before the first step.

        The model is not in it: write it to `x` before `Method.worker`, or on all ranks.

        Parameters
        ----------
        state : dict
            What `state_dict` has returned, on rank 0 for example.

        Raises
        ------
        ArgumentError
            If the state is of another method, or no such dict.
        Error
            After the first step.
        """
