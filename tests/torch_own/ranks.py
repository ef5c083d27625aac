"""In a rank of an mpirun: runs tests of torch.distributed that are part of PyTorch, one by one.

    ranks.py BACKEND FOLDER

FOLDER/names has a name on each line. A rank writes what became of test N into FOLDER/N.RANK.json,
when it has left the process group. It goes on with the next test if the ranks agree whether this
one failed. If they do not, some may be amid a call.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
import unittest
from datetime import timedelta
from pathlib import Path
from typing import Any

from mpi4py import MPI

FAILED = "failed"
POLL_S = 0.005
GLOO = "gloo"


class LikeGloo(str):
    """The name of a backend, for tests that ask whether it is gloo: they are for this one, too."""

    def __eq__(self, other: object) -> bool:
        return other == GLOO or str.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(GLOO)  # it is found in sets of names


class Rank:
    """One rank, which runs tests after each other."""

    def __init__(self, backend: str, folder: Path) -> None:
        self.backend, self.folder = backend, folder
        self.number, self.size = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
        os.environ |= {
            "BACKEND": GLOO,  # the tests' decorators ask for it when they are imported
            "INIT_METHOD": f"file://{folder}/store",
            "MASTER_ADDR": "127.0.0.1",
            "PYTORCH_PRINT_REPRO_ON_FAILURE": "0",  # it names a file of PyTorch's sources
            "TORCH_SHOW_CPP_STACKTRACES": "1",
            "WORLD_SIZE": str(self.size),
        }
        import torch
        from torch.testing._internal.distributed import distributed_test as own

        torch.set_num_threads(1)  # ranks share the cores
        if backend != GLOO:
            import pypartial.torch  # noqa: F401  registers the backend

            own.BACKEND = LikeGloo(backend)
            for name, features in own.DistTestCases.backend_feature.items():
                if GLOO in features or name == "plugin":
                    features.add(backend)
            for name in vars(own):
                if name.endswith("_SUPPORTED_BACKENDS") and GLOO in getattr(own, name):
                    getattr(own, name).append(backend)
            self.calls_complete(own)
        self.own = own
        os.environ["BACKEND"] = "mpi"  # else tests of subgroups ask for 8 ranks
        self.environment = dict(os.environ)

    def calls_complete(self, own: Any) -> None:
        """Let the profiler's events of the backend be such of complete calls.

        The tests demand that a call begins in one thread and ends in another.
        """
        events = own.get_profiling_event

        def found(*args: Any, **kwargs: Any) -> Any:
            some = events(*args, **kwargs)
            for event in some:
                event.is_async = True
            return some

        own.get_profiling_event = found

    def test(self, name: str) -> Any:
        """Make the test case, as PyTorch does in each of its processes."""
        bases = (self.own.TestDistBackend, self.own.DistributedTest._DistTestBase)
        test = type("Own", bases, {})(name)
        test.rank = self.number
        return test

    def begin(self, n: int, name: str) -> None:
        """Give the test what it expects: a process group, and folders in which its ranks meet."""
        import torch.distributed as dist
        from torch.testing._internal.common_utils import set_rng_seed

        os.environ.clear()
        os.environ |= self.environment
        os.environ["TEMP_DIR"] = str(self.folder / str(n))
        for each in ("barrier", "test_dir"):
            (self.folder / str(n) / each).mkdir(parents=True, exist_ok=True)
        self.own.Barrier.barrier_id = 0
        dist.set_debug_level_from_env()
        seconds = self.own.CUSTOM_PG_TIMEOUT.get(name, self.own.default_pg_timeout)
        dist.init_process_group(
            self.backend,
            init_method=f"file://{self.folder}/{n}/shared",  # as PyTorch's runs have it
            rank=self.number,
            world_size=self.size,
            timeout=timedelta(seconds=seconds),
        )
        set_rng_seed()

    def run(self, n: int, name: str) -> bool:
        """Run a test; return whether another one may follow."""
        import torch.distributed as dist

        began = time.monotonic()
        outcome, text = self.attempt(n, name)
        if outcome == FAILED:
            self.report(n, outcome, text, began)
        self.write(f"{n}.{self.number}.ran", outcome)
        failed = {found == FAILED for found in self.meet(n)}
        if len(failed) > 1:
            return False
        try:
            if dist.is_initialized():
                dist.destroy_process_group()
        except BaseException:
            outcome, text = FAILED, traceback.format_exc()
        if failed == {False}:
            self.report(n, outcome, text, began)
        return failed == {True} or outcome != FAILED

    def attempt(self, n: int, name: str) -> tuple[str, str]:
        """Return what became of the test in this rank, and the text about it."""
        from torch.testing._internal.common_distributed import TEST_SKIPS

        try:
            self.begin(n, name)
            getattr(self.test(name), name)()
        except unittest.SkipTest as skip:
            return "skipped", str(skip)
        except SystemExit as end:
            for skip in TEST_SKIPS.values():
                if skip.exit_code == end.code:
                    return "skipped", skip.message
            return FAILED, f"SystemExit: {end.code}"
        except BaseException:
            return FAILED, traceback.format_exc()
        return "passed", ""

    def report(self, n: int, outcome: str, text: str, began: float) -> None:
        seconds = time.monotonic() - began
        result = {"outcome": outcome, "text": text, "seconds": seconds}
        self.write(f"{n}.{self.number}.json", json.dumps(result))

    def write(self, name: str, text: str) -> None:
        """Write a file that is whole when it is there."""
        (self.folder / f"{name}.part").write_text(text)
        (self.folder / f"{name}.part").rename(self.folder / name)

    def meet(self, n: int) -> list[str]:
        """Wait until all ranks have run the test; return their outcomes."""
        files = [self.folder / f"{n}.{rank}.ran" for rank in range(self.size)]
        while not all(file.exists() for file in files):
            time.sleep(POLL_S)
        return [file.read_text() for file in files]


def main() -> None:
    folder = Path(sys.argv[2])
    rank = Rank(sys.argv[1], folder)
    names = (folder / "names").read_text().split()
    for n, name in enumerate(names):
        if not rank.run(n, name):
            time.sleep(3600)  # until the launch is ended: a failed group may not let ranks end
    MPI.Finalize()
    os._exit(0)


main()
