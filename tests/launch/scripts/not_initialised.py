"""A context before MPI_Init and after MPI_Finalize: a clear error, and no crash."""

import mpi4py

import pypartial as pp

mpi4py.rc.initialize = False
from mpi4py import MPI  # noqa: E402


def refused(word):
    try:
        pp.Context(MPI.COMM_WORLD)
    except pp.Error as error:
        assert word in str(error), error
    else:
        raise AssertionError(f"a context while MPI is {word}")


refused("not initialised")
MPI.Init_thread(MPI.THREAD_MULTIPLE)
with pp.Context(MPI.COMM_WORLD):
    pass
rank = MPI.COMM_WORLD.rank
MPI.Finalize()
refused("finalised")
print(f"end of rank {rank}", flush=True)
