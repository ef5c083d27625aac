"""The kernels of a device: compiled by CuPy's NVRTC, kept on disk, and given to the C core.

The source, `_device_kernels.cu`, is a part of the package. NVRTC, NVIDIA's compiler for use at run
time, needs no GPU and no CUDA toolkit, and CuPy knows where it is. Compiling takes seconds, so the
image is kept in the user's cache: a program pays once on each kind of device.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ._cache import cache_folder
from .errors import Error

if TYPE_CHECKING:
    from ._native import Native

__all__ = ["NoKernelsError", "compiled", "give_kernels", "why_none"]

_SOURCE = Path(__file__).with_name("_device_kernels.cu")
# Results shall have the host's bits: each operation is rounded, and nothing is flushed to zero. The
# last two are what the compiler does by default; a default may change.
_OPTIONS = ("--std=c++17", "--fmad=false", "--ftz=false", "--prec-div=true")
_DIGEST_BYTES = hashlib.sha256().digest_size


class NoKernelsError(Error):
    """The kernels of a device cannot be had, so its elements are reduced by the host.

    The text says what is missing, with the command that mends it.
    """


class _Target(NamedTuple):
    """What NVRTC is to compile for: one kind of device, or PTX, which the driver compiles."""

    name: str  # "sm_90", "compute_121"
    is_cubin: bool


@functools.cache
def give_kernels(native: Native, device: int) -> None:
    """Give the C core the kernels for a device, once a process.

    Parameters
    ----------
    native : Native
        The loaded C core.
    device : int
        The number of the device.

    Raises
    ------
    NoKernelsError
        If there is no CuPy, or one that cannot compile for this device and this driver.
    Error
        If there is no driver, or no device.
    """
    ffi, lib = native.ffi, native.lib
    version, other = ffi.new("int32_t *"), ffi.new("int32_t *")
    native.check(lib.pp_devices(version, other))
    driver = (version[0] // 1000, version[0] % 1000 // 10)
    native.check(lib.pp_device_architecture(device, version, other))
    image = compiled((version[0], other[0]), driver, cache_folder())
    native.check(lib.pp_device_kernels(device, ffi.from_buffer("char[]", image), len(image)))


def why_none(native: Native, device: int) -> str | None:
    """Return why the kernels for a device cannot be compiled here; None: it is not known."""
    version, other = native.ffi.new("int32_t *"), native.ffi.new("int32_t *")
    try:
        native.check(native.lib.pp_devices(version, other))
        driver = (version[0] // 1000, version[0] % 1000 // 10)
        native.check(native.lib.pp_device_architecture(device, version, other))
        nvrtc, of = _find_nvrtc(driver)
        _target((version[0], other[0]), nvrtc.getSupportedArchs(), of)
    except Error as error:
        return str(error)
    return None


def compiled(architecture: tuple[int, int], driver: tuple[int, int], cache: Path | None) -> bytes:
    """Return the image of the kernels, out of the cache or compiled.

    Parameters
    ----------
    architecture : tuple of int
        The device's compute capability, such as ``(9, 0)``.
    driver : tuple of int
        The version of CUDA that the driver is for, such as ``(12, 4)``.
    cache : Path or None
        The folder in which images are kept; None to compile anew.

    Raises
    ------
    NoKernelsError
        If there is no CuPy, or one that cannot compile for this device and this driver.
    """
    nvrtc, version = _find_nvrtc(driver)
    target = _target(architecture, nvrtc.getSupportedArchs(), version)
    source = _SOURCE.read_text(encoding="utf-8")
    options = (*_OPTIONS, f"--gpu-architecture={target.name}")
    if cache is None:
        return _compile(nvrtc, source, options, target)
    made_of = hashlib.sha256(repr((source, options, version)).encode()).hexdigest()[:16]
    file = cache / "kernels" / f"{target.name}-nvrtc{version[0]}.{version[1]}-{made_of}"
    image = _read(file)
    if image is None:
        image = _compile(nvrtc, source, options, target)
        _write(file, image)
    return image


# ---- the compiler --------------------------------------------------------------------------------


def wheels_for(major: int) -> int:
    """Return for which major version of CUDA to install wheels, by that of the driver.

    A driver runs what is built for an older one; these are the newest wheels that there are.
    """
    return min(major, 13)


def _find_nvrtc(driver: tuple[int, int]) -> tuple[Any, tuple[int, int]]:
    """Return CuPy's module of NVRTC, and the version of CUDA that it is of."""
    install = f"`pip install 'pypartial-mpi[cuda{wheels_for(driver[0])}]'`"
    try:
        from cupy.cuda import nvrtc
    except ModuleNotFoundError as error:
        if error.name != "cupy":
            raise NoKernelsError(_broken(error, driver)) from error
        raise NoKernelsError(
            f"there is no CuPy, which compiles the kernels of devices: {install}"
        ) from None
    except Exception as error:  # a wheel for another machine, two wheels at once
        raise NoKernelsError(_broken(error, driver)) from error
    try:
        major, minor = nvrtc.getVersion()
    except Exception as error:  # a RuntimeError, or an ImportError: CuPy loads NVRTC here
        raise NoKernelsError(
            f"CuPy finds no NVRTC, which compiles the kernels of devices: {install}. CuPy says: "
            f"{str(error).strip()}"
        ) from error
    if major > driver[0]:
        raise NoKernelsError(
            f"CuPy compiles for CUDA {major}.{minor}, and the driver is for CUDA "
            f"{driver[0]}.{driver[1]}: {install} in an environment without packages for CUDA "
            f"{major}"
        )
    return nvrtc, (major, minor)


def _broken(error: Exception, driver: tuple[int, int]) -> str:
    install = f"`pip install --force-reinstall cupy-cuda{wheels_for(driver[0])}x`"
    return (
        f"CuPy cannot be loaded: {install}, without another build of CuPy beside it. "
        f"Python says: {error}"
    )


def _target(
    architecture: tuple[int, int], known: Sequence[int], version: tuple[int, int]
) -> _Target:
    """Choose what to compile for: the device, or PTX for the newest kind that NVRTC knows."""
    number = 10 * architecture[0] + architecture[1]
    if number in known:
        return _Target(f"sm_{number}", True)
    older = [one for one in known if one < number]
    if not older:
        raise NoKernelsError(
            f"NVRTC {version[0]}.{version[1]} does not compile for a device of compute capability "
            f"{architecture[0]}.{architecture[1]}: `pip install 'pypartial-mpi[cuda12]'` in an "
            f"environment without packages for CUDA {version[0]}"
        )
    return _Target(f"compute_{max(older)}", False)


def _compile(nvrtc: Any, source: str, options: tuple[str, ...], target: _Target) -> bytes:
    program = nvrtc.createProgram(source, _SOURCE.name, (), ())
    try:
        nvrtc.compileProgram(program, options)
        image = nvrtc.getCUBIN(program) if target.is_cubin else nvrtc.getPTX(program)
        # CuPy cuts off the last byte, which is the 0 at the end of PTX. That of a cubin is 0, too.
        return bytes(image) + b"\0"
    except nvrtc.NVRTCError as error:
        log = nvrtc.getProgramLog(program)
        raise NoKernelsError(
            f"NVRTC cannot compile the kernels for {target.name}: {error}\n{log}"
        ) from error
    finally:
        nvrtc.destroyProgram(program)


# ---- the cache -----------------------------------------------------------------------------------


def _read(file: Path) -> bytes | None:
    """Return what `_write` wrote; None if it is not there, or not whole."""
    try:
        content = file.read_bytes()
    except OSError:
        return None
    digest, image = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
    return image if hashlib.sha256(image).digest() == digest else None


def _write(file: Path, image: bytes) -> None:
    """Keep an image. Other ranks see it when it is whole; if it cannot be kept, nothing happens."""
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=file.parent, prefix=f"{file.name}.")
        try:
            with open(descriptor, "wb") as made:
                made.write(hashlib.sha256(image).digest() + image)
            os.replace(name, file)
        except BaseException:
            with contextlib.suppress(OSError):  # it may have its name already
                os.unlink(name)
            raise
