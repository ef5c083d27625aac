"""Whether MPI takes addresses of devices: what it says itself, and what a process of its own finds.

An MPI that says so wrongly may end the process that believes it, or not return. So a child tries
first: a fresh interpreter, alone in its MPI_COMM_WORLD, that sends memory of the device to itself.
"""

from __future__ import annotations

import ctypes
import functools
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping

from ._mpi_library import identify
from ._native import Native

__all__ = ["LIMIT_S", "mpi_says", "self_test", "singleton_environment", "why_not"]

LIMIT_S = 60.0  # for the child, which loads Python and MPI, and takes about a second

_STARTED = "MPI has started"
_CHILD = f"""
import signal, sys
signal.alarm(int(sys.argv[2]))  # also if the rank that waits has died
from pypartial._native import load
native = load()
print("{_STARTED}", flush=True)
status = native.lib.pp_device_self_test(int(sys.argv[1]))
print("passed" if status >= 0 else f"failed: {{native.error(status)}}", flush=True)
"""
_SAY = 300  # characters of what a child says

# What launchers tell the processes that they start, by which MPI would take the child for a rank:
# Open MPI and PRRTE, PMI and PMIx, Hydra, MVAPICH, Slurm, Cray.
_LAUNCHERS = (
    *("OMPI_", "PMIX_", "PRTE_", "ORTE_", "OPAL_", "PMI_", "PMIX", "HYDRA_", "HYDI_", "MPIR_"),
    *("MPIEXEC_", "MPI_LOCAL", "I_MPI_HYDRA_", "I_MPI_MPIRUN", "MV2_COMM_WORLD_", "SLURM_"),
    *("PALS_", "ALPS_"),
)
# What is not about the job: parameters of Open MPI's parts that move data, and leave for root; and
# MPICH's.
_KEPT = (
    *(f"OMPI_MCA_{part}" for part in ("accelerator", "bml", "btl", "coll", "mpi_", "mtl", "osc")),
    *(f"OMPI_MCA_{part}" for part in ("opal_cuda", "pml", "rcache", "smsc", "common_")),
    "OMPI_ALLOW_RUN_AS_ROOT",
    "MPIR_CVAR_",
)


def why_not(native: Native, device: int, tries: bool) -> str | None:
    """Return why MPI cannot be given addresses of a device, or None.

    Parameters
    ----------
    native : Native
    device : int
        Its number.
    tries : bool
        Whether this rank has a child try it, if MPI says yes; one rank of a node is enough.
    """
    says, text = mpi_says(native)
    if not says:
        return text
    return self_test(device) if tries else None


def mpi_says(native: Native) -> tuple[bool, str]:
    """Return whether MPI says that it takes addresses of devices, and how it says so."""
    name = identify(native.library)[0]
    if name == "intel":
        offload = os.environ.get("I_MPI_OFFLOAD", "")
        says = offload not in ("", "0")
        return says, f"Intel MPI does so with I_MPI_OFFLOAD=1; here it is {offload or 'not set'}"
    # The first finds what was loaded before everything else.
    for file in (None, native.library_file):
        try:
            query = ctypes.CDLL(file).MPIX_Query_cuda_support
        except (OSError, AttributeError):
            continue
        if query():
            return True, "MPI says that it takes addresses of devices (MPIX_Query_cuda_support)"
        return False, "MPI says that it knows no devices (MPIX_Query_cuda_support)"
    return False, "MPI does not say that it knows devices: it has no MPIX_Query_cuda_support"


@functools.cache
def self_test(device: int) -> str | None:
    """Have a child send memory of a device; return how that failed, or None, which is kept."""
    if not sys.executable:  # in a program that has Python inside
        return "no process could be started to try it: sys.executable names no Python"
    try:
        found = _run(device, LIMIT_S)
    except OSError as error:
        return f"no process could be started to try it: {error}"
    return None if found is None else f"MPI says that it takes addresses of devices, but {found}"


def _run(device: int, limit_s: float) -> str | None:
    with tempfile.TemporaryDirectory(prefix="pypartial-") as folder:
        return _run_in(folder, device, limit_s)


def _run_in(folder: str, device: int, limit_s: float) -> str | None:
    """Run the child; `folder` gets what Open MPI would leave in /dev/shm."""
    command = [sys.executable, "-c", _CHILD, str(device), str(int(limit_s) + 1)]
    environment = singleton_environment(os.environ)
    environment.setdefault("OMPI_MCA_btl_sm_backing_directory", folder)
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment,
        start_new_session=True,
        text=True,
        errors="replace",
    ) as child:
        try:
            said = child.communicate(timeout=limit_s)[0]
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            return f"a process that tried it did not end within {limit_s:g} s"
        except BaseException:  # Ctrl-C
            os.killpg(child.pid, signal.SIGKILL)
            raise
    lines = [line for line in said.split("\n") if line]
    started = _STARTED in lines
    if child.returncode < 0:
        when = "" if started else ", before MPI had started"
        return f"a process that tried it died by {signal.Signals(-child.returncode).name}{when}"
    if child.returncode == 0 and "passed" in lines:
        return None
    lines = [line for line in lines if line != _STARTED]  # it may come late
    told = [line for line in lines if line.startswith("failed: ")] or lines[-1:]
    return f"a process that tried it {' '.join(told) or 'said nothing'}"[:_SAY]


def singleton_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without a launcher, for a process that is alone."""
    kept = {
        name: value
        for name, value in environ.items()
        if not name.startswith(_LAUNCHERS) or name.startswith(_KEPT)
    }
    return {**kept, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
