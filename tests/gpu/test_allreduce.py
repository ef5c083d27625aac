"""Rounds of buffers on a device: the oracles of the contract, and the bits of the host's rounds."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from mpi4py import MPI
from support import gpu
from support.oracles import Log, judge
from support.pairwise import pairwise

import pypartial as pp

pytestmark = pytest.mark.mpi

STEPS = 20
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
FLOATS = ("float16", gpu.BFLOAT16, "float32", "float64")
COMPLEXES = ("complex64", "complex128")
OPERATIONS = {
    "SUM": (*INTEGERS, *FLOATS, *COMPLEXES),
    "PROD": (*INTEGERS, *FLOATS, *COMPLEXES),
    "MIN": (*INTEGERS, *FLOATS),
    "MAX": (*INTEGERS, *FLOATS),
    "LAND": (*INTEGERS, "bool"),
    "LOR": (*INTEGERS, "bool"),
    "LXOR": (*INTEGERS, "bool"),
    "BAND": INTEGERS,
    "BOR": INTEGERS,
    "BXOR": INTEGERS,
}


def policies(size):
    return [pp.Solo(), pp.Majority(), pp.Quorum(max(1, size // 2)), pp.Full()]


@pairwise(
    policy={"solo": 0, "majority": 1, "quorum": 2, "full": 3},
    deliver=["latest", "sum", "each"],
    extra={"small": 0, "large": 300_000},
)
def test_the_loop(comm, kit, path, policy, deliver, extra):
    """Every contribution enters one round, and all ranks have the same results."""
    values = np.zeros(comm.size + extra, np.int64)
    values[comm.rank] = 1
    values[comm.size :] = comm.rank + 1
    send, out = kit.new(values.size, "int64"), kit.new(values.size, "int64")
    status, junk = pp.Status(), np.full(values.size, -999)
    with gpu.context(comm, path) as ctx:
        request = gpu.made(
            ctx, path, send, out, policy=policies(comm.size)[policy], deliver=deliver
        )
        log = Log(comm.size, 8 * STEPS * comm.size)
        for _ in range(STEPS):
            kit.put(send, values)
            request.Start()
            kit.put(send, junk)  # waits for the copy
            log.started()
            request.Wait(status)
            log.given(status, kit.get(out, values.size, "int64"))
            kit.settle()
        if deliver == "each":
            for drained in request.Drain():
                log.given(drained, kit.get(out, values.size, "int64"))
        else:
            request.Flush(status)
            log.given(status, kit.get(out, values.size, "int64"))
        judge(comm, log, request)
        request.Free()


def test_copies_go_to_and_from_the_memory_of_the_node(comm, kit):
    """The driver pins it, so none goes by a bounce buffer; each result is there before the next."""
    send, out = kit.new(300_000, "float32"), kit.new(300_000, "float32")
    with gpu.context(comm, "staged") as ctx:
        request = gpu.made(ctx, "staged", send, out, policy=pp.Full())
        for step in range(STEPS):
            kit.put(send, np.full(300_000, step, "f4"))
            request.Start()
            request.Wait()
            assert kit.get(out, 300_000, "float32")[-1] == step * comm.size
            kit.settle()
        stats = ctx.stats()
        assert stats.shares_memory
        assert (stats.staged_bytes, stats.bounced_bytes) == (2 * STEPS * 1_200_000, 0)
        request.Free()


def drawn(dtype, count, rank):
    """Values of a type; small, so that a product is not only infinities and zeros."""
    draw = np.random.default_rng(rank)
    kind = gpu.element(dtype)
    if dtype == "bool":
        return draw.random(count) < 0.5
    if dtype in INTEGERS:
        return draw.integers(0, 255, count * kind.itemsize, dtype="u1").view(kind)
    values = draw.uniform(-2, 2, count)
    if dtype in COMPLEXES:
        values = values + 1j * draw.uniform(-2, 2, count)
    return values.astype(kind)


def both(kit, ctx, values, dtype, path, **options):
    """Return a round's result on the device, and that of the same round in the host's memory."""
    send, out = kit.new(values.size, dtype), kit.new(values.size, dtype)
    expected = np.zeros_like(values)
    on_device = gpu.made(ctx, path, send, out, policy=pp.Full(), **options)
    on_host = ctx.Allreduce_init(values, expected, policy=pp.Full(), **options)
    kit.put(send, values)
    for request in (on_device, on_host):
        request.Start()
        request.Wait()
    found = kit.get(out, values.size, dtype)
    on_device.Free()
    on_host.Free()
    return found, expected


def types_of(kit, types):
    """Return the types that the arrays of a library can have."""
    return [dtype for dtype in types if dtype != gpu.BFLOAT16 or kit.name == "torch"]


@pytest.mark.parametrize("op", OPERATIONS)
def test_results_have_the_bits_of_the_hosts(comm, ctx, kit, path, op):
    for dtype, count in itertools.product(types_of(kit, OPERATIONS[op]), (1, 1001)):
        values = drawn(dtype, count, comm.rank)
        found, expected = both(kit, ctx, values, dtype, path, op=getattr(MPI, op))
        assert found.tobytes() == expected.tobytes(), (dtype, count, found[:4], expected[:4])


@pytest.mark.parametrize("average", ["size", "contributors", "contributions"])
def test_averages_have_the_bits_of_the_hosts(comm, ctx, kit, path, average):
    for dtype in types_of(kit, (*FLOATS, *COMPLEXES)):
        values = drawn(dtype, 1001, comm.rank)
        found, expected = both(kit, ctx, values, dtype, path, average=average)
        assert found.tobytes() == expected.tobytes(), (dtype, found[:4], expected[:4])


def test_several_arrays_in_place(comm, ctx, kit, path):
    arrays = [kit.new(count, "float32") for count in (3, 5)]
    kit.put(arrays[0], np.array([comm.rank, 1, 2], "f4"))
    kit.put(arrays[1], np.arange(5, dtype="f4"))
    request = gpu.made(ctx, path, MPI.IN_PLACE, arrays, policy=pp.Full())
    request.Start()
    request.Wait()
    first, second = (kit.get(array, n, "float32") for array, n in zip(arrays, (3, 5), strict=True))
    assert first.tolist() == [sum(range(comm.size)), comm.size, 2 * comm.size]
    assert second.tolist() == [comm.size * i for i in range(5)]
    request.Free()


class Exported:
    """Hides all of an array but its DLPack export."""

    def __init__(self, array):
        self.array = array

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)


def test_dlpack_objects(comm, ctx, kit, path):
    send, out = kit.new(100, "float32"), kit.new(100, "float32")
    if not hasattr(send, "__dlpack__"):
        assert gpu.is_stand_in()
        pytest.skip("the stand-in's arrays have no DLPack")
    kit.put(send, np.full(100, comm.rank, "f4"))
    kit.wait()
    request = gpu.made(ctx, path, Exported(send), Exported(out), policy=pp.Full())
    request.Start(stream=kit.home)
    request.Wait(stream=kit.home)
    assert (kit.get(out, 100, "float32") == sum(range(comm.size))).all()
    request.Free()
