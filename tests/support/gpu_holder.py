"""A process that uses CUDA's device 0, and says how much of its memory is free.

Where no process uses a device, the driver begins anew with each one, which takes a second or more.

    python -m support.gpu_holder    # is that process

It loads no MPI, which would leave a file in shared memory.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
from contextlib import suppress

from .gpu_environment import open_driver

ENDS_S = 120.0


class Holder:
    """Such a process. It ends also if this one is killed."""

    def __init__(self) -> None:
        words = [sys.executable, "-m", "support.gpu_holder"]
        self._process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.free()  # when it uses the device

    def free(self) -> int:
        """Return the free bytes of the device; 0 of the stand-in, whose processes share none.

        Raises
        ------
        RuntimeError
            If the process has ended.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        with suppress(BrokenPipeError):  # then there is no answer
            print(file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError("the device cannot be used: see above")
        return int(answer)

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=ENDS_S)


def hold() -> None:
    """Use device 0 until the standard input ends; for each line, say how much memory is free."""
    driver, context = open_driver(), ctypes.c_void_p()
    assert driver is not None, "there is no CUDA driver"
    _check(driver.cuInit(0))
    _check(driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
    _check(driver.cuCtxPushCurrent_v2(context))
    for _ in sys.stdin:
        print(0 if hasattr(driver, "fake_kernel") else _free_bytes(driver), flush=True)


def _free_bytes(driver: ctypes.CDLL) -> int:
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    _check(driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)))
    return free.value


def _check(result: int) -> None:
    assert result == 0, f"the CUDA driver returned {result}"


if __name__ == "__main__":
    hold()
