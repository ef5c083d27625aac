"""A rank gives up in finish() while others still train: method_raises.py WHAT.

WHAT: "sum" and "sync", where the last rank's update raises, or "groups", where its state() does.
The other ranks say what they see.
"""

import sys

from mpi4py import MPI

import pypartial as pp
from pypartial.methods import EagerSGD, PartialReduce

STEPS = 30
comm = MPI.COMM_WORLD
is_culprit = comm.rank == comm.size - 1
method = {
    "sum": EagerSGD(deliver="sum"),
    "sync": EagerSGD(deliver="sum", sync_every=4),
    "groups": PartialReduce(2),
}[sys.argv[1]]
has_come = False


def fail() -> None:
    if is_culprit and has_come:
        sys.exit()  # the job would end at once by any other exception


def state():
    if sys.argv[1] == "groups":
        fail()
    return [x[:1]]


def update(gradient):
    fail()


try:
    with pp.Context(comm) as ctx:
        x = ctx.alloc(1000, "f4")
        worker = method.worker(ctx, x, state=state)
        for _ in range(2 if is_culprit else STEPS):
            worker.gradient[:] = 1
            worker.step(worker.gradient, update)
        has_come = True
        worker.finish()
except pp.PeerFailedError as error:
    print(f"rank {comm.rank} sees {error}", flush=True)
