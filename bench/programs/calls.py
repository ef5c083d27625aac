"""How many functions of the core one Start and Wait pass: a measure of how much there is to read.

Usage: python bench/programs/calls.py [--functions]

Builds a copy in which the compiler counts calls, those of inlined functions too, and launches two
ranks through shared memory and by messages: Full rounds of 8 B. Counted are the calls of the rank
that comes last, in the thread that calls: it waits for nobody, and its least count of many rounds
is the same each time. --functions lists which functions, and how often.
"""

import argparse
import ctypes
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROUNDS, LATE_S = 300, 0.001
FLAGS = "-O1 -fno-lto -finstrument-functions"

COUNTER = r"""
#include <stddef.h>
__thread void *calls[1 << 14];
__thread size_t count;
void __cyg_profile_func_enter(void *function, void *site)
{
    (void)site;
    calls[count++ % (1 << 14)] = function;
}
void __cyg_profile_func_exit(void *function, void *site) { (void)function, (void)site; }
void **pp_called(void) { return calls; }
size_t pp_count(void) { return count; }
void pp_count_from_here(void) { count = 0; }
"""


def main() -> None:
    sys.path.insert(0, str(ROOT / "tests"))
    from support.built import build
    from support.mpirun import mpirun

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--functions", action="store_true", help="list the functions")
    parser.add_argument("--rank", nargs=2, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.rank:
        rank(*asked.rank)
        return
    with tempfile.TemporaryDirectory() as name:
        source, library, file = Path(name, "counter.c"), Path(name, "counter.so"), Path(name, "out")
        source.write_text(COUNTER, encoding="utf-8")
        subprocess.run(["cc", "-O1", "-shared", "-fPIC", source, "-o", library], check=True)
        build(sys.executable, Path(name, "pypartial"), FLAGS)
        changes = {"PYTHONPATH": str(Path(name, "pypartial")), "LD_PRELOAD": str(library)}
        for transport in ("shared memory", "messages"):
            kind = {"shared memory": "auto", "messages": "mpi"}[transport]
            command = [sys.executable, "-m", "mpi4py", __file__, "--rank", kind, str(file)]
            mpirun(2, command, timeout_s=120, env={**os.environ, **changes}).check()
            told = json.loads(file.read_text(encoding="utf-8"))
            print(f"{transport}: {told['calls']} calls of {len(told['functions'])} functions")
            for function, times in told["functions"] if asked.functions else ():
                print(f"  {times:4} {function}")


def rank(transport: str, file: str) -> None:
    """Count, in a rank."""
    import numpy as np
    from mpi4py import MPI

    import pypartial as pp
    from pypartial import _core

    counter = ctypes.CDLL(os.environ["LD_PRELOAD"])
    counter.pp_called.restype = ctypes.POINTER(ctypes.c_void_p)
    counter.pp_count.restype = ctypes.c_size_t
    comm = MPI.COMM_WORLD
    best: list[int] = []
    with pp.Context(comm, transport=transport) as ctx:
        request = ctx.Allreduce_init(
            np.ones(2, np.float32), np.empty(2, np.float32), policy=pp.Full()
        )
        for _ in range(ROUNDS):
            if comm.rank == 1:
                time.sleep(LATE_S)  # until the other waits
            counter.pp_count_from_here()
            request.Start()
            request.Wait()
            count = counter.pp_count()
            if not best or count < len(best):
                best = counter.pp_called()[:count]
        request.Free()
    if comm.rank == 1:
        functions = Counter(names(best, _core.__file__)).most_common()
        Path(file).write_text(json.dumps({"calls": len(best), "functions": functions}))


def names(addresses: list[int], library: str) -> list[str]:
    """Return the functions at these addresses of a library that is loaded."""
    maps = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    start = min(int(line.split("-")[0], 16) for line in maps if line.endswith(library))
    offsets = [hex(address - start) for address in addresses]
    command = ["addr2line", "--functions", "--exe", library, *offsets]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    return lines[::2]


main()
