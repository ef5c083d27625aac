"""A forked child makes a context: forked.py WHEN [before | after MPI was initialised].

The parent imports the package first. After MPI_Init the child is refused, and the parent goes on,
also when the child drops an array of the library;
before, the child initialises an MPI of its own, and may.
"""

import os
import sys
import weakref

import mpi4py
import numpy as np

import pypartial as pp

mpi4py.rc.initialize = mpi4py.rc.finalize = False


def work(comm):
    with pp.Context(comm) as ctx:
        out = np.zeros(2)
        request = ctx.Allreduce_init(np.ones(2), out, policy=pp.Full())
        request.Start()
        request.Wait()
        assert out.tolist() == [comm.size] * 2
        request.Free()


def refused(comm):
    try:
        pp.Context(comm)
    except pp.Error as error:
        assert "a forked child cannot make a context" in str(error), error
        assert not isinstance(error, (pp.ArgumentError, pp.MismatchError)), error
    else:
        raise AssertionError("a context in a forked child")


def drop_an_array(comm):
    """The parent has the memory as well, and so have the other ranks."""
    with pp.Context(comm) as ctx:
        arrays, out = [ctx.alloc(5000)], np.zeros(5000)
        arrays[0][:] = 7
        gone = weakref.ref(arrays[0])
        assert in_child(arrays.clear, lambda: gone() is None)
        assert (arrays[0] == 7).all()
        request = ctx.Allreduce_init(arrays[0], out, policy=pp.Full())
        request.Start()
        request.Wait()
        assert (out == 7 * comm.size).all()
        request.Free()


def in_child(call, succeeds=lambda: True):
    """Return whether a call succeeds in a forked child."""
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1] == 0
    code = 1
    try:
        call()
        code = 0 if succeeds() else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stderr.flush()
        os._exit(code)


def initialise_and_work():
    from mpi4py import MPI

    MPI.Init_thread(MPI.THREAD_MULTIPLE)
    work(MPI.COMM_WORLD)
    MPI.Finalize()


def be_refused():
    from mpi4py import MPI

    refused(MPI.COMM_SELF)
    refused(MPI.COMM_WORLD)
    assert in_child(lambda: refused(MPI.COMM_SELF))  # a grandchild, too


if sys.argv[1] == "before":
    assert "mpi4py.MPI" not in sys.modules
    assert in_child(initialise_and_work)
    rank = 0
else:
    from mpi4py import MPI

    MPI.Init_thread(MPI.THREAD_MULTIPLE)
    rank = MPI.COMM_WORLD.rank
    assert in_child(be_refused)
    work(MPI.COMM_WORLD)
    assert in_child(be_refused)
    work(MPI.COMM_WORLD)
    drop_an_array(MPI.COMM_WORLD)
    MPI.Finalize()
print(f"end of rank {rank}", flush=True)
