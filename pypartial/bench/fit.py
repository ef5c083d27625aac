"""Fits measured times: the model parameters and switch points of ``algorithm="auto"``."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING

import numpy as np

from .._names import algorithms
from ..tuning import Cost, Measured, Switch, set_cost

if TYPE_CHECKING:
    from .._native import Native

_ITEMSIZE = 4
# The least gain of a switch point over all larger sizes together, so that noise makes none.
_LEAST_GAIN = math.log(1.1)


def model_us(native: Native, cost: Cost, algorithm: str, size: int, ranks: int) -> float:
    """Return the microseconds that the cost model predicts for an allreduce of `size` bytes."""
    parameters, us = native.ffi.new("pp_cost_t *"), native.ffi.new("double *")
    set_cost(parameters, cost)
    number = algorithms(native.ffi, native.lib).constant(native.lib, algorithm)
    count = size // _ITEMSIZE
    native.check(native.lib.pp_model_cost(parameters, number, count, _ITEMSIZE, ranks, us))
    return float(us[0])


def fit_cost(native: Native, measured: Sequence[Measured], ranks: int) -> Cost:
    """Return the non-negative parameters with the least relative error.

    The model is linear in its parameters. Every subset of parameters that are not zero is tried:
    with five these are 32 small solves, exact as scipy's nnls is, and `tune` needs no scipy for it.
    """
    names = [field.name for field in fields(Cost)]
    units = [Cost(**{name: float(name == one) for name in names}) for one in names]
    cells = [(size.bytes, name, us) for size in measured for name, us in size.us.items()]
    relative = np.array(
        [
            [model_us(native, unit, name, size, ranks) / us for unit in units]
            for size, name, us in cells
        ]
    )
    # Scaled, because microseconds of a byte are too small beside the other parameters.
    scale = np.maximum(relative.max(axis=0), 1e-300)
    best, least = np.zeros(len(names)), math.inf
    for used in itertools.product([False, True], repeat=len(names)):
        columns = np.flatnonzero(used)
        values = np.zeros(len(names))
        matrix = relative[:, columns] / scale[columns]
        values[columns] = np.linalg.lstsq(matrix, np.ones(len(cells)), rcond=None)[0]
        error = float(np.sum((relative / scale @ values - 1) ** 2))
        if np.all(values >= 0) and error < least:
            best, least = values, error
    return Cost(**{name: float(value) for name, value in zip(names, best / scale, strict=True)})


def switch_points(measured: Sequence[Measured], most: int) -> tuple[Switch, ...]:
    """Return at most `most` switch points: which algorithm to use from which size on.

    They belong to the sequence of algorithms, one for each size, whose times have the least
    product, where every change of algorithm costs `_LEAST_GAIN`. A switch point is the geometric
    mean of two sizes.
    """
    cost_of_switch = _LEAST_GAIN
    while True:
        chosen = _sequence([size.us for size in measured], cost_of_switch)
        switches = [Switch(0, chosen[0])]
        for (before, after), (left, right) in zip(
            itertools.pairwise(measured), itertools.pairwise(chosen), strict=True
        ):
            if left != right:
                switches.append(Switch(math.isqrt(before.bytes * after.bytes) + 1, right))
        if len(switches) <= most:
            return tuple(switches)
        cost_of_switch *= 2


def _sequence(times: Sequence[Mapping[str, float]], cost_of_switch: float) -> list[str]:
    """Return the cheapest sequence of algorithms, one for each size."""
    paths = {name: (math.log(us), [name]) for name, us in times[0].items()}
    for size in times[1:]:
        paths = {
            name: min(
                (
                    cost + math.log(us) + (cost_of_switch if path[-1] != name else 0.0),
                    [*path, name],
                )
                for cost, path in paths.values()
            )
            for name, us in size.items()
        }
    return min(paths.values())[1]
