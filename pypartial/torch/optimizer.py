"""An optimizer of torch whose steps go through a method of pypartial."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType
from typing import Any, Literal, NoReturn

import torch
import torch.distributed
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from .._arguments import as_argument_error, real_number
from .._native import CORE_ERRORS, warn
from ..context import Context
from ..errors import ArgumentError, Error, MismatchError
from ..methods import Method
from ..methods.meeting import Meeting
from ..policy import Policy
from ..status import Status
from .device_path import check_path, path_in_use
from .driver import Driver, Whole
from .layout import Facts, compare
from .mean import mean_of
from .overlap import Pieces, check_overlap, keeps_replicas
from .replica import Replica, spell
from .replicas import is_plain
from .schedule import fixed_length, is_over
from .state import copy_state
from .tensors import copy, settle
from .trained import check_parameters, check_world, choose, kind, survey

__all__ = ["DistributedOptimizer", "is_local"]

_PARTS = {"optimizer", "scheduler", "worker"}  # of a state_dict
_autograd: Any = torch.autograd  # its types do not name all that is there
_OF_ALL_OPTIMIZERS = (_global_optimizer_pre_hooks, _global_optimizer_post_hooks)


class DistributedOptimizer(torch.optim.Optimizer):
    """Trains one model on all ranks of a context: wraps an optimizer of torch.

    ``step()`` contributes this rank's gradients, and applies what `method` says. With the default,
    `EagerSGD`, it applies every complete round that this rank has not applied yet, oldest first,
    each by one step of the wrapped optimizer. All ranks apply the same rounds, so their models stay
    equal, bit for bit, with any deterministic optimizer, although a round may be complete without
    the slow ranks' gradients. These are in a later round. So an optimizer's step is a round, not a
    batch: hyperparameters are set by `before_round` or `scheduler`, and there may be more rounds
    than a rank has batches (`pypartial.methods.EagerSGD`).

    It is a ``torch.optim.Optimizer``, so torch's schedulers and the trainers of other libraries
    take it. Its groups, state and defaults are those of `optimizer`, the same objects.

    Making it is collective and blocking. Parameters, buffers and the state of `optimizer` become
    those of rank 0; not a state of other values than numbers and tensors, as an optimizer of your
    own may have.

    Parameters
    ----------
    optimizer : torch.optim.Optimizer
        Made as usual, with the same parameters and hyperparameters on all ranks. Use it through the
        wrapper only. Its parameters are on the CPU, or on one CUDA device.
    ctx : Context
        If torch.distributed has a process group, of the same size.
    method : pypartial.methods.Method, optional
        `Synchronous`, `EagerSGD` (the default), `PartialReduce`, `Ripples`, `ADPSGD`, `DPSGD` or
        `Hop`, of `pypartial.methods`.
    scheduler : torch.optim.lr_scheduler.LRScheduler, optional
        Made on `optimizer`; not a ``ReduceLROnPlateau``. The wrapper calls its ``step()`` after
        each step of `optimizer`; do not call it yourself. With partial rounds nobody knows
        beforehand how many steps it makes: see Notes. A scheduler that the program steps itself is
        made on the wrapper: see there, too.
    clip_norm : float, optional
        Scales the gradient that is applied to at most this 2-norm, as
        ``torch.nn.utils.clip_grad_norm_`` does.
    overlap : int, optional
        Cuts the gradients into this many pieces (no more than parameters), which leave during
        backward already. Each piece has its own rounds and contributors, so it needs
        `Synchronous`, ``EagerSGD(Full())`` or ``deliver="sum"``, the latter without `sync_every`.
        Gradients must not be changed between backward and ``step()``.
        None: all gradients leave in ``step()``, in one round.
    policy : Policy or str, optional
        Short for ``method=EagerSGD(policy)``, such as ``"majority"`` or ``"quorum:4"``.
    before_round : callable, optional
        Called with the number of a round, `rounds`, on every rank before it applies this round: the
        place to set hyperparameters of `optimizer`, such as a rate, alike on all ranks. It needs
        `Synchronous`, or `EagerSGD` with ``deliver="each"``. An exception in it is one of the step.
    model : torch.nn.Module, optional
        Give it if it has buffers, such as those of BatchNorm: otherwise they stay each rank's own.
        Errors can name its parameters, too.
    device_path : {"auto", "staged", "ipc", "direct"}, optional
        For parameters on a device: how gradients, or models, get from rank to rank, as in
        `Context.Allreduce_init`. Models on the CPU have ``"auto"`` only.

    Attributes
    ----------
    optimizer : torch.optim.Optimizer
        The wrapped one.
    scheduler : LRScheduler or None
    device_path : str or None
        The one in use: ``"staged"``, ``"ipc"`` or ``"direct"``, the same on all ranks; several if
        the pieces of `overlap` differ. None for parameters on the CPU.
    device_path_reason : str
        Why the path asked for, or chosen, is not possible; else ``""``.

    Raises
    ------
    ArgumentError
        If an argument of this rank is wrong; the other ranks raise `MismatchError`.
    MismatchError
        If ranks differ in names, shapes or types of parameters or buffers, in memory formats of
        parameters, in the optimizer or its hyperparameters, or in an option; or if another rank's
        arguments are wrong, or it has no memory.
    MemoryError
        If this rank has no memory for a vector of gradients or parameters, on a device, too; the
        other ranks raise `MismatchError`. The context can be used further.

    Warns
    -----
    UserWarning
        On rank 0, without `sync_every`: with ``deliver="latest"``, and with ``"sum"`` unless the
        optimizer is plain SGD without `scheduler` and `clip_norm`, the ranks' models drift apart.
    UserWarning
        On rank 0, with ``deliver="each"`` under `Solo`, or `FirstOf` of more than one: there are
        more rounds than batches, and the optimizer is not plain SGD.
    UserWarning
        On rank 0, with partial rounds and ``deliver="each"``: `scheduler` is made for a number of
        steps, and may make more of them than a rank has batches.
    RuntimeWarning
        On rank 0, the first time that a `device_path` is not possible.

    Notes
    -----
    **Gradients.** After ``step()`` each ``p.grad`` is the gradient that was applied last, a view of
    one vector, until the next call. ``zero_grad()`` may keep these views or set them to None;
    ``step()`` copies gradients that lie elsewhere, and puts views in their places. It refuses those
    that it has applied, and nobody has written since. A parameter without a gradient on this rank
    counts as zeros. If no rank had one for it, its ``p.grad`` is None when the round is applied. A
    round without any gradient changes nothing. Half precision is widened to float32 on its way, and
    the vector is float64 if any parameter is.

    **Parameters.** They stay where they are, except with methods that average models: there
    ``p.data`` becomes a view of one vector, if it is contiguous and has the vector's type, and
    cannot be given other memory afterwards. Saving, loading and copying the model work as before.
    Parameters cannot be added, frozen, converted or moved to another device afterwards.

    **Replicas.** With `Synchronous`, and `EagerSGD` with ``deliver="each"``, ranks differ only if
    something else than rounds has written to parameters, state or hyperparameters. `flush` and
    `finish` compare them, give all ranks rank 0's where they differ, and warn on all ranks.

    **Devices.** All parameters that require a gradient are on the CPU, or all on one CUDA device;
    so they are on all ranks. On a device the vector is a tensor there, and all work is queued on
    the current stream: use the same one for a backward pass and the step behind it.

    **GradScaler.** ``scaler.step(wrapper)`` works as usual, on each rank with a scale of its own.
    Gradients are unscaled before they are contributed. A rank that skips its step contributes
    zeros, because the others may wait for it.

    **Schedules.** With ``deliver="each"`` the number of rounds, and so of the scheduler's steps, is
    at least that of the rank with the most batches, and at most the sum over all ranks. It depends
    on the time, unless the method is `Synchronous` or has the policy `Full` without a deadline:
    then it is the least. A ``OneCycleLR`` keeps its last rate in all further rounds. Others do what
    torch documents: ``CosineAnnealingLR`` comes up again behind ``T_max``.

    A scheduler that is made on the wrapper counts this rank's batches: the program, or its trainer,
    calls ``step()`` of it. It sets the rate of the rounds that this rank applies from then on. With
    partial rounds ranks are at different rounds in the same batch, and may apply a round with
    different rates. Then their replicas differ until the next `flush`: see above.

    **Other libraries.** Call `flush` on all ranks before one saves a checkpoint, which calls
    `state_dict`. Lightning does so itself, by `consolidate_state_dict`. Hooks that are registered
    on the wrapper are called once in a call of the wrapper; those of `optimizer`, once in a round.

    **Ends.** A rank with fewer batches than others calls `finish`, or leaves the ``with`` block,
    and serves the other ranks until all have done so. With `PartialReduce` and `Ripples` its model
    then counts by its few steps, as `pypartial.methods.Worker.finish` says. An exception that
    leaves the block communicates nothing and gives up the context, as with `Request`.

    Examples
    --------
    >>> with pp.Context(MPI.COMM_WORLD) as ctx:  # doctest: +SKIP
    ...     sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    ...     with pp.torch.DistributedOptimizer(sgd, ctx, model=model) as optimizer:
    ...         for x, y in batches:
    ...             optimizer.zero_grad()
    ...             loss(model(x), y).backward()
    ...             optimizer.step()
    """

    # For torch.amp.GradScaler: step() is called for a step to skip, too, with what it has found.
    _step_supports_amp_scaling = True

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        ctx: Context,
        method: Method | None = None,
        scheduler: Any = None,
        clip_norm: float | None = None,
        overlap: int | None = None,
        *,
        policy: Policy | str | None = None,
        before_round: Callable[[int], object] | None = None,
        model: torch.nn.Module | None = None,
        device_path: Literal["auto", "staged", "ipc", "direct"] = "auto",
    ) -> None:
        if not isinstance(ctx, Context):
            raise ArgumentError(f"ctx must be a pypartial.Context, not {ctx!r}")
        # No method sets an attribute of this object, or reads `optimizer`: Lightning calls them on
        # an object of its own, which finds all attributes here, but whose `optimizer` is this one.
        self.optimizer = self._inner = optimizer
        self.scheduler = scheduler
        self._ctx, self._clip_norm, self._before_round = ctx, clip_norm, before_round
        self._meeting = Meeting(ctx)
        with self._meeting.kept():
            self._agree(method, policy, overlap, model, device_path)
            copy(self._meeting, self._tensors)
            copy_state(self._meeting, self.optimizer, ctx.rank)
            self._driver = self._open(overlap, device_path)
        self.device_path, self.device_path_reason = path_in_use(self._driver.requests)
        # After the worker is there, which may have moved them.
        held = {id(p) for p in self._driver.held}
        self._seen = [Facts(p, id(p) in held) for _, p in self._parameters]
        is_replica = ctx.size > 1 and keeps_replicas(self._method, overlap)
        self._replica = Replica(self._meeting, optimizer, ctx.rank) if is_replica else None
        super().__setstate__({})  # makes what hooks need; __init__() would make groups, too
        if ctx.rank == 0:
            for text in self._method._advice(
                type(optimizer).__name__,
                ctx.size,
                is_linear=is_plain(optimizer) and clip_norm is None,
                schedule=fixed_length(scheduler),
            ):
                warn(text, UserWarning)

    # ---- construction ----------------------------------------------------------------------------

    def _agree(
        self,
        method: Method | None,
        policy: Policy | str | None,
        overlap: int | None,
        model: torch.nn.Module | None,
        device_path: str,
    ) -> None:
        """Check the arguments, and raise on all ranks if one has a problem."""
        complaint, lines, options = None, [], []
        try:
            self._method = choose(method, policy)
            self._check(overlap, model)
            trained = survey(self.optimizer, self._method, model)
            self._parameters, self._layout = trained.parameters, trained.layout
            self._buffers, self._tensors, lines = trained.buffers, trained.tensors, trained.lines
            check_path(device_path, self._layout.home)
            options = self._options(overlap, device_path)
        except Exception as error:  # the other ranks must learn of it
            complaint = as_argument_error(error)
        told = self._meeting.gather((complaint and str(complaint), lines, options))
        if complaint is not None:
            raise complaint
        for rank, (problem, _, _) in enumerate(told):
            if problem is not None:
                raise MismatchError(f"the arguments of rank {rank} are wrong: {problem}")
        compare("the models", [theirs for _, theirs, _ in told])
        compare("the optimizers", [theirs for _, _, theirs in told])

    def _check(self, overlap: int | None, model: torch.nn.Module | None) -> None:
        if not is_local(self.optimizer):
            raise ArgumentError(
                f"optimizer must be a torch.optim.Optimizer, not {kind(self.optimizer)}"
            )
        if isinstance(self.optimizer, torch.optim.LBFGS):
            raise ArgumentError("LBFGS computes gradients inside its step; it is not supported")
        if model is not None and not isinstance(model, torch.nn.Module):
            raise ArgumentError(f"model must be a torch.nn.Module, not {kind(model)}")
        inner = getattr(self.scheduler, "optimizer", None)
        if self.scheduler is not None and inner is not self.optimizer:
            raise ArgumentError("scheduler must be a scheduler that was made on this optimizer")
        if isinstance(self.scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
            raise ArgumentError(
                "ReduceLROnPlateau needs a metric in each step, which a round does not have. Do "
                "not pass it: call its step(metric) behind flush(), on all ranks with the same "
                "metric"
            )
        if self._clip_norm is not None:
            norm = real_number(self._clip_norm)
            if not norm > 0:
                raise ArgumentError(f"clip_norm must be above 0, not {self._clip_norm!r}")
            self._clip_norm = norm
        if overlap is not None:
            check_overlap(overlap, self._method)
        if not (self._before_round is None or callable(self._before_round)):
            raise ArgumentError(
                f"before_round must be a function of a round's number, not {self._before_round!r}"
            )
        if self._before_round is not None and not keeps_replicas(self._method, overlap):
            raise ArgumentError(
                "before_round needs rounds that all ranks apply one by one: Synchronous(), or "
                f"EagerSGD with deliver='each', not {self._method!r}"
            )
        check_world(self._ctx.size)

    def _options(self, overlap: int | None, device_path: str) -> list[str]:
        """Return what must be the same on all ranks beside the model, a line each."""
        groups = [
            f"group {number}: "
            + ", ".join(f"{key} {spell(value)}" for key, value in group.items() if key != "params")
            for number, group in enumerate(self.optimizer.param_groups)
        ]
        return [
            f"parameters on {self._layout.home.name}",
            f"the optimizer {type(self.optimizer).__name__}",
            f"method {self._method!r}",
            f"scheduler {type(self.scheduler).__name__}",
            f"clip_norm {self._clip_norm}",
            f"overlap {overlap}",
            f"device_path {device_path}",
            f"before_round {None if self._before_round is None else 'given'}",
            *groups,
        ]

    def _open(self, overlap: int | None, device_path: str) -> Driver:
        arguments = (self.optimizer, self._ctx, self._method, self._layout, self._meeting)
        if overlap is None:
            return Whole(*arguments, self._apply, device_path)
        count = check_overlap(overlap, self._method)
        return Pieces(*arguments, self._apply, device_path, count)

    # ---- steps -----------------------------------------------------------------------------------

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Contribute the gradients, and apply what the method says.

        Blocking, not collective: it waits as the method's policy or generator says. What it
        applies are steps of the wrapped optimizer, none, one or several; `rounds` counts them.

        Parameters
        ----------
        closure : callable, optional
            Computes the gradients: ``zero_grad()``, a forward and a backward pass. It is called
            once, before they are contributed.

        Returns
        -------
        object
            What `closure` returns; None without one.

        Raises
        ------
        ArgumentError
            If `closure` is not a function, or a GradScaler calls with one: it has looked at the
            gradients before; if a gradient is sparse. Nothing was communicated.
        Error
            After `finish`; inside `no_sync`; if parameters were added, frozen, unfrozen, converted
            or moved since the optimizer was made; if a gradient is the one that was applied last,
            which nobody has written since; with `overlap`, if gradients were changed since backward
            has contributed them, or a GradScaler calls. Nothing more was communicated.
        PeerFailedError
            If another rank has failed.
        """
        try:
            return (self._step_watched if self._is_watched() else self._step)(closure)
        except BaseException:
            # A GradScaler deletes them behind a step that returns. Its next step would multiply the
            # scale by the one that is still here.
            for name in ("grad_scale", "found_inf"):
                self.__dict__.pop(name, None)
            raise

    step.hooked = True  # type: ignore[attr-defined]  # or torch would make all steps watched ones

    def _step(self, closure: Callable[[], Any] | None) -> Any:
        self._live("step")
        # A GradScaler sets both for the time of the call. If it has unscaled the gradients before,
        # there is no scale.
        scale, found_inf = getattr(self, "grad_scale", None), getattr(self, "found_inf", None)
        value = None
        if closure is not None:
            if not callable(closure):
                raise ArgumentError(f"closure must be a function, not {kind(closure)}")
            if found_inf is not None:
                raise ArgumentError(
                    "a GradScaler has looked at the gradients before the closure computes them: "
                    "call the closure, and then scaler.step(optimizer)"
                )
            with torch.enable_grad():
                value = closure()
        check_parameters(self._inner, self._parameters, self._seen, self._method)
        factor = None
        if scale is not None:
            factor = float(scale.double().reciprocal())
        elif found_inf is not None:
            factor = 1.0
        self._driver.step(factor, found_inf is not None and float(found_inf) > 0)
        return value

    # It calls hooks, and tells a profiler: 8 us, which other steps need not take.
    _step_watched = torch.optim.Optimizer.profile_hook_step(_step)

    def _is_watched(self) -> bool:
        hooks = self._optimizer_step_pre_hooks, self._optimizer_step_post_hooks
        return any(hooks) or any(_OF_ALL_OPTIMIZERS) or _autograd._profiler_enabled()

    def _apply(self) -> None:
        """Make a step with the gradients that the parameters have."""
        if self._replica is not None:
            self._replica.notice()
        if self._before_round is not None:
            self._before_round(self._driver.rounds)
        if self._clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(self._layout.parameters, self._clip_norm)
        versions = self._versions()
        try:
            self._inner.step()
            self._driver.settle()  # whatever raises from here on
        except BaseException:
            if self._versions() != versions:  # it has applied the gradients, or a part of them
                self._driver.settle()
            raise
        if self.scheduler is not None and not is_over(self.scheduler):
            self.scheduler.step()
        if self._replica is not None:
            self._replica.remember()

    def _versions(self) -> list[int]:
        """Return how often torch has written each parameter."""
        return [p._version for p in self._layout.parameters]

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Reset all gradients, as ``zero_grad`` of the wrapped optimizer. Local."""
        self._inner.zero_grad(set_to_none)
        if not set_to_none and not self._driver.is_closed:
            self._driver.note_written()

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Only add up gradients for the time of a ``with`` block. Local.

        For all backward passes of a step but the last; `step` inside is an error. It is needed with
        `overlap` only, where backward contributes gradients.
        """
        self._live("no_sync")
        self._driver.is_paused = True
        try:
            yield
        finally:
            self._driver.is_paused = False

    # ---- ends ------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Apply everything that is on its way, on all ranks; then go on. Collective, blocking.

        All ranks have the same model afterwards: save checkpoints and evaluate here. Floating
        buffers that differ, such as running statistics, become the means over the ranks; other
        buffers that differ become rank 0's, and so do replicas that differ (see Notes). With
        `PartialReduce` and `Ripples` models count by the steps of their ranks, and buffers and the
        optimizer's state by those with a gradient: see `pypartial.methods.Worker.flush`. State that
        a rank does not have yet stays each rank's own. All gradients become None. A rank in
        `finish` takes part.

        Raises
        ------
        Error
            If a gradient waits for its ``step()``; nothing was communicated.
        """
        self._live("flush")
        self._meet(is_end=False)

    def consolidate_state_dict(self, to: int = 0) -> None:
        """Flush, so that `state_dict` may be called. Collective, blocking.

        Lightning calls it when it saves a checkpoint, as ``ZeroRedundancyOptimizer`` needs.

        Parameters
        ----------
        to : int, optional
            Without a meaning here: all ranks have the state.
        """
        self.flush()

    def finish(self) -> None:
        """End the training: `flush`, as often as ranks that still make steps need it.

        Collective, blocking. A rank that has no more batches calls it, and takes part in what the
        other ranks do until all have called it. Afterwards the model is the same on all ranks. A
        gradient that no `step` has taken is dropped; with `overlap` that raises `Error`, because
        parts of it may have left.
        """
        self._live("finish")
        while not all(is_end for is_end, _ in self._meet(is_end=True)):
            pass
        self._driver.close()
        self._meeting.close()
        self._driver.is_closed = True

    def _meet(self, is_end: bool, value: Any = None) -> list[tuple[bool, Any]]:
        """Make a flush together with all ranks; return for each whether it ends, and its value."""
        self._driver.flush(is_end)
        if self._replica is not None:
            self._replica.settle()
        settle(self._meeting, self._buffers, self._driver.weights)
        return self._meeting.gather((is_end, value))

    def mean(self, value: Any) -> Any:
        """Return the mean of a number or a tensor over the ranks that have not finished.

        Blocking. All ranks that have not begun `finish` call it, at the same place of their loops.
        A rank that is in another collective call, such as `finish` or `flush`, is not waited for,
        and does not count. Use it for a metric. While a rank waits
        here the rounds go on without it. With ``EagerSGD(sync_every=...)``, and with `overlap` in
        `Synchronous` and ``EagerSGD(Full())``, it is a `flush` as well.

        Parameters
        ----------
        value : float or torch.Tensor
            A tensor is floating, on any device. It is averaged in float64.

        Returns
        -------
        float or torch.Tensor
            The same on all ranks that call. Of a tensor, a new one of its shape, type and device.

        Raises
        ------
        ArgumentError
            If `value` is neither, or a tensor of integers or complex numbers; nothing was
            communicated.
        MismatchError
            If ranks average values of different shapes or types.
        Error
            After `finish`; where it is a flush, as `flush`.
        PeerFailedError
            If another rank has failed.

        Examples
        --------
        >>> loss = optimizer.mean(loss.detach())  # doctest: +SKIP
        """
        self._live("mean")
        return mean_of(value, self._mean)

    def _mean(self, vector: Any, kind: str) -> Any:
        if not (self._driver.meets_in_steps or self._driver.ends_in_rounds):
            return self._meeting.mean(vector, kind)
        told = [theirs for _, theirs in self._meet(False, (vector, kind)) if theirs is not None]
        compare("the values of mean()", [[theirs] for _, theirs in told])
        return sum(values for values, _ in told) / len(told)

    def away(self) -> AbstractContextManager[None]:
        """Leave all rounds for the time of a ``with`` block of the application's own.

        Collective. Put blocking calls of all ranks in here: an allreduce of a metric, a barrier.
        See `pypartial.methods.Worker.away`.
        """
        self._live("away")
        if self._driver.meets_in_steps:
            self._driver.flush(is_end=False)
        return self._ctx.away()

    def __enter__(self) -> DistributedOptimizer:
        """Return the optimizer; the end of the ``with`` block calls `finish`."""
        self._live("with")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Finish; after an exception give the context up, which waits for nobody."""
        if self._driver.is_closed:
            return
        block = "the with block of DistributedOptimizer"
        if error is not None:
            self._abandon(error, block)
            return
        try:
            self.finish()
        except CORE_ERRORS:  # the context says why
            raise
        except BaseException as interrupt:
            self._abandon(interrupt, block)
            raise

    def _abandon(self, error: BaseException, block: str) -> None:
        self._driver.leave()
        self._ctx._abandon(error, block)

    def _live(self, call: str) -> None:
        if self._driver.is_closed:
            raise Error(f"{call}() after finish(): make a new DistributedOptimizer")
        if self._driver.is_paused:
            raise Error(f"{call}() inside no_sync()")

    # ---- checkpoints -----------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the optimizer, the scheduler and the method. Local.

        Call `flush` on all ranks before. The model's state is not in it.

        Returns
        -------
        dict
            ``optimizer``, ``scheduler`` (None without one), and ``worker``, whose ``seed`` a
            context needs that goes on with the same draws.

        Raises
        ------
        Error
            If steps were made since the last `flush`.
        """
        for hook in self._optimizer_state_dict_pre_hooks.values():
            hook(self)
        state = {
            "optimizer": self._inner.state_dict(),
            "scheduler": None if self.scheduler is None else self.scheduler.state_dict(),
            "worker": self._driver.state_dict(),
        }
        for change in self._optimizer_state_dict_post_hooks.values():
            state = change(self, state) or state
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over what `state_dict` returned. Local; on every rank, before the first step.

        Raises
        ------
        ArgumentError
            If the state is of something else: another method, or without the scheduler.
        Error
            After the first step.
        """
        self._live("load_state_dict")
        state = state_dict.copy() if isinstance(state_dict, dict) else state_dict  # for hooks
        for change in self._optimizer_load_state_dict_pre_hooks.values():
            state = change(self, state) or state
        if not isinstance(state, dict) or set(state) != _PARTS:
            raise ArgumentError(
                f"state must be what state_dict returned, with {sorted(_PARTS)}. Load the state of "
                "the optimizer alone into it, before it is wrapped"
            )
        if (state["scheduler"] is None) != (self.scheduler is None):
            raise ArgumentError(
                "the state has a scheduler and this optimizer has none, or vice versa"
            )
        self._driver.load_state_dict(state["worker"])
        self._inner.load_state_dict(state["optimizer"])
        if self.scheduler is not None:
            self.scheduler.load_state_dict(state["scheduler"])
        if self._replica is not None:
            self._replica.remember()
        for hook in self._optimizer_load_state_dict_post_hooks.values():
            hook(self)

    # ---- what it is ------------------------------------------------------------------------------

    @property
    def status(self) -> Status | None:
        """Of the round, or group, that was applied last."""
        return self._driver.status

    @property
    def rounds(self) -> int:
        """How many rounds were applied on this rank: see `pypartial.methods.Worker`."""
        return self._driver.rounds

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The wrapped optimizer's; set hyperparameters by `before_round`, or after `flush`."""
        return self._inner.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        """The wrapped optimizer's."""
        return self._inner.state

    @property
    def defaults(self) -> dict[str, Any]:  # type: ignore[override]
        """The wrapped optimizer's."""
        return self._inner.defaults

    def add_param_group(self, param_group: dict[str, Any]) -> NoReturn:
        """Refused: all parameters must be there when the optimizer is made."""
        raise Error("parameters cannot be added: make a new DistributedOptimizer")

    def __getstate__(self) -> NoReturn:
        raise Error("a DistributedOptimizer cannot be copied: save what state_dict() returns")

    def __repr__(self) -> str:
        return f"DistributedOptimizer({self._inner!r}, {self._method!r})"


def is_local(optimizer: object) -> bool:
    """Return whether it is an optimizer of torch that does not reduce gradients itself."""
    is_one = isinstance(optimizer, torch.optim.Optimizer)
    return is_one and not isinstance(optimizer, DistributedOptimizer)
