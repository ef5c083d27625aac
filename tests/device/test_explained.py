"""What a Wait says that waits for a device: the rank, and what is still to be done there."""

from __future__ import annotations

import pytest
from support.explained import CONTRIBUTION, PART, STALL_WARNING_S, explained

import pypartial as pp

pytestmark = pytest.mark.mpi

COUNT = 1003


@pytest.fixture
def ctx(comm, stand_in):
    with pp.Context(comm, seed=7, patience=None, stall_warning=STALL_WARNING_S) as context:
        yield context


def opened(ctx, path, send, out):
    request = ctx.Allreduce_init(send, out, policy=pp.Full(), device_path=path)
    assert request.device_path == path
    send.put(1)
    return request


def ends_well(comm, request, out):
    request.Wait()
    assert (out.get() == comm.size).all()
    request.Free()


@pytest.mark.parametrize("path", ["staged", "ipc"])
def test_a_contribution_that_is_on_its_way(comm, ctx, array, stream, needs_ipc, path):
    send, out, last = array(COUNT), array(COUNT), comm.size - 1
    request = opened(ctx, path, send, out)
    stream.hold(comm.rank == last)
    request.Start()
    own = [CONTRIBUTION] if comm.rank == last else []
    right = own, {CONTRIBUTION: [last], PART: []}
    explained(request, lambda found: found == right)
    comm.Barrier()
    stream.hold(False)
    ends_well(comm, request, out)


def one_device_has_yet_to_do_its_part(comm, request, stand_in, stream):
    def right(found):
        own, ranks = found
        expected = [PART] if comm.rank in ranks[PART] else []
        return own == expected and ranks[CONTRIBUTION] == [] and len(ranks[PART]) == 1

    (rank,) = explained(request, right).ranks[PART]
    assert comm.allgather(rank) == [rank] * comm.size
    stand_in.fake_hold(stream, False)


def test_a_round_that_a_device_reduces(comm, ctx, array, stand_in, needs_ipc):
    """That of the rank that has claimed it."""
    send, out = array(COUNT), array(COUNT)
    request = opened(ctx, "ipc", send, out)
    stand_in.fake_hold(folds := stand_in.fake_newest_stream(), True)
    request.Start()
    one_device_has_yet_to_do_its_part(comm, request, stand_in, folds)
    ends_well(comm, request, out)


@pytest.mark.sizes(2, 3, 5)  # a rank alone averages nothing
def test_a_group_that_a_device_averages(comm, ctx, array, stand_in, needs_ipc):
    """That of the member whose Start was the last."""
    model = array(COUNT)
    groups = pp.groups.Table([[range(comm.size)]])
    request = ctx.Preduce_init(model, groups, device_path="ipc")
    assert request.device_path == "ipc"
    model.put(comm.rank)
    stand_in.fake_hold(averages := stand_in.fake_newest_stream(), True)
    request.Start()
    one_device_has_yet_to_do_its_part(comm, request, stand_in, averages)
    request.Wait()
    assert (model.get() == (comm.size - 1) / 2).all()
    request.Free()
