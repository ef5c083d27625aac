"""The backend of torch.distributed: sends and receives."""

from __future__ import annotations

import gc
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch.multiprocessing.reductions import StorageWeakRef

import pypartial as pp

pytestmark = pytest.mark.mpi

LARGE = 1 << 18  # elements; MPI sends no message of this size before it is received


def neighbours(comm) -> tuple[int, int]:
    return (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size


def test_all_ranks_may_send_before_they_receive(world, comm):
    after, before = neighbours(comm)
    given = torch.zeros(LARGE)
    sent = dist.isend(torch.full((LARGE,), float(comm.rank)), after)
    received = dist.irecv(given, before)
    assert received.wait()
    assert sent.wait()
    assert sent.is_completed()
    assert (given == before).all()


def test_a_batch_of_sends_and_receives(world, comm):
    after, before = neighbours(comm)
    given = torch.zeros(LARGE)
    batch = [
        dist.P2POp(dist.isend, torch.full((LARGE,), float(comm.rank)), after),
        dist.P2POp(dist.irecv, given, before),
    ]
    for work in dist.batch_isend_irecv(batch):
        work.wait()
    assert (given == before).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.complex128, torch.bool, torch.int64])
def test_types_and_layouts(world, comm, dtype):
    after, before = neighbours(comm)
    values = torch.arange(6).view(2, 3) % 2 + comm.rank % 2
    given = torch.zeros(3, 2, dtype=dtype).T
    sent = dist.isend(values.to(dtype).T.contiguous().T, after)
    dist.recv(given, before)
    sent.wait()
    expected = torch.arange(6).view(2, 3) % 2 + before % 2
    assert torch.equal(given, expected.to(dtype))


def test_messages_of_different_tags_do_not_meet(world, comm):
    after, before = neighbours(comm)
    sent = [dist.isend(torch.tensor([10.0 * tag + comm.rank]), after, tag=tag) for tag in (1, 2)]
    for tag in (2, 1):
        given = torch.zeros(1)
        dist.recv(given, before, tag=tag)
        assert given == 10 * tag + before
    for work in sent:
        work.wait()


def test_a_receive_of_any_rank_says_whose_it_was(world, comm):
    if comm.rank > 0:
        dist.send(torch.tensor([comm.rank]), 0)
        return
    seen = set()
    for _ in range(comm.size - 1):
        given = torch.zeros(1, dtype=torch.int64)
        source = dist.recv(given)
        assert given == source
        seen.add(source)
    assert seen == set(range(1, comm.size))


def test_in_a_group_ranks_are_those_of_the_world(world, comm):
    last = comm.size - 1
    group = dist.new_group([last, 0])
    if comm.rank == 0:
        dist.send(torch.tensor([7.0]), last, group=group)
    if comm.rank == last:
        given = torch.zeros(1)
        assert dist.recv(given, 0, group=group) == 0
        assert given == 7
    if group is not dist.GroupMember.NON_GROUP_MEMBER:
        dist.destroy_process_group(group)


def test_a_message_of_another_size_is_an_error(world, comm):
    if comm.rank == 0:
        dist.send(torch.ones(2), 1)
        dist.send(torch.ones(5), 1)
    if comm.rank == 1:
        with pytest.raises(pp.MismatchError, match=r"rank 0 sent 2 elements, .* receives 3"):
            dist.recv(torch.zeros(3), 0)
        with pytest.raises(pp.Error, match="recv: MPI reports"):
            dist.recv(torch.zeros(3), 0)


def test_a_wait_may_have_a_limit_and_go_on(world, comm):
    after, before = neighbours(comm)
    given = torch.zeros(1)
    work = dist.irecv(given, before)
    assert not work.is_completed()
    with pytest.raises(pp.TimeoutError, match="recv"):
        work.wait(timedelta(milliseconds=1))
    comm.Barrier()
    dist.send(torch.ones(1), after)
    assert work.wait(timedelta(seconds=30))
    assert given == 1


def test_a_send_goes_on_when_its_work_is_dropped(world, comm):
    after, before = neighbours(comm)
    dist.isend(torch.full((LARGE,), float(comm.rank)), after)
    gc.collect()
    torch.full((LARGE,), -1.0)  # would take the memory, if it were free
    given = torch.zeros(LARGE)
    dist.recv(given, before)
    assert (given == before).all()


def test_sends_whose_work_is_dropped_leave_no_memory(world, comm):
    after, before = neighbours(comm)
    given = torch.zeros(LARGE)
    memory = []
    for number in range(4):
        sent = torch.full((LARGE,), float(number))
        memory.append(StorageWeakRef(sent.untyped_storage()))
        dist.isend(sent, after)
        del sent
        dist.recv(given, before)
        assert (given == number).all()
    for _ in range(100):  # MPI hears of the last one's end in some later call
        dist.isend(torch.ones(1), after)
        dist.recv(torch.ones(1), before)
        comm.Barrier()
    assert all(one.expired() for one in memory)


def test_wrong_ranks_and_tags_are_refused(world, comm):
    with pytest.raises(pp.ArgumentError, match="tag"):
        world.send([torch.ones(1)], 0, -7)
    with pytest.raises(pp.ArgumentError, match="rank 99"):
        world.recv([torch.ones(1)], 99, 0)
