"""Gradients that leave in pieces during backward."""

from __future__ import annotations

import warnings

import pytest
import torch
from support.training import backward, batch, flat, net, train_alone
from torch import nn

import pypartial as pp
import pypartial.torch
from pypartial.methods import EagerSGD, PartialReduce, Synchronous
from pypartial.torch.gradients import Gradients
from pypartial.torch.overlap import Piece

pytestmark = [pytest.mark.mpi(min_size=2), pytest.mark.sizes(3)]

STEPS = 12


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.02)


def are_equal(comm, model: nn.Module) -> bool:
    return len(set(comm.allgather(flat(model).numpy().tobytes()))) == 1


class Heads(nn.Module):
    """Two layers side by side, and one that no rank uses."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.one, self.two, self.never = (nn.Linear(6, 3).double() for _ in range(3))


def either_order(model: nn.Module, rank: int, step: int) -> None:
    """Compute gradients in another order on every second rank, and in one step without a layer."""
    x, y = batch(rank, step)
    layers = [model.one] if step == 3 else [model.one, model.two]
    if rank % 2:
        layers.reverse()
    outputs = x.new_zeros(len(x), 3)
    for layer in layers:
        outputs = outputs + layer(x).tanh()
    (outputs - y).square().mean().backward()


@pytest.mark.parametrize("pieces", [1, 2, 3, 100])
@pytest.mark.parametrize("method", [Synchronous(), EagerSGD(pp.Full())], ids=["sync", "full"])
def test_trains_as_without(comm, ctx, pieces, method):
    model, alone = Heads(), Heads()
    inner = adamw(model)
    with pp.torch.DistributedOptimizer(inner, ctx, method, overlap=pieces, clip_norm=1.0) as opt:
        for step in range(STEPS):
            opt.zero_grad(set_to_none=step % 2 == 0)
            either_order(model, comm.rank, step)
            opt.step()
        assert opt.rounds == STEPS
    assert model.never.weight not in inner.state
    # zero_grad(set_to_none=False) has left zeros, and no None, in the step without a layer.
    by_hand = adamw(alone)
    train_alone(alone, by_hand, comm.size, STEPS, zeros_in_step_3, clip_norm=1.0)
    torch.testing.assert_close(flat(model), flat(alone), rtol=1e-12, atol=1e-12)
    assert are_equal(comm, model)


def zeros_in_step_3(model: nn.Module, rank: int, step: int) -> None:
    either_order(model, rank, step)
    if step == 3:
        for p in model.two.parameters():
            p.grad = torch.zeros_like(p)


def test_gradients_leave_during_backward(comm, ctx):
    """Each piece is contributed before step(): a rank that never calls it has contributed."""
    model = net()
    with pp.torch.DistributedOptimizer(adamw(model), ctx, Synchronous(), overlap=2) as opt:
        contributed = []

        def inspect(_: torch.Tensor) -> None:
            contributed.append(opt._driver._started)

        # A layer's gradients arrive together: this hook is called after the library's.
        model[2].weight.register_post_accumulate_grad_hook(inspect)
        model[0].weight.register_post_accumulate_grad_hook(inspect)
        backward(model, comm.rank, 0)
        assert contributed[-1] >= 1
        assert opt._driver._started == 2
        opt.step()


def test_uneven_batches_and_flushes(comm, ctx):
    model, alone = net(), net()

    def fewer(model: nn.Module, rank: int, step: int) -> None:
        if step < STEPS + 3 * rank:
            backward(model, rank, step)

    with pp.torch.DistributedOptimizer(adamw(model), ctx, Synchronous(), overlap=2) as opt:
        for step in range(STEPS + 3 * comm.rank):
            opt.zero_grad()
            backward(model, comm.rank, step)
            opt.step()
            if step == 5:
                opt.flush()
                assert are_equal(comm, model)
                assert opt.state_dict()["worker"]["rounds"] == 6
            if step == STEPS:  # rank 0 is in finish
                opt.flush()
                assert opt.rounds == STEPS + 1
    longest = STEPS + 3 * (comm.size - 1)
    assert opt.rounds == longest
    train_alone(alone, adamw(alone), comm.size, longest, fewer)
    torch.testing.assert_close(flat(model), flat(alone), rtol=1e-12, atol=1e-12)
    assert are_equal(comm, model)


def test_no_sync_adds_up(comm, ctx):
    model, alone = net(), net()

    def both(model: nn.Module, rank: int, step: int) -> None:
        backward(model, rank, 2 * step)
        backward(model, rank, 2 * step + 1)

    with pp.torch.DistributedOptimizer(adamw(model), ctx, Synchronous(), overlap=2) as opt:
        for step in range(STEPS):
            opt.zero_grad()
            with opt.no_sync():
                backward(model, comm.rank, 2 * step)
            backward(model, comm.rank, 2 * step + 1)
            opt.step()
    train_alone(alone, adamw(alone), comm.size, STEPS, both)
    torch.testing.assert_close(flat(model), flat(alone), rtol=1e-12, atol=1e-12)


def test_a_second_backward_is_refused(comm, ctx):
    model = net()
    with pp.torch.DistributedOptimizer(adamw(model), ctx, Synchronous(), overlap=2) as opt:
        backward(model, comm.rank, 0)
        with pytest.raises(pp.Error, match=r"into no_sync\(\)"):
            backward(model, comm.rank, 1)
        with pytest.raises(pp.Error, match="a gradient waits for its step"):
            opt.flush()
        opt.step()
    assert are_equal(comm, model)


def test_sums_of_partial_rounds(comm, ctx):
    """All pieces are applied in the end; models are averaged there."""
    counter = nn.Parameter(torch.zeros(comm.size))
    other = nn.Parameter(torch.zeros(comm.size))
    sgd = torch.optim.SGD([counter, other], lr=1.0)
    method = EagerSGD(pp.Solo(), "sum")
    with pp.torch.DistributedOptimizer(sgd, ctx, method, overlap=2) as opt:
        for step in range(STEPS + 3 * comm.rank):
            opt.zero_grad()
            (counter[comm.rank] + other[comm.rank]).backward()
            opt.step()
            if step == 5:
                opt.flush()
                assert torch.cat([counter, other]).tolist() == pytest.approx(
                    [-6 / comm.size] * 2 * comm.size
                )
    steps = [-(STEPS + 3 * rank) / comm.size for rank in range(comm.size)]
    torch.testing.assert_close(counter.detach(), torch.tensor(steps))
    torch.testing.assert_close(other.detach(), torch.tensor(steps))


class Over(Exception):
    """The end of a test whose context cannot be freed."""


def test_sums_of_a_stateful_optimizer_end_equal(comm, ctx):
    """A rank with fewer steps applies the others' rounds at once, and drifts, until the end."""
    model = net()
    momentum = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    last = []
    momentum.register_step_post_hook(lambda *_: last.append(flat(model)))
    method = EagerSGD(pp.Majority(), "sum")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of drift, on rank 0
        opt = pp.torch.DistributedOptimizer(momentum, ctx, method, overlap=2)
    with opt:
        for step in range(STEPS + 5 * comm.rank):
            opt.zero_grad()
            backward(model, comm.rank, step)
            opt.step()
    assert are_equal(comm, model)
    assert len({own.numpy().tobytes() for own in comm.allgather(last[-1])}) > 1
    state = torch.cat([momentum.state[p]["momentum_buffer"].flatten() for p in model.parameters()])
    assert len(set(comm.allgather(state.numpy().tobytes()))) == 1


def test_all_ranks_start_pieces_in_one_order(comm, ctx, monkeypatch):
    """Although their gradients arrive in another order on every second rank."""
    started: list[int] = []
    start = Piece.start

    def noted(piece: Piece) -> None:
        started.append(len(piece.vector))
        start(piece)

    monkeypatch.setattr(Piece, "start", noted)
    torch.manual_seed(1)
    model = nn.ModuleDict({"one": nn.Linear(6, 3), "two": nn.Linear(6, 3, bias=False)}).double()
    arrived = []
    for name, layer in model.items():
        layer.weight.register_post_accumulate_grad_hook(lambda _, name=name: arrived.append(name))
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    with pp.torch.DistributedOptimizer(sgd, ctx, Synchronous(), overlap=3) as opt:
        x, y = batch(comm.rank, 0)
        first, second = (
            (model["one"], model["two"]) if comm.rank % 2 else (model["two"], model["one"])
        )
        (second(first(x)[:, [0, 1, 2, 0, 1, 2]]) - y).square().mean().backward()
        opt.step()
    assert len({tuple(names) for names in comm.allgather(arrived)}) == 2
    assert len({tuple(lengths) for lengths in comm.allgather(started)}) == 1
    assert len(started) == 3
    assert are_equal(comm, model)


def test_ranks_that_step_differently_are_told(comm):
    """A rank that was away for a round of the others cannot apply it piece by piece."""
    model = net()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(Over), pp.Context(comm) as ctx:
        opt = pp.torch.DistributedOptimizer(sgd, ctx, Synchronous(), overlap=2)

        def step() -> None:
            opt.zero_grad()
            backward(model, comm.rank, 0)
            opt.step()

        step()
        if comm.rank:
            step()
        with opt.away():
            comm.Barrier()
        if comm.rank == 0:
            with pytest.raises(pp.Error, match="made round 1 while this rank was away"):
                step()
        comm.Barrier()
        raise Over


def test_nothing_goes_on_behind_a_step_that_has_raised(comm):
    model = net()
    with pytest.raises(Over), pp.Context(comm) as ctx:
        inner = torch.optim.SGD(model.parameters(), lr=0.1)
        opt = pp.torch.DistributedOptimizer(inner, ctx, Synchronous(), overlap=2)

        def interrupt(*_: object) -> None:
            raise KeyError("mine")

        inner.register_step_pre_hook(interrupt)
        backward(model, comm.rank, 0)
        with pytest.raises(KeyError):
            opt.step()
        for call in (opt.step, opt.flush, opt.state_dict):
            with pytest.raises(pp.Error, match="the model of this rank lacks round 0"):
                call()
        ctx.comm.Barrier()  # this rank gives up the context below
        raise Over


@pytest.mark.parametrize("manual", [False, True], ids=["step", "unscale_"])
def test_a_grad_scaler_is_refused(comm, manual):
    """Also if it has unscaled the gradients before, and tells no scale any more."""
    model = net()
    scaler = torch.amp.GradScaler("cpu")
    with pytest.raises(Over), pp.Context(comm) as ctx:
        opt = pp.torch.DistributedOptimizer(adamw(model), ctx, Synchronous(), overlap=2)
        x, y = batch(comm.rank, 0)
        scaler.scale((model(x) - y).square().mean()).backward()
        if manual:
            scaler.unscale_(opt)
        with pytest.raises(pp.Error, match="GradScaler"):
            scaler.step(opt)
        ctx.comm.Barrier()  # this rank gives up the context below
        raise Over


def clip(opt, model: nn.Module, rank: int) -> None:
    # Under a dispatch mode, such as that of the stand-in, torch does not count foreach's writes.
    nn.utils.clip_grad_norm_(model.parameters(), 1e-3, foreach=False)


def drop(opt, model: nn.Module, rank: int) -> None:
    opt.zero_grad()


def clear(opt, model: nn.Module, rank: int) -> None:
    opt.zero_grad(set_to_none=False)


def replace(opt, model: nn.Module, rank: int) -> None:
    model[0].bias.grad = model[0].bias.grad.clone()


def assign(opt, model: nn.Module, rank: int) -> None:
    model[0].bias.grad.data = model[0].bias.grad.clamp(-1, 1)


def add(opt, model: nn.Module, rank: int) -> None:
    with opt.no_sync():
        backward(model, rank, 7)


@pytest.mark.parametrize("edit", [clip, drop, clear, replace, assign, add])
@pytest.mark.parametrize(
    ("dtype", "set_to_none"),
    [(torch.float64, True), (torch.float64, False), (torch.bfloat16, False)],
    ids=["new", "views", "of another type"],
)
def test_edits_behind_the_backward_pass_are_refused(comm, edit, dtype, set_to_none):
    """They would reach no other rank: gradients have left. In the first step, and in later ones."""
    model = net(dtype=dtype)
    with pytest.raises(Over), pp.Context(comm) as ctx:
        opt = pp.torch.DistributedOptimizer(adamw(model), ctx, Synchronous(), overlap=2)
        for step in range(3):
            opt.zero_grad(set_to_none)
            backward(model, comm.rank, step)
            if step == 2:
                edit(opt, model, comm.rank)
                with pytest.raises(
                    pp.Error, match=r"parameter \d of .* was changed behind the back"
                ):
                    opt.step()
            else:
                opt.step()
        ctx.comm.Barrier()  # this rank gives up the context below
        raise Over


def test_a_gradient_that_was_applied_is_no_new_one(comm):
    model = net()
    with pytest.raises(Over), pp.Context(comm) as ctx:
        opt = pp.torch.DistributedOptimizer(adamw(model), ctx, Synchronous(), overlap=2)
        backward(model, comm.rank, 0)
        opt.step()
        with pytest.raises(pp.Error, match=r"was applied by the last step\(\)"):
            opt.step()
        ctx.comm.Barrier()  # this rank gives up the context below
        raise Over


@pytest.mark.parametrize(
    ("method", "overlap", "message"),
    [
        (EagerSGD(), 2, "needs Synchronous"),
        (EagerSGD(pp.Solo(), "latest"), 2, "needs Synchronous"),
        (EagerSGD(pp.Full(deadline=0.1)), 2, "needs Synchronous"),
        (PartialReduce(2), 2, "needs Synchronous"),
        (EagerSGD(pp.Solo(), "sum", sync_every=4), 2, "sync_every"),
        (Synchronous(), 0, "overlap"),
        (Synchronous(), True, "overlap"),
        (Synchronous(), "2", "overlap"),
    ],
)
def test_methods_that_it_does_not_fit(ctx, method, overlap, message):
    with pytest.raises(pp.ArgumentError, match=message):
        pp.torch.DistributedOptimizer(adamw(net()), ctx, method, overlap=overlap)


@pytest.mark.parametrize("set_to_none", [True, False])
def test_a_flush_does_not_lose_what_no_sync_has_added_up(comm, ctx, set_to_none):
    w = nn.Parameter(torch.zeros(3))
    sgd = torch.optim.SGD([w], lr=1.0)
    with pp.torch.DistributedOptimizer(sgd, ctx, Synchronous(), overlap=1) as opt:
        w.sum().backward()
        opt.step()
        opt.flush()
        w.sum().backward()
        opt.step()
        opt.zero_grad(set_to_none)
        opt.flush()
        with opt.no_sync():
            w.sum().backward()
        with pytest.raises(pp.Error, match="a gradient waits for its step"):
            opt.flush()
        w.sum().backward()
        opt.step()
        assert w.tolist() == [-4.0] * 3
        with opt.no_sync():
            w.sum().backward()  # is dropped by the end


def test_a_block_left_by_an_exception_leaves_the_parameters_alone(comm):
    """The program may go on without the library."""
    w = nn.Parameter(torch.zeros(3))
    sgd = torch.optim.SGD([w], lr=1.0)
    with (
        pytest.raises(Over),
        pp.Context(comm) as ctx,
        pp.torch.DistributedOptimizer(sgd, ctx, Synchronous(), overlap=1) as opt,
    ):
        w.sum().backward()
        opt.step()
        ctx.comm.Barrier()  # this rank gives up the context below
        raise Over
    w.grad = None
    w.sum().backward()
    assert w.grad.tolist() == [1.0] * 3
    comm.Barrier()


@pytest.mark.parametrize("pieces", [1, 2])
def test_a_flush_behind_a_step_whose_round_has_no_gradient(comm, ctx, pieces):
    """The late gradient is in the flush; what is left of it waits for no step."""
    model = nn.Linear(3, 1)
    with torch.no_grad():
        model.weight.zero_()
    sgd = torch.optim.SGD(model.parameters(), lr=1.0)
    method = EagerSGD(pp.Solo(), deliver="sum")
    opt = pp.torch.DistributedOptimizer(sgd, ctx, method, overlap=pieces)
    if comm.rank:
        opt.step()  # has no batch
        with opt.away():
            comm.Barrier()
    else:
        with opt.away():
            comm.Barrier()
        opt.zero_grad()
        model(torch.ones(1, 3)).sum().backward()
        opt.step()
        assert model.weight.grad is None
    opt.flush()
    assert model.weight.tolist() == [pytest.approx([-1 / comm.size] * 3)]
    opt.finish()


@pytest.mark.parametrize("first", [True, False], ids=["first", "last"])
def test_an_interrupt_behind_a_piece(comm, first):
    """As by Ctrl-C in the slice of a wait in which the piece is collected."""
    lacks = (
        r"a step was ended by KeyboardInterrupt\(\), so that the model of this rank lacks round 1"
    )
    w, v = (nn.Parameter(torch.zeros(3)) for _ in range(2))
    sgd = torch.optim.SGD([w, v], lr=1.0)
    with pytest.raises(pp.Error, match=lacks), pp.Context(comm) as ctx:
        opt = pp.torch.DistributedOptimizer(sgd, ctx, Synchronous(), overlap=2)
        (w + v).sum().backward()
        opt.step()
        opt.zero_grad()
        request = opt._driver.requests[0 if first else 1]
        wait = request._pp_wait

        def interrupted(*rest):
            if wait(*rest) == 0:
                raise KeyboardInterrupt
            return 1

        request._pp_wait = interrupted
        (w + v).sum().backward()
        with pytest.raises(KeyboardInterrupt):
            opt.step()
        request._pp_wait = wait
        ctx.comm.Barrier()  # this rank gives up the context below
        opt.step()


@pytest.mark.parametrize("call", ["step", "flush", "finish", "state_dict", "backward"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
@pytest.mark.parametrize("where", ["step", "flush"])
@pytest.mark.parametrize("method", [Synchronous(), EagerSGD(pp.Solo(), "sum")], ids=["sync", "sum"])
def test_what_ends_a_round_behind_its_pieces(comm, method, where, error, call, monkeypatch):
    """They are collected, and not applied, so each further call says that the model lacks them."""
    lacks = rf"ended by {error.__name__}\(\), so that the model of this rank lacks round"
    w, v = (nn.Parameter(torch.zeros(3)) for _ in range(2))
    sgd = torch.optim.SGD([w, v], lr=1.0)
    with pytest.raises(pp.Error, match=lacks), pp.Context(comm) as ctx:
        opt = pp.torch.DistributedOptimizer(sgd, ctx, method, overlap=2)
        (w + v).sum().backward()
        opt.step()
        opt.zero_grad()

        def ended(*_: object) -> None:
            raise error

        with monkeypatch.context() as patch, pytest.raises(error):
            patch.setattr(Gradients, "give" if where == "step" else "read", ended)
            if where == "step":
                (w + v).sum().backward()
            getattr(opt, where)()
        ctx.comm.Barrier()  # this rank gives up the context below
        if call == "backward":
            (w + v).sum().backward()
        getattr(opt, call)()


def test_an_interrupt_in_a_flush_leaves_the_zeros_on_their_way(comm):
    """All ranks would apply what a backward pass behind it wrote in place of them."""
    w = nn.Parameter(torch.zeros(3))
    sgd = torch.optim.SGD([w], lr=1.0)
    lacks = r"ended by KeyboardInterrupt\(\), so that the model of this rank lacks round"
    error = KeyError if comm.rank else pp.Error
    with pytest.raises(error, match="over" if comm.rank else lacks), pp.Context(comm) as ctx:
        opt = pp.torch.DistributedOptimizer(sgd, ctx, Synchronous(), overlap=1)
        w.sum().backward()
        opt.step()
        opt.zero_grad()
        (piece,) = opt._driver._pieces

        def interrupted(*_: object) -> None:
            raise KeyboardInterrupt

        if comm.rank == 0:
            wait, piece.request._pp_wait = piece.request._pp_wait, interrupted
            with pytest.raises(KeyboardInterrupt):
                opt.flush()
            piece.request._pp_wait = wait
            with pytest.raises(pp.Error, match=lacks):
                w.sum().backward()
            assert piece.vector[:4].tolist() == [0.0] * 4  # behind it is the flag of the flush
        ctx.comm.Barrier()  # this rank gives up the context below
        if comm.rank:
            raise KeyError("over")
        opt.flush()


def test_an_interrupt_before_the_pieces_loses_nothing(comm, ctx):
    w = nn.Parameter(torch.zeros(3))
    sgd = torch.optim.SGD([w], lr=1.0)
    with pp.torch.DistributedOptimizer(sgd, ctx, Synchronous(), overlap=1) as opt:
        request = opt._driver.requests[0]
        wait = request._pp_wait

        def interrupted(*rest):
            request._pp_wait = wait
            raise KeyboardInterrupt

        request._pp_wait = interrupted
        w.sum().backward()
        with pytest.raises(KeyboardInterrupt):
            opt.step()
        opt.step()
        assert w.tolist() == [-1.0] * 3


class Failing(torch.autograd.Function):
    """Has no gradient, as for lack of memory."""

    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, gradient):
        raise torch.OutOfMemoryError("none is left")


@pytest.mark.parametrize("overlap", [1, 2])
def test_a_backward_pass_that_fails_is_followed_by_its_step(comm, ctx, overlap):
    """It cannot be dropped: pieces may have left. Its text says so."""
    w, v = (nn.Parameter(torch.ones(3)) for _ in range(2))
    sgd = torch.optim.SGD([w, v], lr=1.0)
    with pp.torch.DistributedOptimizer(sgd, ctx, Synchronous(), overlap=overlap) as opt:
        with pytest.raises(torch.OutOfMemoryError):
            (v + Failing.apply(w)).sum().backward()
        opt.step()
        assert v.tolist() == [0.0] * 3 and w.tolist() == [1.0] * 3
        opt.zero_grad()
        (v + w).sum().backward()
        opt.step()
        assert v.tolist() == [-1.0] * 3 and w.tolist() == [0.0] * 3
        opt.zero_grad()
        with pytest.raises(torch.OutOfMemoryError):
            (v + Failing.apply(w)).sum().backward()
        with pytest.raises(pp.Error, match=r"failed, call step\(\) behind it"):
            (v + w).sum().backward()
        opt.step()
