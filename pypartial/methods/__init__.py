"""Methods of distributed training, over flat vectors of NumPy: what to average, and when.

A `Method` says how the ranks of a context train one model together. It makes a `Worker`, which is
one rank's part in it: the application computes gradients and says how a gradient changes the
model, and the worker does everything that concerns other ranks::

    method = pp.methods.EagerSGD()
    with pp.Context(MPI.COMM_WORLD) as ctx:
        x = ctx.alloc(n, "f4")  # the model
        worker = method.worker(ctx, x)  # collective; x is rank 0's model now

        def update(gradient):  # one step of plain SGD; gradient is the average over the ranks
            np.subtract(x, rate * gradient, out=x)

        for batch in batches:
            compute(x, batch, out=worker.gradient)
            worker.step(worker.gradient, update)
        worker.finish()  # collective; x is the same on all ranks

`Synchronous` and `EagerSGD` average gradients over all ranks, in rounds. `PartialReduce` and
`Ripples` average models inside groups of ranks, and `ADPSGD` with a neighbour, which may compute
meanwhile. `pypartial.torch` is a thin layer over this.
"""

from __future__ import annotations

import re
from typing import Any

from ..errors import ArgumentError
from .base import Method, Worker
from .eager import EagerSGD, Synchronous
from .gossip import ADPSGD
from .groups import PartialReduce, Ripples

__all__ = [
    "ADPSGD",
    "EagerSGD",
    "Method",
    "PartialReduce",
    "Ripples",
    "Synchronous",
    "Worker",
    "check_method",
]

_METHODS = (
    *("Synchronous()", "EagerSGD()", "PartialReduce(size)", "Ripples(generator)"),
    "ADPSGD(topology)",
)
# Methods of the literature that are not here yet, as users would spell them in lower case.
_NOT_YET = {"dpsgd": "D-PSGD (queues)", "hop": "Hop (queues)"}


def check_method(value: Any) -> Method:
    """Return a method; raise ArgumentError if `value` is something else."""
    if isinstance(value, Method):
        return value
    names = ", ".join(_METHODS)
    name = value if isinstance(value, str) else getattr(value, "__name__", "")
    if (later := _later(name)) is not None:
        raise ArgumentError(f"method {later} is not implemented yet; there are {names}")
    raise ArgumentError(f"method must be one of {names} of pypartial.methods, not {value!r}")


def _later(name: str) -> str | None:
    """Return the full name of a method that is not here yet."""
    return _NOT_YET.get(re.sub("[^a-z]", "", name.lower()))


def __getattr__(name: str) -> Any:
    later = _later(name)
    if later is not None:
        names = ", ".join(_METHODS)
        raise AttributeError(f"{later} is not implemented yet; there are {names}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
