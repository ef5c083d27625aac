"""What the hook refuses and warns of, and errors in rounds."""

from __future__ import annotations

import inspect
import warnings

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import pypartial as pp
from pypartial.torch import HookState, partial_allreduce_hook

NEW = "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters
NO_BROADCAST = {"forward_sync_buffers" if NEW else "broadcast_buffers": False}


def plain(ddp):
    return torch.optim.SGD(ddp.parameters(), lr=0.1)


def normed():
    return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))


class Sparse(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(3, 2, sparse=True)


def made(ctx, **options):
    """Return a small DDP module with the hook, its optimizer, its state, and what makes a step."""
    ddp = DistributedDataParallel(nn.Linear(2, 1))
    optimizer = plain(ddp)
    state = HookState(ctx, ddp, optimizer=optimizer, **options)
    ddp.register_comm_hook(state, partial_allreduce_hook)

    def run():
        ddp(torch.ones(1, 2)).sum().backward()
        optimizer.step()

    return ddp, optimizer, state, run


# Of HookState: the model, options of DDP, options of the state, and the text.
REFUSED = {
    "each": (nn.Linear, {}, {"deliver": "each"}, "use DistributedOptimizer"),
    "deliver": (nn.Linear, {}, {"deliver": "all"}, "must be 'sum' or 'latest', not 'all'"),
    "average": (nn.Linear, {}, {"average": None}, "average must be .* not None"),
    "policy": (nn.Linear, {}, {"policy": nn.Linear}, "policy must be pypartial.Solo.* not <class"),
    "text": (nn.Linear, {}, {"policy": "fll"}, "'fll' is not a policy"),
    "sync_every": (nn.Linear, {}, {"sync_every": 0}, r"sync_every must be in 1\.\.\d+, not 0"),
    "sync without": (nn.Linear, {}, {"sync_every": 5}, "sync_every needs optimizer="),
    "optimizer": (nn.Linear, {}, {"optimizer": 3}, "must be a torch.optim.Optimizer, not 3"),
    "path": (
        nn.Linear,
        {},
        {"device_path": "nvlink"},
        "device_path must be one of .* not 'nvlink'",
    ),
    "sparse": (lambda *_: Sparse(), {}, {}, "table has sparse gradients"),
    "buffers": (lambda *_: normed(), {}, {}, r"\(1.running_mean\).*_buffers=False"),
}


@pytest.mark.mpi
@pytest.mark.parametrize("case", REFUSED)
def test_refused_by_name(ctx, comm, gloo, case):
    make, options_of_ddp, options, text = REFUSED[case]
    ddp = DistributedDataParallel(make(2, 1), **options_of_ddp)
    with pytest.raises(pp.ArgumentError, match=text):
        HookState(ctx, ddp, **options)


@pytest.mark.mpi(min_size=2)
def test_one_wrong_rank_is_an_error_on_all(ctx, comm, gloo):
    ddp = DistributedDataParallel(nn.Linear(2, 1))
    error = pp.ArgumentError if comm.rank == 1 else pp.MismatchError
    with pytest.raises(error, match="deliver must be 'sum' or 'latest', not 'x'"):
        HookState(ctx, ddp, deliver="x" if comm.rank == 1 else "sum")


@pytest.mark.mpi(min_size=2)
def test_models_of_other_names_are_refused(ctx, comm, gloo):
    model = nn.Module()
    model.register_module("one" if comm.rank else "two", nn.Linear(2, 1, bias=False))
    ddp = DistributedDataParallel(model)
    with pytest.raises(pp.MismatchError, match=r"rank 0 has two\.weight.* and rank 1 one\.weight"):
        HookState(ctx, ddp)


@pytest.mark.mpi(min_size=2)
def test_options_that_differ_are_refused(ctx, comm, gloo):
    ddp = DistributedDataParallel(nn.Linear(2, 1))
    with pytest.raises(pp.MismatchError, match=r"rank 0 has .*Solo.*, and rank 1 .*Full"):
        HookState(ctx, ddp, policy=pp.Full() if comm.rank else pp.Solo())


@pytest.mark.mpi
def test_other_objects_are_refused(ctx, comm, gloo):
    with pytest.raises(pp.ArgumentError, match="DistributedDataParallel, not Linear"):
        HookState(ctx, nn.Linear(2, 1))
    ddp = DistributedDataParallel(nn.Linear(2, 1))
    with pytest.raises(pp.ArgumentError, match=r"ctx must be a pypartial\.Context, not 3"):
        HookState(3, ddp)


@pytest.mark.mpi
@pytest.mark.parametrize("is_later", [False, True])
def test_an_optimizer_that_reduces_gradients_is_refused(ctx, comm, gloo, is_later):
    """The hook has reduced them already."""
    ddp = DistributedDataParallel(nn.Linear(2, 1))
    told = "Optimizer.*not DistributedOptimizer"
    with pp.torch.DistributedOptimizer(plain(ddp), ctx) as wrapper:
        if not is_later:
            with pytest.raises(pp.ArgumentError, match=told):
                HookState(ctx, ddp, optimizer=wrapper)
    if is_later:
        _, optimizer, state, run = made(ctx)
        run()
        with pytest.raises(pp.ArgumentError, match=told):
            state.finish(wrapper)
        state.finish(optimizer)


@pytest.mark.mpi(min_size=2)
def test_a_context_of_another_size_is_refused(comm, gloo):
    from mpi4py import MPI

    ddp = DistributedDataParallel(nn.Linear(2, 1))
    with (
        pp.Context(MPI.COMM_SELF) as alone,
        pytest.raises(pp.ArgumentError, match=f"has 1 ranks, .*process group {comm.size}"),
    ):
        HookState(alone, ddp)


@pytest.mark.mpi
def test_a_freed_context_is_refused(comm, gloo):
    ctx = pp.Context(comm)
    ctx.Free()
    ddp = DistributedDataParallel(nn.Linear(2, 1))
    with pytest.raises(pp.Error, match="freed"):
        HookState(ctx, ddp)


@pytest.mark.mpi
def test_buffers_are_accepted_without_broadcasts(ctx, comm, gloo):
    ddp = DistributedDataParallel(normed(), **NO_BROADCAST)
    state = HookState(ctx, ddp, policy=pp.Full())
    ddp.register_comm_hook(state, partial_allreduce_hook)
    ddp(torch.ones(2, 2)).sum().backward()
    state.finish(plain(ddp))


# Options of the state, what momentum the optimizer has, and whether a warning is due.
DRIFT = [
    ({}, None, True),
    ({}, 0.0, False),
    ({}, 0.9, True),
    ({}, "scheduled", True),
    ({"policy": "full"}, None, False),
    ({"policy": "full,deadline=60s"}, 0.9, True),
    ({"deliver": "latest"}, 0.0, True),
    ({"sync_every": 5}, 0.9, False),
]


@pytest.mark.mpi
@pytest.mark.parametrize(("options", "momentum", "due"), DRIFT)
def test_drift_is_warned_of(ctx, comm, gloo, options, momentum, due):
    ddp = DistributedDataParallel(nn.Linear(2, 1))
    optimizer = plain(ddp)
    if momentum == "scheduled":
        torch.optim.lr_scheduler.StepLR(optimizer, 5)
    elif momentum is not None:
        optimizer.param_groups[0]["momentum"] = momentum
    if momentum is not None:
        options = {**options, "optimizer": optimizer}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        state = HookState(ctx, ddp, **options)
    assert ["drift" in str(one.message) for one in caught] == [True] * due
    assert all(one.filename == __file__ for one in caught)
    ddp.register_comm_hook(state, partial_allreduce_hook)
    ddp(torch.ones(2, 2)).sum().backward()
    state.finish(optimizer)


@pytest.mark.mpi
def test_find_unused_parameters_is_warned_of(ctx, comm, gloo):
    ddp = DistributedDataParallel(nn.Linear(2, 1), find_unused_parameters=True)
    with pytest.warns(UserWarning, match="wait for all ranks in every step"):
        state = HookState(ctx, ddp, policy=pp.Full())
    ddp.register_comm_hook(state, partial_allreduce_hook)
    ddp(torch.ones(2, 2)).sum().backward()
    state.finish(plain(ddp))


@pytest.mark.mpi
def test_one_state_serves_one_module(ctx, comm, gloo):
    _, _, state, run = made(ctx)
    run()
    other = DistributedDataParallel(nn.Linear(2, 1))
    other.register_comm_hook(state, partial_allreduce_hook)
    with pytest.raises(pp.Error, match="registered with another DDP module"):
        other(torch.ones(1, 2)).sum().backward()
    state.finish()


@pytest.mark.mpi
def test_finish_refuses_what_would_hang_others(ctx, comm, gloo):
    _, _, state, run = made(ctx)
    with pytest.raises(pp.Error, match="0 backward passes; every rank must make at least 1"):
        state.finish()
    with pytest.raises(pp.ArgumentError, match=r"must be the torch\.optim\.Optimizer .* not 3"):
        state.finish(3)
    run()
    state.finish()
    with pytest.raises(pp.Error, match="finish was called before"):
        state.finish()
    with pytest.raises(pp.Error, match=r"backward pass after HookState\.finish"):
        run()


@pytest.mark.mpi
def test_an_error_in_a_round_is_raised_by_backward(comm, gloo):
    """With its class and its text."""
    with pytest.raises(KeyError), pp.Context(comm) as ctx:
        _, _, _, run = made(ctx)
        run()
        run()
        ctx.comm.Barrier()  # this rank gives up the context below
        raise KeyError("of the application")
    with pytest.raises(pp.Error, match=r"(?s)abandoned.*of the application") as caught:
        run()
    assert type(caught.value) is pp.Error


@pytest.mark.mpi
def test_an_optimizer_goes_on_behind_a_context_that_was_given_up(comm, gloo):
    with pytest.raises(KeyError), pp.Context(comm) as ctx:
        ddp, optimizer, _, run = made(ctx, policy=pp.Full(), sync_every=1)
        run()
        ddp(torch.ones(1, 2)).sum().backward()  # a round, behind which the ranks would meet
        ctx.comm.Barrier()  # this rank gives up the context below
        raise KeyError("mine")
    steps = []
    optimizer.register_step_post_hook(lambda *_: steps.append(None))  # of the application
    for _ in range(3):
        optimizer.step()
    assert len(steps) == 3
    with pytest.raises(pp.Error, match="abandoned"):
        ddp(torch.ones(1, 2)).sum().backward()
    assert len(optimizer._optimizer_step_post_hooks) == 1
    comm.Barrier()


def interrupted(*rest):
    raise KeyboardInterrupt


@pytest.mark.mpi
def test_an_interrupt_in_a_round_is_raised_by_backward(comm, gloo):
    with pytest.raises(KeyboardInterrupt), pp.Context(comm) as ctx:
        _, _, state, run = made(ctx)
        run()

        state._request._pp_wait = interrupted
        with pytest.raises(KeyboardInterrupt):
            run()
        ctx.comm.Barrier()  # this rank gives up the context below
        raise KeyboardInterrupt


@pytest.mark.mpi
@pytest.mark.parametrize("where", ["backward", "flush"])
@pytest.mark.parametrize("call", ["flush", "finish", "step"])
def test_an_interrupt_behind_a_round(comm, gloo, where, call, monkeypatch):
    """The round is collected, and no gradient: each further call says that the model lacks it."""
    lacks = r"an exception has ended a round of this rank, whose model lacks round \d"
    with pytest.raises(pp.Error, match=lacks), pp.Context(comm) as ctx:
        _, optimizer, state, run = made(ctx, policy=pp.Full(), sync_every=9)
        run()
        run()
        request = state._request
        wait, flush = request._pp_wait, type(request)._collect_call
        if where == "backward":
            request._pp_wait = lambda *rest: interrupted() if wait(*rest) == 0 else 1
        else:
            patch = lambda *rest: interrupted(flush(*rest))  # noqa: E731
            monkeypatch.setattr(type(request), "_collect_call", patch)
        with pytest.raises(KeyboardInterrupt):
            run() if where == "backward" else state.flush()
        request._pp_wait = wait
        monkeypatch.undo()
        ctx.comm.Barrier()  # this rank gives up the context below
        optimizer.step() if call == "step" else getattr(state, call)()


@pytest.mark.mpi
def test_an_interrupt_before_a_round_loses_nothing(comm, gloo):
    """A flush applies the gradients that were on their way."""
    with pp.Context(comm) as ctx:
        ddp, optimizer, state, run = made(ctx, policy=pp.Full())
        run()
        run()
        optimizer.zero_grad()
        request, before = state._request, ddp.module.bias.item()
        if comm.rank == 0:
            wait, request._pp_wait = request._pp_wait, interrupted
            with pytest.raises(KeyboardInterrupt):
                run()
            request._pp_wait = wait
        else:
            run()
        state.finish()
        assert ddp.module.bias.item() == pytest.approx(before - 0.1)


@pytest.mark.mpi(min_size=2)
@pytest.mark.sizes(2)
@pytest.mark.parametrize("error", [MemoryError, pp.Error])
def test_a_handle_for_which_a_rank_has_no_memory(gloo, comm, ctx, monkeypatch, error):
    """All ranks raise, and close the meeting together."""
    made, calls, is_odd = pp.Context.Allreduce_init, [], comm.rank == comm.size - 1

    def refused(ctx, *rest, **options):
        request = made(ctx, *rest, **options)
        calls.append(request)
        if len(calls) <= 2:  # those of the meeting
            return request
        request.Free()  # all have been there
        raise error("none is left") if is_odd else pp.MismatchError("a rank has none")

    ddp = DistributedDataParallel(nn.Linear(2, 1))
    with monkeypatch.context() as patch, pytest.raises(error if is_odd else pp.MismatchError):
        patch.setattr(pp.Context, "Allreduce_init", refused)
        HookState(ctx, ddp)
    assert not ctx._requests
