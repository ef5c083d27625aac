"""What a `DistributedOptimizer` trains: looked through when it is made, and again in every step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed

from ..errors import ArgumentError, Error
from ..methods import EagerSGD, Method
from ..policy import Policy
from .flat import check_apart
from .layout import Facts, Layout, describe, describe_trained, is_a_reading

__all__ = ["Trained", "check_parameters", "check_world", "choose", "kind", "survey"]


@dataclass(frozen=True)
class Trained:
    """The tensors of an optimizer and a model.

    Attributes
    ----------
    parameters : list of (str, torch.Tensor)
        The optimizer's, with their names.
    layout : Layout
    buffers : list of torch.Tensor
        The model's.
    tensors : list of torch.Tensor
        All of these, and parameters of the model that the optimizer does not have.
    lines : list of str
        One for each tensor, the same on all ranks.
    """

    parameters: list[tuple[str, torch.Tensor]]
    layout: Layout
    buffers: list[torch.Tensor]
    tensors: list[torch.Tensor]
    lines: list[str]


def survey(
    optimizer: torch.optim.Optimizer, method: Method, model: torch.nn.Module | None
) -> Trained:
    """Find parameters and buffers; raise `ArgumentError` if one cannot be trained."""
    names = {} if model is None else {id(p): name for name, p in model.named_parameters()}
    parameters = [
        (names.get(id(p), f"{number} of group {group}"), p)
        for group, content in enumerate(optimizer.param_groups)
        for number, p in enumerate(content["params"])
    ]
    layout = Layout(parameters)
    others, buffers = [], []
    if model is not None:
        trained = {id(p) for _, p in parameters}
        others = [(name, p) for name, p in model.named_parameters() if id(p) not in trained]
        buffers = list(model.named_buffers())
    for name, p in parameters:
        if p.grad is not None and not p.requires_grad and bool(p.grad.any()):
            raise ArgumentError(
                f"parameter {name} is frozen and has a gradient, which the optimizer of each "
                "rank would apply by itself: set its grad to None"
            )
    if method.averages_models:
        check_apart(layout, method)
    for name, tensor in [*parameters, *others, *buffers]:
        if tensor.device.type not in ("cpu", "cuda") or tensor.layout != torch.strided:
            raise ArgumentError(
                f"{name} is not a dense tensor on the CPU or a CUDA device: {tensor.layout} on "
                f"{tensor.device}"
            )
        if is_a_reading(tensor):
            raise ArgumentError(
                f"{name} cannot be written: it is a view that repeats, conjugates or negates "
                "elements. Make it by clone(), or resolve_conj()"
            )
    everything = [*parameters, *others, *buffers]
    lines = [
        f"{describe_trained(name, tensor)}, trained"
        if tensor.requires_grad
        else describe(name, tensor)
        for name, tensor in everything
    ]
    tensors = [tensor for _, tensor in everything]
    return Trained(parameters, layout, [buffer for _, buffer in buffers], tensors, lines)


def check_parameters(
    optimizer: torch.optim.Optimizer,
    known: Sequence[tuple[str, torch.Tensor]],
    facts: Sequence[Facts],
    method: Method,
) -> None:
    """Raise `Error` if an optimizer's parameters are not the known ones, as they were."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    if len(parameters) != len(known):
        raise Error(
            f"the optimizer has {len(parameters)} parameters, and had {len(known)} "
            "when DistributedOptimizer was made: parameters cannot be added or removed"
        )
    for p, (name, one), seen in zip(parameters, known, facts, strict=True):
        if p is not one:
            raise Error(f"parameter {name} was replaced by another one")
        change = seen.change(p)
        if change is not None:
            raise Error(f"parameter {name} {change} after the optimizer was made")
        if seen.is_held and p.data_ptr() != seen.place:
            raise Error(
                f"parameter {name} was moved to other memory after the optimizer was made: "
                f"{method!r} averages the memory where it was. Do not assign p.data "
                "then; nor call flatten_parameters(), by which an LSTM or a GRU moves its "
                "parameters"
            )


def choose(method: Method | None, policy: Policy | str | None) -> Method:
    """Return the method that the two arguments name."""
    if method is None:
        return EagerSGD() if policy is None else EagerSGD(policy)
    if not isinstance(method, Method):
        raise ArgumentError(
            f"method must be a method of pypartial.methods, such as EagerSGD(), not {method!r}"
        )
    if policy is not None:
        raise ArgumentError(
            f"method={method!r} and policy={policy!r} exclude each other: policy is short for "
            "method=EagerSGD(policy)"
        )
    return method


def check_world(size: int) -> None:
    """Raise `ArgumentError` if torch.distributed has another number of ranks."""
    world = torch.distributed
    if world.is_available() and world.is_initialized() and world.get_world_size() != size:
        raise ArgumentError(
            f"ctx has {size} ranks, and the process group of torch.distributed "
            f"{world.get_world_size()}: make the context of the same ranks"
        )


def kind(value: object) -> str:
    """Return what a value is, for an error."""
    return f"a {type(value).__name__}"
