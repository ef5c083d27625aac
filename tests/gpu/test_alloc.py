"""Arrays of `Context.alloc` on a device: rounds read them where they lie."""

from __future__ import annotations

import numpy as np
import pytest
from support import gpu

import pypartial as pp

pytestmark = pytest.mark.mpi

COUNT, STEPS = 300_000, 20


def add_up(comm, kit, request, lent, out, step):
    """Have a round add up what the ranks have in an array."""
    values = np.arange(COUNT, dtype="f4") % 100 + step
    kit.put(lent, values)
    request.Start()
    request.Wait()
    found = kit.get(out, COUNT, "float32")
    assert (found == comm.size * values).all(), (step, found[:4])
    kit.settle()


@pytest.mark.parametrize("kit", ["cupy"], indirect=True)  # whose arrays they are
@pytest.mark.parametrize("first", [0, 3], ids=["whole", "a part"])
def test_sums_of_arrays_that_are_lent(comm, ctx, kit, path, first):
    """No copy of them is made on the ipc path, and the sums are those that they should be."""
    lent = ctx.alloc(COUNT + first, "f4", device=0)
    if first:
        if gpu.is_stand_in():
            pytest.skip("the stand-in's arrays have no parts")
        lent = lent[first:]
    out = kit.new(COUNT, "float32")
    request = gpu.made(ctx, path, lent, out, policy=pp.Full())
    copied = ctx.stats().ipc_bytes
    for step in range(STEPS):
        add_up(comm, kit, request, lent, out, step)
    if path == "ipc":
        assert ctx.stats().ipc_bytes - copied == STEPS * COUNT * 4  # of results
    request.Free()


@pytest.mark.parametrize("kit", ["cupy"], indirect=True)
def test_an_array_that_two_handles_read(comm, ctx, kit, path):
    """The other ranks open it twice; when one handle is freed, they go on to read it."""
    lent, out = ctx.alloc(COUNT, "f4", device=0), kit.new(COUNT, "float32")
    first, second = (gpu.made(ctx, path, lent, out, policy=pp.Full()) for _ in range(2))
    copied = ctx.stats().ipc_bytes
    for step in range(STEPS):
        add_up(comm, kit, (first, second)[step % 2], lent, out, step)
    first.Free()
    for step in range(STEPS):
        add_up(comm, kit, second, lent, out, step)
    if path == "ipc":
        assert ctx.stats().ipc_bytes - copied == 2 * STEPS * COUNT * 4  # of results
    second.Free()
