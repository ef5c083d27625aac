"""The seam to the C core: loading it, its errors as exceptions, and waiting in slices.

``import pypartial`` neither loads the compiled module nor initialises MPI; `load` does both, when
the first `Context` is made. So the pure parts of the package, and ``pypartial --help``, work
without MPI. `load` imports `mpi4py.MPI` before the compiled module. The module asks for its MPI
library by soname, and the dynamic linker gives it the one that mpi4py has loaded. `load` checks
this, and that its version is the one the module was compiled for: Open MPI 4.1 and 5.0 share a
soname.
"""

from __future__ import annotations

import functools
import logging
import os
import shlex
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from . import errors
from ._mpi_library import Library, identify, install_command, is_mpi_library, mapped_files
from ._names import ERROR
from .status import RESULT, RESULT_FIELDS

if TYPE_CHECKING:
    from ._core import FFI, Lib
    from ._explain import Explainer

__all__ = ["CORE_ERRORS", "Native", "load", "uncompiled", "wait_in_slices"]

# What `Native.error` returns. Any other exception, as Ctrl-C raises, has interrupted a call.
CORE_ERRORS = (errors.Error, MemoryError)

_PACKAGE = os.path.join(os.path.dirname(__file__), "")
LOGGER = logging.getLogger("pypartial")


def _named(record: logging.LogRecord) -> bool:
    """Let a line say whose it is: a program that sets up no logging prints the bare message."""
    record.msg = f"pypartial: {record.msg}"
    return True


LOGGER.addFilter(_named)


def warn(text: str, category: type[Warning] = RuntimeWarning) -> None:
    """Warn inside a collective call that has succeeded; log the text where warnings are errors.

    Raised there, this rank would have no handle, context or optimizer, and the others one. So every
    warning of the library is given here. It points at the first line that is not the library's.
    """
    level, frame = 2, sys._getframe(1)
    while frame.f_code.co_filename.startswith(_PACKAGE) and frame.f_back is not None:
        level, frame = level + 1, frame.f_back
    try:
        warnings.warn(text, category, stacklevel=level)
    except category:
        LOGGER.warning("%s", text)


# So long before its timeout is over a wait asks the other ranks, for the text of the error.
ASK_BEFORE_S = 0.5
# A wait in C returns to Python after this time, for Ctrl-C, timeouts and stall warnings.
SLICE_S = 0.05
SLICE_US = int(SLICE_S * 1e6)


@dataclass(frozen=True)
class Native:
    """The loaded C core, and the MPI it runs on.

    Attributes
    ----------
    ffi, lib
        The two objects of the cffi module.
    MPI : module
        `mpi4py.MPI`.
    built_for : str
        The MPI that the module was compiled for, by its headers.
    library : str
        ``MPI.Get_library_version()``.
    library_file : str
        The file of that library.
    """

    ffi: FFI
    lib: Lib
    MPI: ModuleType
    built_for: str
    library: str
    library_file: str

    def text(self, chars: Any) -> str:
        """Return a C string as a str."""
        data: bytes = self.ffi.string(chars)
        return data.decode("utf-8", "replace")

    def error(self, status: int) -> Exception:
        """Return the exception for the error that the last call on this thread returned."""
        lib = self.lib
        text = self.text(lib.pp_error_text()) or f"the C core returned status {status}"
        if status == lib.PP_ERR_INTERNAL:
            text = f"internal error (a defect of pypartial): {text}"
        return ERROR.values(lib).get(status, errors.Error)(text)

    def check(self, status: int) -> None:
        """Raise if `status` is an error."""
        if status < 0:
            raise self.error(status)


@functools.cache
def load() -> Native:
    """Load mpi4py's MPI and the C core; initialise MPI unless ``mpi4py.rc`` says no.

    Returns
    -------
    Native
        The same object at every call.

    Raises
    ------
    ImportError
        If the core was not compiled, or for another MPI than the one mpi4py has loaded.
    """
    from mpi4py import MPI

    library = MPI.Get_library_version().strip()
    mapped = mapped_files()
    used = Library(library.splitlines()[0], tuple(sorted(filter(is_mpi_library, mapped))))
    try:
        from . import _core
    except ImportError as error:
        missing = uncompiled(Path(__file__).parents[1])
        if missing is not None:
            raise ImportError(missing) from None
        problem = f"pypartial's compiled module cannot be loaded: {error}"
        raise ImportError(explain(problem, None, used)) from error
    ffi, lib = _core.ffi, _core.lib
    file = os.path.realpath(ffi.string(lib.pp_mpi_file()).decode())
    built_for = Library(ffi.string(lib.pp_built_for()).decode(), (file,))
    if identify(built_for.version) != identify(library):
        raise ImportError(explain("pypartial was built for another MPI.", built_for, used))
    if mapped and file not in mapped:
        problem = "pypartial and mpi4py use two MPI libraries."
        raise ImportError(explain(problem, built_for, used))
    check_layout(ffi)
    return Native(ffi, lib, MPI, built_for.version, library, file)


def uncompiled(folder: Path) -> str | None:
    """Return what to do if this package lies in a folder without its compiled modules, or None.

    Programs in its source tree find it there before an installed one.
    """
    package = folder.absolute() / "pypartial"
    is_ours = (package / "_native.py").is_file()
    if not is_ours or PathFinder.find_spec("_core", [str(package)]) is not None:
        return None
    return (
        f"you are inside the source tree of pypartial, {package.parent}, which is not compiled. "
        "Programs there do not find an installed pypartial. Save yours in another folder and run "
        "it there; or compile this tree: "
        f"pip install --no-build-isolation -e {shlex.quote(str(package.parent))}"
    )


def explain(problem: str, built_for: Library | None, used: Library) -> str:
    """Return what is wrong with the two libraries, and what to do."""
    built = "" if built_for is None else f"pypartial was built for: {built_for}\n"
    return (
        f"{problem}\n{built}mpi4py uses: {used}\n"
        f"Build pypartial for the MPI that mpi4py uses:\n  {install_command(used)}\n"
        "or start Python with the MPI that pypartial was built for (mpi4py picks its MPI at "
        "import: environment variable MPI4PY_LIBMPI, the virtual environment's lib folder, the "
        "system's)."
    )


def check_layout(ffi: FFI) -> None:
    """Check that `Status` decodes the struct that the core fills."""
    fields = dict(ffi.typeof("pp_result_t").fields)
    names = tuple(sorted(fields, key=lambda name: fields[name].offset))
    if names != RESULT_FIELDS or ffi.sizeof("pp_result_t") != RESULT.size:
        raise ImportError(
            "pypartial._core is of another version than the Python files: install the package again"
        )


def wait_in_slices(
    poll: Callable[[int], int],
    waited_s: float,
    timeout: float | None,
    stall_warning: float | None,
    explainer: Callable[[], Explainer],
) -> int:
    """Repeat a C wait in slices until it is no longer pending.

    Between the slices Python handles signals, so Ctrl-C raises KeyboardInterrupt here. The request
    or call that the wait is about stays as it is.

    Parameters
    ----------
    poll : callable
        Waits at most the given number of microseconds and returns a status; 1 (PP_PENDING) means
        not yet.
    waited_s : float
        Seconds spent waiting before this call.
    timeout : float or None
        Seconds after which to raise, `waited_s` included.
    stall_warning : float or None
        Seconds after which to log a warning, and again whenever the time waited has doubled.
    explainer : callable
        Makes the `Explainer` that says which ranks the wait waits for.

    Returns
    -------
    int
        The status, PP_OK or an error.

    Raises
    ------
    TimeoutError
        After `timeout` seconds. The text says what this rank knows, and what the others have
        answered if they were asked: because of a stall warning, or before a long timeout is over.
    """
    never = float("inf")
    began = time.monotonic() - waited_s
    deadline = never if timeout is None else began + timeout
    warn_at = never if stall_warning is None else began + stall_warning
    # A loop of short timeouts must not ask all the time.
    ask_at = never if timeout is None or timeout < 2 * ASK_BEFORE_S else deadline - ASK_BEFORE_S
    explain: Explainer | None = None
    warns = False
    try:
        while True:
            now = time.monotonic()
            if now >= deadline:
                raise errors.TimeoutError((explain or explainer()).text(now - began))
            if now >= min(warn_at, ask_at):
                # The wait goes on while the ranks answer.
                explain = explain or explainer()
                explain.ask()
            if now >= ask_at:
                ask_at = never
            if now >= warn_at:
                warns, warn_at = True, began + 2 * (now - began)
            if explain is not None and explain.told() and warns:
                LOGGER.warning("%s", explain.text(now - began))
                warns = False
            slice_s = min(SLICE_S, deadline - now, warn_at - now, ask_at - now)
            status = poll(max(1, int(slice_s * 1e6)))
            if status != 1:
                return status
    finally:
        if explain is not None:
            explain.end()
