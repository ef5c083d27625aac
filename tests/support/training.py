"""Small models and their data, the same in every run."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

INPUTS, OUTPUTS = 6, 3

Backward = Callable[[nn.Module, int, int], None]


def net(norm: bool = False, dtype: torch.dtype = torch.float64, seed: int = 1) -> nn.Module:
    torch.manual_seed(seed)
    layers: list[nn.Module] = [nn.Linear(INPUTS, 16), nn.Tanh(), nn.Linear(16, OUTPUTS)]
    if norm:
        layers.insert(1, nn.BatchNorm1d(16))
    return nn.Sequential(*layers).to(dtype)


def batch(rank: int, step: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """Return inputs and what the model shall make of them; other ones for each rank and step."""
    random = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.randn(8, INPUTS, generator=random, dtype=torch.float64)
    y = torch.stack([x.sum(1), x[:, 0] * x[:, 1], x[:, 2].sin()], 1)
    return x.to(dtype), y.to(dtype)


def backward(model: nn.Module, rank: int, step: int) -> None:
    x, y = batch(rank, step, next(model.parameters()).dtype)
    (model(x) - y).square().mean().backward()


def flat(model: nn.Module) -> Tensor:
    """Return a copy of all parameters and floating buffers."""
    tensors = [*model.parameters(), *(b for b in model.buffers() if b.is_floating_point())]
    return torch.cat([tensor.detach().double().flatten() for tensor in tensors])


def mean_gradients(
    model: nn.Module, size: int, step: int, of: Backward = backward
) -> list[Tensor | None]:
    """Compute on this rank alone what an average over all ranks gives."""
    parameters = list(model.parameters())
    sums: list[Tensor | None] = [None] * len(parameters)
    for rank in range(size):
        model.zero_grad()
        of(model, rank, step)
        for number, p in enumerate(parameters):
            if p.grad is not None:
                before = sums[number]
                sums[number] = p.grad if before is None else before + p.grad
    model.zero_grad()
    return [None if total is None else total / size for total in sums]


def train_alone(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    size: int,
    steps: int,
    of: Backward = backward,
    clip_norm: float | None = None,
) -> None:
    """Make the synchronous training of `size` ranks, on this rank alone."""
    for step in range(steps):
        for p, gradient in zip(
            model.parameters(), mean_gradients(model, size, step, of), strict=True
        ):
            p.grad = gradient
        if clip_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
        optimizer.step()
