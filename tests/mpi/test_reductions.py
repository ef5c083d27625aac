"""Every operation on every type, against NumPy, and all shapes of vectors."""

from __future__ import annotations

import itertools
from contextlib import nullcontext
from functools import reduce

import ml_dtypes
import numpy as np
import pytest
from mpi4py import MPI
from support.modes import MODES, WHY_NONE, changed

import pypartial as pp
from pypartial._core import ffi, lib
from pypartial._names import algorithms

pytestmark = pytest.mark.mpi

INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
HALVES = [np.dtype("float16"), np.dtype(ml_dtypes.bfloat16)]
FLOATS = ["float32", "float64", "longdouble"]
COMPLEX = ["complex64", "complex128", "clongdouble"]
TYPES = [np.dtype(t) for t in [*INTEGERS, *HALVES, *FLOATS, *COMPLEX, "bool"]]
ARITHMETIC = {"SUM": np.add, "PROD": np.multiply}
ORDER = {"MIN": np.minimum, "MAX": np.maximum}
LOGICAL = {"LAND": np.logical_and, "LOR": np.logical_or, "LXOR": np.logical_xor}
BITWISE = {"BAND": np.bitwise_and, "BOR": np.bitwise_or, "BXOR": np.bitwise_xor}
OPERATIONS = {**ARITHMETIC, **ORDER, **LOGICAL, **BITWISE}
ALGORITHMS = tuple(algorithms(ffi, lib))


def operations(dtype):
    """The operations that MPI defines on a type."""
    if dtype == np.bool_:
        return LOGICAL
    if dtype.kind in "iu":
        return OPERATIONS
    if dtype.kind == "c":
        return ARITHMETIC
    return {**ARITHMETIC, **ORDER}


def contribution(dtype, count, rank, op):
    """Small whole numbers: exact in every type, in every order."""
    random = np.random.default_rng((rank, count))
    if op == "PROD":
        values = random.choice([1, 1, 1, 2], count) if rank < 6 else np.ones(count)
    elif op in ("SUM", "MIN", "MAX"):
        values = random.integers(0 if dtype.kind == "u" else -7, 8, count)
    else:
        values = random.integers(0, 2 if op in LOGICAL else 100, count)
    if dtype.kind == "c":
        values = values + 1j * random.integers(0, 2 if op == "SUM" else 1, count)
    return values.astype(dtype)


def expected(dtype, count, size, op):
    parts = [contribution(dtype, count, rank, op) for rank in range(size)]
    with np.errstate(over="ignore"):
        return reduce(lambda a, b: OPERATIONS[op](a, b).astype(dtype), parts)


def run_once(request):
    status = pp.Status()
    request.Start()
    request.Wait(status)
    return status


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_operations(comm, ctx, dtype):
    for op, count in itertools.product(OPERATIONS, (1, 37)):
        send, out = contribution(dtype, count, comm.rank, op), np.zeros(count, dtype)
        if op not in operations(dtype):
            with pytest.raises(pp.ArgumentError, match=f"{op}.*{dtype.name}"):
                ctx.Allreduce_init(send, out, op=getattr(MPI, op), policy=pp.Full())
            continue
        request = ctx.Allreduce_init(send, out, op=getattr(MPI, op), policy=pp.Full())
        for _ in range(2):
            status = run_once(request)
            assert status.contributors == tuple(range(comm.size))
            truth = expected(dtype, count, comm.size, op)
            assert np.array_equal(out, truth), f"{op} of {dtype}: {out} is not {truth}"
        request.Free()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("count", [0, 1, 2, 3, 7, 255, 4097])
def test_counts(comm, ctx, algorithm, count):
    """Fewer elements than ranks, odd numbers, and none at all."""
    for dtype in (np.dtype("int8"), np.dtype("int64")):
        send, out = contribution(dtype, count, comm.rank, "SUM"), np.full(count, 77, dtype)
        request = ctx.Allreduce_init(send, out, policy=pp.Full(), algorithm=algorithm)
        assert request.count == count
        status = run_once(request)
        assert np.array_equal(out, expected(dtype, count, comm.size, "SUM"))
        assert status.contributions == comm.size
        request.Flush(status)
        assert status.cause == "flush"
        request.Free()


@pytest.mark.parametrize("chunk_bytes", [0, 40_000])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_large(comm, algorithm, chunk_bytes, monkeypatch):
    """Several megabytes, in segments: one transfer, or many chunks (the last of odd length)."""
    if chunk_bytes:
        monkeypatch.setattr(pp.Context, "_chunk_bytes", chunk_bytes)
    count = 300_007 if comm.size > 5 else 1_100_003
    dtype = np.dtype("float32")
    truth = expected(dtype, count, comm.size, "SUM")
    with pp.Context(comm) as ctx:
        send, out = contribution(dtype, count, comm.rank, "SUM"), np.zeros(count, dtype)
        for policy in (pp.Full(), pp.Majority()):
            request = ctx.Allreduce_init(send, out, policy=policy, algorithm=algorithm)
            assert request.algorithm == algorithm
            status = pp.Status()
            for _ in range(2):
                status = run_once(request)
                who = status.contributors
                if who == tuple(range(comm.size)) and status.contributions == comm.size:
                    assert np.array_equal(out, truth)
            request.Flush()
            request.Free()
        if comm.size > 1:
            assert ctx.stats().bulk_sent > 0


def test_chunks_change_nothing(comm, monkeypatch):
    """Bit for bit the same in one transfer and in chunks that split elements between them."""
    results = []
    for chunk_bytes in (0, 20_001, 65_536):
        monkeypatch.setattr(pp.Context, "_chunk_bytes", chunk_bytes)
        with pp.Context(comm) as ctx:
            send = np.random.default_rng(comm.rank).standard_normal(50_001)
            out = np.empty_like(send)
            request = ctx.Allreduce_init(send, out, policy=pp.Full(), algorithm="ring")
            run_once(request)
            results.append(out.tobytes())
            request.Free()
    assert len(set(results)) == 1
    assert len(set(comm.allgather(results[0]))) == 1


def test_auto_algorithm_depends_on_size(comm):
    small, large = np.zeros(1), np.zeros(1 << 20)
    with pp.Context(comm, transport="mpi") as ctx:
        requests = [ctx.Allreduce_init(None, buffer) for buffer in (small, large)]
        names = [request.algorithm for request in requests]
        assert set(names) <= set(ALGORITHMS)
        assert len(set(comm.allgather(tuple(names)))) == 1
        if comm.size > 2:
            assert names[0] != names[1]
        for request in requests:
            request.Free()


def test_auto_is_shared_memory_on_one_node(comm, ctx):
    request = ctx.Allreduce_init(None, np.zeros(1))
    stats = ctx.stats()
    shares = bool(stats.shares_memory) and stats.neighbours == comm.size
    assert (request.algorithm == "shared_memory") == shares
    assert comm.allgather(shares) == comm.size * [shares]
    request.Free()


@pytest.mark.parametrize("average", ["size", "contributors", "contributions"])
def test_averages(comm, ctx, average):
    """Divided by the right number, for every type that has one, with late ranks about."""
    for dtype in [np.dtype(t) for t in [*HALVES, *FLOATS, *COMPLEX]]:
        send, out = np.full(5, comm.rank + 1).astype(dtype), np.zeros(5, dtype)
        request = ctx.Allreduce_init(send, out, policy=pp.Full(), average=average)
        run_once(request)
        assert out.astype("c16").tolist() == [(comm.size + 1) / 2] * 5, dtype
        request.Free()
    # Three Starts in one round: of rank 0 alone, merged while rank 1 was not ready for the first.
    counts, out = np.array([1.0]), np.zeros(1)
    request = ctx.Allreduce_init(counts, out, policy=pp.Solo(), average=average, deliver="each")
    status = pp.Status()
    for _ in range(10):
        request.Start()
        request.Wait(status)
        by = {
            "size": comm.size,
            "contributors": len(status.contributors),
            "contributions": status.contributions,
        }[average]
        assert out[0] == pytest.approx(status.contributions / by, rel=1e-15)
    for _ in request.Drain():
        pass
    request.Free()


@pytest.mark.parametrize("average", ["size", "contributors", "contributions"])
def test_average_of_merged_rounds(comm, ctx, average):
    """With deliver="sum", what is given is a sum of averages, equal after the flush."""
    send, out = np.array([1.0 if average == "size" else 2.0]), np.zeros(1)
    request = ctx.Allreduce_init(send, out, policy=pp.Majority(), average=average, deliver="sum")
    replica, status = 0.0, pp.Status()
    for _ in range(20):
        request.Start()
        request.Wait(status)
        replica += out[0]
    request.Flush(status)
    replica += out[0]
    replicas = comm.allgather(replica)
    assert replicas == pytest.approx([replicas[0]] * comm.size, rel=1e-12)
    if average == "size":
        assert replica == pytest.approx(20.0)
    request.Free()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_halves_are_accumulated_in_float32(comm, ctx, dtype, algorithm):
    """One addend that is too small for the running sum is lost, all of them together are not."""
    digits = 1 << (11 if dtype == np.float16 else 8)
    send = np.array([digits if comm.rank == 0 else 1, 40_000], dtype)
    out = np.zeros(2, dtype)
    request = ctx.Allreduce_init(send, out, policy=pp.Full(), algorithm=algorithm)
    run_once(request)
    assert out[0] == np.array(digits + comm.size - 1, dtype)
    request.Free()
    request = ctx.Allreduce_init(send, out, policy=pp.Full(), algorithm=algorithm, average="size")
    run_once(request)
    assert out[1] == send[1]  # the sum would be infinite in float16
    request.Free()


@pytest.mark.parametrize("deliver", ["latest", "sum", "each"])
def test_floats_are_the_same_bits_everywhere(comm, ctx, deliver):
    """Sums that depend on the order: the order is the same on every rank.  So are padding bytes."""
    random = np.random.default_rng(comm.rank)
    dtypes = ("float32", "float16", "longdouble", "clongdouble")
    for dtype, algorithm in itertools.product(dtypes, ("auto", *ALGORITHMS)):
        send, out = np.zeros(999, dtype), np.zeros(999, dtype)
        request = ctx.Allreduce_init(
            send, out, policy=pp.Full(), deliver=deliver, algorithm=algorithm
        )
        for _ in range(3):
            send.view(np.uint8)[:] = random.integers(256, dtype=np.uint8)  # the padding, too
            send[:] = random.standard_normal(999)
            run_once(request)
            assert len(set(comm.allgather(out.tobytes()))) == 1
            assert padding(out) == {0}
        request.Free()


X87_BYTES = 10  # of a long double on x86-64; the others are padding


def padding(values):
    """Which bytes the padding of long doubles has; {0} if these have none."""
    kind = np.dtype("longdouble")
    if values.dtype not in ("longdouble", "clongdouble") or np.finfo(kind).nmant != 63:
        return {0}
    return set(values.view(np.uint8).reshape(-1, kind.itemsize)[:, X87_BYTES:].ravel().tolist())


@pytest.mark.parametrize("op", ["SUM", "PROD", "MIN", "MAX"])
@pytest.mark.parametrize("dtype", ["longdouble", "clongdouble"])
def test_the_result_of_nothing_has_no_bytes_of_the_stack(comm, ctx, dtype, op):
    if op not in operations(np.dtype(dtype)):
        return
    out = np.zeros(9, dtype)
    request = ctx.Allreduce_init(None, out, op=getattr(MPI, op), policy=pp.Full())
    out.view(np.uint8)[:] = 0xAA
    request.Flush()
    assert padding(out) == {0}
    request.Free()


@pytest.mark.skipif(bool(WHY_NONE), reason=WHY_NONE)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex64"])
def test_modes_of_one_rank_change_no_bits(comm, ctx, dtype, mode):
    """The last rank's application has subnormal numbers flushed, or rounds in another way."""
    random = np.random.default_rng(comm.rank)
    tiny = {2: 1e-4, 4: 1e-38, 8: 1e-308 if dtype == "float64" else 1e-38}[np.dtype(dtype).itemsize]
    values = (random.standard_normal(999) * tiny).astype(dtype)
    sums = {}
    for algorithm, average in itertools.product(ALGORITHMS, (None, "size")):
        out = np.zeros_like(values)
        request = ctx.Allreduce_init(
            values, out, policy=pp.Full(), algorithm=algorithm, average=average
        )
        for changes in (False, True):
            with changed(mode) if changes and comm.rank == comm.size - 1 else nullcontext():
                run_once(request)
            assert len(set(comm.allgather(out.tobytes()))) == 1
            assert sums.setdefault((algorithm, average), out.tobytes()) == out.tobytes()
        request.Free()
