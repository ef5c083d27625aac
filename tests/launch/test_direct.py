"""device_path="direct" on the stand-in for the CUDA driver, under MPIs of all kinds."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from support import cuda_mpi, fakecuda
from support.layer import run_tests
from support.mpirun import mpirun, python

from pypartial import _direct

ROOT = Path(__file__).resolve().parents[1]
TEST_LIMIT_S = 60  # for one test in one rank
LIMIT_S = 600  # for all of them: mpirun's
PROGRAMS = {2: 60, 5: 15}  # by ranks
# What is run of each file, and how many tests of it one rank skips, and more ranks.
FILES = {
    "test_direct.py": ("", 12, 1),
    "test_direct_groups.py": ("", 11, 1),
    "test_preduce.py": ("direct and comm", 1, 1),
}

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(
        fakecuda.cpp_compiler() is None,
        reason="a C++ compiler makes the kernels, and there is none",
    ),
]


@pytest.fixture(scope="module")
def env():
    return fakecuda.environment(devices=2)


@pytest.fixture(scope="module")
def under(tmp_path_factory):
    """What goes before a program whose MPI takes addresses of devices, or says that it does."""
    return cuda_mpi.preloaded(cuda_mpi.build(tmp_path_factory.mktemp("mpi")))


@pytest.mark.timeout(LIMIT_S + 60)
@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("ranks", [1, 3])
def test_device_layer(ranks, file, env, under, record_property):
    selected, alone, always = FILES[file]
    counts = run_tests(
        ROOT / "device" / file,
        ranks,
        test_limit_s=TEST_LIMIT_S,
        limit_s=LIMIT_S,
        env=env,
        under=under,
        selected=selected,
    )
    record_property("inner_passed", counts.passed)
    assert counts.skipped <= (alone if ranks == 1 else always)


@pytest.mark.timeout(LIMIT_S + 60)
def test_device_layer_on_two_nodes(env, under, record_property):
    """There no message is announced before it comes."""
    counts = run_tests(
        ROOT / "device" / "test_direct.py",
        2,
        test_limit_s=TEST_LIMIT_S,
        limit_s=LIMIT_S,
        env={**env, "PYPARTIAL_NODE_RANKS": "1"},
        under=under,
        selected="test_the_loop or devices or another_device or a_free_behind_its_own_operations",
    )
    record_property("inner_passed", counts.passed)
    assert counts.skipped == 0


@pytest.mark.timeout(LIMIT_S + 60)
@pytest.mark.parametrize(("ranks", "programs"), PROGRAMS.items())
def test_random_programs(ranks, programs, env, under):
    script = str(ROOT / "stress" / "device.py")
    command = python("-m", "mpi4py", script, "--programs", str(programs))
    run = mpirun(ranks, [*under, *command], timeout_s=LIMIT_S, env=env)
    run.check()
    assert f"{programs} programs passed on {ranks} ranks" in run.output


NOT_RESTORED = """
import ctypes, sys, warnings
sys.path.insert(0, sys.argv[1])
from mpi4py import MPI
from support.device import Array, Stream, device, driver
import pypartial as pp
comm, stream = MPI.COMM_WORLD, Stream()
told = dict.fromkeys(["init", "Start", "Wait", "Flush", "Free"], 0)
model, out = Array(40000, "f4", stream), Array(40000, "f4", stream)
last, failing, path = comm.rank == comm.size - 1, b"cuCtxPopCurrent", sys.argv[3]
warnings.simplefilter("ignore")
groups = pp.groups.Table([[range(comm.size)]])
options = {
    "Allreduce_init": {"recvbuf": out, "policy": pp.Full()},
    "Preduce_init": {"groups": groups, "backend": "comm" if path == "direct" else "auto"},
}[sys.argv[2]]
def current():
    context = ctypes.c_void_p()
    driver().cuCtxGetCurrent(ctypes.byref(context))
    return context.value
def fail(nth):
    driver().fake_fail(failing, nth if last else 0, 719 if last and nth else 0)
with device(1):
    before = current()
    for tried in told:
        for nth in range(1, 9):
            restored = True
            try:
                transport = "mpi" if path == "direct" else "auto"
                with pp.Context(comm, transport=transport, progress="caller") as ctx:
                    for step in told:
                        if step == tried:
                            fail(nth)
                        if step == "init":
                            request = getattr(ctx, sys.argv[2])(model, device_path=path, **options)
                        else:
                            getattr(request, step)()
                        fail(0)
                        restored &= current() == before
                assert restored, f"nobody is told of call {nth} in {tried}"
            except pp.Error as error:
                assert not last or "cuCtxPopCurrent failed with 719" in str(error), error
                told[tried] += 1
            fail(0)
            while current() != before:
                driver().cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))
assert told["init"] > 0, told
print("told:", told)
"""


@pytest.mark.parametrize(
    ("init", "path", "ranks"),
    [
        ("Allreduce_init", "staged", 2),
        ("Allreduce_init", "ipc", 2),
        ("Allreduce_init", "direct", 2),
        ("Preduce_init", "staged", 2),
        ("Preduce_init", "ipc", 2),
        ("Preduce_init", "direct", 1),  # another would wait for it inside MPI
    ],
)
def test_the_device_is_not_restored(init, path, ranks, env, under):
    """The context fails, whatever call it was: the application's own work would go wrong."""
    command = python("-m", "mpi4py", "-c", NOT_RESTORED, str(ROOT), init, path)
    run = mpirun(ranks, [*under, *command], timeout_s=60, env=env)
    run.check()
    assert run.output.count("told: ") == ranks, run.explain()


NO_VECTORS = """
import sys
sys.path.insert(0, sys.argv[1])
from mpi4py import MPI
from support.device import Array, Stream, driver
import pypartial as pp
comm, stream, told, result = MPI.COMM_WORLD, Stream(), 0, int(sys.argv[2])
send, out = Array(5000, "f4", stream), Array(5000, "f4", stream)
last = comm.rank == comm.size - 1
def tell(error):
    global told
    told += 1
    if last:
        assert "cuMemAlloc failed with" in str(error), error
        assert isinstance(error, MemoryError) == (result == 2), error
    else:
        assert isinstance(error, pp.PeerFailedError), error
def start(request):
    try:
        request.Start()
    except (pp.Error, MemoryError) as error:
        tell(error)
        request.Start()  # nothing was contributed
for nth in range(1, 6):
    try:
        with pp.Context(comm, transport="mpi") as ctx:
            request = ctx.Allreduce_init(send, out, policy=pp.Full(), device_path="direct")
            every = 0  # the library asks again, when it has given back what it does not use
            driver().fake_fail(b"cuMemAlloc", every if result == 2 else nth, result * last)
            for step in range(2):
                send.put(step)
                start(request)
                request.Wait()
                assert (out.get() == comm.size * step).all()
            driver().fake_fail(b"cuMemAlloc", 0, 0)
            request.Free()
    except (pp.Error, MemoryError) as error:
        tell(error)
    driver().fake_fail(b"cuMemAlloc", 0, 0)
print("told:", told)
"""


@pytest.mark.parametrize("result", [2, 999], ids=["no memory", "another"])
def test_a_device_has_no_vector_for_a_round(result, env, under):
    """The rank of the device says why in the driver's words, whatever asked for the vector."""
    command = python("-m", "mpi4py", "-c", NO_VECTORS, str(ROOT), str(result))
    run = mpirun(3, [*under, *command], timeout_s=60, env=env)
    run.check()
    assert re.search(r"told: ([2-9]|10)", "\n".join(run.lines(2))), run.explain()


# ---- what MPI says, and what it does -------------------------------------------------------------

LOOP = """
import sys
sys.path.insert(0, sys.argv[1])
from mpi4py import MPI
from support.device import Array, Stream
import numpy as np
import pypartial as pp
from pypartial import _direct
_direct.LIMIT_S = 2.0 if sys.argv[2] == "hangs" else 60.0
comm, stream = MPI.COMM_WORLD, Stream()
send, out = Array(5000, "i8", stream), Array(5000, "i8", stream)
ctx = pp.Context(comm, transport="mpi")
for _ in range(2):
    request = ctx.Allreduce_init(send, out, policy=pp.Full(), device_path="direct")
    print("path:", request.device_path, request.device_path_reason)
    send.put(np.arange(5000) + comm.rank)
    request.Start()
    request.Wait()
    assert (out.get() == comm.size * np.arange(5000) + sum(range(comm.size))).all()
    request.Free()
print("sent by addresses of devices:", ctx.stats().direct_bytes > 0)
ctx.Free()
"""
WHERE = "rounds made of messages and groups on communicators"
TRIED = "MPI says that it takes addresses of devices, but a process that tried it "


def tried(mode, env, under):
    run = mpirun(3, [*under, *python("-c", LOOP, str(ROOT), mode)], timeout_s=90, env=env)
    run.check()
    warned = run.output.count("RuntimeWarning: device_path='direct' is not possible")
    assert warned == (mode != "takes"), run.explain()
    return run


def test_an_mpi_that_takes_addresses_of_devices(env, under):
    run = tried("takes", env, under)
    for rank in range(3):
        assert run.lines(rank).count("path: direct ") == 2, run.explain()
        assert "sent by addresses of devices: True" in run.lines(rank), run.explain()


@pytest.mark.parametrize(
    ("mode", "why"),
    [
        ("says-no", "MPI says that it knows no devices (MPIX_Query_cuda_support)"),
        ("lies", f"{TRIED}died by SIGSEGV\n"),
        ("wrong", f"{TRIED}failed: a message to itself of 256 bytes has element 0 as 0 instead"),
        ("hangs", f"{TRIED}did not end within 2 s"),
    ],
)
def test_an_mpi_that_does_not(mode, why, env, under):
    """All ranks go by the host's memory, and rank 0 says so once."""
    run = tried(mode, {**env, "CUDA_MPI": mode}, under)
    for rank in range(3):
        found = [line for line in run.lines(rank) if line.startswith("path: ")]
        assert len(found) == 2, run.explain()
        assert all(f"{line}\n".startswith(f"path: staged rank 0: {why}") for line in found), found
        assert "sent by addresses of devices: False" in run.lines(rank), run.explain()


@pytest.mark.parametrize(
    ("mode", "found"),
    [
        ("takes", f'device_path="direct" for {WHERE}; MPI says that it takes'),
        ("lies", f'no device_path="direct": {TRIED}died by SIGSEGV'),
    ],
)
def test_info_says_what_was_found(mode, found, env, under):
    command = [*under, *python("-m", "pypartial", "info")]
    run = mpirun(2, command, timeout_s=60, env={**env, "CUDA_MPI": mode})
    run.check()
    assert re.search(rf"MPI and devices +{re.escape(found)}", run.output), run.explain()


def test_an_mpi_without_cuda(env):
    """No child is needed to see that the one in use here knows no devices."""
    run = tried("none", env, [])
    assert "path: staged rank 0: MPI " in run.output
    assert "a process that tried it" not in run.output


@pytest.mark.parametrize("python", ["/nowhere/python", "", None])
def test_a_child_that_cannot_be_started(python, monkeypatch):
    monkeypatch.setattr(_direct.sys, "executable", python)
    found = _direct.self_test.__wrapped__(0)
    assert found.startswith("no process could be started to try it: "), found


@pytest.mark.parametrize(
    ("child", "found"),
    [
        ("os.kill(os.getpid(), 9)", "died by SIGKILL, before MPI had started"),
        ("print('MPI has started', flush=True); os.abort()", "died by SIGABRT"),
        ("sys.exit(1)", "said nothing"),
        ("print('MPI has started'); sys.exit(1)", "said nothing"),
        ("print('MPI has started'); sys.exit('no')", "no"),
    ],
)
def test_how_a_child_ended(child, found, monkeypatch):
    monkeypatch.setattr(_direct, "_CHILD", f"import os, sys; {child}")
    assert _direct.self_test.__wrapped__(0) == f"{TRIED}{found}"


def test_the_child_is_alone(monkeypatch):
    """It gets no variable of the launcher, and all that MPI and Python need."""
    launcher = {
        "OMPI_COMM_WORLD_RANK": "1",
        "OMPI_MCA_orte_ess_vpid": "1",
        "PMIX_NAMESPACE": "x",
        "PMI_FD": "5",
        "PRTE_LAUNCHED": "1",
        "HYDRA_TOPO": "x",
        "I_MPI_HYDRA_ENV": "x",
        "SLURM_PROCID": "1",
        "MV2_COMM_WORLD_RANK": "1",
        "MPIR_LOCALRANK": "1",
    }
    kept = {
        "I_MPI_OFFLOAD": "1",
        "OMPI_MCA_pml": "ucx",
        "OMPI_MCA_btl": "^ofi",
        "MPIR_CVAR_ENABLE_GPU": "1",
        "LD_LIBRARY_PATH": "/x",
        "LD_PRELOAD": "/y",
        "CUDA_VISIBLE_DEVICES": "0",
    }
    found = _direct.singleton_environment({**launcher, **kept})
    assert {**found, "PYTHONPATH": ""} == {**kept, "PYTHONPATH": ""}
    assert str(ROOT) in found["PYTHONPATH"].split(os.pathsep)


# ---- failures, and the end -----------------------------------------------------------------------

FOLD = """
import sys
sys.path.insert(0, sys.argv[1])
from mpi4py import MPI
from support.device import Array, Stream, driver
import pypartial as pp
comm, stream = MPI.COMM_WORLD, Stream()
send, out = Array(100, "i8", stream), Array(100, "i8", stream)
ctx = pp.Context(comm, transport="mpi")
request = ctx.Allreduce_init(send, out, policy=pp.Full(), device_path="direct")
if comm.rank == 0:  # it reduces for the others, too
    driver().fake_fail(b"cuLaunchKernel", 1, 719)
comm.Barrier()
request.Start()
try:
    request.Wait(timeout=20)
    print("a result")
except pp.Error as error:
    print("raised:", error, flush=True)
    raise
"""


def test_a_round_that_a_device_cannot_reduce(env, under):
    """The rank says why; what it has instead gets to no other, and no rank waits for ever."""
    run = mpirun(3, [*under, *python("-c", FOLD, str(ROOT))], timeout_s=60, env=env)
    assert run.returncode not in (0, None), run.explain()
    why = "handle 1: an operation on vectors of a device has failed: CUDA reports an error"
    assert any(line.startswith(f"raised: {why}") for line in run.lines(0)), run.explain()
    assert "a result" not in run.output, run.explain()
    assert "timed out" not in run.output, run.explain()


FAILURES = """
import sys
sys.path.insert(0, sys.argv[1])
from mpi4py import MPI
from support.device import Array, Stream, driver
import numpy as np
import pypartial as pp
comm, stream = MPI.COMM_WORLD, Stream()
call, nth, rank = sys.argv[2].encode(), 0, comm.rank
send, out, steps = Array(3000, "i8", stream), Array(3000, "i8", stream), np.arange(3000)

def start(request):
    try:
        request.Start()
    except pp.Error:  # nothing was started
        driver().fake_fail(call, 0, 0)
        request.Start()

def three_rounds(algorithm):
    with pp.Context(comm, transport="mpi") as ctx:
        options = {"algorithm": algorithm, "device_path": "direct"}
        request = ctx.Allreduce_init(send, out, policy=pp.Full(), **options)
        assert request.device_path == "direct"
        for step in range(3):
            send.put(steps * (step + rank + 1))
            stream.wait()
            if step == 1 and rank == 0:  # it reduces with every algorithm
                driver().fake_fail(call, nth, 719)
            start(request)
            request.Wait(timeout=20)
            driver().fake_fail(call, 0, 0)
            right = steps * sum(step + one + 1 for one in range(comm.size))
            assert (out.get() == right).all()
        request.Free()

for algorithm in ("ring", "recursive_doubling", "rabenseifner"):
    for nth in range(1, 9):
        how = "right"
        try:
            three_rounds(algorithm)
        except AssertionError:
            how = "wrong"
        except pp.TimeoutError:
            how = "late"
        except pp.Error:
            how = "raised"
        driver().fake_fail(call, 0, 0)
        found = comm.allgather(how)
        if rank == 0:
            print(algorithm, nth, *sorted(set(found)), flush=True)
"""


CALLS = ["cuLaunchKernel", "cuMemcpyAsync", "cuEventRecord", "cuEventQuery"]


@pytest.mark.parametrize("call", CALLS)
def test_every_operation_of_a_round_may_fail(call, env, under):
    """All ranks have the right results until all of them raise."""
    command = python("-m", "mpi4py", "-c", FAILURES, str(ROOT), call)
    run = mpirun(3, [*under, *command], timeout_s=120, env=env)
    run.check()
    found = [line.split() for line in run.lines(0)]
    assert len(found) == 3 * 8, run.explain()
    assert all(how in (["right"], ["raised"]) for _, _, *how in found), run.explain()
    raised = {algorithm for algorithm, _, how in found if how == "raised"}
    assert len(raised) == 3, run.explain()


GROUP = """
import sys
sys.path.insert(0, sys.argv[1])
from mpi4py import MPI
from support.device import Array, Stream, driver
import pypartial as pp
comm, stream = MPI.COMM_WORLD, Stream()
model, other = Array(100, "f4", stream), Array(100, "f4", stream)
ctx = pp.Context(comm)
everybody = pp.groups.Table([[range(comm.size)]])
request = ctx.Preduce_init(
    model, everybody, backend="comm", device_path="direct", weights="dynamic"
)
second = ctx.Preduce_init(other, everybody, backend="comm", device_path="direct")
model.put(1.0)
other.put(1.0)
request.Start(iteration=comm.rank)
if comm.rank == 0:
    call, nth = sys.argv[2].split(":")
    driver().fake_fail(call.encode(), int(nth), 719)
try:
    request.Wait()
    print("a result", flush=True)
    second.Start()
    second.Wait()
except pp.Error as error:
    print("raised:", error, flush=True)
    if comm.rank > 0:
        comm.Barrier()  # until rank 0 aborts
    driver().fake_fail(call.encode(), 0, 0)
    try:
        second.Start()
    except pp.Error as error:
        print("then:", error, flush=True)
    raise
"""


@pytest.mark.parametrize(
    ("failing", "why"),
    [
        ("cuLaunchKernel:1", "a group could not be averaged: CUDA reports an error"),
        ("cuStreamSynchronize:1", "a group could not be averaged: CUDA reports an error"),
        ("cuEventRecord:1", "a result did not get to its device: CUDA reports an error"),
    ],
)
def test_a_group_that_a_device_cannot_average(failing, why, env, under):
    """The rank's context fails and says why; the others wait inside MPI until the abort."""
    command = python("-m", "mpi4py", "-c", GROUP, str(ROOT), failing)
    run = mpirun(3, [*under, *command], timeout_s=60, env=env)
    assert run.returncode not in (0, None), run.explain()
    lines = run.lines(0)
    raised = [line for line in lines if line.startswith("raised: ")]
    assert len(raised) == 1 and "CUDA reports an error" in raised[0], run.explain()
    assert any(line.startswith(f"then: handle 1: {why}") for line in lines), run.explain()
    assert "a result" not in lines, run.explain()
    assert "timed out" not in run.output, run.explain()


END = """
import sys
sys.path.insert(0, sys.argv[1])
from mpi4py import MPI
from support.device import Array, Stream
import pypartial as pp
comm, stream = MPI.COMM_WORLD, Stream()
send, out = Array(100, "i8", stream), Array(100, "i8", stream)
ctx = pp.Context(comm, transport="mpi")
if sys.argv[3] == "groups":
    model, groups = Array(100, "f4", stream), pp.groups.Random(2)
    options = {"backend": "comm", "weights": "dynamic", "missing": "initial"}
    request = ctx.Preduce_init(model, groups, device_path="direct", **options)
else:
    request = ctx.Allreduce_init(send, out, policy=pp.Solo(), device_path="direct")
assert request.device_path == "direct"
for _ in range(3):
    request.Start()
    request.Wait()
if sys.argv[2] == "stuck":
    stream.hold(True)
    request.Start()
print("ended")
if sys.argv[2] == "exception":
    raise SystemExit(3)
"""


@pytest.mark.parametrize("kind", ["rounds", "groups"])
@pytest.mark.parametrize("how", ["idle", "stuck", "exception"])
def test_a_script_ends_without_free(how, kind, env, under):
    """No one waits for the device then; the memory is the driver's to take back."""
    run = mpirun(2, [*under, *python("-c", END, str(ROOT), how, kind)], timeout_s=60, env=env)
    assert run.returncode == (3 if how == "exception" else 0), run.explain()
    assert run.output.count("ended") == 2, run.explain()
