"""The ways to train that ``bench torch`` compares, each with a model of its own."""

from __future__ import annotations

import hashlib
import itertools
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import pypartial as pp
from pypartial import torch as pp_torch

from .torch_options import INPUTS, OUTPUTS, TorchWay

if TYPE_CHECKING:
    from ..policy import Policy

__all__ = ["Batches", "Trainee", "network", "trainee"]

_RATE, _MOMENTUM = 1e-3, 0.9
_BATCHES = 8  # that a rank goes round


def network(hidden: int, seed: int) -> nn.Sequential:
    """Return a network of four layers; the same seed gives the same weights."""
    torch.manual_seed(seed)
    widths = (INPUTS, hidden, hidden, hidden, OUTPUTS)
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class Batches:
    """The data of one rank, which it goes round for ever: inputs, and what a fixed map says.

    Parameters
    ----------
    rank, size, seed : int
        Size: samples of a batch.
    """

    def __init__(self, rank: int, size: int, seed: int) -> None:
        source = torch.Generator().manual_seed(seed)
        truth = torch.randn(INPUTS, OUTPUTS, generator=source)
        source.manual_seed(seed + 1 + rank)
        self._inputs = [torch.randn(size, INPUTS, generator=source) for _ in range(_BATCHES)]
        self._targets = [torch.tanh(inputs @ truth) for inputs in self._inputs]

    def __getitem__(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self._inputs[step % _BATCHES], self._targets[step % _BATCHES]


@dataclass
class Trainee:
    """A model that one way trains.

    Attributes
    ----------
    way : TorchWay
    policy : Policy
    network : torch.nn.Module
        The parameters.
    model : torch.nn.Module
        What is called: the network, or the DistributedDataParallel around it.
    zero_grad, apply : callable
        Before the backward pass, and after it.
    end : callable
        Collective: what is still pending is applied, and all ranks have the same model.
    batches : Batches
    """

    way: TorchWay
    policy: Policy
    network: nn.Module
    model: nn.Module
    zero_grad: Callable[[], None]
    apply: Callable[[], object]
    end: Callable[[], object]
    batches: Batches

    def step(self, number: int, until_ns: int = 0) -> None:
        """Make a step; sleep after the forward pass until a moment of the monotonic clock."""
        inputs, targets = self.batches[number]
        self.zero_grad()
        loss = nn.functional.mse_loss(self.model(inputs), targets)
        while (left := until_ns - time.monotonic_ns()) > 0:
            time.sleep(left * 1e-9)
        loss.backward()  # type: ignore[no-untyped-call]
        self.apply()

    def weights(self) -> torch.Tensor:
        """Return all parameters in one vector of float64."""
        with torch.no_grad():
            return torch.cat([one.flatten().double() for one in self.network.parameters()])

    def digest(self) -> bytes:
        """Return a short text that replicas have in common if they have the same bits."""
        parts = [one.detach().numpy().tobytes() for one in self.network.parameters()]
        return hashlib.sha256(b"".join(parts)).digest()

    def loss(self) -> float:
        """Return the network's loss over this rank's batches."""
        with torch.no_grad():
            losses = [
                float(nn.functional.mse_loss(self.network(inputs), targets))
                for inputs, targets in (self.batches[step] for step in range(_BATCHES))
            ]
        return sum(losses) / len(losses)


def trainee(
    way: TorchWay,
    policy: Policy,
    ctx: pp.Context,
    hidden: int,
    batches: Batches,
    seed: int,
) -> Trainee:
    """Make a way's model, from the same weights as all; collective."""
    net = network(hidden, seed)
    sgd = torch.optim.SGD(net.parameters(), lr=_RATE, momentum=_MOMENTUM)
    if way is TorchWay.OPTIMIZER:
        full = policy == pp.Full()
        method = pp.methods.Synchronous() if full else pp.methods.EagerSGD(policy=policy)
        wrapped = pp_torch.DistributedOptimizer(sgd, ctx, method=method)
        return Trainee(
            way, policy, net, net, wrapped.zero_grad, wrapped.step, wrapped.finish, batches
        )
    group = dist.new_group(backend="pypartial") if way is TorchWay.BACKEND else None
    ddp = DistributedDataParallel(net, process_group=group)

    def end() -> None:
        return None

    if way is TorchWay.HOOK:
        with warnings.catch_warnings():  # that replicas drift until the end: they may, here
            warnings.simplefilter("ignore", UserWarning)
            state = pp_torch.HookState(ctx, ddp, policy=policy)
        ddp.register_comm_hook(state, pp_torch.partial_allreduce_hook)
        return Trainee(
            way, policy, net, ddp, sgd.zero_grad, sgd.step, lambda: state.finish(sgd), batches
        )
    return Trainee(way, policy, net, ddp, sgd.zero_grad, sgd.step, end, batches)


def difference(weights: torch.Tensor, other: torch.Tensor) -> float:
    """Return the norm of a difference, relative to that of the second."""
    return float((weights - other).norm() / other.norm())


def same(digests: Sequence[bytes]) -> bool:
    """Return whether all ranks have the same."""
    return len(set(digests)) == 1
