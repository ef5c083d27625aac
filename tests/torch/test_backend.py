"""The backend of torch.distributed: collective calls, groups, what is refused."""

from __future__ import annotations

import operator
from contextlib import contextmanager
from functools import reduce

import numpy as np
import pytest
import torch
import torch.distributed as dist
from mpi4py import MPI
from torch.distributed import ReduceOp

import pypartial as pp
import pypartial.torch as ppt
from pypartial.torch import process_group

pytestmark = pytest.mark.mpi

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
COMPLEX = [torch.complex64, torch.complex128]
ALL = [*FLOATS, *INTEGERS, *COMPLEX, torch.bool]
OPS = {
    "SUM": operator.add,
    "PRODUCT": operator.mul,
    "MIN": torch.minimum,
    "MAX": torch.maximum,
    "BAND": operator.and_,
    "BOR": operator.or_,
    "BXOR": operator.xor,
}


def plain(shape: tuple[int, ...]) -> torch.Tensor:
    return torch.zeros(shape)


def transposed(shape: tuple[int, ...]) -> torch.Tensor:
    return torch.zeros(shape[::-1]).permute(*reversed(range(len(shape))))


def strided(shape: tuple[int, ...]) -> torch.Tensor:
    return torch.zeros((*shape, 2))[..., 0]


LAYOUTS = [plain, transposed, strided]


def values(rank: int, shape: tuple[int, ...], dtype: torch.dtype, layout=plain) -> torch.Tensor:
    """Small integers that differ from rank to rank and from element to element."""
    count = torch.Size(shape).numel()
    numbers = (torch.arange(count).view(shape) * (rank + 2)) % 3 + rank % 2
    tensor = layout(shape).to(dtype)
    tensor.copy_(numbers % 2 if dtype == torch.bool else numbers)
    return tensor


def everybody(comm, *args) -> list[torch.Tensor]:
    return [values(rank, *args) for rank in range(comm.size)]


def expected(op: str, tensors: list[torch.Tensor]) -> torch.Tensor:
    if op == "AVG":
        total = reduce(operator.add, tensors)
        whole = tensors[0].dtype in INTEGERS
        return total.div(len(tensors), rounding_mode="trunc" if whole else None)
    if tensors[0].dtype == torch.bool:
        op = {"SUM": "BOR", "PRODUCT": "BAND", "MIN": "BAND", "MAX": "BOR"}.get(op, op)
    return reduce(OPS[op], tensors)


def has(op: str, dtype: torch.dtype) -> bool:
    if op == "AVG":
        return dtype != torch.bool
    if op in ("BAND", "BOR", "BXOR"):
        return dtype in (*INTEGERS, torch.bool)
    return dtype not in COMPLEX or op in ("SUM", "PRODUCT")


# ---- reductions ---------------------------------------------------------------------------------


@pytest.mark.parametrize("op", [*OPS, "AVG"])
def test_all_reduce(world, comm, op):
    for dtype in filter(lambda dtype: has(op, dtype), ALL):
        for layout in LAYOUTS:
            for shape in ((3, 4), (1,), (0,)):
                tensor = values(comm.rank, shape, dtype, layout)
                world.allreduce([tensor], getattr(ReduceOp, op)).wait()
                assert torch.equal(tensor, expected(op, everybody(comm, shape, dtype))), dtype


def test_all_reduce_as_applications_call_it(world, comm):
    scalar = torch.tensor(float(comm.rank))
    dist.all_reduce(scalar, op=ReduceOp.MAX)
    assert scalar == comm.size - 1
    complex_ = torch.tensor([1j * comm.rank])
    dist.all_reduce(complex_)
    assert complex_[0] == 1j * sum(range(comm.size))
    parameter = torch.nn.Parameter(torch.ones(2))
    dist.all_reduce(parameter)
    assert parameter.tolist() == [comm.size] * 2
    mirrored = torch.tensor([1 + 2j]).conj()
    world.allreduce([mirrored], ReduceOp.SUM)
    assert mirrored[0] == comm.size * (1 - 2j)


def test_all_reduce_of_half_precision_adds_in_float32(world, comm):
    tensor = torch.full((2,), 2048.0 if comm.rank == 0 else 1.0, dtype=torch.float16)
    dist.all_reduce(tensor)
    # In float16, 2048 + 1 is 2048.
    assert tensor.tolist() == [float(torch.tensor(2047.0 + comm.size).half())] * 2


def test_the_default_device_does_not_matter(world, comm):
    """What the backend makes for itself is in host memory, whatever a program makes by default.

    The functions of torch.distributed may hide that default from the methods.
    """
    size, rank = comm.size, comm.rank
    one, whole = torch.ones(2), torch.arange(2.0 * size)
    rows = list(whole.view(size, 2))
    large, parts = torch.zeros(2 * size), [torch.zeros(2) for _ in range(4)]
    lists = [[torch.zeros(2) for _ in range(size)] for _ in range(2)]
    group = ppt.new_group(policy=pp.Full())
    torch.set_default_device("meta")  # as "cuda", and it is everywhere
    try:
        world.reduce_scatter_single(parts[0], whole)
        world.reduce_scatter([parts[1]], [rows])
        world.allreduce([parts[2].add_(1)])
        world.allgather([lists[0]], [one])
        world.all_gather_single(large, one)
        world.alltoall(lists[1], rows)
        for _ in range(3):
            group.allreduce([parts[3].add_(1)], ReduceOp.AVG)
    finally:
        torch.set_default_device(None)
    dist.destroy_process_group(group)
    assert all(part.equal(rows[rank] * size) for part in parts[:2])
    assert (parts[2].tolist(), parts[3].tolist()) == ([size] * 2, [3] * 2)
    assert all(part.equal(one) for part in lists[0]) and large.equal(torch.ones(2 * size))
    assert all(part.equal(rows[rank]) for part in lists[1])


def test_several_all_reduces_at_once(world, comm):
    tensors = [values(comm.rank, (n,), torch.float64) for n in (1, 5)]
    with dist._coalescing_manager():
        for tensor in tensors:
            dist.all_reduce(tensor)
    for tensor in tensors:
        shape = tuple(tensor.shape)
        assert torch.equal(tensor, expected("SUM", everybody(comm, shape, torch.float64)))


@pytest.mark.parametrize("op", ["SUM", "AVG", "MAX"])
def test_reduce(world, comm, op):
    root = comm.size - 1
    for layout in LAYOUTS:
        tensor = values(comm.rank, (2, 3), torch.bfloat16, layout)
        own = tensor.clone()
        dist.reduce(tensor, root, op=getattr(ReduceOp, op))
        tensors = everybody(comm, (2, 3), torch.bfloat16)
        assert torch.equal(tensor, expected(op, tensors) if comm.rank == root else own)


@pytest.mark.parametrize("op", ["SUM", "AVG", "MIN"])
def test_reduce_scatter(world, comm, op):
    for dtype in (torch.float16, torch.float64):
        shapes = [(rank + 1, 2) for rank in range(comm.size)]
        inputs = [values(comm.rank, shape, dtype, transposed) for shape in shapes]
        output = transposed(shapes[comm.rank]).to(dtype)
        dist.reduce_scatter(output, inputs, op=getattr(ReduceOp, op))
        assert torch.equal(output, expected(op, everybody(comm, shapes[comm.rank], dtype)))


@pytest.mark.parametrize("op", ["SUM", "AVG", "MIN"])
def test_reduce_scatter_tensor(world, comm, op):
    for layout in LAYOUTS:
        shape = (comm.size * 2, 3)
        whole, part = values(comm.rank, shape, torch.float32, layout), layout((2, 3))
        dist.reduce_scatter_tensor(part, whole, op=getattr(ReduceOp, op))
        total = expected(op, everybody(comm, shape, torch.float32))
        assert torch.equal(part, total[2 * comm.rank : 2 * comm.rank + 2])
        assert torch.equal(whole, values(comm.rank, shape, torch.float32))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("op", ["MIN", "MAX"])
def test_an_order_keeps_nan_of_every_rank_in_every_element(world, comm, op, dtype):
    how, nan = getattr(ReduceOp, op), float("nan")
    for shape in [(comm.size,), (comm.size * 30_000,)]:  # MPI has ways for short and long vectors
        for rank in range(comm.size):
            own = torch.full(shape, nan if comm.rank == rank else comm.rank, dtype=dtype)
            everywhere, at_root, part = own.clone(), own.clone(), own[:: comm.size].clone()
            world.allreduce([everywhere], how).wait()
            dist.reduce(at_root, 0, op=how)
            dist.reduce_scatter_tensor(part, own, op=how)
            for result in (everywhere, part, *([at_root] if comm.rank == 0 else [])):
                assert result.isnan().all()


# ---- moving -------------------------------------------------------------------------------------


def test_broadcast(world, comm):
    for root in range(comm.size):
        for dtype in ALL:
            for layout in LAYOUTS:
                tensor = values(comm.rank, (3, 2), dtype, layout)
                dist.broadcast(tensor, root)
                assert torch.equal(tensor, values(root, (3, 2), dtype))


def test_all_gather(world, comm):
    for dtype in ALL:
        for layout in LAYOUTS:
            shapes = [(rank, 2) for rank in range(comm.size)]
            outputs = [layout(shape).to(dtype) for shape in shapes]
            dist.all_gather(outputs, values(comm.rank, shapes[comm.rank], dtype, layout))
            for rank, output in enumerate(outputs):
                assert torch.equal(output, values(rank, shapes[rank], dtype))


def test_all_gather_into_tensor(world, comm):
    together = torch.cat(everybody(comm, (2, 3), torch.bfloat16))
    for layout in LAYOUTS:
        output = layout((2 * comm.size, 3)).bfloat16()
        dist.all_gather_into_tensor(output, values(comm.rank, (2, 3), torch.bfloat16, layout))
        assert torch.equal(output, together)


def test_several_all_gathers_and_reduce_scatters_at_once(world, comm):
    outputs = [torch.zeros(comm.size * n) for n in (1, 3)]
    with dist._coalescing_manager():
        for n, output in zip((1, 3), outputs, strict=True):
            dist.all_gather_into_tensor(output, values(comm.rank, (n,), torch.float32))
    for n, output in zip((1, 3), outputs, strict=True):
        assert torch.equal(output, torch.cat(everybody(comm, (n,), torch.float32)))
    parts = [torch.zeros(n) for n in (1, 3)]
    with dist._coalescing_manager():
        for part, output in zip(parts, outputs, strict=True):
            dist.reduce_scatter_tensor(part, output)
    for n, part in zip((1, 3), parts, strict=True):
        assert torch.equal(part, comm.size * values(comm.rank, (n,), torch.float32))


def test_gather_and_scatter(world, comm):
    root, shapes = comm.size - 1, [(rank, 2) for rank in range(comm.size)]
    for layout in LAYOUTS:
        outputs = [layout(shape) for shape in shapes] if comm.rank == root else None
        own = values(comm.rank, shapes[comm.rank], torch.float32, layout)
        dist.gather(own, outputs, root)
        for rank, output in enumerate(outputs or []):
            assert torch.equal(output, values(rank, shapes[rank], torch.float32))
        given = layout(shapes[comm.rank])
        dist.scatter(given, outputs, root)
        assert torch.equal(given, own)


def test_all_to_all(world, comm):
    inputs = [torch.full((comm.rank + 1, to), 10 * comm.rank + to) for to in range(comm.size)]
    outputs = [transposed((of + 1, comm.rank)).long() for of in range(comm.size)]
    dist.all_to_all(outputs, inputs)
    for of, output in enumerate(outputs):
        assert torch.equal(output, torch.full((of + 1, comm.rank), 10 * of + comm.rank))


class Spied:
    """A communicator that looks at what collective calls are given."""

    def __init__(self, comm: MPI.Comm) -> None:
        self._comm = comm

    def __getattr__(self, name: str):
        call = getattr(self._comm, name)

        def checked(sent, received, *rest):
            if isinstance(sent, list) and isinstance(received, list):
                assert not np.shares_memory(sent[0], received[0])
            return call(sent, received, *rest)

        return checked


@pytest.fixture
def spied(monkeypatch):
    real = process_group.ProcessGroup._call

    @contextmanager
    def spying(group, call, *what, **asked):
        with real(group, call, *what, **asked) as comm:
            yield Spied(comm)

    monkeypatch.setattr(process_group.ProcessGroup, "_call", spying)


@pytest.mark.parametrize("place", ["own", "first", "between"])
def test_tensors_that_are_parts_of_the_output(world, comm, spied, place):
    """As FSDP gathers shards: MPI must not be given the same memory twice."""
    size, rank = comm.size, comm.rank
    whole = torch.full((4 * size,), -1.0)
    start = {"own": 4 * rank, "first": 0, "between": min(2, 4 * size - 4)}[place]
    part = whole[start : start + 4]
    part.fill_(rank)
    dist.all_gather_into_tensor(whole, part)
    assert whole.view(size, 4).tolist() == [[float(one)] * 4 for one in range(size)]
    whole = torch.arange(float(size)) + 10 * rank
    dist.all_to_all_single(whole, whole)
    assert whole.tolist() == [10.0 * one + rank for one in range(size)]
    whole = torch.full((4 * size,), float(rank))
    dist.reduce_scatter_tensor(whole[4 * rank : 4 * rank + 4], whole)
    assert whole[4 * rank : 4 * rank + 4].tolist() == [float(sum(range(size)))] * 4
    parts = list(torch.full((size, 4), float(rank)))
    dist.all_gather(parts, parts[rank])
    assert torch.stack(parts).tolist() == [[float(one)] * 4 for one in range(size)]


def test_all_to_all_single(world, comm):
    whole = values(comm.rank, (comm.size, 3), torch.int32)
    output = strided((comm.size, 3)).int()
    dist.all_to_all_single(output, whole)
    rows = [tensor[comm.rank] for tensor in everybody(comm, (comm.size, 3), torch.int32)]
    assert torch.equal(output, torch.stack(rows))
    # Rank r sends r + 1 rows to each rank.
    output = torch.zeros(sum(range(comm.size + 1)), 2)
    sent = torch.full(((comm.rank + 1) * comm.size, 2), float(comm.rank))
    splits = [rank + 1 for rank in range(comm.size)]
    dist.all_to_all_single(output, sent, splits, [comm.rank + 1] * comm.size)
    assert output[:, 1].tolist() == [rank for rank in range(comm.size) for _ in range(rank + 1)]


def test_memory_may_be_resized_after_a_call(world, comm):
    """FSDP with mixed precision does that."""
    part, whole = torch.ones(2), torch.zeros(2 * comm.size)
    dist.all_gather_into_tensor(whole, part)
    dist.all_reduce(part)
    for tensor in (part, whole):
        tensor.untyped_storage().resize_(0)


def test_objects(world, comm):
    objects = [None] * comm.size
    dist.all_gather_object(objects, {"rank": comm.rank})
    assert objects == [{"rank": rank} for rank in range(comm.size)]
    told = [f"of {comm.rank}", comm.rank]
    dist.broadcast_object_list(told, src=1)
    assert told == ["of 1", 1]


@pytest.mark.sizes(3)  # it takes seconds to load what they need
def test_functional_collectives(world, comm):
    import torch.distributed._functional_collectives as functional

    ranks = list(range(comm.size))
    own = values(comm.rank, (comm.size, 2), torch.float32)
    total = expected("SUM", everybody(comm, (comm.size, 2), torch.float32))
    assert torch.equal(functional.all_reduce(own, "sum", ranks) + 0, total)
    gathered = functional.all_gather_tensor(own, 0, ranks) + 0
    assert torch.equal(gathered, torch.cat(everybody(comm, (comm.size, 2), torch.float32)))
    part = functional.reduce_scatter_tensor(own, "sum", 0, ranks) + 0
    assert torch.equal(part, total[comm.rank : comm.rank + 1])


# ---- work, groups -------------------------------------------------------------------------------


def test_work_is_complete_when_the_call_returns(world, comm):
    tensor = torch.ones(3)
    work = dist.all_reduce(tensor, async_op=True)
    assert tensor.tolist() == [comm.size] * 3
    assert work.is_completed()
    assert work.wait()
    assert work.get_future().value()[0] is tensor
    assert dist.barrier(async_op=True).wait()


def test_groups_of_some_ranks_may_overlap(world, comm):
    size = comm.size
    members = [[0, 1], [0, size - 1], list(range(1, size)), [size - 1], [size - 1, 0, 1]]
    chosen = [sorted(set(ranks)) for ranks in members]
    groups = [dist.new_group(ranks) for ranks in chosen]
    for ranks, group in zip(chosen, groups, strict=True):
        if comm.rank not in ranks:
            continue
        tensor = torch.tensor(float(comm.rank))
        dist.all_reduce(tensor, group=group)
        assert tensor == sum(ranks)
        other = torch.tensor(float(comm.rank))
        dist.broadcast(other, src=ranks[-1], group=group)
        assert other == ranks[-1]
        assert dist.get_process_group_ranks(group) == ranks
        assert dist.get_backend(group) == "pypartial"
        dist.destroy_process_group(group)
        with pytest.raises((pp.Error, ValueError)):
            group.barrier()


def test_a_group_beside_a_default_group_of_gloo(world, comm):
    group = dist.new_group(backend="gloo")
    tensor = torch.ones(2)
    dist.all_reduce(tensor, group=group)
    assert tensor.tolist() == [comm.size] * 2
    dist.destroy_process_group(group)


def test_groups_have_the_names_that_torch_gives(world, comm):
    group = dist.new_group(group_desc="of a test")
    assert group.group_name != world.group_name
    assert group.group_desc == "of a test"
    assert world.group_name in dist.distributed_c10d._world.pg_names.values()
    dist.destroy_process_group(group)


def test_nothing_inside_is_of_gloo(world, comm, monkeypatch):
    def refuse(*_):
        raise AssertionError("gloo was asked")

    calls: list[str] = []

    def count(name):
        inner = getattr(process_group.ProcessGroup, name)

        def counted(self, *args, **kwargs):
            calls.append(name)
            return inner(self, *args, **kwargs)

        monkeypatch.setattr(process_group.ProcessGroup, name, counted)

    monkeypatch.setattr(dist.distributed_c10d, "ProcessGroupGloo", refuse)
    for name in ("allreduce", "allgather", "broadcast", "barrier"):
        count(name)
    group = dist.new_group()
    ddp = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2), process_group=group)
    assert calls.count("allgather") == 1
    made = len(calls)
    ddp(torch.ones(1, 3)).sum().backward()
    assert calls[made:] == ["allreduce"]
    dist.barrier(group)
    assert calls[-1] == "barrier"
    dist.destroy_process_group(group)


# ---- bad input ----------------------------------------------------------------------------------


def test_tensors_that_mpi_cannot_take_are_refused(world, comm):
    with pytest.raises(pp.ArgumentError, match=r"all_reduce: .*device meta"):
        dist.all_reduce(torch.empty(3, device="meta"))
    with pytest.raises(pp.ArgumentError, match=r"broadcast: .*sparse"):
        dist.broadcast(torch.ones(3).to_sparse(), 0)
    with pytest.raises(pp.ArgumentError, match="2 tensors"):
        world.broadcast([torch.ones(1)] * 2)


def test_sizes_that_do_not_fit_are_refused(world, comm):
    size = comm.size
    with pytest.raises(pp.ArgumentError, match=f"a list of {size + 1} tensors"):
        dist.all_gather([torch.ones(1)] * (size + 1), torch.ones(1))
    with pytest.raises(pp.ArgumentError, match="1 elements"):
        dist.all_gather([torch.ones(2)] * size, torch.ones(1))
    with pytest.raises(pp.ArgumentError, match="does not fit"):
        dist.reduce_scatter_tensor(torch.ones(2), torch.ones(2 * size + 1))
    with pytest.raises(pp.ArgumentError, match="cannot share"):
        dist.all_to_all_single(torch.ones(size + 1), torch.ones(size + 1))
    with pytest.raises(pp.ArgumentError, match="split sizes"):
        dist.all_to_all_single(torch.ones(size), torch.ones(size), [1] * size, [2] * size)
    negative = [-1, size + 1, *[0] * (size - 2)]
    with pytest.raises(pp.ArgumentError, match=r"split sizes \[-1"):
        dist.all_to_all_single(torch.ones(size), torch.ones(size), negative, negative)
    with pytest.raises(pp.ArgumentError, match="no dimension"):
        dist.all_to_all_single(torch.tensor(1.0), torch.tensor(1.0))


@pytest.mark.parametrize("root", [-1, 99])
def test_roots_that_are_no_ranks_are_refused(world, comm, root):
    calls = {
        "broadcast": lambda: dist.broadcast(torch.ones(1), root),
        "reduce": lambda: dist.reduce(torch.ones(1), root),
        "gather": lambda: dist.gather(torch.ones(1), None, root),
        "scatter": lambda: dist.scatter(torch.ones(1), None, root),
    }
    for name, call in calls.items():
        with pytest.raises(pp.ArgumentError, match=f"{name}: there is no rank {root} in a group"):
            call()


def test_operations_that_a_type_does_not_have_are_not_implemented(world, comm):
    for op in (*OPS, "AVG"):
        for dtype in ALL:
            wrong = not has(op, dtype) or (op == "AVG" and dtype == torch.bool)
            if wrong:
                with pytest.raises(NotImplementedError, match=f"all_reduce by {op}"):
                    world.allreduce([torch.ones(2, dtype=dtype)], getattr(ReduceOp, op))
    premultiplied = dist._make_nccl_premul_sum(2.0)
    with pytest.raises(NotImplementedError, match="all_reduce by PREMUL_SUM"):
        dist.all_reduce(torch.ones(2), op=premultiplied)


def test_what_is_not_implemented_says_its_name(world):
    for name in process_group.REFUSED:
        with pytest.raises(NotImplementedError, match=name):
            getattr(world, name)()


def test_what_torch_refuses_for_this_backend_it_refuses(world):
    with pytest.raises(RuntimeError, match="split"):
        dist.split_group(split_ranks=[[0, 1]])


def test_options_of_another_backend_are_refused_on_all_ranks(world, comm):
    wrong = comm.rank == 0
    with pytest.raises(pp.ArgumentError if wrong else pp.MismatchError, match="pg_options"):
        dist.new_group(pg_options=3 if wrong else None)


def test_the_rendezvous_compares_ranks(comm):
    url = f"mpi://?rank={comm.rank}&world_size={comm.size + 1}"
    wrong = comm.rank == 1
    with pytest.raises(pp.ArgumentError if wrong else pp.MismatchError, match="world_size"):
        next(dist.rendezvous(url if wrong else "mpi://"))
    store, rank, size = next(dist.rendezvous("mpi://"))
    assert (rank, size) == (comm.rank, comm.size)
    store.set(f"key {rank}", "value")
    assert store.get(f"key {size - 1}") == b"value"
    comm.Barrier()  # the store is rank 0's
