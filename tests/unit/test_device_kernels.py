"""The kernels of devices: how they are compiled, kept and given; their source under NVRTC."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from support import fakecuda, gpu, nvrtc

from pypartial import _device_kernels
from pypartial._device_kernels import NoKernelsError, compiled

LIMIT_S = 60
DRIVER = (12, 4)
H100 = (9, 0)


class Compiler:
    """A stand-in for CuPy's module of NVRTC: its image says what it was asked for."""

    class NVRTCError(RuntimeError):
        pass

    def __init__(self) -> None:
        self.version = (12, 9)
        self.known = (70, 80, 90, 100)
        self.compiled: list[tuple[str, ...]] = []
        self.asked = 0
        self.live = 0
        self.log = ""

    def getVersion(self) -> tuple[int, int]:
        self.asked += 1
        return self.version

    def getSupportedArchs(self) -> tuple[int, ...]:
        return self.known

    def createProgram(self, source: str, name: str, headers: Any, names: Any) -> int:
        assert "pp_fold_##op" in source and name == "_device_kernels.cu"
        self.live += 1
        return 7

    def destroyProgram(self, program: int) -> None:
        self.live -= 1

    def compileProgram(self, program: int, options: tuple[str, ...]) -> None:
        self.compiled.append(options)
        if self.log:
            raise self.NVRTCError("NVRTC_ERROR_COMPILATION (6)")

    def getCUBIN(self, program: int) -> bytes:
        return b"cubin of " + self.compiled[-1][-1].encode()

    def getPTX(self, program: int) -> bytes:
        return b"PTX of " + self.compiled[-1][-1].encode()

    def getProgramLog(self, program: int) -> str:
        return self.log


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Compiler:
    """Put a CuPy in place that has nothing but the compiler."""
    made = Compiler()
    for name in ("cupy", "cupy.cuda"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))  # removed afterwards
    nvrtc.put_in_place(made)
    return made


# ---- what is compiled ----------------------------------------------------------------------------


def test_a_kind_of_device_that_nvrtc_knows(compiler: Compiler) -> None:
    assert compiled(H100, DRIVER, None) == b"cubin of --gpu-architecture=sm_90\0"
    (options,) = compiler.compiled
    assert {"--fmad=false", "--ftz=false", "--prec-div=true"} < set(options)
    assert compiler.live == 0


@pytest.mark.parametrize(
    ("architecture", "known"),
    [((12, 1), b"compute_100"), ((8, 9), b"compute_80"), ((7, 5), b"compute_70")],
)
def test_a_newer_device_takes_ptx(
    compiler: Compiler, architecture: tuple[int, int], known: bytes
) -> None:
    image = compiled(architecture, DRIVER, None)
    assert image == b"PTX of --gpu-architecture=" + known + b"\0"


def test_an_older_device_is_refused(compiler: Compiler) -> None:
    compiler.version = (13, 0)
    with pytest.raises(NoKernelsError) as raised:
        compiled((6, 1), (13, 0), None)
    assert str(raised.value) == (
        "NVRTC 13.0 does not compile for a device of compute capability 6.1: `pip install "
        "'pypartial-mpi[cuda12]'` in an environment without packages for CUDA 13"
    )


def test_a_source_that_is_refused(compiler: Compiler) -> None:
    compiler.log = "line 1: an error"
    with pytest.raises(NoKernelsError) as raised:
        compiled(H100, DRIVER, None)
    assert str(raised.value) == (
        "NVRTC cannot compile the kernels for sm_90: NVRTC_ERROR_COMPILATION (6)\nline 1: an error"
    )
    assert compiler.live == 0


# ---- CuPy ----------------------------------------------------------------------------------------


def forget_cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "cupy"]:
        monkeypatch.delitem(sys.modules, name)


class Nowhere:
    """A finder by which there is no CuPy, as where none is installed."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> None:
        if name == "cupy":
            raise ModuleNotFoundError("No module named 'cupy'", name=name)


def test_no_cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    forget_cupy(monkeypatch)
    monkeypatch.setattr(sys, "meta_path", [Nowhere, *sys.meta_path])
    with pytest.raises(NoKernelsError) as raised:
        compiled(H100, (13, 0), None)
    assert str(raised.value) == (
        "there is no CuPy, which compiles the kernels of devices: `pip install "
        "'pypartial-mpi[cuda13]'`"
    )


@pytest.mark.parametrize("text", ["raise RuntimeError('two wheels')", "import a_missing_module"])
def test_a_cupy_that_cannot_be_loaded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str
) -> None:
    forget_cupy(monkeypatch)
    (tmp_path / "cupy").mkdir()
    (tmp_path / "cupy" / "__init__.py").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(NoKernelsError) as raised:
        compiled(H100, DRIVER, None)
    says = {"raise": "two wheels", "import": "No module named 'a_missing_module'"}
    assert str(raised.value) == (
        "CuPy cannot be loaded: `pip install --force-reinstall cupy-cuda12x`, without "
        f"another build of CuPy beside it. Python says: {says[text.split()[0]]}"
    )


def test_no_nvrtc(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError('Failure finding "libnvrtc.so.12"\n')

    monkeypatch.setattr(compiler, "getVersion", fail)
    with pytest.raises(NoKernelsError) as raised:
        compiled(H100, DRIVER, None)
    assert str(raised.value) == (
        "CuPy finds no NVRTC, which compiles the kernels of devices: `pip install "
        "'pypartial-mpi[cuda12]'`. CuPy says: Failure finding \"libnvrtc.so.12\""
    )


def test_a_cupy_for_another_cuda(compiler: Compiler) -> None:
    compiler.version = (13, 0)
    with pytest.raises(NoKernelsError) as raised:
        compiled(H100, DRIVER, None)
    assert str(raised.value) == (
        "CuPy compiles for CUDA 13.0, and the driver is for CUDA 12.4: `pip install "
        "'pypartial-mpi[cuda12]'` in an environment without packages for CUDA 13"
    )
    compiler.version = (11, 8)  # drivers run what older versions have compiled
    assert compiled(H100, DRIVER, None)


# ---- the cache -----------------------------------------------------------------------------------


def files(cache: Path) -> list[str]:
    return sorted(file.name for file in (cache / "kernels").iterdir())


def test_an_image_is_compiled_once(compiler: Compiler, tmp_path: Path) -> None:
    images = {compiled(H100, DRIVER, tmp_path) for _ in range(3)}
    assert images == {b"cubin of --gpu-architecture=sm_90\0"}
    assert len(compiler.compiled) == 1
    (file,) = files(tmp_path)
    assert re.fullmatch(r"sm_90-nvrtc12\.9-[0-9a-f]{16}", file)


def test_another_device_another_nvrtc_and_another_source_have_files_of_their_own(
    compiler: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled(H100, DRIVER, tmp_path)
    compiled((8, 0), DRIVER, tmp_path)
    compiler.version = (12, 4)
    compiled(H100, DRIVER, tmp_path)
    changed = tmp_path / "_device_kernels.cu"
    changed.write_text(fakecuda.KERNELS.read_text(encoding="utf-8") + "\n", encoding="utf-8")
    monkeypatch.setattr(_device_kernels, "_SOURCE", changed)
    compiled(H100, DRIVER, tmp_path)
    assert len(compiler.compiled) == len(files(tmp_path)) == 4


@pytest.mark.parametrize("cut", [0, 10, -1])
def test_a_file_that_is_not_whole_is_made_again(
    compiler: Compiler, tmp_path: Path, cut: int
) -> None:
    image = compiled(H100, DRIVER, tmp_path)
    (file,) = (tmp_path / "kernels").iterdir()
    file.write_bytes(file.read_bytes()[:cut])
    assert compiled(H100, DRIVER, tmp_path) == image
    assert compiled(H100, DRIVER, tmp_path) == image
    assert len(compiler.compiled) == 2


def test_a_cache_that_cannot_be_written_is_done_without(compiler: Compiler, tmp_path: Path) -> None:
    (tmp_path / "kernels").write_text("a file where the folder would be", encoding="utf-8")
    assert compiled(H100, DRIVER, tmp_path) == compiled(H100, DRIVER, tmp_path)
    assert len(compiler.compiled) == 2


def test_other_ranks_see_whole_files_only(
    compiler: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file has its name when it is written to the end; one that never gets there is removed."""

    def fail(old: str, new: Path) -> None:
        (name,) = files(tmp_path)
        assert name != new.name and Path(old).read_bytes().endswith(b"sm_90\0")
        raise OSError("the disk is full")

    monkeypatch.setattr(os, "replace", fail)
    assert compiled(H100, DRIVER, tmp_path)
    assert files(tmp_path) == []


# ---- the core ------------------------------------------------------------------------------------

GIVE = """
import sys
from support import nvrtc
from test_device_kernels import Compiler
from pypartial._device_kernels import give_kernels
from pypartial._native import load
made = Compiler()
nvrtc.put_in_place(made)
try:
    for device in [0, 0, 1, int(sys.argv[1])]:
        give_kernels(load(), device)
except Exception as error:
    print(f"{type(error).__name__}: {error}")
print(made.asked, [options[-1] for options in made.compiled])
"""


def gave(device: int, cache: Path, **variables: str) -> list[str]:
    """Give kernels to the first devices, twice to the first, and to one more."""
    paths = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
    own = {"XDG_CACHE_HOME": str(cache), "FAKECUDA_DEVICES": "2"}
    path = os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")])
    ran = subprocess.run(
        [sys.executable, "-c", GIVE, str(device)],
        env={**os.environ, "PYTHONPATH": path, **own, **variables},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.splitlines()


def test_the_core_takes_the_kernels_of_each_device(cuda_stand_in: Path, tmp_path: Path) -> None:
    """Once a process. All devices of the stand-in are of one kind, so one image serves them."""
    asked = "2 ['--gpu-architecture=sm_90']"
    assert gave(1, tmp_path, PYPARTIAL_CUDA_DRIVER=str(cuda_stand_in)) == [asked]
    assert len(files(tmp_path / "pypartial")) == 1


def test_kernels_for_the_stand_in(tmp_path: Path) -> None:
    """As tests with ranks take them."""
    made = tmp_path / "kernels_on_host.so"
    made.write_bytes(b"\x7fELF and so on")
    program = (
        "import sys, pathlib; from support import nvrtc; from pypartial import _device_kernels\n"
        "nvrtc.use_kernels_on_host(pathlib.Path(sys.argv[1]))\n"
        "print(_device_kernels.compiled((9, 0), (12, 8), None))"
    )
    path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    ran = subprocess.run(
        [sys.executable, "-c", program, str(made)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert (ran.returncode, ran.stdout) == (0, "b'\\x7fELF and so on\\x00'\n"), ran.stderr


def test_a_device_that_is_not_there(cuda_stand_in: Path, tmp_path: Path) -> None:
    error, _ = gave(2, tmp_path, PYPARTIAL_CUDA_DRIVER=str(cuda_stand_in))
    assert error.startswith("ArgumentError: device=2 is not in 0..1")


def test_no_driver_and_no_device(cuda_stand_in: Path, tmp_path: Path) -> None:
    """Nothing is compiled then."""
    error, asked = gave(0, tmp_path, PYPARTIAL_CUDA_DRIVER=str(tmp_path / "none"))
    assert error.startswith("Error: the CUDA driver that PYPARTIAL_CUDA_DRIVER names cannot be")
    assert asked == "0 []"
    none = {"PYPARTIAL_CUDA_DRIVER": str(cuda_stand_in), "FAKECUDA_DEVICES": "0"}
    error, asked = gave(0, tmp_path, **none)
    assert error.startswith("Error: the NVIDIA driver finds no device")
    assert asked == "0 []"


# ---- the source under NVRTC ----------------------------------------------------------------------

NVRTC = nvrtc.find()
needs_nvrtc = pytest.mark.skipif(
    NVRTC is None, reason="there is no NVRTC here: pip install nvidia-cuda-nvrtc-cu12"
)


@pytest.fixture(scope="module")
def ptx() -> str:
    """The kernels for the oldest devices that NVRTC compiles for, of 7.0 on."""
    assert NVRTC is not None
    compiler = nvrtc.Nvrtc(NVRTC)
    oldest = min(one for one in compiler.getSupportedArchs() if one >= 70)
    target = _device_kernels._Target(f"compute_{oldest}", False)
    options = (*_device_kernels._OPTIONS, f"--gpu-architecture={target.name}")
    source = fakecuda.KERNELS.read_text(encoding="utf-8")
    return _device_kernels._compile(compiler, source, options, target).decode()


@needs_nvrtc
@pytest.mark.parametrize("number", [70, 80, 90, 100])
def test_nvrtc_compiles_the_kernels(number: int) -> None:
    assert NVRTC is not None
    compiler = nvrtc.Nvrtc(NVRTC)
    if number not in compiler.getSupportedArchs():
        pytest.skip(f"NVRTC {compiler.getVersion()} does not compile for sm_{number}")
    target = _device_kernels._Target(f"sm_{number}", True)
    options = (*_device_kernels._OPTIONS, f"--gpu-architecture={target.name}")
    source = fakecuda.KERNELS.read_text(encoding="utf-8")
    assert _device_kernels._compile(compiler, source, options, target).startswith(b"\x7fELF")


@needs_nvrtc
def test_each_kernel_is_there(ptx: str) -> None:
    """As many as the lists of the source say; tests/unit/test_folds.py looks each of them up."""
    names = re.findall(r"\.entry (\w+)\(", ptx)
    assert len(names) == len(set(names)) == 60 + 2 + 8 + 8 + 6
    assert ptx.endswith("\0")


@needs_nvrtc
def test_arithmetic_is_rounded_as_on_the_host(ptx: str) -> None:
    """No operation is fused or approximate, none flushes to zero, and no array is in memory."""
    assert re.search(r"\badd\.(rn\.)?f32\b", ptx) and re.search(r"\bdiv\.rn\.f32\b", ptx)
    assert re.search(r"\b(fma|mad)\.\w+\.f(32|64)|\.ftz|\.approx|\bdiv\.full", ptx) is None
    assert ".local" not in ptx


@needs_nvrtc
def test_a_wrong_source_says_its_line() -> None:
    assert NVRTC is not None
    target = _device_kernels._Target("compute_80", False)
    with pytest.raises(NoKernelsError, match=r"_device_kernels\.cu\(1\): error"):
        _device_kernels._compile(nvrtc.Nvrtc(NVRTC), "nonsense;", (), target)


def find_ptxas() -> str | None:
    """Return NVIDIA's assembler: of the toolkit, on PATH or where it is installed."""
    named = [os.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH")]
    folders = [str(Path(name, "bin")) for name in [*named, "/usr/local/cuda"] if name]
    return shutil.which("ptxas") or shutil.which("ptxas", path=os.pathsep.join(folders))


@pytest.mark.parametrize("architecture", ["sm_75", "sm_80", "sm_90", "sm_100"])
def test_the_slow_kernel_of_the_tests_on_a_gpu_can_be_assembled(
    architecture: str, tmp_path: Path
) -> None:
    """The stand-in for the driver does not look at it."""
    assembler = find_ptxas()
    if assembler is None:
        pytest.skip("there is no ptxas: it is in CUDA's toolkit (CUDA_HOME)")
    (tmp_path / "spin.ptx").write_bytes(gpu.SPIN)
    command = [assembler, f"-arch={architecture}", "spin.ptx", "-o", "spin.cubin"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stdout + done.stderr
