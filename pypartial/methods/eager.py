"""Gradients averaged over all ranks, in rounds: synchronous SGD and eager-SGD."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from .._arguments import INT32_MAX, in_range
from .._names import DELIVER
from ..allreduce import AllreduceRequest
from ..errors import ArgumentError, Error
from ..policy import Full, Majority, Policy, as_policy
from ..status import Status
from .asked import Asked
from .base import Method, State, Update, Vector, Worker
from .checkpoint import lacking
from .place import Place
from .worker import CommonWorker, Purpose

if TYPE_CHECKING:
    from ..context import Context

__all__ = ["EagerSGD", "Synchronous"]

_DEFAULT_POLICY = Majority()


@dataclass(frozen=True)
class Synchronous(Method):
    """Every step waits for all ranks, and applies the average of their gradients.

    The classical method, for comparison and where ranks are equally fast. It is
    ``EagerSGD(policy=Full())``: a rank that has finished counts as one without a gradient.
    """

    averages_models = drifts = False
    lockstep = True

    def worker(
        self, ctx: Context, x: Vector, *, extra: int = 0, state: State | None = None
    ) -> Worker:
        """Make this rank's part in the training; see `Method.worker`."""
        return self._worker_at(Place(x), ctx, extra, state)

    def _worker_at(self, place: Place, ctx: Context, extra: int, state: State | None) -> EachWorker:
        return EachWorker(self, EagerSGD(Full()), place, ctx, extra, state)

    def _in_pieces(self) -> Policy:
        return Full()


@dataclass(frozen=True)
class EagerSGD(Method):
    """Partial rounds: a step waits as long as the policy says, and late gradients count later.

    Parameters
    ----------
    policy : Policy or str, optional
        When a round is activated; its text is read by `Policy.parse`, and kept as a `Policy`. With
        ``"each"`` an update is a round, not a batch. Measured on 3 ranks, one of them 3 times
        slower: 1.46 rounds a batch under `Solo`, 1.29 under ``FirstOf(2)``, 1.11 under `Majority`.
        Adam then moved 1.23, 1.14 and 1.02 times as far; weight decay acts as often as rounds.
    deliver : {"each", "sum", "latest"}, optional
        ``"each"``: a step applies every complete round that this rank has not applied yet, oldest
        first, each by one update. All ranks apply the same rounds in the same order, so that they
        stay equal bit for bit with any deterministic optimizer. ``"sum"``: a step applies the sum
        of these rounds by one update. Ranks differ by rounding under plain descent, and drift apart
        under momentum or Adam. ``"latest"``: a step applies the newest round only, as in the paper;
        ranks drift apart.
    sync_every : int, optional
        For ``"sum"`` and ``"latest"``: when this many rounds were made since the last time, the
        models and the optimizers' states are averaged over all ranks, inside `Worker.step`. This is
        a collective call: put collective calls of your own into `Worker.away`. None: only
        `Worker.flush` and `Worker.finish` average.

    Raises
    ------
    ArgumentError
        If a value is not of its kind, or `sync_every` is given with ``"each"``, which needs none.

    References
    ----------
    S. Li et al., "Taming Unbalanced Training Workloads in Deep Learning with Partial Collective
    Operations" (eager-SGD), PPoPP 2020, sections 5 and 6.
    """

    policy: Policy | str = _DEFAULT_POLICY
    deliver: Literal["each", "sum", "latest"] = "each"
    sync_every: int | None = None

    averages_models = False

    def __post_init__(self) -> None:
        """Check the fields, and keep them as their types."""
        object.__setattr__(self, "policy", as_policy(self.policy))
        DELIVER.check(self.deliver)
        if self.sync_every is None:
            return
        rounds = in_range("sync_every", self.sync_every, 1, INT32_MAX)
        object.__setattr__(self, "sync_every", rounds)
        if self.deliver == "each":
            raise ArgumentError(
                "sync_every is for deliver='sum' and 'latest': with 'each' ranks stay equal"
            )

    @property
    def drifts(self) -> bool:
        """Whether ranks may have different models until a flush, which averages them."""
        return self.deliver != "each"

    @property
    def lockstep(self) -> bool:
        """Whether every rank takes part in every round."""
        return as_policy(self.policy).lockstep

    @property
    def meets_in_steps(self) -> bool:
        """Whether a step may be a collective call, for which all ranks wait."""
        return self.sync_every is not None

    def worker(
        self, ctx: Context, x: Vector, *, extra: int = 0, state: State | None = None
    ) -> Worker:
        """Make this rank's part in the training; see `Method.worker`."""
        return self._worker_at(Place(x), ctx, extra, state)

    def _worker_at(
        self, place: Place, ctx: Context, extra: int, state: State | None
    ) -> RoundsWorker:
        kind = EachWorker if self.deliver == "each" else LumpWorker
        return kind(self, self, place, ctx, extra, state)

    def _in_pieces(self) -> Policy:
        if not self.lockstep:
            if self.deliver != "sum":
                return super()._in_pieces()
            if self.sync_every is not None:
                raise ArgumentError(
                    "overlap and sync_every exclude each other: pieces have rounds of their own, "
                    "so no round counts for the whole model"
                )
        return as_policy(self.policy)

    def _advice(
        self, optimizer: str, size: int, *, is_linear: bool, schedule: str | None
    ) -> Iterator[str]:
        if self.sync_every is not None:
            return
        if self.deliver != "each":
            if self.deliver == "latest" or not is_linear:
                yield (
                    f"with deliver={self.deliver!r} the models of the ranks drift apart until "
                    f"finish(): ranks apply different rounds by each step of {optimizer}, and of a "
                    "scheduler. Use deliver='each', or average models and states from time to time "
                    "by sync_every"
                )
            return
        if as_policy(self.policy).drawn(size) > 1 and not is_linear:
            yield (
                f"with {self.policy!r} there are more rounds than a rank has batches, each of "
                f"fewer gradients and a whole step of {optimizer}: what is not linear in "
                "gradients, such as Adam, weight decay and clip_norm, acts more often than with "
                "Synchronous(). Use Majority(), a lower rate, or plain SGD"
            )
        if schedule is not None and size > 1 and not self.lockstep:
            yield (
                f"the scheduler, {schedule}, makes a step for each round, and with {self.policy!r} "
                "there may be more rounds than a rank has batches: it comes to its end early then. "
                "Use a schedule without a fixed end, or Synchronous(), or set its length by the "
                "rounds of a run"
            )


class RoundsWorker(CommonWorker):
    """A worker whose ranks average gradients in rounds.

    The gradient is sent and received in place. It is an array of `Context.alloc`, of which no copy
    is made between ranks of a node. Two such arrays were not faster, from 0.1 to 16 MB.

    Parameters
    ----------
    method : Method
    eager : EagerSGD
        What rounds there are.
    place, ctx, extra, state
        As for `CommonWorker`.
    """

    _request: AllreduceRequest

    def __init__(
        self,
        method: Method,
        eager: EagerSGD,
        place: Place,
        ctx: Context,
        extra: int,
        state: State | None,
    ) -> None:
        self._eager = eager
        super().__init__(method, place, ctx, extra, state)
        self._asked = Asked(self._request)

    def _open(self) -> AllreduceRequest:
        policy, deliver = self._eager.policy, self._eager.deliver
        return self._ctx.Allreduce_init(
            *(None, self.gradient),
            policy=policy,
            deliver=deliver,
            average="size",
            device_path=self._place.device_path,
        )

    def _known_update(self) -> Update:
        """Return the update of a meeting; call it before anything is communicated."""
        if self._update is None:
            raise ArgumentError(
                "update is needed: this rank has made no step whose update could be used"
            )
        return self._update

    def _apply_round(self, update: Update, status: Status) -> int:
        self.status = status
        try:
            applied = self._apply(update)
        except BaseException as error:
            self._defect = lacking(error, status.round)
            raise
        self._asked.apply()
        return applied

    def _resume(self) -> None:
        if self._is_asking:
            raise Error(
                "an exception has ended the last step while its gradient was on its way: call "
                "flush() or finish(), which apply it"
            )

    def _advance(self, update: Update, is_given: bool) -> int:
        self._count(is_given)
        try:
            return self._make_step(update)
        except BaseException as error:
            self._note_loss(error)
            raise

    def _end_rounds(self) -> tuple[int, int]:
        update = self._known_update()
        try:
            applied, status = self._apply_rest(update)
            self._asked.apply()
        except BaseException as error:
            self._note_loss(error)
            raise
        return applied, status.round

    def _note_loss(self, error: BaseException) -> None:
        """Take it for a defect if a round was collected and not applied, as Ctrl-C leaves it."""
        lost = self._asked.lost
        if self._defect is None and lost is not None:
            self._defect = lacking(error, lost, "a step was ended by")

    @abstractmethod
    def _make_step(self, update: Update) -> int:
        """Contribute what is in `gradient`; return how often `update` was called."""

    @abstractmethod
    def _apply_rest(self, update: Update) -> tuple[int, Status]:
        """Do as `_end_rounds`."""


class EachWorker(RoundsWorker):
    """Applies every round by an update of its own."""

    def _make_step(self, update: Update) -> int:
        applied = self._apply_round(update, self._asked.ask())
        # No more than these can be complete by now. Later ones have to wait for this rank's next
        # step: ranks whose rounds are faster than its updates would keep it here for ever.
        for _ in range(self._ctx._window):
            status = Status()
            if not self._request.More(status):
                break
            applied += self._apply_round(update, status)
        return applied

    def _apply_rest(self, update: Update) -> tuple[int, Status]:
        applied = 0
        for status in self._request.Drain():
            if status.contributions:  # not so if nothing was pending for the flush
                applied += self._apply_round(update, status)
        return applied, status


class LumpWorker(RoundsWorker):
    """Applies what a request delivers by one update, and averages models from time to time."""

    def _make_step(self, update: Update) -> int:
        status = self._asked.ask()
        applied = self._apply_round(update, status)
        # What has crossed the bound on one rank does so on all, at their next steps at the latest.
        sync_every = self._eager.sync_every
        if sync_every is not None and status.round - self._newest >= sync_every:
            applied += self._meet(Purpose.SYNC, update)
        return applied

    def away(self, update: Update | None = None) -> AbstractContextManager[None]:
        """Leave all rounds for the time of a ``with`` block; collective."""
        if self._eager.sync_every is not None:  # else another rank could be synchronising
            self.flush(update)
        return super().away()

    def _apply_rest(self, update: Update) -> tuple[int, Status]:
        status, applied = Status(), 0
        self._request.Flush(status)
        if status.contributions or status.first < status.round:
            applied = self._apply_round(update, status)
        return applied, status
