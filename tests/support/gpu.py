"""Arrays of CuPy and PyTorch, streams, and a slow kernel, for tests on a CUDA device.

Arrays and streams are made by their library, and everything is queued by the CUDA driver itself, so
a test is the same for both. The driver may be the stand-in (`fakecuda.c`), and CuPy that of
`standin/cupy.py`: so the tests themselves are tried where there is no GPU.

    python -m support.gpu cupy      # or torch
    python -m support.gpu direct    # why MPI cannot be given addresses of the device, or null

prints as JSON what there is, for programs that start ranks and use neither MPI nor a device.
"""

from __future__ import annotations

import ctypes
import functools
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

import pypartial as pp
from pypartial import _direct
from pypartial._ipc import KERNELS, why_no_kernels
from pypartial._native import load
from pypartial.bench import device_arrays
from pypartial.bench.device_arrays import ArrayLibrary, CuPyArrays, TorchArrays
from pypartial.bench.options import DeviceBuffers

# Which libraries must be there, separated by commas: a test that needs one of them is not skipped.
NEEDED = "PYPARTIAL_TEST_GPU"
# Which paths are tested, separated by commas; where it is not set, all that need no other MPI.
PATHS = "PYPARTIAL_TEST_PATHS"
LIBRARIES: dict[str, type[ArrayLibrary]] = {"cupy": CuPyArrays, "torch": TorchArrays}
BFLOAT16 = "bfloat16"
CAPTURE_RELAXED = 2

Pointer = ctypes.c_void_p
Kernel = ctypes.CFUNCTYPE(None, ctypes.POINTER(ctypes.c_void_p))

# One block waits for some nanoseconds, and then writes a word to an array again and again. It reads
# a clock that goes on while the device works for another process.
SPIN = b"""
.version 7.8
.target sm_70
.address_size 64
.visible .entry spin_write(.param .u64 out, .param .u64 count, .param .u64 value, .param .u64 ns)
{
    .reg .pred %p<2>;
    .reg .b32 %r<3>;
    .reg .b64 %d<10>;
    ld.param.u64 %d0, [out];
    cvta.to.global.u64 %d0, %d0;
    ld.param.u64 %d1, [count];
    ld.param.u64 %d2, [value];
    cvt.u32.u64 %r0, %d2;
    ld.param.u64 %d3, [ns];
    mov.u64 %d4, %globaltimer;
waiting:
    mov.u64 %d5, %globaltimer;
    sub.u64 %d5, %d5, %d4;
    setp.lt.u64 %p0, %d5, %d3;
    @%p0 bra waiting;
    mov.u32 %r1, %tid.x;
    cvt.u64.u32 %d6, %r1;
    mov.u32 %r2, %ntid.x;
    cvt.u64.u32 %d7, %r2;
writing:
    setp.ge.u64 %p1, %d6, %d1;
    @%p1 bra done;
    shl.b64 %d8, %d6, 2;
    add.u64 %d8, %d0, %d8;
    st.global.u32 [%d8], %r0;
    add.u64 %d6, %d6, %d7;
    bra writing;
done:
    ret;
}
"""


# ---- the driver ----------------------------------------------------------------------------------


@functools.cache
def driver() -> ctypes.CDLL:
    """Return the driver that the library uses; OSError: there is none."""
    library = ctypes.CDLL(os.environ.get("PYPARTIAL_CUDA_DRIVER") or "libcuda.so.1")
    library.cuMemcpyAsync.argtypes = [Pointer, Pointer, ctypes.c_size_t, Pointer]
    library.cuStreamSynchronize.argtypes = [Pointer]
    library.cuLaunchKernel.argtypes = [Pointer, *[ctypes.c_uint] * 7, Pointer, Pointer, Pointer]
    library.cuModuleGetFunction.argtypes = [Pointer, Pointer, ctypes.c_char_p]
    return library


def why_none() -> str | None:
    """Return why there is no device; None: there is one."""
    count = ctypes.c_int()
    try:
        library = driver()
    except OSError as error:
        return f"there is no CUDA driver: {error}"
    for result in (library.cuInit(0), library.cuDeviceGetCount(ctypes.byref(count))):
        if result:
            return f"the CUDA driver says {result}"
    return None if count.value else "there is no CUDA device"


def is_stand_in() -> bool:
    """Whether the driver is the stand-in."""
    return hasattr(driver(), "fake_kernel")


def why_not(library: str) -> str | None:
    """Return why there are no tests with arrays of a library here; None: there are."""
    missing = device_arrays._is_missing(library)
    return why_none() or (f"{library} is not installed" if missing else _without_cuda(library))


def _without_cuda(library: str) -> str | None:
    module = __import__(library)
    built = device_arrays._built_for(DeviceBuffers(library), module)
    if built is None:
        return f"{library} is built without CUDA"
    if library == "torch" and not module.cuda.is_available():
        return "torch finds no device"
    return None


def needed() -> set[str]:
    """Return the libraries that must be there."""
    return {name for name in os.environ.get(NEEDED, "").split(",") if name}


def ok(result: int) -> None:
    assert result == 0, f"the CUDA driver returned {result}"


# ---- the library's paths -------------------------------------------------------------------------


def paths() -> list[str]:
    """Return the paths to test; the stand-in runs kernels only if it has some."""
    if os.environ.get(PATHS):
        return os.environ[PATHS].split(",")
    no_kernels = why_none() is None and is_stand_in() and KERNELS not in os.environ
    return ["staged"] if no_kernels else ["staged", "ipc"]


def context(comm: Any, path: str | None) -> pp.Context:
    """Make a context in which handles can take a path; no rank leaves it by patience.

    The automatic patience is a second at least. A busy machine may stop a rank for longer.
    """
    by_messages: dict[str, Any] = {"transport": "mpi"} if path == "direct" else {}
    return pp.Context(comm, seed=7, patience=None, **by_messages)


def made(ctx: pp.Context, path: str, send: Any, receive: Any, **options: Any) -> Any:
    """Make a handle on a path."""
    request = ctx.Allreduce_init(send, receive, device_path=path, **options)
    assert request.device_path == path, request.device_path_reason
    return request


# ---- arrays and streams --------------------------------------------------------------------------


class Kit:
    """Arrays and streams of a library on a device; its stream is the current one.

    Parameters
    ----------
    name : str
        "cupy" or "torch".
    device : int
    """

    def __init__(self, name: str, device: int) -> None:
        self.name, self.device = name, device
        self.library = LIBRARIES[name](device)
        self._module: Any = __import__(name)
        self.home = self.library._stream  # type: ignore[attr-defined]
        self._used: list[Any] = []  # memory that queued work uses when its turn comes

    def new(self, count: int, dtype: str) -> Any:
        """Return an array."""
        return self.library.empty(count, dtype)

    def address(self, array: Any) -> int:
        """Return where an array is."""
        return int(array.data_ptr() if self.name == "torch" else array.data.ptr)

    def stream(self) -> Any:
        """Return a new stream."""
        cuda = self._module.cuda
        return cuda.Stream() if self.name == "torch" else cuda.Stream(non_blocking=True)

    def number(self, stream: Any) -> int:
        """Return the address of a stream, of the kit's own for None; numbers are left alone."""
        stream = self.home if stream is None else stream
        if isinstance(stream, int):
            return stream
        return int(stream.cuda_stream if self.name == "torch" else stream.ptr)

    def use(self, stream: Any) -> AbstractContextManager[Any]:
        """Make a stream the library's current one."""
        made: AbstractContextManager[Any] = (
            self._module.cuda.stream(stream) if self.name == "torch" else stream
        )
        return made

    def wait(self, stream: Any = None) -> None:
        """Wait until all that is queued on a stream is done."""
        ok(driver().cuStreamSynchronize(self.number(stream)))

    def put(self, array: Any, values: npt.NDArray[Any], stream: Any = None) -> None:
        """Queue an assignment."""
        host = self.library.pinned(max(values.nbytes, 1), "uint8")
        host[: values.nbytes] = values.view("u1")
        self._used.append(host)
        place = self.address(array), host.ctypes.data
        ok(driver().cuMemcpyAsync(*place, values.nbytes, self.number(stream)))

    def copy(self, target: Any, source: Any, nbytes: int, stream: Any = None) -> None:
        """Queue a copy on the device."""
        place = self.address(target), self.address(source)
        ok(driver().cuMemcpyAsync(*place, nbytes, self.number(stream)))

    def get(self, array: Any, count: int, dtype: str, stream: Any = None) -> npt.NDArray[Any]:
        """Return the elements when all that is queued on a stream is done."""
        nbytes = count * element(dtype).itemsize
        host = self.library.pinned(max(nbytes, 1), "uint8")
        place = host.ctypes.data, self.address(array)
        ok(driver().cuMemcpyAsync(*place, nbytes, self.number(stream)))
        self.wait(stream)
        return np.array(host[:nbytes]).view(element(dtype))

    def settle(self, streams: Sequence[Any] = ()) -> None:
        """Wait for the kit's stream and others, and forget what they have used."""
        for stream in (None, *streams):
            self.wait(stream)
        self._used.clear()

    def spin(
        self,
        array: Any,
        count: int,
        value: float,
        ns: int,
        stream: Any = None,
        *,
        blocks: int = 1,
    ) -> None:
        """Queue a kernel that takes some time, and then writes a float32 to all of an array.

        With as many blocks as the device holds, other kernels of this process wait for it.
        """
        word = int(np.float32(value).view("u4"))
        words = [ctypes.c_uint64(it) for it in (self.address(array), count, word, ns)]
        pointers = (Pointer * len(words))(*[ctypes.addressof(each) for each in words])
        size = blocks, 1, 1, 256, 1, 1, 0
        ok(driver().cuLaunchKernel(_spin_write(), *size, self.number(stream), pointers, None))

    @contextmanager
    def busy(self, stream: Any, ns: int) -> Iterator[None]:
        """Have a stream do nothing else for some time; the stand-in's does nothing in the block.

        There no time would do: what is queued meanwhile may take any, on a loaded machine.
        """
        if not is_stand_in():
            self._used.append(self.new(1, "float32"))
            self.spin(self._used[-1], 1, 0, ns, stream)
            yield
            return
        hold_on_stand_in(self.number(stream), True)
        try:
            yield
        finally:
            hold_on_stand_in(self.number(stream), False)


def hold_on_stand_in(number: int, held: bool) -> None:
    """Have a stream of the stand-in's begin nothing, until it is let go."""
    hold = driver().fake_hold
    hold.argtypes = [Pointer, ctypes.c_bool]
    hold(number, held)


def element(dtype: str) -> npt.DTypeLike:
    """Return the type of elements in host memory."""
    if dtype != BFLOAT16:
        return np.dtype(dtype)
    import ml_dtypes

    return np.dtype(ml_dtypes.bfloat16)


@functools.cache
def _spin_write() -> Any:
    """Return the kernel; the stand-in is given one that does the same."""
    if is_stand_in():
        sizes = (ctypes.c_size_t * 4)(8, 8, 8, 8)
        driver().fake_kernel(b"spin_write", _spin_on_host, 4, sizes)
    module, function = Pointer(), Pointer()
    ok(driver().cuModuleLoadData(ctypes.byref(module), SPIN))
    ok(driver().cuModuleGetFunction(ctypes.byref(function), module, b"spin_write"))
    return function


@Kernel
def _spin_on_host(arguments: Any) -> None:
    out, count, value, ns = (
        ctypes.cast(arguments[i], ctypes.POINTER(ctypes.c_uint64))[0] for i in range(4)
    )
    time.sleep(ns / 1e9)  # it stands for the device's work
    reach = driver().fake_reach
    reach.restype, reach.argtypes = Pointer, [ctypes.c_uint64, ctypes.c_size_t]
    memory = (ctypes.c_uint32 * count).from_address(reach(out, 4 * count))
    np.frombuffer(memory, "u4")[:] = value


@contextmanager
def captured(number: int) -> Iterator[None]:
    """Have a stream be captured into a graph."""
    library = driver()
    if is_stand_in():
        library.fake_capture.argtypes = [Pointer, ctypes.c_bool]
        library.fake_capture(number, True)
        yield
        library.fake_capture(number, False)
        return
    graph = Pointer()
    ok(library.cuStreamBeginCapture_v2(Pointer(number), CAPTURE_RELAXED))
    yield
    ok(library.cuStreamEndCapture(Pointer(number), ctypes.byref(graph)))
    ok(library.cuGraphDestroy(graph))


@contextmanager
def blocking_stream() -> Iterator[int]:
    """Make a stream that waits for the legacy default one, as that one for it."""
    stream = Pointer()
    ok(driver().cuStreamCreate(ctypes.byref(stream), 0))
    assert stream.value is not None
    yield stream.value
    ok(driver().cuStreamDestroy_v2(stream))


@contextmanager
def other_context() -> Iterator[None]:
    """Make a context beside the primary one of device 0 this thread's current one."""
    made = Pointer()
    ok(driver().cuCtxCreate_v2(ctypes.byref(made), 0, 0))
    try:
        yield
    finally:
        ok(driver().cuCtxDestroy_v2(made))


def what_there_is(library: str) -> dict[str, Any]:
    """Return why a library cannot be used (None: it can), the paths, whether this is a stand-in."""
    problem = why_not(library)
    stand_in = why_none() is None and is_stand_in()
    if problem is None and library == "cupy" and not stand_in:
        problem = why_no_kernels(load(), 0)
    return {"problem": problem, "paths": paths(), "stand_in": stand_in}


if __name__ == "__main__":
    (what,) = sys.argv[1:]
    if what == "direct":
        print(json.dumps(_direct.why_not(load(), 0, tries=True)))
    else:
        print(json.dumps(what_there_is(what)))
