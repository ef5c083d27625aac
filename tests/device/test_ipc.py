"""Vectors in the memory of devices that the ranks share: as with the host's, to the bit."""

from __future__ import annotations

import numpy as np
import pytest
from support.oracles import Log, judge

import pypartial as pp

pytestmark = pytest.mark.mpi

STEPS = 20


@pytest.mark.parametrize("extra", [0, 40000], ids=["small", "large"])
@pytest.mark.parametrize("deliver", ["latest", "sum", "each"])
@pytest.mark.parametrize("policy", [pp.Solo(), pp.Majority(), pp.Full()], ids=str)
def test_the_loop(comm, ctx, array, policy, deliver, extra):
    """Every contribution enters one round, and all ranks have the same results."""
    values = np.arange(comm.size + extra, dtype="i8")
    values[: comm.size] = np.eye(comm.size, dtype="i8")[comm.rank]
    send, out, status = array(values.size, "i8"), array(values.size, "i8"), pp.Status()
    request = ctx.Allreduce_init(send, out, policy=policy, deliver=deliver, device_path="ipc")
    assert (request.device_path, request.device_path_reason) == ("ipc", "")
    log = Log(comm.size, 8 * STEPS * comm.size)
    for _ in range(STEPS):
        send.put(values)
        request.Start()
        send.put(-999)  # waits for the copy
        log.started()
        request.Wait(status)
        log.given(status, out.get())
        send.settle()
    if deliver == "each":
        for drained in request.Drain():
            log.given(drained, out.get())
    else:
        request.Flush(status)
        log.given(status, out.get())
    judge(comm, log, request)
    request.Free()
