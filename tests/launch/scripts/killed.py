"""One rank is killed by a signal while the others wait for it: killed.py RANK."""

import os
import signal
import sys

import numpy as np
from mpi4py import MPI

import pypartial as pp

comm = MPI.COMM_WORLD
ctx = pp.Context(comm)
request = ctx.Allreduce_init(np.ones(100_000), np.zeros(100_000), policy=pp.Full())
for step in range(10_000_000):
    if comm.rank == int(sys.argv[1]) and step == 20:
        os.kill(os.getpid(), signal.SIGKILL)
    request.Start()
    request.Wait()
