"""The table of the CUDA driver, with the stand-in for the driver: tests/unit/c/cuda_cases.c."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support import fakecuda

ROOT = Path(__file__).resolve().parents[2]
CSRC = ROOT / "csrc"
LIMIT_S = 120
NOT_REACHED = 77
INSTALL = "Install one by `apt install nvidia-driver` (Debian) or `ubuntu-drivers install` (Ubuntu)"
NEEDED = (
    "A driver for CUDA 12.0 or newer is needed, which is 525.60 or newer; `nvidia-smi` shows "
    f"yours. {INSTALL}"
)
SPAWN = (
    "Start processes by subprocess, or by multiprocessing after "
    '`multiprocessing.set_start_method("spawn")`'
)


class Cases:
    """The program with the cases; it and the stand-in are built with sanitizers."""

    def __init__(self, folder: Path, sanitizers: str) -> None:
        self.program = folder / "cuda_cases"
        self.stand_in = fakecuda.build(folder, sanitizers=sanitizers)
        sources = [CSRC / name for name in ("base/error.c", "base/random.c", "cuda/driver.c")]
        subprocess.run(
            [
                *(*fakecuda.compiler(), "-std=gnu11", "-g", "-O1", "-Wall", "-Wextra", "-Werror"),
                *("-pthread", f"-fsanitize={sanitizers}", "-fno-sanitize-recover=all", f"-I{CSRC}"),
                *map(str, sources),
                *(str(Path(__file__).parent / "c" / "cuda_cases.c"), str(self.stand_in)),
                *("-ldl", "-o", str(self.program)),
            ],
            check=True,
        )

    def ran(
        self, case: str, number: int = 0, **variables: str | None
    ) -> subprocess.CompletedProcess[str]:
        """Run a case; the variables are the environment's (None: unset)."""
        # A program that touches a device's memory dies by the signal, as without a sanitizer.
        own = {"PYPARTIAL_CUDA_DRIVER": str(self.stand_in), "ASAN_OPTIONS": "handle_segv=0"}
        changed = {"CUDA_VISIBLE_DEVICES": None, **own, **variables}
        environment = {name: text for name, text in os.environ.items() if name not in changed}
        environment |= {name: text for name, text in changed.items() if text is not None}
        return subprocess.run(
            [self.program, case, str(number)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )

    def __call__(self, case: str, number: int = 0, **variables: str | None) -> str:
        """Run a case that must end well; return what it prints."""
        ran = self.ran(case, number, **variables)
        assert ran.returncode == 0, f"{ran.returncode}: {ran.stderr}"
        return ran.stdout

    def error(self, case: str = "open_twice", **variables: str | None) -> str:
        """Return the error of opening the driver, which both attempts must give."""
        first, second = self(case, **variables).splitlines()
        assert first == second
        status, _, text = first.partition(" ")
        assert status == "-2"
        return text


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Cases:
    return Cases(tmp_path_factory.mktemp("cases"), "address,undefined")


@pytest.fixture(scope="module")
def raced(tmp_path_factory: pytest.TempPathFactory) -> Cases:
    return Cases(tmp_path_factory.mktemp("raced"), "thread")


# ---- opening -------------------------------------------------------------------------------------


def test_the_driver_is_opened_once(cases: Cases) -> None:
    assert cases("open_twice") == "0 open\n0 open\n"


@pytest.mark.parametrize(
    "case",
    [
        "threads",
        "held_streams",
        "registration",
        "handles",
        "room",
        "used_while_freed",
        "last_release",
    ],
)
def test_threads_do_not_race(raced: Cases, case: str) -> None:
    """Threads that open the driver at the same time, and the stand-in's own."""
    raced(case)


def has_a_driver() -> bool:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


@pytest.mark.skipif(has_a_driver(), reason="this machine has a CUDA driver")
@pytest.mark.parametrize("unset", [None, ""])
def test_no_driver(cases: Cases, unset: str | None) -> None:
    assert cases.error(PYPARTIAL_CUDA_DRIVER=unset) == (
        "there is no NVIDIA driver: libcuda.so.1: cannot open shared object file: No such file or "
        f"directory. {INSTALL}; a container gets the machine's by `docker run --gpus all`"
    )


def test_a_wrong_file_is_named(cases: Cases, tmp_path: Path) -> None:
    file = tmp_path / "libnone.so"
    assert cases.error(PYPARTIAL_CUDA_DRIVER=str(file)) == (
        f"the CUDA driver that PYPARTIAL_CUDA_DRIVER names cannot be loaded: {file}: cannot open "
        "shared object file: No such file or directory. Name the file of the driver's library, or "
        "use the machine's: `unset PYPARTIAL_CUDA_DRIVER`"
    )


@pytest.mark.parametrize("symbol", ["cuStreamIsCapturing", "cuMemAlloc_v2"])
def test_a_driver_that_lacks_a_function(cases: Cases, symbol: str, tmp_path: Path) -> None:
    older = fakecuda.build(tmp_path, without=symbol)
    assert cases.error(PYPARTIAL_CUDA_DRIVER=str(older)) == (
        f"the NVIDIA driver is too old: {older} has no function {symbol}. {NEEDED}"
    )


def test_a_driver_for_an_older_cuda(cases: Cases) -> None:
    assert cases.error(FAKECUDA_VERSION="11040") == (
        f"the NVIDIA driver is too old: {cases.stand_in} is for CUDA 11.4. {NEEDED}"
    )
    assert cases("open_twice", FAKECUDA_VERSION="12000") == "0 open\n0 open\n"


@pytest.mark.parametrize("visible", ["-1", "", None])
def test_no_device(cases: Cases, visible: str | None) -> None:
    told = "not set" if visible is None else visible
    assert cases.error(FAKECUDA_DEVICES="0", CUDA_VISIBLE_DEVICES=visible) == (
        "the NVIDIA driver finds no device: cuInit failed with CUDA_ERROR_NO_DEVICE (no "
        f"CUDA-capable device is detected), and CUDA_VISIBLE_DEVICES is {told}. `nvidia-smi -L` "
        "lists the machine's devices, `unset CUDA_VISIBLE_DEVICES` shows them all to a program, "
        "`docker run --gpus all` to a container"
    )


def test_a_kernel_module_of_another_version(cases: Cases) -> None:
    assert cases.error(FAKECUDA_FAIL="cuInit:0:803") == (
        "the NVIDIA driver's library and its kernel module are of different versions: cuInit "
        "failed with CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (system has unsupported display driver / "
        "cuda driver combination). `reboot` loads the module that is installed"
    )


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (999, "999, CUDA_ERROR_UNKNOWN (unknown error)"),
        (802, "802, an unknown error (the driver does not describe it)"),
    ],
)
def test_a_driver_that_does_not_start(cases: Cases, result: int, words: str) -> None:
    """What the first attempt came to is kept: the second one would succeed."""
    assert cases.error(FAKECUDA_FAIL=f"cuInit:1:{result}") == (
        f"the NVIDIA driver does not start: cuInit failed with {words}. `nvidia-smi` shows whether "
        "it works"
    )


def test_a_forked_child_of_a_process_that_has_opened_it(cases: Cases) -> None:
    text = cases("forked").rstrip("\n")
    begin = "a forked child cannot use CUDA: process "
    end = f" was forked from it. {SPAWN}"
    assert text.startswith(begin) and text.endswith(end)
    parent, child = text[len(begin) : -len(end)].split(" had opened the driver before this one, ")
    assert int(parent) != int(child.rstrip(","))


def test_a_forked_child_of_an_application_that_uses_cuda(cases: Cases) -> None:
    assert cases("forked_from_an_application") == (
        "-2 a forked child cannot use CUDA, and this process was forked from one that did: cuInit "
        f"failed with CUDA_ERROR_NOT_INITIALIZED (initialization error). {SPAWN}\n"
    )


def test_a_child_that_was_forked_before(cases: Cases) -> None:
    cases("forked_before")


@pytest.mark.parametrize("number", [-1, 2])
def test_a_device_that_is_not_there(cases: Cases, number: int) -> None:
    assert cases("no_such_device", number, FAKECUDA_DEVICES="2", CUDA_VISIBLE_DEVICES="4,5") == (
        f"device={number} is not in 0..1: `nvidia-smi -L` lists the machine's devices, and "
        "CUDA_VISIBLE_DEVICES is 4,5\n"
    )


def test_a_program_without_device_buffers_opens_no_driver(cuda_stand_in: Path) -> None:
    program = """
import numpy as np
from mpi4py import MPI
import pypartial as pp
with pp.Context(MPI.COMM_WORLD) as ctx:
    out = np.zeros(3)
    with ctx.Allreduce_init(np.ones(3), out, policy=pp.Full()) as request:
        request.Start()
        request.Wait()
    assert out.tolist() == [1, 1, 1]
print("fakecuda" in open("/proc/self/maps").read())
"""
    ran = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYPARTIAL_CUDA_DRIVER": str(cuda_stand_in)},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert (ran.returncode, ran.stdout) == (0, "False\n"), ran.stderr


# ---- errors of calls -----------------------------------------------------------------------------


def test_what_calls_return_becomes_a_status(cases: Cases) -> None:
    cases("statuses")


def test_each_call_may_fail(cases: Cases) -> None:
    """One run for each call of a copy there and back; the last one has no more calls to fail."""
    failed = []
    for number in range(1, 100):
        ran = cases.ran("failures", number)
        if ran.returncode == NOT_REACHED:
            break
        assert ran.returncode == 0, f"call {number}: {ran.stdout} {ran.stderr}"
        failed.append(ran.stdout.strip())
    wanted = {"cuInit", "cuDevicePrimaryCtxRetain", "cuCtxPushCurrent", "cuCtxPopCurrent"}
    wanted |= {"cuMemAlloc", "cuMemHostRegister", "cuMemcpyAsync", "cuEventRecord", "cuMemFree"}
    assert wanted <= set(failed)
    assert len(failed) > len(set(failed)) > 20


def test_a_failure_that_was_asked_for_by_name(cases: Cases) -> None:
    cases("one_failure")


# ---- the application -----------------------------------------------------------------------------


def test_the_application_s_current_context_stays(cases: Cases) -> None:
    cases("contexts", FAKECUDA_DEVICES="2")


@pytest.mark.parametrize("byte", [0, 99_999])
def test_a_host_that_touches_memory_of_a_device_dies(cases: Cases, byte: int) -> None:
    ran = cases.ran("touch", byte)
    assert ran.returncode == -signal.SIGSEGV, ran.stderr


# ---- the stand-in --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "case",
    [
        "held_streams",
        "destroyed_early",
        "default_streams",
        "other_context",
        "capture",
        "pointers",
        "registration",
        "leaks",
        "handles",
        "used_while_freed",
        "last_release",
        "unsafe_calls",
        "blocking_capture",
        "priorities",
    ],
)
def test_the_stand_in(cases: Cases, case: str) -> None:
    """The function of this name in cuda_cases.c says what the case holds."""
    cases(case)


def test_memory_is_given_back_when_all_is_done(cases: Cases) -> None:
    cases("giving_back", FAKECUDA_DEVICES="2")


@pytest.mark.parametrize("told", [0, 1])
def test_a_queue_has_an_end(cases: Cases, told: int) -> None:
    cases("room", told, FAKECUDA_ROOM="3" if told else None)


def test_the_stand_in_is_strict(cases: Cases) -> None:
    cases("strictness", FAKECUDA_DEVICES="2")


@pytest.mark.parametrize("device", [0, 1])
def test_memory_of_another_process(cases: Cases, device: int) -> None:
    cases("two_processes", device, FAKECUDA_DEVICES="2")


@pytest.mark.parametrize("ends", [0, 1, 2])
def test_memory_is_not_freed_while_it_is_mapped(cases: Cases, ends: int) -> None:
    cases("freed_while_mapped", ends, FAKECUDA_DEVICES="2")


def test_memory_of_another_process_on_a_device_out_of_reach(cases: Cases) -> None:
    ran = cases.ran("two_processes", 1, FAKECUDA_DEVICES="2", FAKECUDA_PEERS="0")
    assert ran.returncode == 1
    assert "cuIpcOpenMemHandle failed with 217, CUDA_ERROR_PEER_ACCESS_UNSUPPORTED" in ran.stderr


@pytest.mark.parametrize("access", [0, 1])
def test_devices_that_can_access_each_other(cases: Cases, access: int) -> None:
    cases("peers", access, FAKECUDA_DEVICES="2", FAKECUDA_PEERS=str(access))
