"""Models on a device of the stand-in for the CUDA driver, in a PyTorch that knows no CUDA.

A tensor "on the device" is one of PyTorch's on the CPU, whose memory is what streams of the
stand-in use: it computes with it as kernels would. The library is given the address of the same
memory where no host may touch it, so its requests are those of devices.

PyTorch's operations do not run in the stand-in's stream, but at once. So each of them first waits
for all that is queued there (`InOrder`). They are behind it, as kernels would be.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

import pypartial as pp
from pypartial.torch.accelerator import Home

from .device import Array, Stream, driver

# With a tensor of CUDA these wait for the device.
WAITS = ("tolist", "item", "cpu", "numpy", "__bool__", "__float__")
TYPES = {"float32": torch.float32, "float64": torch.float64}


class StandIn(Home):
    """Takes the place of `pypartial.torch.accelerator.Cuda`.

    What is made lasts until the process ends: a context that was given up may still use it.

    Attributes
    ----------
    arrays : list of (torch.Tensor, Array)
        The vectors that were made, and what the library is given of each.
    kept : int
        How often the allocator would have been told of a stream.
    host_waits : int
        How often the host has asked for the values of a tensor.
    """

    name = "a CUDA device"
    is_device = True

    def __init__(self) -> None:
        self.current = Stream()
        self.arrays: list[tuple[torch.Tensor, Array]] = []
        self.kept = self.kept_beside = self.host_waits = 0

    def zeros(self, ctx: pp.Context, count: int, dtype: Any) -> torch.Tensor:
        array = Array(count, dtype, self.current)
        reach = driver().fake_reach
        reach.restype, reach.argtypes = ctypes.c_void_p, [ctypes.c_uint64, ctypes.c_size_t]
        memory = (ctypes.c_char * array.nbytes).from_address(reach(array.address, array.nbytes))
        tensor = torch.frombuffer(memory, dtype=TYPES[array.dtype.name])
        tensor.zero_()
        self.arrays.append((tensor, array))
        return tensor

    def view(self, vector: Any) -> torch.Tensor:
        assert isinstance(vector, torch.Tensor)
        return vector

    def future(self) -> torch.futures.Future[torch.Tensor]:
        return torch.futures.Future()

    def stream(self) -> Any:
        return self.current

    def follow(self, streams: Iterable[Any]) -> bool:
        assert all(stream is self.current for stream in streams)
        return False

    def keep(self, vector: Any) -> None:
        if any(vector is tensor for tensor, _ in self.arrays):
            self.kept += 1
        else:  # of torch's own
            self.kept_beside += 1

    def array_of(self, buffer: Any) -> Any:
        """Return what the library is given of a vector; anything else as it is."""
        return next((array for tensor, array in self.arrays if tensor is buffer), buffer)

    def owns(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor is part of a vector."""
        place = tensor.data_ptr()
        return any(0 <= place - one.data_ptr() < one.nbytes for one, _ in self.arrays)

    def find(self, parameters: Sequence[tuple[str, torch.Tensor]]) -> Home:
        """Take the place of `pypartial.torch.accelerator.find`."""
        assert all(p.device.type == "cpu" for _, p in parameters)
        return self


class InOrder(TorchDispatchMode):
    """Has PyTorch's operations wait for what is queued on the device before."""

    def __init__(self, home: StandIn) -> None:
        super().__init__()
        self._home = home

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self._home.current.wait()
        return function(*args, **(kwargs or {}))


def asking(home: StandIn, name: str) -> Any:
    """Return a method of tensors, of those that ask for values, which are no operations."""
    ask = getattr(torch.Tensor, name)

    @functools.wraps(ask)
    def wait_and_ask(*args: Any, **options: Any) -> Any:
        home.host_waits += 1
        home.current.wait()
        if name == "numpy" and home.owns(args[0]):
            raise TypeError("a tensor on a device has no memory of NumPy's")
        found = ask(*args, **options)
        # Whatever is on the device is copied.
        return found.clone() if name == "cpu" else found

    return wait_and_ask


@contextmanager
def models_on_device(patch: Any) -> Iterator[StandIn]:
    """Have all models be on a device of the stand-in.

    Parameters
    ----------
    patch : pytest.MonkeyPatch
    """
    home = StandIn()
    make, make_groups = pp.Context.Allreduce_init, pp.Context.Preduce_init

    @functools.wraps(make)
    def on_device(ctx: pp.Context, sendbuf: Any, recvbuf: Any, **options: Any) -> Any:
        return make(ctx, home.array_of(sendbuf), home.array_of(recvbuf), **options)

    @functools.wraps(make_groups)
    def groups_on_device(ctx: pp.Context, buffer: Any, generator: Any, **options: Any) -> Any:
        return make_groups(ctx, home.array_of(buffer), generator, **options)

    patch.setattr("pypartial.torch.accelerator.find", home.find)
    patch.setattr(pp.Context, "Allreduce_init", on_device)
    patch.setattr(pp.Context, "Preduce_init", groups_on_device)
    for name in WAITS:
        patch.setattr(torch.Tensor, name, asking(home, name))
    with InOrder(home):
        yield home
