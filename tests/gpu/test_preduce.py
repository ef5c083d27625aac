"""Groups of models on a device: the host's averages, bit for bit, and the mean of all models."""

from __future__ import annotations

from zlib import crc32

import numpy as np
import pytest
from support import gpu
from support.oracles import check_groups

import pypartial as pp

pytestmark = pytest.mark.mpi

STEPS = 12
COUNT = 1001
FLOATS = ("float16", gpu.BFLOAT16, "float32", "float64")


def made(ctx, path, model, groups, **options):
    """Make a handle on a path; MPI gets addresses of a device where it adds up the models."""
    if path == "direct":
        options["backend"] = "comm"
    request = ctx.Preduce_init(model, groups, device_path=path, **options)
    assert request.device_path == path, request.device_path_reason
    return request


def generators(size):
    found = {"random": pp.groups.Random(2), "smart": pp.groups.Smart(2)}
    return found | {"controller": pp.groups.Controller(2)}


@pytest.mark.parametrize("count", [7, 300_000], ids=["small", "large"])
@pytest.mark.parametrize("name", ["random", "smart", "controller"])
def test_the_mean_is_kept_and_members_agree(comm, ctx, kit, path, name, count):
    """Averages of equal weight keep the mean; the members of a group have the same bits."""
    if comm.size == 1:
        pytest.skip("a group has two members or more")
    initial = np.random.default_rng(comm.rank).normal(size=count)
    mean = np.mean(comm.allgather(initial), axis=0)
    model, junk = kit.new(count, "float64"), np.full(count, -999.0)
    kit.put(model, initial)
    request = made(ctx, path, model, generators(comm.size)[name])
    log, status = [], pp.Status()
    for _ in range(STEPS):
        request.Start()
        kit.put(model, junk)  # waits for the copy
        request.Wait(status)
        after = kit.get(model, count, "float64")
        log.append((status.round, status.group, status.weights, crc32(after.tobytes())))
        kit.settle()
    request.Flush(status)
    assert status.group == tuple(range(comm.size))
    after = kit.get(model, count, "float64")
    assert comm.allgather(after.tobytes()) == [after.tobytes()] * comm.size
    np.testing.assert_allclose(after, mean, rtol=0, atol=1e-12)
    check_groups(comm, log)
    request.Free()


@pytest.mark.parametrize("weights", ["constant", "closest", "initial"])
def test_averages_have_the_bits_of_the_hosts(comm, ctx, kit, path, weights):
    """With every kind of weights; where MPI adds up the models, its order decides the last bits."""
    dynamic = {} if weights == "constant" else {"weights": "dynamic", "missing": weights}
    for dtype in FLOATS:
        if dtype == gpu.BFLOAT16 and kit.name != "torch":
            continue
        rng = np.random.default_rng(comm.rank)
        initial, other = (
            (10 * rng.standard_normal(COUNT)).astype(gpu.element(dtype)) for _ in range(2)
        )
        on_device, on_host = kit.new(COUNT, dtype), initial.copy()
        kit.put(on_device, initial)
        groups = pp.groups.Given()
        first = made(ctx, path, on_device, groups, **dynamic)
        second = ctx.Preduce_init(on_host, groups, backend=first.backend, **dynamic)
        kit.put(on_device, other)
        on_host[:] = other
        alone = range(max(1, comm.size - 1))
        for iteration, group in enumerate([range(comm.size), alone, range(comm.size)]):
            if comm.rank not in group:
                continue
            for request in (first, second):
                request.Start(iteration * comm.size + comm.rank, group)
                request.Wait()
            found = kit.get(on_device, COUNT, dtype)
            if path == "direct":
                wide = found.astype("f8"), on_host.astype("f8")
                np.testing.assert_allclose(*wide, rtol=1e-2 if wide[0].nbytes else 0, atol=1e-2)
            else:
                assert found.tobytes() == on_host.tobytes(), (dtype, found[:4], on_host[:4])
        first.Free()
        second.Free()
        kit.settle()
