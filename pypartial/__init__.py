"""Partial collectives for MPI: an allreduce that does not wait for the slowest rank.

A partial collective completes on all ranks although only some of them have called. A `Policy` says
which ranks it waits for. A rank that comes later finds the result there, and its contribution goes
into the next round, so nothing is lost. The calls follow mpi4py::

    from mpi4py import MPI
    import numpy as np, pypartial as pp

    with pp.Context(MPI.COMM_WORLD, seed=7) as ctx:
        g, out = np.ones(1 << 20, "f4"), np.empty(1 << 20, "f4")
        req = ctx.Allreduce_init(g, out, op=MPI.SUM, policy=pp.Majority())
        st = pp.Status()
        for step in range(100):
            req.Start()  # contributes g; never waits for another rank
            req.Wait(st)  # until a round is complete; its sum is in out
        req.Flush(st)  # collective: one more round with everything that is pending
        req.Free()

Begin with `Context`, `Context.Allreduce_init`, `Request` and `Policy`; `Status` says what a round
contained. `Context.Preduce_init` averages models in small groups that change from iteration to
iteration; `pypartial.groups` has the generators that choose the groups. `pypartial.methods` trains
models by these: eager-SGD, Partial Reduce, Ripples. `pypartial.torch` does so with PyTorch.
`pypartial.topology` has the graphs of ranks on which decentralized training averages;
`Context.Queue_init` averages models with the neighbours in such a graph (Hop).

``import pypartial`` loads NumPy only. ``import mpi4py.MPI`` initialises MPI, as always. The first
`Context` loads the C core and checks that it uses the MPI library that mpi4py has loaded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import groups, methods, topology
from ._handle import Request, Startall, Waitall
from .allreduce import AllreduceRequest
from .context import Context
from .device import DeviceAllreduceRequest, DevicePreduceRequest
from .errors import (
    ArgumentError,
    Error,
    MismatchError,
    PeerFailedError,
    ThreadLevelError,
    TimeoutError,
)
from .gossip import GossipRequest, SyncGossipRequest
from .policy import FirstOf, Full, Majority, Policy, Quorum, Solo
from .preduce import PreduceRequest
from .queue import QueueRequest
from .recording import Recorder, record
from .report import RankReport, Report, Verdict
from .status import Activation, Cause, Stats, Status

if TYPE_CHECKING:
    from typing import Any

__version__ = "0.1.0"

__all__ = [
    "Activation",
    "AllreduceRequest",
    "ArgumentError",
    "Cause",
    "Context",
    "DeviceAllreduceRequest",
    "DevicePreduceRequest",
    "Error",
    "FirstOf",
    "Full",
    "GossipRequest",
    "Majority",
    "MismatchError",
    "PeerFailedError",
    "Policy",
    "PreduceRequest",
    "QueueRequest",
    "Quorum",
    "RankReport",
    "Recorder",
    "Report",
    "Request",
    "Solo",
    "Startall",
    "Stats",
    "Status",
    "SyncGossipRequest",
    "ThreadLevelError",
    "TimeoutError",
    "Verdict",
    "Waitall",
    "groups",
    "methods",
    "record",
    "topology",
]


def __getattr__(name: str) -> Any:
    """Load ``pypartial.torch`` when it is used: it needs PyTorch, which takes long to load."""
    import importlib

    if name == "torch":
        return importlib.import_module(".torch", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
