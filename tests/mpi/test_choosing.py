"""``algorithm="auto"``: rank 0's tuning table decides for all ranks, and a name wins over it."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

import pypartial as pp
from pypartial import _native, tuning
from pypartial._core import lib
from pypartial._names import REASON
from pypartial.tuning import Cost, Entry, Measured, Switch

pytestmark = [pytest.mark.mpi, pytest.mark.sizes(1, 2, 3, 5)]

SWITCH_BYTES = 4000
LATER = ("ring", "rabenseifner", "recursive_doubling")


def table_of(comm) -> Entry:
    """A table that is another one on each of three ranks."""
    native = _native.load()
    first, then = LATER[comm.rank % 3], LATER[(comm.rank + 1) % 3]
    one_node = int(os.environ.get("PYPARTIAL_NODE_RANKS") or comm.size) >= comm.size
    return Entry(
        ranks=comm.size,
        link="node" if one_node else "network",
        mpi=native.library.splitlines()[0],
        version=native.text(native.lib.pp_version()),
        host="here",
        cores=os.cpu_count() or 1,
        date="2026-01-02T03:04:05+00:00",
        cost=Cost(1, 1, 1, 1, 1),
        switches=(Switch(0, first), Switch(SWITCH_BYTES, then)),
        measured=(Measured(8, {"ring": 1.0}),),
    )


@pytest.fixture
def own_table(comm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A table of this rank's own."""
    path = tmp_path / f"of-rank-{comm.rank}" / "tuning.json"
    tuning.write(_native.load(), path, [table_of(comm)])
    monkeypatch.setenv("PYPARTIAL_TUNING", str(path))
    return path


def check(comm, ctx, count, expected, reason, algorithm="auto"):
    out = np.zeros(count)
    send = np.full(count, comm.rank + 1.0)
    request = ctx.Allreduce_init(send, out, policy=pp.Full(), algorithm=algorithm)
    assert request.algorithm == expected
    assert request.algorithm_reason == REASON.value(lib, getattr(lib, reason))
    for _ in range(3):
        request.Start()
        request.Wait()
        assert (out == comm.size * (comm.size + 1) / 2).all()
    request.Free()


def test_rank_0_decides(comm, own_table):
    with pp.Context(comm, transport="mpi") as ctx:
        check(comm, ctx, SWITCH_BYTES // 8 - 1, "ring", "PP_REASON_MEASURED")
        check(comm, ctx, SWITCH_BYTES // 8, "rabenseifner", "PP_REASON_MEASURED")


def test_a_name_wins(comm, own_table):
    with pp.Context(comm, transport="mpi") as ctx:
        for algorithm in LATER:
            check(comm, ctx, 1001, algorithm, "PP_REASON_ASKED", algorithm)


def test_other_ranks_need_no_table_and_rank_0s_may_be_broken(comm, own_table):
    if comm.rank:
        own_table.unlink()
    with pp.Context(comm, transport="mpi") as ctx:
        check(comm, ctx, 3, "ring", "PP_REASON_MEASURED")
    if comm.rank == 0:
        own_table.write_text("{")
    else:
        tuning.write(_native.load(), own_table, [table_of(comm)])
    with pp.Context(comm, transport="mpi") as ctx:
        check(comm, ctx, 3, "recursive_doubling", "PP_REASON_DEFAULTS")


def test_in_shared_memory_nothing_is_chosen(comm, own_table, ctx):
    if not ctx.stats().shares_memory or ctx.stats().neighbours < comm.size:
        pytest.skip("not all ranks share memory (PYPARTIAL_TRANSPORT, PYPARTIAL_NODE_RANKS)")
    check(comm, ctx, 3, "shared_memory", "PP_REASON_SHARED_MEMORY")
