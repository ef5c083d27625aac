"""Models averaged with those of all neighbours, by the weights of a graph: D-PSGD."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..topology import Topology, as_topology
from .hop import QueueMethod

__all__ = ["DPSGD"]


@dataclass(frozen=True)
class DPSGD(QueueMethod):
    """A step averages the model with all neighbours' by weights, and applies the rank's gradient.

    The weights are those of the topology, which keep the mean of all models. A rank waits for each
    of its neighbours in each step, and for nobody else. The models travel while ranks compute, and
    gradients are of the model that was sent. An optimizer's state, such as its momentum, stays the
    rank's own.

    Ranks have different models until `Worker.flush` or `Worker.finish`, which average over all
    ranks; there all models count the same, and so do states. Neighbours do not wait for a rank that
    has finished.

    Models are in the memory of the host.

    Parameters
    ----------
    topology : Topology or str
        Which ranks are neighbours: of `pypartial.topology`, or a text that `topology.parse` reads.

    Raises
    ------
    ArgumentError
        If it is no topology. Whether it allows the number of ranks is known when the worker is
        made.

    References
    ----------
    X. Lian et al., "Can Decentralized Algorithms Outperform Centralized Algorithms?" (D-PSGD),
    NeurIPS 2017, Algorithm 1.
    """

    topology: Topology

    def __init__(self, topology: Topology | str) -> None:
        object.__setattr__(self, "topology", as_topology(topology))

    @property
    def _options(self) -> dict[str, Any]:
        return {"topology": self.topology, "protocol": "none", "weights": "topology"}
