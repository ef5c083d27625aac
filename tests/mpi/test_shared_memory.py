"""The memory that the ranks of a node share: what is in it, and that it is given back."""

from __future__ import annotations

import gc
import os
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import pypartial as pp

pytestmark = [pytest.mark.mpi, pytest.mark.sizes(1, 2, 3)]

FDS, MAPS = Path("/proc/self/fd"), Path("/proc/self/maps")


def committed_bytes() -> int:
    """Memory behind this process's descriptors of node memory."""
    names = [fd for fd in FDS.iterdir() if fd.is_symlink() and "pypartial-node" in os.readlink(fd)]
    return sum(512 * os.stat(name).st_blocks for name in names)


def mapped() -> list[str]:
    """What this process has mapped, and has open: a line each."""
    lines = MAPS.read_text().splitlines()
    for fd in FDS.iterdir():
        with suppress(FileNotFoundError):  # that of iterdir() itself
            lines.append(os.readlink(fd))
    return lines


def test_the_memory_has_no_name(comm):
    """So nothing of it can be left in /dev/shm, however a rank ends."""

    def named():
        return {line.partition("/dev/shm/")[2] for line in mapped() if "/dev/shm/" in line}

    comm.alltoall([None] * comm.size)
    before = named()  # by MPI
    with pp.Context(comm) as ctx:
        send, out = ctx.alloc(1 << 19), np.zeros(1 << 19)
        with ctx.Allreduce_init(send, out, policy=pp.Full()) as request:
            request.Start()
            request.Wait()
            if ctx.stats().shares_memory:
                assert any("pypartial-node" in line for line in mapped())
            assert named() <= before


def test_a_freed_handle_gives_its_memory_back(comm, ctx):
    if not ctx.stats().shares_memory:
        pytest.skip("the ranks share no memory (PYPARTIAL_TRANSPORT)")
    send, out = np.ones(1 << 19), np.zeros(1 << 19)
    comm.barrier()
    before = committed_bytes()
    comm.barrier()
    for _ in range(4):
        request = ctx.Allreduce_init(send, out, policy=pp.Full())
        request.Start()
        request.Wait()
        assert (out == comm.size).all()
        comm.barrier()
        assert committed_bytes() >= before + send.nbytes
        comm.barrier()
        request.Free()
        comm.barrier()
        assert committed_bytes() < before + send.nbytes


def test_an_array_that_is_gone_gives_its_memory_back(comm, ctx):
    if not ctx.stats().shares_memory:
        pytest.skip("the ranks share no memory (PYPARTIAL_TRANSPORT)")
    comm.barrier()
    before = committed_bytes()
    comm.barrier()
    array = ctx.alloc(1 << 19)
    array[:] = 1
    comm.barrier()
    assert committed_bytes() >= before + ctx.stats().neighbours * array.nbytes
    comm.barrier()
    del array
    comm.barrier()
    assert committed_bytes() <= before


@pytest.mark.parametrize("kind", ["allreduce", "groups"])
@pytest.mark.sizes(1)
def test_an_array_that_a_handle_uses_in_place_stays(comm, kind):
    """Also if Python has nothing of it any more: other ranks may still reach for it."""
    gc.collect()  # what tests before have left must not go meanwhile, nor the context count
    bytes_before = committed_bytes()
    with suppress(ZeroDivisionError), pp.Context(comm) as ctx:
        if not ctx.stats().shares_memory:
            pytest.skip("the ranks share no memory (PYPARTIAL_TRANSPORT)")
        array = ctx.alloc(1 << 19)
        if kind == "groups":
            request = ctx.Preduce_init(array, pp.groups.Given())
        else:
            request = ctx.Allreduce_init(None, array, policy=pp.Full())
        raise ZeroDivisionError
    size = array.nbytes
    del array, request, ctx
    gc.collect()
    assert committed_bytes() >= bytes_before + size


def test_an_array_outlives_its_context(comm):
    with pp.Context(comm) as ctx:
        array = ctx.alloc((3, 5), "i4")
        assert array.shape == (3, 5)
        assert not array.any()
    array[:] = comm.rank
    assert (array == comm.rank).all()
