"""Arrays in the memory of a CUDA device, as the benchmarks use them.

`ArrayLibrary` is all that they ask of CuPy or PyTorch, which are loaded when one is opened. It runs
no kernels: buffers are filled and read back by copies, so nothing is compiled on the way.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from mpi4py import MPI

from .._device_kernels import wheels_for
from .._native import load
from .options import AnyBuffers, DeviceBuffers
from .results import DeviceFacts

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]

_NAME_BYTES = 256
# Where the kernel's module says which NVIDIA driver this is: "... Kernel Module  570.86.15  ...".
_DRIVER_FILE = Path("/proc/driver/nvidia/version")
_TORCH_WHEELS = "https://download.pytorch.org/whl"


class ArrayLibrary(ABC):
    """A library of arrays on one device. All its work is queued on one stream, the current one.

    Making one opens the device, and makes the stream current in this thread.

    Parameters
    ----------
    device : int
        Its number, as the driver counts.

    Attributes
    ----------
    name, version : str
    """

    name: str
    version: str

    @abstractmethod
    def __init__(self, device: int) -> None: ...

    @abstractmethod
    def empty(self, count: int, dtype: str) -> Any:
        """Return an array on the device."""

    @abstractmethod
    def pinned(self, count: int, dtype: str) -> Array:
        """Return an array in pinned memory of the host."""

    @abstractmethod
    def copy_out(self, host: Array, array: Any) -> None:
        """Queue a copy of an array to one of `pinned`."""

    @abstractmethod
    def copy_in(self, array: Any, host: Array) -> None:
        """Queue a copy of one of `pinned` to an array."""

    @abstractmethod
    def copy(self, target: Any, source: Any) -> None:
        """Queue a copy of an array to another one on the device."""

    @abstractmethod
    def synchronize(self) -> None:
        """Wait until all that is queued is done."""


class CuPyArrays(ArrayLibrary):
    """CuPy's arrays."""

    name = "cupy"

    def __init__(self, device: int) -> None:
        self._cupy: Any = importlib.import_module("cupy")
        self.version = str(self._cupy.__version__)
        self._cupy.cuda.Device(device).use()
        self._stream = self._cupy.cuda.Stream(non_blocking=True)
        self._stream.use()
        # Of arrays of `pinned`, by identity: asking NumPy for it takes longer than a small copy's
        # call, which would be counted against the contender that makes it.
        self._addresses: dict[int, ctypes.c_void_p] = {}

    def empty(self, count: int, dtype: str) -> Any:
        """Return an array on the device."""
        return self._cupy.empty(count, dtype)

    def pinned(self, count: int, dtype: str) -> Array:
        """Return an array in pinned memory of the host."""
        memory = self._cupy.cuda.alloc_pinned_memory(count * np.dtype(dtype).itemsize)
        host = np.frombuffer(memory, dtype, count)  # which keeps the memory
        self._addresses[id(host)] = ctypes.c_void_p(host.ctypes.data)
        return host

    def copy_out(self, host: Array, array: Any) -> None:
        """Queue a copy of an array to one of `pinned`."""
        array.data.copy_to_host_async(self._addresses[id(host)], array.nbytes, self._stream)

    def copy_in(self, array: Any, host: Array) -> None:
        """Queue a copy of one of `pinned` to an array."""
        array.data.copy_from_host_async(self._addresses[id(host)], array.nbytes, self._stream)

    def copy(self, target: Any, source: Any) -> None:
        """Queue a copy of an array to another one on the device."""
        target.data.copy_from_device_async(source.data, target.nbytes, self._stream)

    def synchronize(self) -> None:
        """Wait until all that is queued is done."""
        self._stream.synchronize()


class TorchArrays(ArrayLibrary):
    """CUDA tensors of PyTorch."""

    name = "torch"

    def __init__(self, device: int) -> None:
        self._torch: Any = importlib.import_module("torch")
        self.version = str(self._torch.__version__)
        self._torch.cuda.set_device(device)
        self._device = f"cuda:{device}"
        self._stream = self._torch.cuda.Stream()
        self._torch.cuda.set_stream(self._stream)

    def empty(self, count: int, dtype: str) -> Any:
        """Return an array on the device."""
        element = getattr(self._torch, dtype)
        try:
            return self._torch.empty(count, dtype=element, device=self._device)
        except self._torch.cuda.OutOfMemoryError as error:
            raise MemoryError(f"{self._device} has no memory left for a buffer") from error

    def pinned(self, count: int, dtype: str) -> Array:
        """Return an array in pinned memory of the host."""
        tensor = self._torch.empty(count, dtype=getattr(self._torch, dtype), pin_memory=True)
        host: Array = tensor.numpy()  # its base is the tensor
        return host

    def copy_out(self, host: Array, array: Any) -> None:
        """Queue a copy of an array to one of `pinned`."""
        _tensor(host).copy_(array, non_blocking=True)

    def copy_in(self, array: Any, host: Array) -> None:
        """Queue a copy of one of `pinned` to an array."""
        array.copy_(_tensor(host), non_blocking=True)

    def copy(self, target: Any, source: Any) -> None:
        """Queue a copy of an array to another one on the device."""
        target.copy_(source, non_blocking=True)

    def synchronize(self) -> None:
        """Wait until all that is queued is done."""
        self._stream.synchronize()


class DeviceBuffer:
    """An array on a device, with a mirror in pinned memory by which it is filled and read.

    To those who check results it is an array of the host: it has `nbytes` and `fill`, and
    `numpy.asarray` waits for the device and copies its elements to the mirror.

    Attributes
    ----------
    array : array
        Of the library.
    count, nbytes : int
    dtype : str
    """

    def __init__(self, library: ArrayLibrary, count: int, dtype: str) -> None:
        self._library, self.count, self.dtype = library, count, dtype
        self._mirror = library.pinned(count, dtype)
        self.array = library.empty(count, dtype)
        self.nbytes = self._mirror.nbytes

    def fill(self, value: object) -> None:
        """Assign a value, or an array of the host, and wait until it is there."""
        self._mirror[:] = value
        self._library.copy_in(self.array, self._mirror)
        self._library.synchronize()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        """Return the mirror, with the elements that there are when the device has done its work."""
        self._library.copy_out(self._mirror, self.array)
        self._library.synchronize()
        converts = dtype is not None and dtype != self._mirror.dtype
        return np.array(self._mirror, dtype) if copy or converts else self._mirror


@dataclass(frozen=True)
class DevicePair:
    """A send and a receive buffer on a device, and the library that they are of."""

    library: ArrayLibrary
    send: DeviceBuffer
    receive: DeviceBuffer


def device_pair(library: ArrayLibrary, contribution: Array) -> DevicePair:
    """Return buffers on a device, with a contribution in the send buffer."""
    count, dtype = contribution.size, contribution.dtype.name
    pair = DevicePair(
        library, DeviceBuffer(library, count, dtype), DeviceBuffer(library, count, dtype)
    )
    pair.send.fill(contribution)
    return pair


def _tensor(host: Array) -> Any:
    """Return the tensor of an array: PyTorch copies without waiting if it knows it to be pinned."""
    assert host.base is not None
    return host.base


# ---- which library, which device -----------------------------------------------------------------

_LIBRARIES: dict[DeviceBuffers, type[ArrayLibrary]] = {
    DeviceBuffers.CUPY: CuPyArrays,
    DeviceBuffers.TORCH: TorchArrays,
}


@dataclass(frozen=True)
class Devices:
    """What a benchmark needs to put buffers on this rank's device; empty if all are the host's.

    Attributes
    ----------
    libraries : dict
        The library of each kind of buffers that was asked for.
    facts : DeviceFacts or None
        For the results; None without a device.
    """

    libraries: dict[AnyBuffers, ArrayLibrary] = field(default_factory=dict)
    facts: DeviceFacts | None = None


def open_devices(
    buffers: Sequence[AnyBuffers], number: int | None, comm: MPI.Intracomm
) -> tuple[Devices, str | None]:
    """Open this rank's device with the libraries that buffers of these kinds need; collective.

    Parameters
    ----------
    buffers : sequence of Buffers or DeviceBuffers
    number : int or None
        Of the device; None: the ranks of a node take its devices in turn.
    comm : mpi4py.MPI.Intracomm

    Returns
    -------
    devices : Devices
    problem : str or None
        Why a rank cannot, with the command that mends it: that of the lowest such rank, the same on
        every rank. None if all can.
    """
    kinds = [kind for kind in buffers if isinstance(kind, DeviceBuffers)]
    if not kinds:
        return Devices(), None
    node = comm.Split_type(MPI.COMM_TYPE_SHARED)
    opened = _open(kinds, number, node.rank)
    node.Free()
    problems = comm.allgather(opened if isinstance(opened, str) else None)
    problem = next((text for text in problems if text is not None), None)
    if isinstance(opened, str) or problem is not None:
        return Devices(), problem
    libraries, facts = opened
    names = sorted(set(comm.allgather(facts.name)))
    return Devices(libraries, replace(facts, name=", ".join(names))), None


def with_path(facts: DeviceFacts | None, asked: str, reasons: Sequence[str]) -> DeviceFacts | None:
    """Return facts with the `device_path` that was asked for, and why it was not possible.

    `reasons` may have the same one several times, and empty ones.
    """
    if facts is None:
        return None
    why = "; ".join(dict.fromkeys(filter(None, reasons)))
    return replace(facts, device_path=asked, device_path_reason=why)


def _open(
    kinds: Sequence[DeviceBuffers], number: int | None, place: int
) -> tuple[dict[AnyBuffers, ArrayLibrary], DeviceFacts] | str:
    """Return a library for each kind, or why there is none; `place`: among the node's ranks."""
    option = f"--buffers {kinds[0].value}: "
    native = load()
    cuda, count = native.ffi.new("int32_t *"), native.ffi.new("int32_t *")
    status = native.lib.pp_devices(cuda, count)
    if status < 0:
        return option + str(native.error(status))
    device = place % count[0] if number is None else number
    if device >= count[0]:
        return f"--device {device}: the driver counts {count[0]} devices, from 0 on"
    arrays = [kind for kind in kinds if kind in _LIBRARIES] or [_at_hand()]
    libraries: dict[AnyBuffers, ArrayLibrary] = {}
    for kind in arrays:
        opened = _library(kind, device, cuda[0])
        if isinstance(opened, str):
            return option + opened
        libraries[kind] = opened
    libraries[DeviceBuffers.BY_HAND] = libraries[arrays[0]]
    name = native.ffi.new("char[]", _NAME_BYTES)
    native.check(native.lib.pp_device_name(device, name, _NAME_BYTES))
    facts = DeviceFacts(
        name=native.text(name),
        count=count[0],
        driver=driver_version(),
        cuda=f"{cuda[0] // 1000}.{cuda[0] % 1000 // 10}",
        libraries={libraries[kind].name: libraries[kind].version for kind in arrays},
    )
    return libraries, facts


def _at_hand() -> DeviceBuffers:
    """Return the kind of arrays for staging by hand, where the user has named none."""
    has_torch_only = _is_missing("cupy") and not _is_missing("torch")
    return DeviceBuffers.TORCH if has_torch_only else DeviceBuffers.CUPY


def _is_missing(module: str) -> bool:
    spec = importlib.util.find_spec(module)
    return spec is None or spec.origin is None  # or a mere folder of this name


def _library(kind: DeviceBuffers, device: int, cuda: int) -> ArrayLibrary | str:
    """Return a library whose arrays are on a device, or why it cannot be used with this driver."""
    remedy = _remedy(kind, cuda)
    if _is_missing(kind.value):
        return f"{kind.value} is not installed: {remedy}"
    try:
        module = importlib.import_module(kind.value)
    except Exception as error:  # a library of CUDA that is missing, or another version
        return f"{kind.value} cannot be loaded: {error}: {remedy}"
    wanted = _built_for(kind, module)
    if wanted is None:
        return f"{kind.value} {module.__version__} is built without CUDA: {remedy}"
    if wanted > cuda // 1000:
        return (
            f"{kind.value} {module.__version__} is built for CUDA {wanted}, and the driver is for "
            f"CUDA {cuda // 1000}: {remedy}"
        )
    try:
        return _LIBRARIES[kind](device)
    except Exception as error:  # what the library thinks of this driver and device
        return f"{kind.value} cannot use device {device}: {error}; pypartial info lists the devices"


def _built_for(kind: DeviceBuffers, module: Any) -> int | None:
    """Return the major version of CUDA that a library is built for; None: for none."""
    if kind is DeviceBuffers.CUPY:
        return int(module.cuda.runtime.runtimeGetVersion()) // 1000
    version = module.version.cuda
    return None if version is None else int(version.partition(".")[0])


def _remedy(kind: DeviceBuffers, cuda: int) -> str:
    """Return the command that installs a library for a driver's version of CUDA."""
    major = wheels_for(cuda // 1000)
    if kind is DeviceBuffers.CUPY:
        return f"pip install 'cupy-cuda{major}x[ctk]'"
    wheels = {12: "cu126", 13: "cu130"}.get(major, "cu126")
    return f"pip install --force-reinstall torch --index-url {_TORCH_WHEELS}/{wheels}"


def driver_version(file: Path = _DRIVER_FILE) -> str | None:
    """Return the version of the NVIDIA driver, such as 570.86.15; None if it is not told."""
    try:
        words = file.read_text(encoding="utf-8").split("\n")[0].split()
    except OSError:
        return None
    return next((word for word in words if word[0].isdigit() and "." in word), None)
