"""A communication hook of DistributedDataParallel: the gradients' allreduce, made partial.

DDP cuts the gradients into buckets, and calls the hook with each. The hook copies the buckets into
one vector. With the last bucket of a backward pass it contributes the vector, waits for a round,
and gives every bucket its part of the result. So all parameters share one round, however DDP cuts
and orders its buckets.
"""

# DDP compares the hook's annotations with the classes, so they must not be strings.

import inspect
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import GradBucket  # torch.distributed has it, untyped
from torch.nn.parallel import DistributedDataParallel

from .._arguments import INT32_MAX, as_argument_error, in_range
from .._native import warn
from ..context import Context
from ..errors import ArgumentError, Error, MismatchError
from ..methods.asked import Asked
from ..methods.meeting import Meeting
from ..methods.worker import Purpose
from ..policy import Majority, Policy, as_policy
from ..status import Status
from .buckets import Buckets
from .device_path import check_path, path_in_use
from .layout import Layout, compare
from .mean import mean_of
from .optimizer import is_local
from .replicas import apply, average, is_plain, optimizer_tensors, unite

__all__ = ["HookState", "partial_allreduce_hook"]

_DEFAULT_POLICY = Majority()
_NEW = "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters
_NO_BROADCAST = f"{'forward_sync_buffers' if _NEW else 'broadcast_buffers'}=False"


class HookState:
    """What `partial_allreduce_hook` needs: the rounds of one DDP module.

    Making one is collective and blocking. Register it once, on every rank, before the first step::

        ddp = DistributedDataParallel(model)
        state = pp.torch.HookState(ctx, ddp)
        ddp.register_comm_hook(state, pp.torch.partial_allreduce_hook)
        for batch in batches:  # ranks may have different numbers of batches, at least one each
            optimizer.zero_grad()
            loss(ddp(batch)).backward()
            optimizer.step()
        state.finish(optimizer)

    The first backward pass (with ``static_graph=True`` the first two) is synchronous, because DDP's
    forward pass behind it is. Every rank must make it.

    A backward pass gives the optimizer one gradient, so the hook cannot apply the rounds that a
    slow rank has missed one by one. With partial rounds the ranks apply different sums, and their
    replicas drift apart, unless the optimizer is plain SGD with a constant rate. `sync_every`
    bounds the drift, and `finish` ends it. `DistributedOptimizer` does not drift. It also serves a
    ``GradScaler``, whose scales would differ between ranks here.

    Parameters
    ----------
    ctx : Context
        Of as many ranks as the module's process group has.
    ddp : torch.nn.parallel.DistributedDataParallel
        On the CPU, or on one CUDA device. If it has buffers, it must have been made with
        ``forward_sync_buffers=False`` (before torch 2.13: ``broadcast_buffers=False``); `finish`
        averages them.
    policy : Policy or str, optional
        When a round is activated, or the text of that (`Policy.parse`).
    deliver : {"sum", "latest"}, optional
        What a backward pass gives: the sum of all rounds that this rank was not given yet, or the
        newest round.
    average : {"size", "contributors", "contributions"}, optional
        What the sum of gradients is divided by, as in `Context.Allreduce_init`. ``"size"`` is what
        DDP does.
    sync_every : int, optional
        When so many rounds were made since the last time, the ranks meet behind a step of the
        optimizer, as in `flush`. This is a collective call: put collective calls of your own into
        `away`. None: only `flush` and `finish` average.
    optimizer : torch.optim.Optimizer, optional
        The optimizer of the module's parameters; `sync_every` needs it.
    device_path : {"auto", "staged", "ipc", "direct"}, optional
        For a module on a device: how gradients get from rank to rank, as in
        `Context.Allreduce_init`. Modules on the CPU have ``"auto"`` only.

    Attributes
    ----------
    status : Status or None
        Of the newest round that was delivered.
    device_path : str or None
        The one in use: ``"staged"``, ``"ipc"`` or ``"direct"``, the same on all ranks. None for a
        module on the CPU.
    device_path_reason : str
        Why the path asked for, or chosen, is not possible; else ``""``.

    Raises
    ------
    ArgumentError
        If an argument of this rank is wrong; the other ranks raise `MismatchError`.
    MismatchError
        If ranks differ in their options, or in the names, shapes, types or memory formats of the
        parameters.

    Warns
    -----
    UserWarning
        If replicas will drift; if the module was made with ``find_unused_parameters=True``, which
        makes every step synchronous.
    RuntimeWarning
        On rank 0, the first time that a `device_path` is not possible.
    """

    status: Status | None

    def __init__(
        self,
        ctx: Context,
        ddp: DistributedDataParallel,
        *,
        policy: Policy | str = _DEFAULT_POLICY,
        deliver: Literal["sum", "latest"] = "sum",
        average: Literal["size", "contributors", "contributions"] = "size",
        sync_every: int | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        device_path: Literal["auto", "staged", "ipc", "direct"] = "auto",
    ) -> None:
        if not isinstance(ctx, Context):
            raise ArgumentError(f"ctx must be a pypartial.Context, not {ctx!r}")
        self._meeting = Meeting(ctx)
        options = f"deliver={deliver!r}, average={average!r}"
        options += f", sync_every={sync_every!r}, device_path={device_path!r}"
        lines: list[str] = []
        complaint = None
        try:
            policy = as_policy(policy)
            options = f"policy={policy!r}, {options}"
            _check_options(deliver, average, sync_every, optimizer)
            _check_ddp(ctx, ddp)
            layout = Layout(_parameters(ddp))
            lines = layout.lines()
            check_path(device_path, layout.home)
            options += f", on {layout.home.name}"
            vector = layout.home.zeros(ctx, layout.size, layout.dtype)
        except Exception as error:
            complaint = as_argument_error(error)
        with self._meeting.kept():
            _agree(self._meeting.gather((str(complaint or ""), options, lines)), complaint)
            # None: each Start reads the receive buffer.
            self._request = ctx.Allreduce_init(
                *(None, vector),
                policy=policy,
                deliver=deliver,
                average=average,
                device_path=device_path,
            )
        self.status = None
        self.device_path, self.device_path_reason = path_in_use([self._request])
        self._ctx, self._ddp, self._layout, self._optimizer = ctx, ddp, layout, optimizer
        self._vector = vector
        self._buckets = Buckets(vector, layout.parameters, layout.home)
        self._asked = Asked(self._request)
        self._passes = 0
        self._finished = False
        self._sync_every, self._newest, self._in_meeting = sync_every, -1, False
        if optimizer is not None and sync_every is not None:
            self._step_hook = optimizer.register_step_post_hook(self._after_step)
        _warn(ddp, policy, deliver, sync_every, optimizer)

    # ---- backward passes ------------------------------------------------------------------------

    @property
    def _first_passes(self) -> int:
        """How many backward passes are synchronous, and make no round.

        The forward pass behind them is collective: DDP broadcasts new buckets in it. A rank that
        waits there could not be told from one that computes, and might be waited for in a round.
        Besides, nothing must be on its way when the order of the buckets changes.
        """
        return 2 if self._ddp.static_graph else 1

    def _take(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Copy a bucket into the vector, and make the round if it is the last one."""
        if self._finished:
            raise Error("a backward pass after HookState.finish: its gradients reach no other rank")
        if self._request._gone is not None:
            self._leave()
        future = self._buckets.put(bucket)
        if self._buckets.complete:
            self._make_round()
        return future

    def _make_round(self) -> None:
        arrived = self._buckets.take()
        self._layout.home.keep(self._vector)
        if self._passes < self._first_passes:
            average(self._meeting, self._layout.home.view(self._vector))
        else:
            self._buckets.settled = True
            # On a device it uses the current stream, on which the copies into the vector are.
            self.status = self._asked.ask()
        self._passes += 1
        for bucket in arrived:
            bucket.give()
        self._asked.apply()

    def _sound(self) -> None:
        """Raise `Error` if an exception, such as Ctrl-C, has ended a round that was collected."""
        lost = self._asked.lost
        if lost is not None:
            raise Error(
                f"an exception has ended a round of this rank, whose model lacks round {lost}: end "
                "the program, and go on from a checkpoint"
            )

    # ---- where ranks meet -----------------------------------------------------------------------

    def _after_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """Meet the other ranks if the rounds of `sync_every` are over."""
        if self._in_meeting or self._finished or self.status is None or self._sync_every is None:
            return
        if self._request._gone is not None:  # an exception has left the context's block
            return  # torch goes through its hooks now: none can be removed here
        self._sound()
        # What has crossed the bound on one rank does so on all, at their next steps at the latest.
        if self.status.round - self._newest >= self._sync_every:
            self._meet(Purpose.SYNC, optimizer)

    def _leave(self) -> None:
        """Remove what the optimizer calls, if it does; not from there."""
        if self._sync_every is not None:
            self._step_hook.remove()

    def _meet(self, purpose: Purpose, optimizer: torch.optim.Optimizer) -> None:
        """Meet all ranks, again and again until all have come for this purpose, or for more."""
        self._in_meeting = True  # the optimizer makes steps here
        try:
            while self._meet_once(purpose, optimizer) < purpose:
                pass
        finally:
            self._in_meeting = False

    def _meet_once(self, purpose: Purpose, optimizer: torch.optim.Optimizer) -> Purpose:
        """Apply all that is on its way, and average the replicas; return the least purpose."""
        self.status = status = Status()
        self._layout.home.keep(self._vector)
        self._request.Flush(status)
        self._newest = status.round
        if status.contributions or status.first < status.round:
            apply(optimizer, self._buckets.gradients())
        self._asked.apply()
        replica = self._replica(optimizer)
        told: list[tuple[Purpose, list[str]]] = self._meeting.gather((purpose, list(replica)))
        # An optimizer makes the state of a parameter at its first step with it.
        common = set.intersection(*(set(names) for _, names in told))
        unite(self._meeting, [tensor for name, tensor in replica.items() if name in common])
        return min(least for least, _ in told)

    def _replica(self, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
        """Return everything that is averaged, in an order that is the same on all ranks."""
        parameters = [(place.name, place.parameter) for place in self._layout.places]
        state = optimizer_tensors(optimizer, parameters)
        return dict([*parameters, *_buffers(self._ddp), *state])

    def flush(self, optimizer: torch.optim.Optimizer | None = None) -> None:
        """Apply everything that is on its way, and give all ranks the same model; then go on.

        Collective, blocking. Save checkpoints here. What was on its way is applied by one step of
        the optimizer. The models are averaged, and so are their buffers and the optimizers' state;
        integer buffers become rank 0's. Call it behind a step of the optimizer, not between a
        backward pass and its step.

        Parameters
        ----------
        optimizer : torch.optim.Optimizer, optional
            The optimizer of the module's parameters; that of the constructor if None.

        Raises
        ------
        ArgumentError
            If there is no optimizer; nothing was communicated.
        Error
            If this rank has made fewer backward passes than the synchronous ones, or after
            `finish`; nothing was communicated.
        """
        self._meet_for(Purpose.FLUSH, optimizer)

    def away(self) -> AbstractContextManager[None]:
        """Leave all rounds for the time of a ``with`` block; collective.

        As `Context.away`, for blocking calls of the application's own. Use this one with
        `sync_every`: it is a `flush` as well then, so that no rank is in a synchronisation. Use it
        without, too, if a rank may have made the synchronous backward passes only: other ranks wait
        for it in their next forward pass.
        """
        self._come_together()
        return self._ctx.away()

    def _come_together(self) -> None:
        """Come to a place where no other rank waits for this one in a step."""
        if self._sync_every is not None and self._passes >= self._first_passes:
            self.flush()
        self._settle_buckets()

    def mean(self, value: Any) -> Any:
        """Return the mean of a number or a tensor over the ranks that have not finished.

        As `DistributedOptimizer.mean`; a `flush` as well with `sync_every`.
        """
        if self._finished:
            raise Error("HookState.mean after HookState.finish")
        self._come_together()
        return mean_of(value, self._meeting.mean)

    def finish(self, optimizer: torch.optim.Optimizer | None = None) -> None:
        """End the training: `flush`, as often as ranks that still make steps need it.

        Collective, blocking. A rank that has no more batches calls it; it takes part in the rounds
        of the others until all have called it. All ranks have the same model then. The module can
        be evaluated afterwards, but a further backward pass raises.

        Parameters
        ----------
        optimizer : torch.optim.Optimizer, optional
            As in `flush`.

        Raises
        ------
        ArgumentError, Error
            As in `flush`.
        """
        self._meet_for(Purpose.FINISH, optimizer)
        self._finished = True
        self._leave()
        self._request.Free()
        self._meeting.close()
        # DDP keeps the hook, and so this object, as long as the module is there. In host memory DDP
        # keeps the results of the last backward pass as well.
        del self._vector, self._buckets

    def _meet_for(self, purpose: Purpose, optimizer: torch.optim.Optimizer | None) -> None:
        optimizer = self._optimizer if optimizer is None else optimizer
        if optimizer is None or not is_local(optimizer):
            raise ArgumentError(
                f"optimizer must be the torch.optim.Optimizer of the module, not {optimizer!r}"
            )
        if self._finished:
            raise Error("HookState.finish was called before")
        self._sound()
        if self._passes < self._first_passes:
            raise Error(
                f"this rank has made {self._passes} backward passes; every rank must make at least "
                f"{self._first_passes}, because DDP's next forward pass is collective"
            )
        self._settle_buckets()
        self._meet(purpose, optimizer)

    def _settle_buckets(self) -> None:
        """Do what the next forward pass of this rank would do, if others have made theirs.

        It is collective, and changes the buckets.
        """
        if self._passes == self._first_passes and not self._finished:
            self._ddp.reducer._rebuild_buckets()
            self._buckets.arrange(self._ddp.reducer._get_zeros_like_grad_buckets())


def partial_allreduce_hook(
    state: HookState, bucket: GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """Reduce a bucket of gradients in a partial round; DDP calls it.

    Pass it to ``DistributedDataParallel.register_comm_hook``, together with a `HookState`. An error
    in a round is raised by the ``backward`` that made it.

    Parameters
    ----------
    state : HookState
    bucket : torch.distributed.GradBucket

    Returns
    -------
    torch.futures.Future
        Of the bucket's part of the result.
    """
    return state._take(bucket)


# ---- arguments ----------------------------------------------------------------------------------


def _parameters(ddp: DistributedDataParallel) -> list[tuple[str, torch.nn.Parameter]]:
    ignored = ddp.parameters_to_ignore
    return [pair for pair in ddp.module.named_parameters() if pair[0] not in ignored]


def _buffers(ddp: DistributedDataParallel) -> list[tuple[str, torch.Tensor]]:
    ignored = ddp.parameters_to_ignore
    return [pair for pair in ddp.module.named_buffers() if pair[0] not in ignored]


def _check_options(deliver: str, average: str, sync_every: int | None, optimizer: Any) -> None:
    if deliver == "each":
        raise ArgumentError(
            "deliver='each' is not possible in a hook: one backward pass gives one gradient, so "
            "missed rounds cannot be applied one by one; use DistributedOptimizer, or 'sum'"
        )
    if deliver not in ("sum", "latest"):
        raise ArgumentError(f"deliver must be 'sum' or 'latest', not {deliver!r}")
    if average not in ("size", "contributors", "contributions"):
        raise ArgumentError(
            f"average must be 'size', 'contributors' or 'contributions', not {average!r}"
        )
    if optimizer is not None and not is_local(optimizer):
        raise ArgumentError(f"optimizer must be a torch.optim.Optimizer, not {optimizer!r}")
    if sync_every is None:
        return
    in_range("sync_every", sync_every, 1, INT32_MAX)
    if optimizer is None:
        raise ArgumentError(
            "sync_every needs optimizer=: the ranks meet behind one of its steps, and average its "
            "state"
        )


def _check_ddp(ctx: Context, ddp: Any) -> None:
    if not isinstance(ddp, DistributedDataParallel):
        raise ArgumentError(
            f"ddp must be a torch.nn.parallel.DistributedDataParallel, not {type(ddp).__name__}"
        )
    ranks = dist.get_world_size(ddp.process_group)
    if ranks != ctx.size:
        raise ArgumentError(
            f"the context has {ctx.size} ranks, and the module's process group {ranks}"
        )
    buffers = [name for name, _ in _buffers(ddp)]
    if ddp.broadcast_buffers and buffers:
        raise ArgumentError(
            f"the module has buffers ({buffers[0]}), which DDP broadcasts in every forward pass, "
            "so that every rank waits for the slowest; make it with "
            f"DistributedDataParallel(..., {_NO_BROADCAST}); finish() averages them"
        )
    if getattr(ddp, "_use_python_reducer", False):
        raise ArgumentError("torch.compile's python_reducer has no buckets, which a hook needs")
    if ddp._delay_all_reduce_params:
        raise ArgumentError("delay_all_reduce_named_params hides parameters from the hook")
    for name, module in ddp.module.named_modules():
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.sparse:
            raise ArgumentError(f"{name} has sparse gradients, which cannot be reduced")


def _agree(told: Sequence[tuple[str, str, list[str]]], complaint: Error | None) -> None:
    """Raise on every rank if an argument of any rank is wrong, or if ranks differ."""
    if complaint is not None:
        raise complaint
    for rank, (text, _, _) in enumerate(told):
        if text:
            raise MismatchError(f"rank {rank} made its HookState with a wrong argument: {text}")
    compare("the HookStates", [[options] for _, options, _ in told])
    compare("the models", [model for _, _, model in told])


def _warn(
    ddp: DistributedDataParallel,
    policy: Policy | str,
    deliver: str,
    sync_every: int | None,
    optimizer: torch.optim.Optimizer | None,
) -> None:
    if ddp.find_unused_parameters and not ddp.static_graph:
        warn(
            "find_unused_parameters=True makes DDP wait for all ranks in every step, so that "
            "partial rounds save nothing, and ranks need equally many steps; use static_graph=True "
            "or DistributedOptimizer",
            UserWarning,
        )
    drifts = deliver == "latest" or not is_plain(optimizer)
    if drifts and sync_every is None and not as_policy(policy).lockstep:
        warn(
            f"with {policy!r} and deliver={deliver!r} the replicas drift apart until finish(), "
            "unless the optimizer is plain SGD, with a constant rate, and deliver is 'sum'; pass "
            "optimizer= and sync_every=, or use DistributedOptimizer, which does not drift",
            UserWarning,
        )
