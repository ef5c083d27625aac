"""The backend as software calls it that was written for gloo: other arguments, compiled code,
checkpoints, the profiler, sparse gradients, timeouts."""

from __future__ import annotations

import logging
import threading
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed import ReduceOp
from torch.nn.parallel import DistributedDataParallel

import pypartial as pp
import pypartial.torch as ppt
from pypartial.torch import backend, watch

pytestmark = pytest.mark.mpi

LONG = timedelta(seconds=60)


@pytest.fixture
def other(world):
    """A group that a test may leave unusable."""
    group = dist.new_group(backend="pypartial")
    yield group
    dist.destroy_process_group(group)


# ---- arguments ----------------------------------------------------------------------------------


def filled(value):
    return torch.full((3,), float(value))


def rows(comm):
    return [torch.zeros(3) for _ in range(comm.size)]


def gathered(world, comm, call):
    own = rows(comm)
    call(own, filled(comm.rank))
    return sum(int(row[0]) for row in own)


CALLS = {
    "broadcast list": lambda w, c, t: w.broadcast([t]),
    "broadcast root": lambda w, c, t: w.broadcast(t, 0),
    "broadcast root=": lambda w, c, t: w.broadcast(t, root=0, timeout=LONG),
    "allreduce": lambda w, c, t: w.allreduce(t),
    "allreduce op": lambda w, c, t: w.allreduce([t], ReduceOp.SUM),
    "allreduce op timeout": lambda w, c, t: w.allreduce([t], ReduceOp.SUM, LONG),
    "allreduce op=": lambda w, c, t: w.allreduce(t, op=ReduceOp.SUM),
    "allreduce opts": lambda w, c, t: w.allreduce([t], dist.AllreduceOptions()),
    "reduce list": lambda w, c, t: w.reduce([t]),
    "reduce root op": lambda w, c, t: w.reduce(t, 0, ReduceOp.SUM, LONG),
    "barrier timeout": lambda w, c, t: w.barrier(timeout=LONG),
    "barrier": lambda w, c, t: w.barrier(),
    "monitored_barrier": lambda w, c, t: w.monitored_barrier(LONG, wait_all_ranks=True),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_group_takes_the_arguments_of_torchs_own(world, comm, name):
    tensor = filled(comm.rank)
    work = CALLS[name](world, comm, tensor)
    if work is not None:
        assert work.wait(timedelta(seconds=5))
        assert work.is_completed()
    total = float(sum(range(comm.size)))
    result = {"broadcast": 0.0, "allreduce": total}.get(name.split()[0], float(comm.rank))
    if name.startswith("reduce") and comm.rank == 0:
        result = total
    assert tensor.tolist() == [result] * 3


def test_gather_scatter_and_their_like_take_a_root_or_lists(world, comm):
    total = sum(range(comm.size))
    for call in (world.allgather, lambda own, one: world.allgather([own], [one])):
        assert gathered(world, comm, call) == total
    own = rows(comm)
    if comm.rank == 0:
        world.gather(own, filled(comm.rank), 0)
        assert sum(int(row[0]) for row in own) == total
    else:
        world.gather([], filled(comm.rank), 0, timeout=LONG)
    one = torch.zeros(3)
    world.scatter(one, [filled(rank) for rank in range(comm.size)] if comm.rank == 0 else [], 0)
    assert one[0] == comm.rank
    world.reduce_scatter(one, [filled(1)] * comm.size, ReduceOp.SUM, LONG)
    assert one[0] == comm.size
    whole, parts = torch.zeros(comm.size), torch.full((comm.size,), float(comm.rank))
    world.alltoall_base(whole, parts, [], [], LONG)
    assert whole.tolist() == [float(rank) for rank in range(comm.size)]


@pytest.mark.parametrize("wrong", [("x",), (ReduceOp.SUM, "x")])
def test_what_a_call_cannot_be_asked_for_is_refused(world, wrong):
    with pytest.raises(pp.ArgumentError, match="'x' is neither a root"):
        world.allreduce([torch.zeros(2)], *wrong)


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint16, torch.int8])
def test_the_average_of_integers_is_truncated_toward_zero(world, comm, dtype):
    signed = dtype.is_signed
    own = [comm.rank + 1, -comm.rank - 1 if signed else 1]
    tensor = torch.tensor(own, dtype=dtype)
    dist.all_reduce(tensor, ReduceOp.AVG)
    total = sum(range(1, comm.size + 1))
    mean = total // comm.size
    assert tensor.tolist() == [mean, -mean if signed else 1]


def test_the_devices_of_a_group(world):
    assert torch.device("cpu") in world._device_types


# ---- compiled code ------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["broadcast", "reduce", "gather", "scatter", "all_reduce"])
def test_calls_in_compiled_code(world, comm, call):
    def program(tensor):
        tensor = tensor * 2
        if call in ("broadcast", "reduce"):
            getattr(dist, call)(tensor, 0)
        elif call == "all_reduce":
            dist.all_reduce(tensor)
        elif call == "gather":
            parts = [torch.zeros(3) for _ in range(dist.get_world_size())]
            dist.gather(tensor, parts if dist.get_rank() == 0 else None, 0)
            tensor = torch.stack(parts).sum(0)
        else:
            parts = [tensor + rank for rank in range(dist.get_world_size())]
            dist.scatter(tensor, parts if dist.get_rank() == 0 else None, 0)
        return tensor + 1

    torch._dynamo.reset()
    compiled = torch.compile(program, backend="eager")
    plain, traced = program(filled(comm.rank + 1)), compiled(filled(comm.rank + 1))
    assert torch.equal(plain, traced)


def test_a_compiled_model_of_ddp(world, comm):
    torch.manual_seed(0)
    torch._dynamo.reset()
    models = [DistributedDataParallel(torch.nn.Linear(4, 1)) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    both = [models[0], torch.compile(models[1], backend="eager")]
    for step in range(3):
        batch = torch.full((2, 4), float(comm.rank + step))
        losses = [model(batch).square().mean() for model in both]
        for loss, model in zip(losses, models, strict=True):
            model.zero_grad()
            loss.backward()
            with torch.no_grad():
                for p in model.parameters():
                    p -= 0.01 * p.grad
        assert torch.equal(*losses)


# ---- checkpoints --------------------------------------------------------------------------------


def test_an_asynchronous_checkpoint_while_the_program_trains(world, comm, tmp_path):
    folder = comm.bcast(str(tmp_path))
    group = dist.new_group(backend="pypartial")
    state = {"weights": torch.arange(4.0), "step": torch.tensor(7)}
    saved = dcp.async_save(state, checkpoint_id=folder, process_group=group)
    tensor = torch.ones(2)
    done = torch.zeros(1)
    while not done:  # on all ranks
        dist.all_reduce(tensor, ReduceOp.AVG)
        done.fill_(saved.done())
        dist.all_reduce(done, ReduceOp.MIN)
    saved.result()
    loaded = {"weights": torch.zeros(4), "step": torch.tensor(0)}
    dcp.load(loaded, checkpoint_id=folder, process_group=group)
    assert torch.equal(loaded["weights"], state["weights"])
    assert loaded["step"] == 7
    dist.destroy_process_group(group)


# ---- sparse tensors -----------------------------------------------------------------------------


def sparse(rank, size):
    """Rank r has r + 1 at row 0 and 1 at row r: a place that all have, and one of its own."""
    places = torch.tensor([[0, rank % 4, rank % 4]])
    numbers = torch.tensor([[rank + 1.0, 0.0], [1.0, 1.0], [1.0, 0.0]])
    return torch.sparse_coo_tensor(places, numbers, (4, 2))


def test_sparse_tensors_are_added(world, comm):
    tensor = sparse(comm.rank, comm.size)
    dist.all_reduce(tensor)
    total = sum(sparse(rank, comm.size).to_dense() for rank in range(comm.size))
    assert tensor.is_coalesced()
    assert torch.equal(tensor.to_dense(), total)
    empty = torch.sparse_coo_tensor(torch.zeros((1, 0), dtype=torch.int64), torch.zeros(0), (4,))
    dist.all_reduce(empty)
    assert torch.equal(empty.to_dense(), torch.zeros(4))


def test_sparse_tensors_that_do_not_fit_are_refused(world, comm):
    with pytest.raises(NotImplementedError, match="all_reduce by MAX of a sparse tensor"):
        dist.all_reduce(sparse(comm.rank, comm.size), ReduceOp.MAX)
    if comm.size > 1:
        wrong = torch.sparse_coo_tensor([[0]], [1.0], (4 + comm.rank,))
        with pytest.raises(pp.MismatchError, match="sparse tensors of all_reduce differ"):
            dist.all_reduce(wrong)


def test_sparse_gradients_of_ddp(world, comm):
    torch.manual_seed(0)
    plain = torch.nn.Embedding(5, 2)
    model = DistributedDataParallel(torch.nn.Embedding(5, 2, sparse=True))
    model.module.load_state_dict(plain.state_dict())
    for rank in range(comm.size):
        plain(torch.tensor([rank % 5, 1])).square().sum().backward()
    model(torch.tensor([comm.rank % 5, 1])).square().sum().backward()
    gradient = model.module.weight.grad
    assert gradient.is_sparse
    assert torch.allclose(gradient.to_dense(), plain.weight.grad / comm.size)


# ---- the profiler -------------------------------------------------------------------------------


def test_the_profiler_shows_calls(world, comm):
    tensor, peers = torch.ones(2), [(comm.rank + step) % comm.size for step in (1, -1)]
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True
    ) as profile:
        dist.all_reduce(tensor)
        dist.broadcast(tensor, 0)
        world.monitored_barrier(LONG)
        world.barrier(dist.BarrierOptions())
        works = [dist.isend(tensor, peers[0]), dist.irecv(torch.empty(2), peers[1])]
        for work in works:
            work.wait()
    seen = {event.name: event.input_shapes for event in profile.events()}
    for call in ("all_reduce", "broadcast", "send", "recv"):
        assert seen[f"pypartial:{call}"] == [[2]]


# ---- late ranks and wrong calls -----------------------------------------------------------------


def late(comm):
    """The rank that comes late."""
    return comm.size - 1


@pytest.mark.parametrize("call", ["monitored_barrier", "barrier", "allreduce"])
def test_a_timeout_names_the_late_ranks_and_what_they_do(other, comm, call):
    if comm.size == 1:
        pytest.skip("nobody is late")
    other.allreduce([torch.ones(7)])
    short = timedelta(milliseconds=300)
    given = ([torch.ones(2)], ReduceOp.SUM, short) if call == "allreduce" else (short,)
    if comm.rank == late(comm):
        comm.Barrier()  # the others have raised
        with pytest.raises(pp.TimeoutError, match=r"rank \d has given up"):
            getattr(other, call)(*given)
        return
    name = {"allreduce": r"all_reduce \(2 float32 SUM\)"}.get(call, call)
    with pytest.raises(pp.TimeoutError, match=name) as raised:
        getattr(other, call)(*given)
    was = r"in no call for \d+\.\d s, after all_reduce \(7 float32 SUM\), call 1"
    assert raised.match(rf"rank {late(comm)} is {was}")
    assert not raised.value.args[0].count("rank 0 is in no call")
    with pytest.raises(pp.TimeoutError, match=r"cannot be used any more|has given up"):
        other.barrier()
    comm.Barrier()


def test_a_rank_that_gives_up_after_others_have_ended_the_group(other, comm):
    """MPI would give its message to the next communicator, if the others had freed theirs."""
    if comm.rank:
        other.shutdown()
    comm.Barrier()
    if comm.rank == 0:
        other._watch.give_up(pp.TimeoutError("late"), lambda: True)
        other.shutdown()
    for group in [dist.new_group(backend="pypartial") for _ in range(3)]:
        dist.barrier(group)
        dist.destroy_process_group(group)


def test_a_receive_that_timed_out_is_withdrawn(other, comm):
    """The message is that of the next one."""
    other.set_timeout(timedelta(milliseconds=200))
    first, second = torch.zeros(1), torch.zeros(1)
    source, target = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    work = other.recv([first], source, 3)
    with pytest.raises(pp.TimeoutError, match=r"recv: not complete within the timeout of 0\.2 s"):
        work.wait()
    other.set_timeout(LONG)
    comm.Barrier()
    sent = other.send([torch.ones(1)], target, 3)
    other.recv([second], source, 3).wait()
    sent.wait()
    assert (first.item(), second.item()) == (0, 1)
    with pytest.raises(pp.TimeoutError, match="withdrawn"):
        work.wait()


def test_a_transfer_waits_in_a_thread_beside_a_call(other, comm):
    """Each wait has its own text."""
    works = [other.recv([torch.zeros(1)], (comm.rank + 1) % comm.size, 3)]
    told = []

    def wait():
        with pytest.raises(pp.TimeoutError, match=r"^recv: not complete") as raised:
            works[0].wait(timedelta(milliseconds=500))
        told.append(raised.value)

    thread = threading.Thread(target=wait)
    thread.start()
    done = torch.zeros(1)
    while not done:  # calls that end while the thread waits
        other.barrier()
        done.fill_(bool(told))
        dist.all_reduce(done, ReduceOp.MIN)
    thread.join()
    comm.Barrier()
    other.send([torch.ones(1)], (comm.rank - 1) % comm.size, 3).wait()
    assert works[0].wait()
    assert len(told) == 1


def test_a_group_that_some_ranks_do_not_make(world, comm):
    if comm.rank != late(comm):
        with pytest.raises(pp.TimeoutError, match=rf"ranks \[{late(comm)}\] have not come"):
            backend.create(Options(comm, timedelta(milliseconds=300)), None)
    comm.Barrier()
    if comm.rank == late(comm) > 0:  # and it does not go on alone
        with pytest.raises(pp.TimeoutError, match="have not come"):
            backend.create(Options(comm, timedelta(milliseconds=300)), None)


class Options:
    """What torch tells a backend of a group to be made."""

    def __init__(self, comm, timeout):
        self.store = dist.PrefixStore("late", dist.distributed_c10d._get_default_store())
        self.group_rank, self.group_size = comm.rank, comm.size
        self.global_ranks_in_group, self.group_id = list(range(comm.size)), "late"
        self.timeout = timeout


def test_a_late_rank_does_not_go_on_alone(world, comm):
    """Whether it comes just before the others give up or just after."""
    if comm.size == 1:
        pytest.skip("nobody is late")
    for delay_ms in (18.0, 19.0, 19.5, 20.0, 20.5, 21.0, 22.0):
        group = dist.new_group(timeout=timedelta(milliseconds=20), backend="pypartial")
        dist.barrier()
        began = time.perf_counter()
        while comm.rank == late(comm) and time.perf_counter() - began < delay_ms / 1000:
            pass
        try:
            dist.all_reduce(torch.ones(3), group=group)
            passed = True
        except (pp.TimeoutError, pp.PeerFailedError):
            passed = False
        assert comm.allgather(passed) == [passed] * comm.size
        dist.destroy_process_group(group)


def test_a_partial_group_ends_after_a_timeout(world, comm):
    if comm.size == 1:
        pytest.skip("nobody is late")
    group = ppt.new_group(timeout=timedelta(milliseconds=200))
    if comm.rank != late(comm):
        with pytest.raises(pp.TimeoutError):
            dist.barrier(group)
        with pytest.raises(pp.TimeoutError):
            dist.all_reduce(torch.ones(3), group=group)
        dist.destroy_process_group(group)
    comm.Barrier()
    if comm.rank == late(comm):
        with pytest.raises((pp.TimeoutError, pp.PeerFailedError)):
            dist.barrier(group)
        dist.destroy_process_group(group)


def test_a_rank_in_a_transfer_or_another_group_is_said_to_be_there(other, comm):
    if comm.size == 1:
        pytest.skip("nobody is late")
    group = dist.new_group(backend="pypartial")
    works = []
    if comm.rank == late(comm):
        thread = threading.Thread(
            target=lambda: works.append(group.recv([torch.zeros(1)], 0).wait())
        )
        thread.start()
    else:
        with pytest.raises(
            pp.TimeoutError, match=rf"rank {late(comm)} is in recv of another group"
        ):
            other.barrier(timedelta(milliseconds=400))
    comm.Barrier()
    if comm.rank == 0:
        group.send([torch.ones(1)], late(comm)).wait()
    if comm.rank == late(comm):
        thread.join()
        assert works == [True]
    dist.barrier(group)
    dist.destroy_process_group(group)


def test_a_long_wait_is_warned_of(other, comm, monkeypatch, caplog):
    if comm.size == 1:
        pytest.skip("nobody is late")
    monkeypatch.setattr(watch, "STALL_S", 0.2)
    if comm.rank == late(comm):
        # Until all others have warned.
        for rank in range(comm.size - 1):
            comm.recv(source=rank)
        other.barrier()
        return

    class Tell(logging.Handler):
        def emit(self, record):
            if "not complete after" in record.getMessage():
                logger.removeHandler(self)
                comm.send(None, late(comm))

    logger = logging.getLogger("pypartial")
    logger.addHandler(Tell())
    with caplog.at_level("WARNING", "pypartial"):
        other.barrier()
    assert f"rank {late(comm)} is in no call" in caplog.text


def test_ranks_in_different_calls_are_told_so(world, comm):
    """And the group can be used further."""
    if comm.size == 1:
        pytest.skip("one rank is in one call")
    tensor = torch.zeros(comm.rank + 1)
    for call in (
        lambda: dist.all_reduce(tensor),
        lambda: dist.broadcast(torch.zeros(2), min(comm.rank, 1)),
        lambda: dist.barrier() if comm.rank else dist.all_reduce(tensor),
        lambda: dist.all_reduce(torch.zeros(2, dtype=(torch.int32, torch.int64)[comm.rank % 2])),
    ):
        with pytest.raises(pp.MismatchError, match=r"rank 0 in .*, rank 1 in "):
            call()
    one = torch.ones(1)
    dist.all_reduce(one)
    assert one[0] == comm.size


def test_calls_without_persistent_collectives(other, comm):
    """MPI has them from 4.0 on."""
    other._gate._request.Free()
    other._gate._request = None
    for _ in range(3):
        tensor = torch.ones(1)
        dist.all_reduce(tensor, group=other)
        assert tensor == comm.size


@pytest.mark.parametrize("who", [0, -1])
def test_an_interrupted_call_is_told_to_the_others(other, comm, monkeypatch, who):
    """Also if it comes at once, and to a rank that comes at the same time."""
    if comm.size == 1:
        pytest.skip("nobody else waits")
    interrupted = who % comm.size
    if comm.rank == interrupted:

        def hear(self):
            if threading.current_thread() is threading.main_thread():
                raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(watch.Watch, "hear", hear)
            with pytest.raises(KeyboardInterrupt):
                other.allreduce([torch.ones(1)])
        comm.Barrier()
        return
    if comm.rank == (interrupted + 1) % comm.size:
        comm.Barrier()
    with pytest.raises(pp.PeerFailedError, match=f"rank {interrupted} has given up all_reduce"):
        other.allreduce([torch.ones(1)])
    if comm.rank != (interrupted + 1) % comm.size:
        comm.Barrier()
