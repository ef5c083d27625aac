"""Where the parameters of a model are: in host memory, or on a CUDA device.

The modules above work with a `Home`, and do the same for both. This is the only one that asks torch
for streams. What it relies on:

- torch queues work on the *current stream* of the calling thread. In a backward pass that is the
  stream of the forward pass, also in the thread that computes the gradients. ``backward`` returns
  when the caller's stream is ordered behind it.
- `DeviceAllreduceRequest` orders itself with the current stream in each call.
- A future that was made for a device records an event on the device's current stream when it is
  given its result. Its ``wait``, which DDP calls, makes the waiter's current stream wait for that
  event, and tells the allocator that this stream uses the result.
- The allocator may give memory that was freed to whatever comes next on the stream that it was
  allocated on. It must be told of each other stream that uses it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..errors import ArgumentError

if TYPE_CHECKING:
    from ..context import Context

__all__ = ["HOST", "Cuda", "Home", "as_torch", "find"]

_TYPES = {np.dtype(np.float32): torch.float32, np.dtype(np.float64): torch.float64}


def as_torch(dtype: np.dtype[Any]) -> torch.dtype:
    """Return torch's name for the type of a vector."""
    return _TYPES[dtype]


class Home(ABC):
    """Where the parameters of one model, and the vectors with their gradients, are.

    A *vector* is what a request takes: an array of NumPy, or a tensor on a device.

    Attributes
    ----------
    name : str
        The same on all ranks whose handles can be one.
    is_device : bool
        The host must not wait for what is in a vector.
    """

    name: str
    is_device: bool

    @abstractmethod
    def zeros(self, ctx: Context, count: int, dtype: np.dtype[Any]) -> Any:
        """Return a new vector of zeros, which any stream may use."""

    @abstractmethod
    def view(self, vector: Any) -> torch.Tensor:
        """Return a vector, or a part of one, as a tensor."""

    @abstractmethod
    def future(self) -> torch.futures.Future[torch.Tensor]:
        """Return a new future for a tensor that is here."""

    @abstractmethod
    def stream(self) -> Any:
        """Return the current stream; None without streams."""

    @abstractmethod
    def follow(self, streams: Iterable[Any]) -> bool:
        """Make the current stream wait for what is queued on others; return whether there are some.

        The host does not wait.
        """

    @abstractmethod
    def keep(self, vector: Any) -> None:
        """Keep a vector's memory, after its end, until the current stream is done with it."""


class _Host(Home):
    """The memory of the host: everything is done when a call returns."""

    name = "the CPU"
    is_device = False

    def zeros(self, ctx: Context, count: int, dtype: np.dtype[Any]) -> Any:
        return ctx.alloc(count, dtype)

    def view(self, vector: Any) -> torch.Tensor:
        return torch.from_numpy(vector)

    def future(self) -> torch.futures.Future[torch.Tensor]:
        return torch.futures.Future()

    def stream(self) -> Any:
        return None

    def follow(self, streams: Iterable[Any]) -> bool:
        return False

    def keep(self, vector: Any) -> None:
        pass


HOST: Home = _Host()


class Cuda(Home):
    """The memory of one CUDA device.

    Parameters
    ----------
    device : torch.device
    """

    name = "a CUDA device"
    is_device = True

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def zeros(self, ctx: Context, count: int, dtype: np.dtype[Any]) -> Any:
        """Return a new tensor. The host waits for the zeros: other streams may use it at once."""
        vector = torch.zeros(count, dtype=as_torch(dtype), device=self._device)
        self.stream().synchronize()
        return vector

    def view(self, vector: Any) -> torch.Tensor:
        """Return the vector, which is a tensor."""
        tensor: torch.Tensor = vector
        return tensor

    def future(self) -> torch.futures.Future[torch.Tensor]:
        """Return a new future, which orders streams."""
        return torch.futures.Future(devices=[self._device])

    def stream(self) -> Any:
        """Return the current stream."""
        return torch.cuda.current_stream(self._device)

    def follow(self, streams: Iterable[Any]) -> bool:
        """Make the current stream wait for others; return whether there are some."""
        current = self.stream()
        seen = [current]
        for stream in streams:
            if stream not in seen:
                current.wait_stream(stream)
                seen.append(stream)
        return len(seen) > 1

    def keep(self, vector: Any) -> None:
        """Tell the allocator that the current stream uses the vector."""
        vector.record_stream(self.stream())


def find(parameters: Sequence[tuple[str, torch.Tensor]]) -> Home:
    """Return where parameters are: one at least, each with its name.

    Raises
    ------
    ArgumentError
        If they are in several places, or in one that is neither the CPU nor a CUDA device.
    """
    first, device = parameters[0][0], parameters[0][1].device
    for name, parameter in parameters:
        if parameter.device != device:
            raise ArgumentError(
                f"parameter {first} is on {device} and parameter {name} on {parameter.device}: all "
                "must be on the CPU, or all on one CUDA device"
            )
    if device.type == "cpu":
        return HOST
    if device.type == "cuda":
        return Cuda(device)
    raise ArgumentError(
        f"parameter {first} is on the device {device}; only the CPU and CUDA devices are supported"
    )
