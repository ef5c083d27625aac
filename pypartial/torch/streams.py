"""Which tensors a partial group has reduced before: each has a handle of its own.

Nothing in a call of all_reduce says which tensor of the model it is for, or which bucket of DDP.
The order of calls does not say it either: ranks may be some steps apart, and may make different
numbers of steps. The memory does. A program that reduces a tensor in every step, as DDP reduces its
buckets, passes the same memory each time. So a tensor is known by its storage, its place there, and
the operation. All ranks make the calls with new memory in the same order, and make its handle then.

Two buckets of one size so have two handles. A program that makes a new tensor for every step is
refused in its third step: its handles would have one call each, which would be a synchronous one.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.multiprocessing import reductions

from ..methods.asked import Asked
from .device_path import path_in_use

if TYPE_CHECKING:
    from ..allreduce import AllreduceRequest
    from .accelerator import Home

__all__ = ["Stream", "Streams"]

_StorageWeakRef: Any = reductions.StorageWeakRef  # torch gives it no types
_GENERATIONS = 2  # DDP changes its buckets once, after the first step


@dataclass
class Stream:
    """The calls with one tensor.

    Attributes
    ----------
    key : hashable
        What the tensor is known by.
    kind : hashable
        Operation, number and type of elements.
    storage : torch's StorageWeakRef
        Does not keep the memory; while it exists no other storage has its address.
    request : AllreduceRequest
    asked : Asked
        What it was asked for.
    vector : torch.Tensor
        The buffer of the request.
    home : Home
        Where it is.
    path : (str or None, str)
        The request's `device_path` and its reason: see `path_in_use`.
    again : bool
        It was called again after its first call.
    """

    key: Hashable
    kind: Hashable
    storage: Any
    request: AllreduceRequest
    asked: Asked
    vector: torch.Tensor
    home: Home
    path: tuple[str | None, str]
    again: bool = False


class Streams:
    """The streams of a partial group, numbered in the order in which they were made."""

    def __init__(self) -> None:
        self._streams: dict[int, Stream] = {}
        self._numbers: dict[Hashable, int] = {}
        self._made = 0
        # For each kind: how often in a row new memory took the place of memory that was used once.
        self._replaced: dict[Hashable, int] = {}

    def find(self, tensor: torch.Tensor, op: str) -> Stream | None:
        """Return the stream of a tensor; None if its memory is new."""
        number = self._numbers.get(_key(tensor, op))
        if number is None:
            return None
        stream = self._streams[number]
        stream.again = True
        self._replaced.pop(stream.kind, None)
        return stream

    def complaint(self, tensor: torch.Tensor, op: str) -> str | None:
        """Return why a tensor with new memory cannot have a stream, if so."""
        kind = _kind(tensor, op)
        spent = [it for it in self._streams.values() if it.kind == kind and it.storage.expired()]
        if not spent:
            return None
        if any(stream.again for stream in spent):
            self._replaced.pop(kind, None)
            return None
        self._replaced[kind] = self._replaced.get(kind, 0) + 1
        if self._replaced[kind] < _GENERATIONS:
            return None
        return (
            f"a partial all_reduce of {tensor.numel()} elements of {tensor.dtype} was given a new "
            "tensor in every step, and cannot tell what it belongs to; reduce the same tensor in "
            "every step, as DDP does (optimizer.zero_grad(set_to_none=False) keeps the "
            "gradients'), or use pypartial.torch.DistributedOptimizer, or another process group "
            "for a synchronous all_reduce"
        )

    def ended(self) -> Sequence[int]:
        """Return the numbers of streams whose memory is no more."""
        return [number for number, it in self._streams.items() if it.storage.expired()]

    def add(
        self,
        tensor: torch.Tensor,
        op: str,
        request: AllreduceRequest,
        vector: torch.Tensor,
        home: Home,
    ) -> Stream:
        """Note a new stream."""
        key, kind = _key(tensor, op), _kind(tensor, op)
        storage = _StorageWeakRef(tensor.untyped_storage())
        of_request = request, Asked(request), vector, home, path_in_use([request])
        stream = Stream(key, kind, storage, *of_request)
        self._numbers[key] = self._made
        self._streams[self._made] = stream
        self._made += 1
        return stream

    def drop(self, number: int) -> Stream:
        """Forget a stream, and return it."""
        stream = self._streams.pop(number)
        if self._numbers.get(stream.key) == number:
            del self._numbers[stream.key]
        return stream

    def drop_all(self) -> list[Stream]:
        """Forget all streams, and return them in order."""
        return [self.drop(number) for number in sorted(self._streams)]


def _kind(tensor: torch.Tensor, op: str) -> Hashable:
    return op, tensor.numel(), tensor.dtype


def _key(tensor: torch.Tensor, op: str) -> Hashable:
    storage = tensor.untyped_storage()
    place = tensor.storage_offset(), tuple(tensor.shape), tensor.stride()
    return storage._cdata, place, tensor.dtype, op
