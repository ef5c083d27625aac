"""The buckets that DDP cuts gradients into, one behind the other in one vector."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch._C._distributed_c10d import GradBucket  # torch.distributed has it, untyped

from ..errors import Error
from .accelerator import HOST, Home
from .layout import as_parameter

__all__ = ["Buckets"]


class Buckets:
    """The buckets of a DDP module in a vector, in the order in which DDP gives them.

    DDP gives them in one order, the same on all ranks. It changes the buckets once, after the first
    backward passes, before `settled` is set.

    Parameters
    ----------
    vector : numpy.ndarray or torch.Tensor
        One-dimensional, with an element for each of the parameters' elements.
    parameters : iterable of torch.Tensor
        Those of the module that require a gradient.
    home : Home, optional
        Where they, and the vector, are.

    Attributes
    ----------
    settled : bool
        Whether the buckets must stay as they are. The user of the object sets it.
    """

    def __init__(self, vector: Any, parameters: Iterable[torch.Tensor], home: Home = HOST) -> None:
        self.settled = False
        self._vector, self._home = vector, home
        self._known = {id(parameter) for parameter in parameters}
        self._parts: dict[tuple[int, ...], _Part] = {}
        self._arrived: list[_Arrived] = []
        # Of the backward pass. A bucket may have no elements; parameters it has.
        self._filled = self._placed = 0

    def put(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Copy a bucket into the vector; return the future of its result."""
        part = self._next(bucket.parameters())
        arrived = _Arrived(part, bucket.buffer(), self._home)
        self._arrived.append(arrived)
        return arrived.future

    @property
    def complete(self) -> bool:
        """Whether all buckets of a backward pass are in the vector.

        `GradBucket.is_last` does not tell: with ``static_graph``, all buckets of the first backward
        pass, one for each type of parameters, have the index 0.
        """
        return self._placed == len(self._known)

    def take(self) -> list[_Arrived]:
        """Return the buckets that have arrived; the next ones are of another backward pass.

        Work that the caller queues from now on is behind the copies into the vector.
        """
        arrived, self._arrived = self._arrived, []
        self._filled = self._placed = 0
        self._home.follow(one.stream for one in arrived)
        return arrived

    def arrange(self, buckets: Iterable[GradBucket]) -> None:
        """Learn the buckets that will come, without their data."""
        for bucket in buckets:
            self._next(bucket.parameters())
        self._filled = self._placed = 0

    def gradients(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return each parameter with its piece of the vector."""
        return [pair for part in self._parts.values() for pair in part.gradients()]

    def _next(self, parameters: Sequence[torch.Tensor]) -> _Part:
        """Return the part of the vector behind that of the bucket before."""
        if self._placed == 0 and not self.settled:
            self._parts = {}
        key = tuple(map(id, parameters))
        part = self._parts.get(key)
        if part is None or part.offset != self._filled:
            if not self._known.issuperset(key):
                raise Error(
                    "a bucket has a parameter that this HookState does not know: it is registered "
                    "with another DDP module than it was made for; make one HookState for each"
                )
            if self.settled:
                raise Error("DDP has changed its buckets while gradients were on their way")
            part = self._parts[key] = _Part(self._vector, self._home, self._filled, parameters)
        self._filled = part.end
        self._placed += len(parameters)
        return part


class _Part:
    """The part of the vector that a bucket has."""

    def __init__(
        self, vector: Any, home: Home, offset: int, parameters: Sequence[torch.Tensor]
    ) -> None:
        self.offset, self.end = offset, offset + sum(one.numel() for one in parameters)
        # In host memory it has a storage of its own.
        self.vector = home.view(vector[offset : self.end])
        self._parameters = parameters

    def gradients(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        pieces = self.vector.split_with_sizes([one.numel() for one in self._parameters])
        return [
            (one, as_parameter(one, piece))
            for one, piece in zip(self._parameters, pieces, strict=True)
        ]


class _Arrived:
    """A bucket that waits for the others of its backward pass."""

    def __init__(self, part: _Part, buffer: torch.Tensor, home: Home) -> None:
        self._part, self._buffer, self._home = part, buffer, home
        self.future = home.future()
        self.stream = home.stream()
        part.vector.copy_(buffer)

    def give(self) -> None:
        """Give DDP what is in the vector now.

        DDP copies a result to the gradients before ``backward`` returns, so it may stay where it
        is. A result of another type goes into the bucket's own memory. So does one on a device: DDP
        counts from the beginning of the storage, which is the whole vector's there.
        """
        result = self._part.vector
        if self._home.is_device or result.dtype != self._buffer.dtype:
            result = self._buffer.copy_(result)
        self.future.set_result(result)
