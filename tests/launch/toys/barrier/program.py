"""Three ranks, a barrier of two: rank 2 never comes, and nobody waits for it."""

import sys
from pathlib import Path

from support.mpirun import mpirun, python

RANK = """
from mpi4py import MPI
import pypartial as pp

with pp.Context(MPI.COMM_WORLD, transport={transport!r}) as ctx:
    barrier = ctx.Barrier_init(2)
    for step in range(100):
        if ctx.rank < 2:
            barrier.Start()
            assert barrier.Wait(timeout=60)
    barrier.Flush()
    if ctx.rank == 2:
        barrier.Start()
        try:
            barrier.Wait(timeout=0)
        except pp.TimeoutError as error:
            assert "1 of 2 ranks have come" in str(error), error
    barrier.Free()
    try:
        ctx.Barrier_init(4)
    except pp.ArgumentError as error:
        assert "k" in str(error), error
    else:
        raise AssertionError("no error")
"""

for transport in ("auto", "mpi"):
    file = Path(f"rank-{transport}.py")
    file.write_text(RANK.format(transport=transport), encoding="utf-8")
    mpirun(3, python("-m", "mpi4py", str(file.absolute())), timeout_s=120).check()
sys.stdout.write("barrier\n")
