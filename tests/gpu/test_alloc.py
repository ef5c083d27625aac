"""Arrays of `Context.alloc` on a device: rounds read them where they lie."""

from __future__ import annotations

import numpy as np
import pytest
from support import gpu

import pypartial as pp

pytestmark = pytest.mark.mpi

COUNT, STEPS = 300_000, 20


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
    values = np.arange(COUNT, dtype="f4") % 100
    request = gpu.made(ctx, path, lent, out, policy=pp.Full())
    copied = ctx.stats().ipc_bytes
    for step in range(STEPS):
        kit.put(lent, values + step)
        request.Start()
        request.Wait()
        found = kit.get(out, COUNT, "float32")
        assert (found == comm.size * (values + step)).all(), (step, found[:4])
        kit.settle()
    if path == "ipc":
        assert ctx.stats().ipc_bytes - copied == STEPS * values.nbytes  # of results
    request.Free()
