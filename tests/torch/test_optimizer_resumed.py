"""Steps that an exception has ended, and the calls behind them: nothing is lost, nothing twice."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import pypartial as pp
import pypartial.torch
from pypartial.methods import EagerSGD, PartialReduce, Synchronous
from pypartial.torch.gradients import Gradients

pytestmark = [pytest.mark.mpi(min_size=2), pytest.mark.sizes(2, 3)]


@contextmanager
def ended_by(
    error: type[BaseException], owner: Any, call: str, *, behind: bool = False, at: int = 1
) -> Iterator[None]:
    """Have calls of a function raise, and expect the block to end by it.

    `behind`: they raise behind what they do. `at`: the first one that raises.
    """
    own, calls = getattr(owner, call), count(1)

    def raises(*given: object) -> None:
        is_due = next(calls) >= at
        if behind or not is_due:
            own(*given)
        if is_due:
            raise error("this test ends it")

    setattr(owner, call, raises)
    try:
        with pytest.raises(error, match="this test ends it"):
            yield
    finally:
        setattr(owner, call, own)


def request_of(opt: Any) -> Any:
    return opt._driver.requests[0] if opt._driver.requests else opt._driver._worker._request


def sgd(*parameters: nn.Parameter) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=1.0)


@pytest.mark.parametrize("error", [MemoryError, pp.Error, KeyboardInterrupt])
@pytest.mark.parametrize("overlap", [None, 1])
@pytest.mark.parametrize("method", [Synchronous(), EagerSGD(pp.Full(), deliver="sum")])
def test_a_start_that_fails_may_be_repeated(comm, ctx, method, overlap, error):
    """It has contributed nothing."""
    w = nn.Parameter(torch.zeros(3))
    with pp.torch.DistributedOptimizer(sgd(w), ctx, method, overlap=overlap) as opt:
        for _ in range(2):
            refused = comm.rank == 0 and ended_by(error, request_of(opt), "_pp_start")
            loss = w.sum()
            if refused and overlap:
                with refused:
                    loss.backward()
            else:
                loss.backward()
            if refused and not overlap:
                with refused:
                    opt.step()
            opt.step()
            opt.zero_grad()
    assert w.tolist() == [-2.0] * 3


@pytest.mark.parametrize("method", [Synchronous(), EagerSGD(pp.Full(), deliver="sum")])
def test_an_interrupted_step_is_applied_by_a_flush(comm, ctx, method):
    """Until then its gradient is on its way, and the next pass writes to other memory."""
    w = nn.Parameter(torch.zeros(3))
    opt = pp.torch.DistributedOptimizer(torch.optim.SGD([w], lr=1.0), ctx, method)
    w.sum().backward()
    opt.step()
    opt.zero_grad(set_to_none=False)
    (2 * w).sum().backward()
    if comm.rank == 0:
        with ended_by(KeyboardInterrupt, request_of(opt), "_pp_wait"):
            opt.step()
        opt.zero_grad(set_to_none=False)
        (100 * w).sum().backward()
        with pytest.raises(pp.Error, match=r"on its way: call flush\(\) or finish\(\)"):
            opt.step()
        opt.zero_grad()
    comm.Barrier()
    if comm.rank:
        opt.step()
    opt.flush()
    assert w.tolist() == [-3.0] * 3
    opt.finish()


@pytest.mark.parametrize("where", ["Start", "flags", "multiplied", "not multiplied"])
@pytest.mark.parametrize("groups", [False, True])
def test_a_repeated_step_is_unscaled_once(comm, ctx, groups, where):
    w = nn.Parameter(torch.zeros(3))
    method = PartialReduce(comm.size) if groups else Synchronous()
    with pp.torch.DistributedOptimizer(sgd(w), ctx, method) as opt:
        gradients = opt._driver._gradients
        owner, call = {
            "Start": (gradients, "keep") if groups else (request_of(opt), "_pp_start"),
            "flags": (gradients._flags, "write"),
            "multiplied": (torch.Tensor, "mul_"),
            "not multiplied": (torch.Tensor, "mul_"),
        }[where]
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        for step in range(3):
            opt.zero_grad(set_to_none=False)
            scaler.scale(w.sum()).backward()
            if step:
                with ended_by(pp.Error, owner, call, behind=where == "multiplied"):
                    scaler.step(opt)
            scaler.step(opt)
            scaler.update()
    assert w.tolist() == [-3.0] * 3


@pytest.mark.parametrize(
    ("overlap", "call"), [(None, "_take_over"), (None, "settle"), (1, "_note_applied")]
)
@pytest.mark.parametrize("groups", [False, True])
def test_a_gradient_is_applied_once_if_the_end_of_its_step_is_interrupted(
    comm, ctx, groups, overlap, call
):
    """Gradients are made in place, where a repeated step cannot tell new ones from old ones."""
    if groups and overlap:
        pytest.skip("groups have no overlap")
    w = nn.Parameter(torch.zeros(3))
    method = PartialReduce(comm.size) if groups else Synchronous()
    with pp.torch.DistributedOptimizer(sgd(w), ctx, method, overlap=overlap) as opt:
        for step in range(4):
            opt.zero_grad(set_to_none=False)
            w.sum().backward()
            if step in (1, 3):
                opt.step()
                continue
            at = 2 if call == "settle" else 1  # the first is in the optimizer's step: a defect
            with ended_by(KeyboardInterrupt, opt._driver, call, behind=True, at=at):
                opt.step()
            with pytest.raises(pp.Error, match=r"was applied by the last step\(\)"):
                opt.step()
    assert w.tolist() == [-4.0] * 3


@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize("in_place", [False, True])
def test_an_interrupt_of_the_optimizer_with_groups(comm, ctx, in_place, behind):
    """If the optimizer has written the parameters, the gradient is not applied again."""
    w = nn.Parameter(torch.zeros(3))
    inner = sgd(w)
    with pp.torch.DistributedOptimizer(inner, ctx, PartialReduce(comm.size)) as opt:
        for _ in range(3):
            opt.zero_grad(set_to_none=not in_place)
            w.sum().backward()
            with ended_by(KeyboardInterrupt, inner, "step", behind=behind):
                opt.step()
            if behind:
                with pytest.raises(pp.Error, match=r"was applied by the last step\(\)"):
                    opt.step()
            else:
                opt.step()
    assert w.tolist() == [-3.0] * 3


def test_a_model_that_lacks_a_round_is_told_before_its_gradients(comm):
    w = nn.Parameter(torch.zeros(3))
    with pytest.raises(pp.Error, match="lacks round"), pp.Context(comm) as ctx:
        opt = pp.torch.DistributedOptimizer(sgd(w), ctx, Synchronous())
        w.sum().backward()
        with ended_by(ValueError, opt._driver, "settle", behind=True):
            opt.step()
        ctx.comm.Barrier()  # this rank gives up the context below
        opt.step()


@pytest.mark.parametrize("overlap", [None, 1])
def test_a_gradient_of_zeros_waits_for_no_step(comm, ctx, overlap):
    """Wherever it lies: ``zero_grad(set_to_none=False)`` clears one that backward has made."""
    w = nn.Parameter(torch.zeros(3))
    with pp.torch.DistributedOptimizer(sgd(w), ctx, Synchronous(), overlap=overlap) as opt:
        with opt.no_sync():
            w.sum().backward()
        with pytest.raises(pp.Error, match="waits for its step"):
            opt.flush()
        opt.zero_grad(set_to_none=False)
        opt.flush()
        w.sum().backward()
        opt.step()
    assert w.tolist() == [-1.0] * 3


class _Watch(TorchDispatchMode):
    """Sees all operations, as ``FlopCounterMode`` does; torch does not count all writes then."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("overlap", [None, 1])
def test_gradients_that_are_set_to_zero_under_a_mode(comm, ctx, overlap):
    w = nn.Parameter(torch.zeros(3))
    inner = torch.optim.SGD([w], lr=1.0, foreach=True)
    with pp.torch.DistributedOptimizer(inner, ctx, Synchronous(), overlap=overlap) as opt:
        w.sum().backward()
        opt.step()
        with _Watch():
            opt.zero_grad(set_to_none=False)
        opt.step()
    assert w.tolist() == [-1.0] * 3


def test_a_gradient_is_applied_once_if_its_group_is_interrupted(comm, ctx):
    w = nn.Parameter(torch.zeros(3))
    with pp.torch.DistributedOptimizer(sgd(w), ctx, PartialReduce(comm.size)) as opt:
        w.sum().backward()
        if comm.rank:
            opt.step()
        else:
            with ended_by(KeyboardInterrupt, request_of(opt), "_pp_wait_slice"):
                opt.step()
        opt.flush()
    assert w.tolist() == [-1.0] * 3


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("call", ["_pp_start", "_pp_wait_slice"])
def test_a_gradient_is_applied_once_if_its_group_is_not_made(comm, ctx, call, set_to_none):
    """A step that is repeated says so, also where gradients are made in place."""
    w = nn.Parameter(torch.zeros(3))
    with pp.torch.DistributedOptimizer(sgd(w), ctx, PartialReduce(comm.size)) as opt:
        for step in range(3):
            opt.zero_grad(set_to_none)
            w.sum().backward()
            if step == 1:
                error = pp.Error if call == "_pp_start" else KeyboardInterrupt
                with ended_by(error, request_of(opt), call):
                    opt.step()
                for _ in range(2):
                    with pytest.raises(pp.Error, match="was applied by the last"):
                        opt.step()
                opt.zero_grad()
            opt.step()
    assert w.tolist() == [-3.0] * 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_step_that_is_repeated_behind_the_optimizers_own_error(comm, ctx, dtype):
    """Nothing was applied: the scaled gradient is divided by the scale once."""
    w = nn.Parameter(torch.zeros(3, dtype=dtype))
    optimizer = sgd(w, nn.Parameter(torch.zeros(1)))  # which makes the vector one of float32
    with pp.torch.DistributedOptimizer(optimizer, ctx, PartialReduce(comm.size)) as opt:
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        scaler.scale(w.float().sum()).backward()
        with ended_by(KeyError, optimizer, "step"):
            scaler.step(opt)
        scaler.step(opt)
    assert w.tolist() == [-1.0] * 3


def test_a_scheduler_that_raises_behind_the_update(comm, ctx):
    """The gradient was applied, and a flush does not find it waiting."""
    w = nn.Parameter(torch.zeros(3))
    optimizer = sgd(w)
    scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0)
    method = PartialReduce(comm.size)
    with pp.torch.DistributedOptimizer(optimizer, ctx, method, scheduler=scheduler) as opt:
        w.sum().backward()
        with ended_by(ZeroDivisionError, scheduler, "step"):
            opt.step()
        opt.flush()
    assert w.tolist() == [-1.0] * 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("then", ["step", "flush"])
@pytest.mark.parametrize("failed", ["step", "flush"])
def test_what_the_application_writes_behind_an_error_stays(comm, ctx, failed, then, dtype):
    """Such as the parameters of a checkpoint."""
    v, w = nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(3, dtype=dtype))
    optimizer = torch.optim.SGD([v, w], lr=1.0, momentum=0.5)
    with pp.torch.DistributedOptimizer(optimizer, ctx, PartialReduce(comm.size)) as opt:
        (v + w.float()).sum().backward()
        if failed == "step":
            with ended_by(pp.Error, request_of(opt), "_pp_start"):
                opt.step()
        else:
            opt.step()
            state = optimizer.state[v]
            good = state["momentum_buffer"]
            state["momentum_buffer"] = torch.zeros(2 if comm.rank == 0 else 3)
            with pytest.raises(pp.MismatchError, match="the optimizers' states differ"):
                opt.flush()
            state["momentum_buffer"] = good
        opt.zero_grad()
        with torch.no_grad():
            for parameter in (v, w):
                parameter.fill_(5.0)
        getattr(opt, then)()
    assert (v.tolist(), w.tolist()) == ([5.0] * 3, [5.0] * 3)


@pytest.mark.parametrize("overlap", [None, 1])
@pytest.mark.parametrize("call", ["step", "flush"])
def test_an_interrupt_right_behind_the_update(comm, call, overlap):
    """The update counts as one that raised, and its gradient is not applied again."""
    w = nn.Parameter(torch.zeros(3))
    with pytest.raises(pp.Error, match=r"KeyboardInterrupt"), pp.Context(comm) as ctx:
        opt = pp.torch.DistributedOptimizer(sgd(w), ctx, Synchronous(), overlap=overlap)
        w.sum().backward()
        with ended_by(KeyboardInterrupt, Gradients, "settle"):
            opt.step()
        ctx.comm.Barrier()  # this rank gives up the context below
        if call == "flush":
            opt.zero_grad()
        getattr(opt, call)()
    assert w.tolist() == [-1.0] * 3


@pytest.mark.parametrize("overlap", [1, 2])
def test_a_flush_behind_an_interrupted_step_without_a_batch(comm, ctx, overlap):
    """It ends the step; what is on its way does not say that this rank is in a flush."""
    v, w = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(3))
    opt = pp.torch.DistributedOptimizer(sgd(v, w), ctx, Synchronous(), overlap=overlap)
    (v.sum() + w.sum()).backward()
    opt.step()
    opt.zero_grad()
    if comm.rank == 0:
        with ended_by(KeyboardInterrupt, request_of(opt), "_pp_wait"):
            opt.step()
    comm.Barrier()
    if comm.rank == 1:
        (v.sum() + w.sum()).backward()
    if comm.rank:
        opt.step()
    opt.flush()
    learned = -1 - 1 / comm.size
    torch.testing.assert_close(torch.cat([v, w]).detach(), torch.full((5,), learned))
    opt.finish()


@pytest.mark.parametrize("then", [False, True])
@pytest.mark.parametrize("call", ["step", "flush"])
def test_what_a_group_gives_an_interrupted_step_is_taken_over(comm, ctx, call, then):
    """Also by parameters that are no views of the vector; before and behind the wait's end."""
    v = nn.Parameter(torch.zeros(3))
    w = nn.Parameter(torch.zeros(3, dtype=torch.bfloat16))
    with pp.torch.DistributedOptimizer(sgd(v, w), ctx, PartialReduce(comm.size)) as opt:
        ((comm.rank + 1) * (v + w.float()).sum()).backward()
        if comm.rank:
            opt.step()
        elif then:
            with ended_by(KeyboardInterrupt, opt._driver, "_take_over"):
                opt.step()
        else:
            with ended_by(KeyboardInterrupt, request_of(opt), "_pp_wait_slice"):
                opt.step()
        opt.zero_grad()
        comm.Barrier()  # the group has written the vector
        if call == "step":
            opt.step()
        opt.flush()
    mean = -(comm.size + 1) / 2
    assert (v.tolist(), w.tolist()) == ([mean] * 3, [mean] * 3)


def test_steps_without_a_gradient_do_not_count_for_a_buffer(comm, ctx):
    """No group has averaged it, so it has learned nothing in them; nor has momentum."""
    model = nn.BatchNorm1d(1, momentum=1.0)
    momentum = torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.5)
    method = PartialReduce(comm.size)
    with pp.torch.DistributedOptimizer(momentum, ctx, method, model=model) as opt:
        for step in range(4):
            opt.zero_grad()
            if comm.rank == 0 or step == 0:
                model(torch.full((2, 1), float(comm.rank == 0))).sum().backward()
            opt.step()
    assert model.running_mean.item() == pytest.approx(4 / (4 + comm.size - 1))


def test_a_rank_without_a_gradient_does_not_keep_the_others_from_averaging_their_state(comm, ctx):
    w = nn.Parameter(torch.zeros(3))
    adam = torch.optim.Adam([w], lr=0.125)
    with pp.torch.DistributedOptimizer(adam, ctx, PartialReduce(comm.size)) as opt:
        if comm.rank < comm.size - 1:
            ((comm.rank + 1) * w).sum().backward()
        opt.step()
    if comm.rank == comm.size - 1:
        assert not adam.state[w]
    else:
        torch.testing.assert_close(adam.state[w]["exp_avg"], torch.full((3,), 0.1 * comm.size / 2))
