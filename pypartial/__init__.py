"""Partial collectives for MPI: an allreduce that does not wait for the slowest rank.

A partial collective completes on all ranks although only some of them have called: a `Policy` says
how many. Ranks that come later find the result waiting; what they contribute goes into the next
round, so nothing is lost. It feels like mpi4py::

    from mpi4py import MPI
    import numpy as np, pypartial as pp

    with pp.Context(MPI.COMM_WORLD, seed=7) as ctx:
        g, out = np.ones(1 << 20, "f4"), np.empty(1 << 20, "f4")
        req = ctx.Allreduce_init(g, out, op=MPI.SUM, policy=pp.Majority())
        st = pp.Status()
        for step in range(100):
            req.Start()
            req.Wait(st)
        req.Flush(st)
        req.Free()

Importing the package loads NumPy only. MPI is initialised by importing ``mpi4py.MPI``, as always,
and the C core is loaded, and checked to use mpi4py's MPI, when the first `Context` is made.
"""

from ._handle import Request, Startall, Waitall
from .allreduce import AllreduceRequest
from .context import Context
from .errors import (
    ArgumentError,
    Error,
    MismatchError,
    PeerFailedError,
    ThreadLevelError,
    TimeoutError,
)
from .policy import FirstOf, Full, Majority, Policy, Quorum, Solo
from .status import Activation, Cause, Stats, Status

__version__ = "0.1.0"

__all__ = [
    "Activation",
    "AllreduceRequest",
    "ArgumentError",
    "Cause",
    "Context",
    "Error",
    "FirstOf",
    "Full",
    "Majority",
    "MismatchError",
    "PeerFailedError",
    "Policy",
    "Quorum",
    "Request",
    "Solo",
    "Startall",
    "Stats",
    "Status",
    "ThreadLevelError",
    "TimeoutError",
    "Waitall",
]
