"""A process that uses CUDA's device 0, and says how much of its memory is free.

Where no process uses a device, the driver begins anew with each one, which takes a second or more.
"""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress

ENDS_S = 120.0


class Holder:
    """Such a process: `python -m support.gpu hold`. It ends also if this one is killed."""

    def __init__(self) -> None:
        words = [sys.executable, "-m", "support.gpu", "hold"]
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
