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
`Ripples` average models inside groups of ranks, `ADPSGD` with a neighbour, which may compute
meanwhile, and `DPSGD` and `Hop` with all neighbours. `pypartial.torch` is a thin layer over this.
"""

from __future__ import annotations

from typing import Any

from ..errors import ArgumentError
from .base import Method, Worker
from .dpsgd import DPSGD
from .eager import EagerSGD, Synchronous
from .gossip import ADPSGD
from .groups import PartialReduce, Ripples
from .hop import Hop

__all__ = [
    "ADPSGD",
    "DPSGD",
    "EagerSGD",
    "Hop",
    "Method",
    "PartialReduce",
    "Ripples",
    "Synchronous",
    "Worker",
    "check_method",
]

_METHODS = (
    *("Synchronous()", "EagerSGD()", "PartialReduce(size)", "Ripples(generator)"),
    *("ADPSGD(topology)", "DPSGD(topology)", "Hop(topology)"),
)


def check_method(value: Any) -> Method:
    """Return a method; raise ArgumentError if `value` is something else."""
    if isinstance(value, Method):
        return value
    names = ", ".join(_METHODS)
    raise ArgumentError(f"method must be one of {names} of pypartial.methods, not {value!r}")
