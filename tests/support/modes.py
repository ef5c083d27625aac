"""Modes of floating arithmetic of the calling thread, as applications set them."""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

__all__ = ["MODES", "WHY_NONE", "changed"]

MODES = ["flushes subnormal numbers", "rounds up"]
WHY_NONE = "" if platform.machine() == "x86_64" else "modes are set as on x86-64"

_UPWARD = 0x800  # FE_UPWARD
_MXCSR_AT, _ENVIRONMENT_BYTES = 28, 32  # of fenv_t
_FLUSH = 0x8040  # of MXCSR: results and operands that are subnormal are 0


@contextmanager
def changed(mode: str) -> Iterator[None]:
    """Set a mode; be sure that it is in force."""
    libm = ctypes.CDLL("libm.so.6")
    before, now = (ctypes.create_string_buffer(_ENVIRONMENT_BYTES) for _ in range(2))
    least = np.full(1, 1, "u4").view("f4")
    one, tiny = np.ones(1, "f4"), np.full(1, 1e-10, "f4")
    assert libm.fegetenv(before) == libm.fegetenv(now) == 0
    if mode == "rounds up":
        assert libm.fesetround(_UPWARD) == 0
    else:
        sse = ctypes.c_uint32.from_buffer(now, _MXCSR_AT)
        sse.value |= _FLUSH
        assert libm.fesetenv(now) == 0
    try:
        in_force = (one + tiny > 1) if mode == "rounds up" else (least + least == 0)
        assert in_force.all()
        yield
    finally:
        assert libm.fesetenv(before) == 0
