"""MPI with too low a thread level: levels.py LEVEL."""

import sys

import mpi4py
import numpy as np

import pypartial as pp

mpi4py.rc.initialize = False
from mpi4py import MPI  # noqa: E402

LEVELS = {
    "single": MPI.THREAD_SINGLE,
    "funneled": MPI.THREAD_FUNNELED,
    "serialized": MPI.THREAD_SERIALIZED,
}
level = LEVELS[sys.argv[1]]
MPI.Init_thread(level)
comm = MPI.COMM_WORLD
assert MPI.Query_thread() == level
try:
    pp.Context(comm)
except pp.ThreadLevelError as error:
    assert "MPI_THREAD_MULTIPLE" in str(error), error
    assert 'progress="caller"' in str(error), error
else:
    raise AssertionError("a progress thread without MPI_THREAD_MULTIPLE")
with pp.Context(comm, progress="caller") as ctx:
    out = np.zeros(2)
    request = ctx.Allreduce_init(np.ones(2), out, policy=pp.Full())
    for _ in range(50):
        request.Start()
        request.Wait()
        assert out.tolist() == [comm.size] * 2
    request.Free()
print(f"end of rank {comm.rank}", flush=True)
MPI.Finalize()  # mpi4py does it for what it has initialised itself
