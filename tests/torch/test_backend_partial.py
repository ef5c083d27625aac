"""Partial process groups: what they deliver, which tensors they know, other calls beside them.

In most tests no rank loses its patience, so a rank that held others up would do so for ever.
"""

from __future__ import annotations

import threading
import time

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import pypartial as pp
import pypartial.torch as ppt
from pypartial.torch.accelerator import HOST

pytestmark = pytest.mark.mpi

ROUNDS = 30  # Majority draws a rank at random: among so many draws there is every one of 4


@pytest.fixture
def group(world):
    """A group of all ranks."""
    made = ppt.new_group(seed=3, patience=None, max_lag="auto", window=2 * ROUNDS + 2)
    yield made
    dist.destroy_process_group(made)


def contribution(comm) -> torch.Tensor:
    """Adds 1 to the element of this rank."""
    return torch.eye(comm.size)[comm.rank]


# ---- what is delivered --------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["solo", pp.Majority()])
def test_a_round_is_the_sum_of_its_contributors(world, comm, policy):
    group = ppt.new_group(policy=policy, deliver="latest", seed=1)
    given, active = torch.empty(comm.size), []
    for step in range(ROUNDS):
        if comm.rank == comm.size - 1:
            time.sleep(0.003)
        given.copy_(contribution(comm))
        dist.all_reduce(given, group=group)
        status = group.status
        if step == 0:  # synchronous
            assert (status, given.tolist()) == (None, [1] * comm.size)
            continue
        assert tuple(torch.nonzero(given).flatten().tolist()) == status.contributors
        assert given.sum() == status.contributions
        active.append(status.active)
    assert min(comm.allgather(min(active))) < comm.size
    dist.destroy_process_group(group)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_with_full_it_is_the_synchronous_all_reduce(world, comm, dtype):
    group = ppt.new_group(policy=pp.Full())
    sums, means = torch.empty(3, 2, dtype=dtype).T, torch.empty(3, dtype=dtype)
    for step in range(4):
        dist.all_reduce(sums.fill_(comm.rank + step), group=group)
        dist.all_reduce(means.fill_(comm.rank + step), op=dist.ReduceOp.AVG, group=group)
        assert (sums == sum(range(comm.size)) + comm.size * step).all()
        mean = torch.tensor((comm.size - 1) / 2 + step, dtype=dtype)
        assert (means == mean).all()
    dist.destroy_process_group(group)


@pytest.mark.parametrize("is_there", [True, False], ids=["behind", "before"])
def test_a_call_behind_an_interrupt_is_refused(world, comm, is_there):
    """It would overwrite what is on its way, or hide that a round was lost."""
    group, given = ppt.new_group(policy=pp.Full()), torch.ones(2)
    for _ in range(2):
        dist.all_reduce(given.fill_(1), group=group)
    (stream,) = group._streams._streams.values()
    request = stream.request
    wait = request._pp_wait

    def interrupted(*rest):
        if is_there:
            while wait(*rest) == 1:
                pass
        raise KeyboardInterrupt

    request._pp_wait = interrupted
    with pytest.raises(KeyboardInterrupt):
        dist.all_reduce(given.fill_(2), group=group)
    request._pp_wait = wait
    for _ in range(2):
        with pytest.raises(pp.Error, match="this rank lacks what other ranks have contributed"):
            dist.all_reduce(given.fill_(3), group=group)
        # The round may come meanwhile.
        assert stream.vector[0] in (2, 2 * comm.size)
    comm.Barrier()
    dist.destroy_process_group(group)


@pytest.mark.parametrize("error", [MemoryError, torch.OutOfMemoryError])
def test_a_rank_without_memory(group, comm, monkeypatch, error):
    """All ranks raise, and the group can be used further."""
    given, is_odd = torch.ones(3), comm.rank == comm.size - 1
    expected, text = (MemoryError, "none") if is_odd else (pp.MismatchError, "MemoryError: none")

    def refused(*_: object):
        raise error("none is left")

    with monkeypatch.context() as patch, pytest.raises(expected, match=text):
        if is_odd:
            patch.setattr(type(HOST), "zeros", refused)
        dist.all_reduce(given, group=group)
    for _ in range(2):
        dist.all_reduce(given.fill_(1), group=group)
    assert group.status is not None


def test_what_is_not_a_sum_of_floats_is_synchronous(group, comm):
    count, largest = torch.empty(1, dtype=torch.int64), torch.empty(1)
    for step in range(5):
        if comm.rank == step % comm.size:
            time.sleep(0.003)
        dist.all_reduce(count.fill_(1), group=group)
        dist.all_reduce(largest.fill_(comm.rank), op=dist.ReduceOp.MAX, group=group)
        assert (count, largest) == (comm.size, comm.size - 1)
    dist.all_reduce(torch.empty(0), group=group)
    assert group.status is None


# ---- which tensor -------------------------------------------------------------------------------


def test_tensors_of_one_size_do_not_mix(group, comm):
    ones, hundreds = torch.empty(2), torch.empty(4)[1:3]
    seen = 0.0
    for _ in range(ROUNDS):
        if comm.rank == 0:
            time.sleep(0.002)
        dist.all_reduce(ones.fill_(1), group=group)
        dist.all_reduce(hundreds.fill_(100), group=group)
        assert 0 <= ones[0] < 100
        assert hundreds[0] % 100 == 0
        seen = max(seen, float(hundreds[0]))
    assert seen >= 100


def test_a_new_tensor_in_every_step_is_refused_on_all_ranks(group, comm):
    for _ in range(2):
        given = torch.ones(5)
        dist.all_reduce(given, group=group)
        assert given[0] == comm.size
        del given
    with pytest.raises(pp.ArgumentError, match="new tensor in every step"):
        dist.all_reduce(torch.ones(5), group=group)
    # Others are known all the same.
    known = torch.empty(4)
    for _ in range(3):
        dist.all_reduce(known.fill_(1), group=group)


def test_gradients_that_are_kept_are_known(group, comm):
    """And those that zero_grad() replaces are refused in the third step."""
    net = torch.nn.Sequential(*[torch.nn.Linear(3, 3) for _ in range(3)])
    optimizer = torch.optim.SGD(net.parameters())

    def step(keeps: bool) -> None:
        optimizer.zero_grad(set_to_none=not keeps)
        net(torch.ones(2, 3)).sum().backward()
        for parameter in net.parameters():
            dist.all_reduce(parameter.grad, group=group)

    for _ in range(4):
        step(keeps=True)
    step(keeps=False)  # takes the place of memory that was used again
    step(keeps=False)
    with pytest.raises(pp.ArgumentError, match="set_to_none=False"):
        step(keeps=False)


def test_a_type_that_is_not_reduced_is_refused_in_every_call(group, comm):
    known, small = torch.ones(2), torch.ones(2).to(torch.float8_e5m2)
    for _ in range(3):
        with pytest.raises(NotImplementedError, match=r"SUM of torch\.float8_e5m2"):
            dist.all_reduce(small, group=group)
        with pytest.raises(NotImplementedError), dist._coalescing_manager(group):
            dist.all_reduce(known, group=group)
            dist.all_reduce(small, group=group)
    assert known.tolist() == [1, 1]


def test_ranks_with_different_tensors_are_told(group, comm):
    with pytest.raises(pp.MismatchError, match=r"rank 0 has SUM of 2 elements.* rank 1 .* of 3"):
        dist.all_reduce(torch.ones(2 + min(comm.rank, 1)), group=group)


# ---- arguments ----------------------------------------------------------------------------------


def test_wrong_options_are_errors_on_all_members(world, comm):
    wrong = comm.rank == comm.size - 1
    error = pp.ArgumentError if wrong else pp.MismatchError
    with pytest.raises(error, match="deliver must be"):
        ppt.new_group(deliver="each" if wrong else "sum")
    for odd, text in ((pp.Majority, "policy must be"), ("majorty", "'majorty' is not a policy")):
        with pytest.raises(error, match=text):
            ppt.new_group(policy=odd if wrong else pp.Majority())
    with pytest.raises(error, match="window"):
        ppt.new_group(window=0 if wrong else 4)
    with pytest.raises(pp.MismatchError, match="options of the process group differ"):
        ppt.new_group(policy=pp.Solo() if wrong else pp.Majority())
    dist.barrier()


# ---- other calls, beside rounds -----------------------------------------------------------------


@pytest.mark.parametrize("call", ["all_reduce", "barrier", "broadcast", "all_gather", "new_group"])
def test_a_call_of_all_ranks_holds_no_rank_up(world, group, comm, call):
    """One rank is there before the others, which make rounds in which it is drawn."""
    calls = {
        "all_reduce": lambda: dist.all_reduce(torch.ones(1, dtype=torch.int32), group=group),
        "barrier": dist.barrier,
        "broadcast": lambda: dist.broadcast(torch.ones(1), comm.size - 1),
        "all_gather": lambda: dist.all_gather([torch.ones(1)] * comm.size, torch.ones(1)),
        "new_group": lambda: dist.destroy_process_group(dist.new_group()),
    }
    known = torch.empty(3)
    dist.all_reduce(known.fill_(1), group=group)
    for first in range(2):
        if comm.rank != first:
            for _ in range(ROUNDS):
                dist.all_reduce(known.fill_(1), group=group)
        calls[call]()


@pytest.mark.parametrize("call", ["broadcast", "gather", "reduce", "scatter", "all_to_all_single"])
def test_a_call_that_ends_early_on_some_ranks_holds_no_rank_up(world, group, comm, call):
    """Rank 0 needs the last rank, which makes rounds first; others may be done before."""
    last, size = comm.size - 1, comm.size
    one, every = torch.ones(1), [torch.ones(1) for _ in range(size)]
    # Rank 0 and the last rank give each other a row, the others nothing.
    rows = [int({comm.rank, other} == {0, last}) for other in range(size)]
    calls = {
        "broadcast": lambda: dist.broadcast(one, last),
        "gather": lambda: dist.gather(one, None if comm.rank else every),
        "reduce": lambda: dist.reduce(one, 0),
        "scatter": lambda: dist.scatter(one, every if comm.rank == last else None, last),
        "all_to_all_single": lambda: dist.all_to_all_single(
            torch.empty(sum(rows)), torch.ones(sum(rows)), rows, rows
        ),
    }
    known = torch.empty(3)
    dist.all_reduce(known.fill_(1), group=group)
    if comm.rank == last:
        for _ in range(ROUNDS):
            dist.all_reduce(known.fill_(1), group=group)
    calls[call]()


def test_a_receive_holds_no_rank_up(world, group, comm):
    known = torch.empty(3)
    dist.all_reduce(known.fill_(1), group=group)
    if comm.rank == 0:
        for source in range(1, comm.size):
            given = torch.zeros(1)
            dist.recv(given, source)
            assert given == source
    else:
        for _ in range(ROUNDS):
            dist.all_reduce(known.fill_(1), group=group)
        dist.send(torch.tensor([float(comm.rank)]), 0)


def test_a_call_of_some_ranks_holds_no_rank_up(world, group, comm):
    pair = dist.new_group([0, 1])
    known = torch.empty(3)
    dist.all_reduce(known.fill_(1), group=group)
    for first in range(2):
        if comm.rank != first:
            for _ in range(ROUNDS):
                dist.all_reduce(known.fill_(1), group=group)
        if comm.rank < 2:
            dist.barrier(pair)
    if comm.rank < 2:
        dist.destroy_process_group(pair)


def test_a_call_in_a_thread_disturbs_no_round(world, group, comm):
    """Every rank makes all its rounds while a thread of it waits at a barrier."""
    known = torch.empty(3)
    dist.all_reduce(known.fill_(1), group=group)
    thread = threading.Thread(target=dist.barrier)
    if comm.rank > 0:
        thread.start()
    for _ in range(ROUNDS):
        dist.all_reduce(known.fill_(1), group=group)
    if comm.rank == 0:
        dist.barrier()
    else:
        thread.join()


def test_partial_groups_may_overlap(world, comm):
    """A rank that works at the tensors of one group holds up no round of the other."""
    size = comm.size
    chosen = [sorted({0, 1}), sorted({0, size - 1}), list(range(size))]
    groups = [ppt.new_group(ranks, patience=None, seed=5) for ranks in chosen]
    mine = [group for group in groups if group is not dist.GroupMember.NON_GROUP_MEMBER]
    known = [torch.empty(3) for _ in mine]
    for step in range(ROUNDS):
        if comm.rank == step % size:
            time.sleep(0.001)
        for group, tensor in zip(mine, known, strict=True):
            dist.all_reduce(tensor.fill_(1), group=group)
    for group in mine:
        dist.destroy_process_group(group)


@pytest.mark.parametrize("run", range(20))
def test_ddp_with_a_slow_rank_and_uneven_batches_ends(world, comm, run):
    """With a metric, a barrier and a checkpoint now and then, none of it inside away()."""
    group = ppt.new_group(
        # A quorum of all ranks waits as MPI does.
        policy=pp.Majority() if run % 2 or comm.size == 2 else pp.Quorum(2),
        patience=None,
        seed=run,
    )
    net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 1))
    ddp = DistributedDataParallel(net, process_group=group, bucket_cap_mb=0.0001)
    optimizer = torch.optim.SGD(ddp.parameters(), 0.01)
    for step in range(12 + 3 * comm.rank):
        if comm.rank == run % comm.size:
            time.sleep(0.002)
        optimizer.zero_grad()
        ddp(torch.ones(2, 8)).sum().backward()
        optimizer.step()
        if step in (4, 9):
            metric = torch.ones(1)
            dist.all_reduce(metric)
            assert metric == comm.size
            dist.barrier()
            dist.broadcast(next(net.parameters()).detach(), src=0)
    total = torch.ones(1)
    dist.all_reduce(total)
    assert total == comm.size
    dist.destroy_process_group(group)
