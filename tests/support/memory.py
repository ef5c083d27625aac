"""Whether memory of NumPy's arrays, or of tensors, is still there."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.multiprocessing import reductions


def ended(vector: Any) -> Callable[[], bool]:
    """Return a function that tells whether no array, and no tensor, has this memory any more."""
    if isinstance(vector, torch.Tensor):
        storage = reductions.StorageWeakRef(vector.untyped_storage())
        return lambda: bool(storage.expired())
    while isinstance(vector.base, np.ndarray):
        vector = vector.base
    array = weakref.ref(vector)
    return lambda: array() is None
