"""NVRTC by ctypes, with the names of CuPy's module `cupy.cuda.nvrtc`, and without CuPy."""

from __future__ import annotations

import ctypes
import os
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType


def find() -> Path | None:
    """Return NVRTC's library: of the toolkit, or of a wheel such as nvidia-cuda-nvrtc-cu12."""
    named = [os.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH")]
    folders = [Path(name) for name in [*named, "/usr/local/cuda"] if name]
    folders += sorted(Path(sysconfig.get_path("purelib"), "nvidia").glob("*"))
    found = [file for folder in folders for file in folder.glob("lib*/libnvrtc.so.*")]
    return next((file for file in found if "alt" not in file.name), None)


class NVRTCError(RuntimeError):
    """A call of NVRTC failed."""


class Nvrtc:
    """The functions of CuPy's module that the package calls."""

    NVRTCError = NVRTCError

    def __init__(self, file: Path) -> None:
        self._library = ctypes.CDLL(str(file))
        self._library.nvrtcGetErrorString.restype = ctypes.c_char_p

    def _check(self, result: int) -> None:
        if result != 0:
            raise NVRTCError(self._library.nvrtcGetErrorString(result).decode())

    def getVersion(self) -> tuple[int, int]:
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._check(self._library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
        return major.value, minor.value

    def getSupportedArchs(self) -> tuple[int, ...]:
        count = ctypes.c_int()
        self._check(self._library.nvrtcGetNumSupportedArchs(ctypes.byref(count)))
        found = (ctypes.c_int * count.value)()
        self._check(self._library.nvrtcGetSupportedArchs(found))
        return tuple(found)

    def createProgram(
        self, source: str, name: str, headers: Sequence[str], names: Sequence[str]
    ) -> ctypes.c_void_p:
        assert not headers and not names
        program = ctypes.c_void_p()
        self._check(
            self._library.nvrtcCreateProgram(
                ctypes.byref(program), source.encode(), name.encode(), 0, None, None
            )
        )
        return program

    def destroyProgram(self, program: ctypes.c_void_p) -> None:
        self._check(self._library.nvrtcDestroyProgram(ctypes.byref(program)))

    def compileProgram(self, program: ctypes.c_void_p, options: Sequence[str]) -> None:
        given = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        self._check(self._library.nvrtcCompileProgram(program, len(options), given))

    def _get(self, what: str, program: ctypes.c_void_p) -> bytes:
        size = ctypes.c_size_t()
        self._check(getattr(self._library, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
        buffer = ctypes.create_string_buffer(size.value)
        self._check(getattr(self._library, f"nvrtcGet{what}")(program, buffer))
        return buffer.raw

    def getCUBIN(self, program: ctypes.c_void_p) -> bytes:
        return self._get("CUBIN", program)

    def getPTX(self, program: ctypes.c_void_p) -> bytes:
        return self._get("PTX", program)

    def getProgramLog(self, program: ctypes.c_void_p) -> str:
        return self._get("ProgramLog", program).rstrip(b"\0").decode()


class Prepared:
    """An NVRTC that compiles nothing: its image is there already."""

    NVRTCError = NVRTCError

    def __init__(self, image: bytes) -> None:
        self._image = image

    def getVersion(self) -> tuple[int, int]:
        return 0, 0  # no real one, so the user's cache keeps its image apart

    def getSupportedArchs(self) -> tuple[int, ...]:
        return (90,)

    def createProgram(
        self, source: str, name: str, headers: Sequence[str], names: Sequence[str]
    ) -> int:
        return 0

    def destroyProgram(self, program: int) -> None:
        pass

    def compileProgram(self, program: int, options: Sequence[str]) -> None:
        pass

    def getCUBIN(self, program: int) -> bytes:
        return self._image


def put_in_place(compiler: object) -> None:
    """Make this process find a CuPy that has nothing but this module of NVRTC."""
    cupy, cuda = ModuleType("cupy"), ModuleType("cupy.cuda")
    cuda.nvrtc = compiler  # type: ignore[attr-defined]
    sys.modules["cupy"], sys.modules["cupy.cuda"] = cupy, cuda


def use_kernels_on_host(file: Path) -> None:
    """Make this process take the kernels of `fakecuda.build_kernels` for compiled ones."""
    put_in_place(Prepared(file.read_bytes()))
