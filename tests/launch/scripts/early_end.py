"""The script of rank 0 ends before the ranks meet: early_end.py METHOD CALL.

The other ranks say what they see in CALL: "flush", "finish", or "step" for a method that averages
in its steps.
"""

import sys

import numpy as np
from mpi4py import MPI

import pypartial as pp
from pypartial.methods import EagerSGD, PartialReduce, Synchronous

method = {
    "synchronous": Synchronous(),
    "sum": EagerSGD(deliver="sum"),
    "sync": EagerSGD(deliver="sum", sync_every=1),
    "groups": PartialReduce(2),
}[sys.argv[1]]
call = sys.argv[2]
rank = MPI.COMM_WORLD.rank


def update(gradient):
    pass


ctx = pp.Context(MPI.COMM_WORLD)
worker = method.worker(ctx, np.zeros(100))
worker.step(np.ones(100), update)
if rank == 0:
    sys.exit()
try:
    if call == "step":
        worker.step(None, update)
    else:
        getattr(worker, call)()
except pp.PeerFailedError as error:
    print(f"rank {rank} sees {error}", flush=True)
