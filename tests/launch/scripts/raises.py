"""One rank raises while the others are in their loop: raises.py WHERE RANK POLICY.

WHERE: "outside" of any block, in the context's block ("with"), in a block of the request alone
("request"), in both ("both"), or in both, and the script catches it between them ("swallowed").
"""

import contextlib
import sys

import numpy as np
from mpi4py import MPI

import pypartial as pp

where, culprit = sys.argv[1], int(sys.argv[2])
policy = {"solo": pp.Solo(), "full": pp.Full()}[sys.argv[3]]
comm = MPI.COMM_WORLD


def make(ctx):
    return ctx.Allreduce_init(np.ones(1000), np.zeros(1000), policy=policy)


def loop(request):
    for step in range(10_000_000):
        if comm.rank == culprit and step == 50:
            raise RuntimeError(f"rank {comm.rank} gives up")
        request.Start()
        request.Wait()


if where == "with":
    with pp.Context(comm) as ctx:
        loop(make(ctx))
elif where == "request":
    with make(pp.Context(comm)) as request:
        loop(request)
elif where == "both":
    with pp.Context(comm) as ctx, make(ctx) as request:
        loop(request)
elif where == "swallowed":
    with pp.Context(comm) as ctx, contextlib.suppress(RuntimeError), make(ctx) as request:
        loop(request)
else:
    loop(make(pp.Context(comm)))
