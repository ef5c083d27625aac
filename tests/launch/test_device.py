"""Runs tests/device and random programs under mpirun, on the stand-in for the CUDA driver."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support import fakecuda
from support.layer import run_tests
from support.mpirun import mpirun, python

ROOT = Path(__file__).resolve().parents[1]
TEST_LIMIT_S = 60  # for one test in one rank
LIMIT_S = 600  # for all of them: mpirun's
LOOPS = "test_the_loop or test_the_mean_is_kept or test_a_loop_does_not_wake"
HALF = "test_allreduce.py or test_preduce.py or test_in_place.py"  # by time
# What is marked as for 2 ranks, as few of it as there is.
OF_TWO = "test_a_handle_after_one_of_registered_memory"
PROGRAMS = {2: 165, 4: 60}  # by ranks


@pytest.fixture(scope="module")
def env():
    return fakecuda.environment(devices=2)


def stress(ranks: int, programs: int, env: dict[str, str]):
    """Run random programs."""
    script = ROOT / "stress" / "device.py"
    command = python("-m", "mpi4py", str(script), "--programs", str(programs))
    return mpirun(ranks, command, timeout_s=LIMIT_S, env=env)


@pytest.mark.timeout(LIMIT_S + 60)
@pytest.mark.parametrize(
    ("ranks", "selected"),
    [
        pytest.param(3, HALF, id="3-half", marks=pytest.mark.thorough),
        pytest.param(3, f"not ({HALF})", id="3-other-half", marks=pytest.mark.thorough),
        pytest.param(2, OF_TWO, id="2-of-two"),
        pytest.param(1, LOOPS, id="1-loops"),
        pytest.param(1, "", id="1", marks=pytest.mark.long),
    ],
)
def test_device_layer(ranks, selected, env, record_property):
    limits = {"test_limit_s": TEST_LIMIT_S, "limit_s": LIMIT_S}
    counts = run_tests(ROOT / "device", ranks, env=env, selected=selected, **limits)
    record_property("inner_passed", counts.passed)


@pytest.mark.thorough
@pytest.mark.timeout(LIMIT_S + 60)
@pytest.mark.parametrize(("ranks", "programs"), PROGRAMS.items())
def test_random_programs(ranks, programs, env):
    run = stress(ranks, programs, env)
    run.check()
    assert f"{programs} programs passed on {ranks} ranks" in run.output


@pytest.mark.timeout(LIMIT_S + 60)
@pytest.mark.parametrize("call", ["cuEventQuery", "cuStreamWaitEvent"])
def test_a_planted_defect_is_found(call, env):
    """As if the library did not wait for a copy, or did not order its stream with others."""
    run = stress(3, 1000, {**env, "FAKECUDA_LIE": call})
    assert run.returncode not in (0, None), run.explain()
    assert re.search(r"program \d+ failed on rank", run.output), run.explain()


END = """
import sys
sys.path.insert(0, sys.argv[2])
from mpi4py import MPI
from support.device import Array, Stream
import pypartial as pp
stream = Stream()
send, out = Array(100, "i8", stream), Array(100, "i8", stream)
ctx = pp.Context(MPI.COMM_WORLD)
if "groups" in sys.argv[3]:
    path = "ipc" if sys.argv[3] == "shared groups" else "staged"
    model = Array(100, "f8", stream)
    request = ctx.Preduce_init(model, pp.groups.Random(2), device_path=path)
    assert request.device_path == path
else:
    request = ctx.Allreduce_init(send, out, policy=pp.Solo())
stream.hold(True)
if sys.argv[1] != "idle":
    request.Start()
if sys.argv[1] == "exception":
    raise SystemExit("ended")
print("ended")
"""


MERGED = """
import sys
sys.path.insert(0, sys.argv[1])
from mpi4py import MPI
from support.device import Array, Stream
import pypartial as pp
comm, stream = MPI.COMM_WORLD, Stream()
send, out = Array(100, "i8", stream), Array(100, "i8", stream)
ctx = pp.Context(comm)
request = ctx.Allreduce_init(send, out, policy=pp.Solo(), deliver="sum", device_path="ipc")
send.put(1)
for _ in range(3 if comm.rank == 0 else 0):  # no more than max_lag: then it waits for no one
    request.Start()
    request.Wait()
comm.Barrier()
if comm.rank == 1:
    request.Start()
    request.Wait()
    assert (out.get() == 3).all()  # merged on the device
print("ended")
if sys.argv[2] == "exception":
    raise SystemExit(3)
"""


@pytest.mark.parametrize("how", ["end", "exception"])
def test_a_script_ends_after_rounds_were_merged_on_a_device(how, env):
    """The handle's vectors there are the driver's to take back."""
    if "PYPARTIAL_CUDA_KERNELS" not in env:
        pytest.skip("a C++ compiler makes the kernels, and there is none")
    run = mpirun(2, python("-c", MERGED, str(ROOT), how), timeout_s=60, env=env)
    assert run.output.count("ended") == 2, run.explain()
    assert run.returncode == (0 if how == "end" else 3), run.explain()


@pytest.mark.parametrize("how", ["idle", "started", "exception"])
@pytest.mark.parametrize("what", ["rounds", "groups", "shared groups"])
def test_a_process_ends_while_its_stream_is_stuck(what, how, env):
    """No one waits for the device then; the memory is the driver's to take back."""
    if what == "shared groups" and "PYPARTIAL_CUDA_KERNELS" not in env:
        pytest.skip("a C++ compiler makes the kernels, and there is none")
    run = mpirun(2, python("-c", END, how, str(ROOT), what), timeout_s=60, env=env)
    assert run.returncode == (1 if how == "exception" else 0), run.explain()
    assert run.output.count("ended") == 2


FOLD = """
import sys
sys.path.insert(0, sys.argv[1])
from mpi4py import MPI
from support.device import Array, Stream, driver
import pypartial as pp
comm, stream = MPI.COMM_WORLD, Stream()
send, out = Array(100, "i8", stream), Array(100, "i8", stream)
ctx = pp.Context(comm)
if sys.argv[2] == "rounds":
    request = ctx.Allreduce_init(send, out, policy=pp.Full(), device_path="ipc")
else:
    groups = pp.groups.Table([[range(comm.size)]])
    request = ctx.Preduce_init(Array(100, "f8", stream), groups, device_path="ipc")
driver().fake_fail(b"cuLaunchKernel", 1, 719)
comm.Barrier()
request.Start()
try:
    request.Wait(timeout=20)
except pp.Error as error:
    print("raised:", error, flush=True)
    raise
"""


FREE = """
import sys
sys.path.insert(0, sys.argv[1])
from mpi4py import MPI
from support.device import Array, Stream, driver
import pypartial as pp
comm, stream, slow = MPI.COMM_WORLD, Stream(), Stream()
send, out = Array(3000, "i8", stream), Array(3000, "i8", stream)
ctx = pp.Context(comm)
request = ctx.Allreduce_init(send, out, policy=pp.Full())
slow.hold(comm.rank == 2)
request.Start()
request.Wait(stream=slow)
comm.Barrier()
if comm.rank == 2:
    driver().fake_fail(b"cuEventQuery", 1, 719)
try:
    request.Free(timeout=20)
except pp.Error as error:
    print("raised:", type(error).__name__, error, flush=True)
try:
    request.Free(timeout=20)
except pp.Error as error:
    print("again:", type(error).__name__, error, flush=True)
"""


def test_a_driver_that_fails_in_free(env):
    """The result that it was asked for has not come; its rank says why, and no rank waits long."""
    run = mpirun(3, python("-c", FREE, str(ROOT)), timeout_s=60, env=env)
    why = "handle 1: a result did not get to its device: CUDA reports an error: cuEventQuery failed"
    for when in ("raised", "again"):
        assert run.output.count(f"{when}: Error {why}") == 1, run.explain()
        assert run.output.count(f"{when}: PeerFailedError rank 2 gave the context up: {why}") == 2


@pytest.mark.parametrize(
    ("what", "text"),
    [("rounds", "round 0 could not be reduced"), ("groups", "a group could not be averaged")],
)
def test_what_a_device_cannot_reduce(what, text, env):
    """The rank that tried it says why, and no rank waits for ever."""
    if "PYPARTIAL_CUDA_KERNELS" not in env:
        pytest.skip("a C++ compiler makes the kernels, and there is none")
    run = mpirun(3, python("-c", FOLD, str(ROOT), what), timeout_s=60, env=env)
    assert run.returncode not in (0, None), run.explain()
    assert f"raised: handle 1: {text}: CUDA reports an error" in run.output
    assert "timed out" not in run.output, run.explain()


LOST = """
import sys
sys.path.insert(0, sys.argv[1])
from mpi4py import MPI
from support.device import Array, Stream, driver
import pypartial as pp
comm, stream = MPI.COMM_WORLD, Stream()
path, progress = sys.argv[3:]
model, out = Array(3000, "f4", stream), Array(3000, "f4", stream)
ctx = pp.Context(comm, progress=progress)
if sys.argv[2] == "groups":
    request = ctx.Preduce_init(model, pp.groups.Table([[range(comm.size)]]), device_path=path)
else:
    request = ctx.Allreduce_init(model, out, policy=pp.Full(), device_path=path)
assert request.device_path == path
result = b"cuMemcpyAsync" if path == "ipc" else b"cuMemcpy2DAsync"  # so few bytes go as rows
try:
    for step in range(3):
        request.Start()
        if step == 1 and comm.rank == 1:
            driver().fake_fail(result, 1, 719)  # the next copy is that of the result
        request.Wait(timeout=20)
except pp.Error as error:
    print("raised:", type(error).__name__, error, flush=True)
comm.Barrier()  # nobody ends before all have raised
"""


@pytest.mark.parametrize("progress", ["thread", "caller"])
@pytest.mark.parametrize(
    ("kind", "path"),
    [("rounds", "staged"), ("groups", "staged"), ("rounds", "ipc"), ("groups", "ipc")],
)
def test_a_result_that_does_not_get_to_its_device(kind, path, progress, env):
    """The rank says why, and the others learn of it, also from one without a progress thread."""
    if path == "ipc" and "PYPARTIAL_CUDA_KERNELS" not in env:
        pytest.skip("a C++ compiler makes the kernels, and there is none")
    command = python("-m", "mpi4py", "-c", LOST, str(ROOT), kind, path, progress)
    run = mpirun(3, command, timeout_s=60, env=env)
    for rank in range(3):
        error = "Error CUDA reports an error" if rank == 1 else "PeerFailedError rank 1 gave"
        assert any(line.startswith(f"raised: {error}") for line in run.lines(rank)), run.explain()


NOT_KNOWN = """
import sys
sys.path[:0] = [sys.argv[1], sys.argv[1] + "/support/standin"]
from mpi4py import MPI
from support.device import Array, Stream, driver
import pypartial as pp
comm, stream = MPI.COMM_WORLD, Stream()
send, out = Array(1000, "i8", stream), Array(1000, "i8", stream)
ctx = pp.Context(comm, progress=sys.argv[3])
request = ctx.Allreduce_init(send, out, policy=pp.Full(), device_path=sys.argv[2])
request.Start()
request.View(stream=stream)
comm.Barrier()
if comm.rank == 1:
    driver().fake_fail(b"cuEventRecord", 1, 719)  # the next is that behind what reads the view
try:
    request.Start()
    request.Wait(timeout=20)
except pp.Error as error:
    print("raised:", type(error).__name__, error, flush=True)
comm.Barrier()  # nobody ends before all have raised
"""


@pytest.mark.parametrize("progress", ["thread", "caller"])
@pytest.mark.parametrize("path", ["staged", "ipc"])
def test_a_view_of_which_nobody_knows_how_long_it_is_read(path, progress, env):
    """The rank says why, and no rank waits for ever."""
    if path == "ipc" and "PYPARTIAL_CUDA_KERNELS" not in env:
        pytest.skip("a C++ compiler makes the kernels, and there is none")
    command = python("-m", "mpi4py", "-c", NOT_KNOWN, str(ROOT), path, progress)
    run = mpirun(3, command, timeout_s=60, env=env)
    why = "it is not known how long a result is read: CUDA reports an error: cuEventRecord failed"
    for rank in range(3):
        error = "Error" if rank == 1 else "PeerFailedError rank 1 gave the context up:"
        told = [line for line in run.lines(rank) if line.startswith("raised: ")]
        assert told and told[0].startswith(f"raised: {error} handle 1: {why}"), run.explain()


NOT_MERGED = """
import sys
sys.path.insert(0, sys.argv[1])
from mpi4py import MPI
from support.device import Array, Stream, driver
import pypartial as pp
comm, stream = MPI.COMM_WORLD, Stream()
send, out = Array(100, "i8", stream), Array(100, "i8", stream)
ctx = pp.Context(comm, progress=sys.argv[3])
request = ctx.Allreduce_init(send, out, policy=pp.Solo(), deliver="sum", device_path="ipc")
send.put(1)
if comm.rank == 1:
    driver().fake_fail(sys.argv[2].encode(), 1, 719)  # it has its device do nothing else before
def rounds():
    for _ in range(3 if comm.rank == 0 else 0):
        request.Start()
        request.Wait(timeout=20)
comm.Barrier()
for call in (rounds, lambda: request.Flush(timeout=20)):
    try:
        call()
    except pp.Error as error:
        print("raised:", type(error).__name__, error, flush=True)
    comm.Barrier()  # all others have missed what rank 0 makes; nobody ends before all have raised
"""


@pytest.mark.parametrize(
    ("call", "progress"),
    [
        ("cuMemcpyAsync", "thread"),
        ("cuLaunchKernel", "thread"),
        ("cuEventRecord", "thread"),
        ("cuEventQuery", "thread"),
        ("cuMemcpyAsync", "caller"),
        ("cuLaunchKernel", "caller"),
        ("cuStreamSynchronize", "caller"),
    ],
)
def test_what_a_device_cannot_merge(call, progress, env):
    """The rank that missed the rounds says why, and no rank waits for ever."""
    if "PYPARTIAL_CUDA_KERNELS" not in env:
        pytest.skip("a C++ compiler makes the kernels, and there is none")
    command = python("-m", "mpi4py", "-c", NOT_MERGED, str(ROOT), call, progress)
    run = mpirun(3, command, timeout_s=60, env=env)
    for rank in range(3):
        error = "Error " if rank == 1 else "PeerFailedError rank 1 gave the context up: "
        why = f"CUDA reports an error: {call} failed with 719"
        told = [line for line in run.lines(rank) if line.startswith("raised: ")]
        assert told and told[0].startswith(f"raised: {error}") and why in told[0], run.explain()


NOT_RESTORED = """
import sys
sys.path.insert(0, sys.argv[1])
from mpi4py import MPI
from support.device import Array, Stream, driver
import pypartial as pp
comm, stream = MPI.COMM_WORLD, Stream()
send, out = Array(3000, "f4", stream), Array(3000, "f4", stream)
ctx = pp.Context(comm, progress="caller")
request = ctx.Allreduce_init(send, out, policy=pp.Full())
for failing in ("none", sys.argv[2], "none"):
    for call in (request.Start, request.Wait):
        if comm.rank == 1 and call.__name__ == failing:
            driver().fake_fail(b"cuCtxPopCurrent", 1, 719)
            if sys.argv[3]:
                driver().fake_fail(sys.argv[3].encode(), 1, 719)
        try:
            call()
        except pp.Error as error:
            print("raised in", failing, type(error).__name__, error, flush=True)
comm.Barrier()  # nobody ends before all have raised
"""


@pytest.mark.parametrize(
    ("call", "other"),
    [("Start", ""), ("Start", "cuMemcpyAsync"), ("Wait", ""), ("Wait", "cuMemcpy2DAsync")],
)
def test_the_device_of_the_application_is_not_restored(call, other, env):
    """The call has done its work, so all that can be told is that the context has failed.

    If something else has failed in it, too, both are told.
    """
    command = python("-m", "mpi4py", "-c", NOT_RESTORED, str(ROOT), call, other)
    run = mpirun(2, command, timeout_s=60, env=env)
    told = [line for line in run.lines(1) if line.startswith("raised in ")]
    text = "the application's device is not current again: CUDA reports an error"
    assert told[0].startswith(f"raised in {call} Error "), run.explain()
    assert told[-1].startswith("raised in none Error "), run.explain()
    for line in told:
        assert text in line, run.explain()
        assert f"{other} failed with 719" in line, run.explain()
    assert any("PeerFailedError rank 1" in line for line in run.lines(0)), run.explain()


UNKNOWN = """
import sys
sys.path.insert(0, sys.argv[1])
from mpi4py import MPI
from support.device import Array, Stream, driver
import pypartial as pp
comm, stream = MPI.COMM_WORLD, Stream()
model, out = Array(int(sys.argv[3]), "f4", stream), Array(int(sys.argv[3]), "f4", stream)
ctx = pp.Context(comm)
if sys.argv[2] == "groups":
    request = ctx.Preduce_init(model, pp.groups.Table([[range(comm.size)]]))
else:
    request = ctx.Allreduce_init(model, out, policy=pp.Full())
def end():
    request.Start()
    request.Wait(timeout=20)
    request.Free(timeout=20)
if comm.rank == 1:
    for call in (b"cuEventRecord", b"cuStreamSynchronize"):
        driver().fake_fail(call, 1, 719)
for attempt in range(2):
    try:
        end()
    except pp.Error as error:
        print("raised:", type(error).__name__, error, flush=True)
comm.Barrier()  # nobody ends before all have raised
"""


@pytest.mark.parametrize("count", [4, 3000], ids=["bounce buffer", "in place"])
@pytest.mark.parametrize("kind", ["rounds", "groups"])
def test_a_copy_of_which_nobody_knows_when_it_is_over(kind, count, env):
    """Its memory can never be used again: the context fails, and no call waits for ever."""
    run = mpirun(
        2, python("-m", "mpi4py", "-c", UNKNOWN, str(ROOT), kind, str(count)), timeout_s=60, env=env
    )
    told = [line for line in run.lines(1) if line.startswith("raised: ")]
    assert len(told) == 2, run.explain()
    assert "cuEventRecord failed with 719" in told[0], run.explain()
    assert "it is not known when a contribution comes off its device" in told[1], run.explain()
    assert any(line.startswith("raised: PeerFailedError rank 1") for line in run.lines(0))


EXIT = """
import sys, time
sys.path.insert(0, sys.argv[1])
from mpi4py import MPI
from support.device import Array, Stream, driver
import pypartial as pp
driver().fake_seed(1)
stream, status = Stream(), pp.Status()
model, other = Array(100, "f8", stream), Array(100, "f8", stream)
ctx = pp.Context(MPI.COMM_WORLD, transport="mpi")
request = ctx.Preduce_init(model, pp.groups.Table([[[0, 1]]]))
if ctx.rank == 0:
    for _ in range(3000):
        other.copy(model, stream)
    request.Start()
else:
    time.sleep(2)
    request.Start()
    request.Wait(status)
    assert status.group == (1,), status
print("ended")
"""


def test_a_model_comes_off_its_device_after_the_script_has_ended(env):
    """The rank only serves the others then, and is in no group; whatever comes first."""
    run = mpirun(2, python("-c", EXIT, str(ROOT)), timeout_s=60, env=env)
    assert run.returncode == 0, run.explain()
    assert run.output.count("ended") == 2
