"""ci/gpu without a GPU: what it says then, and all of its steps but the figures on the stand-in."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
import venv
from contextlib import closing
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

import pytest
from support import cuda_mpi, fakecuda, gpu_environment
from support.gpu_holder import Holder
from support.layer import run_tests
from support.mpirun import SEGMENTS, Run, program

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 600
SKIPPED, CANNOT_BEGIN = 77, 2
PATHS = ["staged", "ipc"] if fakecuda.cpp_compiler() else ["staged"]

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(LIMIT_S + 60)]


@pytest.fixture(scope="module")
def env() -> dict[str, str]:
    return fakecuda.environment()


@pytest.fixture
def ci(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The program as a module."""
    loader = SourceFileLoader("ci_gpu", str(ROOT / "ci" / "gpu"))
    spec = spec_from_loader("ci_gpu", loader)
    assert spec is not None
    made = module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "ci_gpu", made)  # its dataclasses look there
    loader.exec_module(made)
    return made


def ci_gpu(*words: str, env: dict[str, str], interpreter: str = sys.executable) -> Run:
    return program([interpreter, str(ROOT / "ci" / "gpu"), *words], timeout_s=LIMIT_S, env=env)


@pytest.mark.parametrize("devices", [None, "0"], ids=["no driver", "no device"])
def test_without_a_gpu_it_says_so(devices: str | None, env: dict[str, str]) -> None:
    changed = {"PYPARTIAL_CUDA_DRIVER": "/nowhere/libcuda.so"}
    if devices is not None:
        changed = {**env, "FAKECUDA_DEVICES": devices}
    run = ci_gpu(env=changed)
    assert run.returncode == SKIPPED, run.explain()
    (line,) = run.output.splitlines()
    assert line.startswith("ci/gpu: skipped, there is no GPU: ")


def test_what_is_missing_is_named_with_how_to_get_it(env: dict[str, str], tmp_path: Path) -> None:
    venv.create(tmp_path / "bare", symlinks=True)
    bare = str(tmp_path / "bare" / "bin" / "python")
    words = ["--out", str(tmp_path / "out"), "--wheels", str(tmp_path), "--installed"]
    changed = {**env, "PYTHONPATH": "", "PATH": "/usr/bin:/bin"}
    run = ci_gpu(*words, env=changed, interpreter=bare)
    assert run.returncode == CANNOT_BEGIN, run.explain()
    said = run.output.splitlines()[-1]
    assert said.startswith("ci/gpu: missing: ")
    assert "pytest-mpi" in said
    assert "pip download --dest wheels " in said
    assert said.endswith("ci/gpu --wheels wheels here")


@pytest.mark.skipif(sys.prefix == sys.base_prefix, reason="this Python is not of an environment")
def test_an_environment_sees_the_packages_of_the_one_that_made_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where PyTorch and CuPy are in an environment, and MPI is missing."""
    made = tmp_path / "made"
    venv.create(made, symlinks=True, system_site_packages=True)
    python = str(made / "bin" / "python")
    ask = [python, "-c", "import sys; print(*sys.path, sep='\\n')"]
    ours = tmp_path / "ours"
    (ours / "nvidia" / "cuda_nvrtc").mkdir(parents=True)
    assert str(ours) not in program(ask, timeout_s=60).output.splitlines()
    monkeypatch.setattr(gpu_environment.sysconfig, "get_path", lambda name: str(ours))
    gpu_environment.see_packages(python)
    assert str(ours) in program(ask, timeout_s=60).output.splitlines()
    # CuPy looks for NVIDIA's libraries below the environment's own folders only.
    ask = [python, "-c", "import site; print(*site.getsitepackages(), sep='\\n')"]
    folders = program(ask, timeout_s=60).output.splitlines()
    assert any(Path(folder, "nvidia", "cuda_nvrtc").is_dir() for folder in folders)


def test_cupy_s_compiler_is_the_one_of_the_extra() -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for major, names in gpu_environment.CUPY.items():
        (found,) = re.findall(rf"^cuda{major} = (\[.*?\])", project, re.MULTILINE)
        assert json.loads(found) == names


@pytest.mark.parametrize("driver", [12, 13, 14])
@pytest.mark.parametrize(
    ("cupy", "wheel", "wanted"),
    [
        (None, None, slice(None)),
        ("raise RuntimeError('libnvrtc.so.12: cannot open')", None, slice(1, None)),
        ("raise RuntimeError('libnvrtc.so.12: cannot open')", 12, slice(1, None)),
        ("return 12, 9", 12, slice(0)),
    ],
    ids=["no CuPy", "no compiler", "no compiler, a wheel of CuPy's", "both"],
)
def test_a_compiler_is_installed_for_cupy(
    driver: int,
    cupy: str | None,
    wheel: int | None,
    wanted: slice,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """That of the extra: CuPy's wheels have none, and without one there are no kernels."""
    (tmp_path / "cupy" / "cuda").mkdir(parents=True)
    (tmp_path / "cupy" / "__init__.py").write_text("" if cupy else "raise ImportError('none')")
    (tmp_path / "cupy" / "cuda" / "__init__.py").touch()
    (tmp_path / "cupy" / "cuda" / "nvrtc.py").write_text(f"def getVersion():\n    {cupy}\n")
    if wheel is not None:
        made = tmp_path / f"cupy_cuda{wheel}x-14.0.dist-info"
        made.mkdir()
        (made / "METADATA").write_text(f"Metadata-Version: 2.1\nName: cupy-cuda{wheel}x\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(gpu_environment, "NEEDED", {})
    monkeypatch.setattr(gpu_environment, "cuda_major", lambda _: driver)
    extra = gpu_environment.CUPY[wheel or min(driver, 13)]
    assert gpu_environment.missing(sys.executable, object(), None) == extra[wanted]


def test_what_is_installed_does_not_get_into_the_first_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, ours = tmp_path / "made", tmp_path / "ours"
    venv.create(made, symlinks=True, system_site_packages=True)
    (ours / "nvidia" / "cublas").mkdir(parents=True)
    monkeypatch.setattr(gpu_environment.sysconfig, "get_path", lambda name: str(ours))
    monkeypatch.setattr(sys, "base_prefix", "/another")
    gpu_environment.see_packages(str(made / "bin" / "python"))
    (packages,) = made.glob("lib/python*/site-packages")
    assert (packages / "nvidia" / "cublas").is_dir()
    (packages / "nvidia" / "cuda_nvrtc").mkdir()
    assert [folder.name for folder in (ours / "nvidia").iterdir()] == ["cublas"]


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        ([["pytest"], []], None),
        ([["pytest"], ["typer"], []], None),  # seen only when there is `packaging`
        ([["pytest"], ["typer"], ["typer"]], "typer cannot be used, although pip has installed it"),
    ],
)
def test_it_looks_again_when_it_has_installed_something(
    found: list[list[str]],
    problem: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    python = tmp_path / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    answers, installed = iter([["pytest"], *found]), []
    monkeypatch.setattr(gpu_environment, "search", lambda folder: None)
    monkeypatch.setattr(gpu_environment, "missing", lambda *_: next(answers))
    monkeypatch.setattr(
        gpu_environment, "install", lambda _, names, wheels: installed.append(names)
    )
    options = argparse.Namespace(installed=True, mpi=None, out=tmp_path, wheels=None)
    if problem is None:
        assert gpu_environment.environment(options, None) == str(python)
    else:
        with pytest.raises(gpu_environment.Problem, match=problem):
            gpu_environment.environment(options, None)
    assert installed == [names for names in found[:2] if names]
    assert list(answers) == []


@pytest.mark.parametrize(("mpi", "told"), [("intel", "1"), ("open", None), (None, None)])
def test_an_mpi_is_told_of_devices_from_the_beginning(
    mpi: str | None,
    told: str | None,
    ci: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.delenv("I_MPI_OFFLOAD", raising=False)
    monkeypatch.setattr(ci, "why_no_device", lambda driver: None)
    monkeypatch.setattr(ci, "open_driver", object)
    monkeypatch.setattr(ci, "environment", lambda options, driver: "python")
    begun: list[str | None] = []
    monkeypatch.setattr(os, "execv", lambda *_: begun.append(os.environ.get("I_MPI_OFFLOAD")))
    ci.first_half(argparse.Namespace(installed=True, mpi=mpi, out=tmp_path))
    assert begun == [told]


def test_the_process_that_holds_the_device_leaves_no_file(
    env: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would if it loaded MPI: nobody gives it a folder of its own for that."""
    for name, text in {**env, SEGMENTS: str(tmp_path), "PYTHONPATH": with_stand_in()}.items():
        monkeypatch.setenv(name, text)
    with closing(Holder()) as holder:
        assert holder.free() == 0
        assert list(tmp_path.iterdir()) == []
    assert list(tmp_path.iterdir()) == []


def test_its_environment_has_a_pip(tmp_path: Path) -> None:
    """That of the Python that makes it, or else the one that comes with Python."""
    bare = tmp_path / "bare"
    venv.create(bare, symlinks=True)
    python = str(bare / "bin" / "python")
    assert not gpu_environment.is_there(python, "pip")
    assert gpu_environment.bring_pip(python)
    assert gpu_environment.is_there(python, "pip")


def test_a_step_for_which_no_time_is_left(ci: ModuleType, tmp_path: Path, capsys) -> None:
    """It is not begun, and what is left to do is said; that is no success."""
    (tmp_path / "cuda.json").write_text('{"of": "another call"}')
    steps = ci.Steps(time.time() - ci.LIMIT_S + ci.LEAST_S - 1, tmp_path)
    steps.run("Figures", "--only figures", lambda: pytest.fail("begun"))
    assert "figures" not in json.loads((tmp_path / "report.json").read_text())
    (step,) = steps.made
    assert (step.outcome, step.text) == (
        "no time",
        "no time was left; alone: ci/gpu --only figures",
    )
    assert ci.finish(steps) == 1
    assert (
        "FAILED Figures: no time was left; alone: ci/gpu --only figures" in capsys.readouterr().out
    )


@pytest.mark.parametrize(
    ("failure", "text"), [(AssertionError("wrong"), "wrong"), (KeyError("a"), "KeyError: 'a'")]
)
def test_a_step_that_fails_is_in_the_report_with_what_it_has_said(
    failure: Exception, text: str, ci: ModuleType, tmp_path: Path
) -> None:
    """Whatever it raises. The report is there before the next one begins."""
    steps, seen = ci.Steps(time.time(), tmp_path), []

    def fails() -> None:
        steps.say("one is found")
        raise failure

    def looks() -> None:
        seen.append(json.loads((tmp_path / "report.json").read_text())["steps"])

    steps.run("Plants", "--only plants", fails)
    steps.run("Look", "", looks)
    (before,) = seen
    assert [(step["outcome"], step["text"]) for step in before] == [
        ("failed", f"{text}\none is found")
    ]
    assert steps.made[1].text == ""


def test_an_answer_is_found_before_what_libraries_say_at_the_end(
    ci: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = [Run(["asked"], 0, '{"problem": null}\nWarning: leaked\n', 1.0), None]
    monkeypatch.setattr(ci, "program", lambda *_, **__: answers[0])
    assert ci.told("cupy") == {"problem": None}
    answers[0] = Run(["asked"], 0, "Warning: leaked\n", 1.0)
    with pytest.raises(gpu_environment.Problem, match="cupy cannot be asked"):
        ci.told("cupy")


def test_what_takes_little_time_comes_before_what_takes_much(
    ci: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the steps that are the last ones: there may be too little time for all."""
    began: list[str] = []
    monkeypatch.setenv(ci.INSIDE, "0")
    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setattr(ci, "told", lambda library: {"stand_in": True, "problem": None})
    monkeypatch.setattr(ci, "finish", lambda steps: 0)
    monkeypatch.setattr(ci.Steps, "run", lambda steps, name, again, act: began.append(again))
    options = {"out": tmp_path, "limit": 1.0, "without": None, "only": None, "ranks": None}
    ci.all_steps(argparse.Namespace(**options), None)
    assert began[-4:] == [f"--only {part}" for part in ("plants", "memcheck", "killed", "ends")]
    assert len({again.split()[1] for again in began}) == len(ci.PARTS)


def test_files_are_tried_by_themselves_only_once(
    ci: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes the time of what comes afterwards."""
    from support import layer

    ran: list[tuple[str, int]] = []

    def fails(folder: Path, ranks: int, **_: object) -> None:
        ran.append((folder.name, ranks))
        raise AssertionError("rank 0 FAILED")

    monkeypatch.setattr(layer, "run_tests", fails)
    steps = ci.Steps(time.time(), tmp_path)
    checks = ci.Checks(steps, ["cupy"], {}, tmp_path, None)
    for ranks in (2, 4):
        ci.step_of_tests(checks, ranks)
    assert ran.count(("gpu", 2)) == ran.count(("gpu", 4)) == 1
    assert ("test_streams.py", 2) in ran
    assert {ranks for name, ranks in ran if name != "gpu"} == {2}


@pytest.mark.parametrize(
    ("ended", "said"),
    [
        ("rank 0: pytest returned 5\nrank 1: pytest returned 5", ""),
        ("rank 0 FAILED a test\nrank 1: pytest returned 5", "test_x.py: rank 0 FAILED a test"),
        ("5 passed, 3 deselected in 1.2s\nreturn code 1", "test_x.py: 5 passed, 3 deselected in"),
        ("rank 1: pytest returned 1", "test_x.py: rank 1: pytest returned 1"),
    ],
    ids=["none", "some", "later", "failed"],
)
def test_a_file_is_left_out_only_if_nothing_was_selected(
    ended: str, said: str, ci: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from support import layer

    def fails(*_: object, **__: object) -> None:
        raise AssertionError(ended)

    monkeypatch.setattr(layer, "run_tests", fails)
    checks = ci.Checks(ci.Steps(time.time(), tmp_path), ["cupy"], {}, tmp_path, None)
    found = checks.one_file(Path("test_x.py"), 2, {})
    assert found.startswith(said)
    assert bool(found) == bool(said)


def test_its_steps_on_the_stand_in(env: dict[str, str], tmp_path: Path, record_property) -> None:
    words = ["--installed", "--ranks", "2", "--only", "tests", "--only", "direct"]
    words += ["--only", "killed", "--only", "ends"]
    run = ci_gpu(*words, "--out", str(tmp_path), env=env)
    assert run.returncode == 0, run.explain()
    run.check_clean()
    report = json.loads((tmp_path / "report.json").read_text())
    tests, direct, killed, ends = report["steps"]
    passed = re.match(r"(\d+) tests passed on each of 2 ranks", tests["text"])
    assert passed is not None
    assert int(passed[1]) > 40
    record_property("inner_passed", passed[1])
    assert direct["outcome"] == "left out"
    assert direct["text"].startswith("MPI ")
    assert killed["outcome"] == "passed"
    ended = [rf"cupy, {path}: rank {r} ends [\d.]+ s .*" for path in PATHS for r in range(2)]
    assert re.fullmatch("\n".join(ended), ends["text"])
    assert "stand-in 0" in report["info"]
    assert "| Tests on 2 ranks | passed |" in (tmp_path / "report.md").read_text()


@pytest.mark.long  # tests/launch/test_direct.py has such an MPI, too
@pytest.mark.skipif(not fakecuda.cpp_compiler(), reason="a C++ compiler makes the kernels")
def test_an_mpi_that_takes_addresses(env: dict[str, str], tmp_path: Path) -> None:
    changed = {**env, "LD_PRELOAD": str(cuda_mpi.build(tmp_path))}
    run = ci_gpu("--installed", "--only", "direct", "--out", str(tmp_path), env=changed)
    assert run.returncode == 0, run.explain()
    (direct,) = json.loads((tmp_path / "report.json").read_text())["steps"]
    assert re.match(r"\d\d tests passed on 2 ranks", direct["text"])


@pytest.mark.skipif(not fakecuda.cpp_compiler(), reason="a C++ compiler makes the kernels")
def test_a_library_between_that_copies(env: dict[str, str], tmp_path: Path) -> None:
    """With it the path of addresses runs with any MPI, on any device."""
    counts = run_tests(
        ROOT / "tests" / "gpu" / "test_allreduce.py",
        2,
        test_limit_s=60,
        limit_s=LIMIT_S,
        env={**env, "PYTHONPATH": with_stand_in(), "PYPARTIAL_TEST_PATHS": "direct"},
        under=cuda_mpi.preloaded(cuda_mpi.build(tmp_path, cuda_mpi.COPYING)),
        selected="direct and (several_arrays or loop and full)",
    )
    assert counts.passed > 2


@pytest.mark.long
@pytest.mark.skipif(not fakecuda.cpp_compiler(), reason="a C++ compiler makes the kernels")
def test_its_step_with_that_library(env: dict[str, str], tmp_path: Path) -> None:
    run = ci_gpu("--installed", "--only", "copied", "--out", str(tmp_path), env=env)
    assert run.returncode == 0, run.explain()
    (copied,) = json.loads((tmp_path / "report.json").read_text())["steps"]
    assert re.match(r"\d\d tests passed on 2 ranks", copied["text"])


@pytest.mark.long
def test_a_failing_test_is_named_with_its_rank(env: dict[str, str], tmp_path: Path) -> None:
    """Copies are taken for complete too early."""
    words = ["--installed", "--only", "tests", "--ranks", "2", "--out", str(tmp_path)]
    run = ci_gpu(*words, env={**env, "FAKECUDA_LIE": "cuEventQuery"})
    assert run.returncode == 1, run.explain()
    failed = [line for line in run.output.splitlines() if line.startswith("FAILED ")]
    assert re.search(r"Tests on 2 ranks: .*rank \d FAILED .*tests/gpu/test_", failed[0])
    assert run.output.splitlines()[-1] == "0 steps passed, 1 failed"
    # A failure ends all ranks: so each file is tried by itself, too.
    said = run.output[run.output.index("Each file by itself:") :]
    assert re.search(r"^test_streams.py: .*rank \d FAILED ", said, re.MULTILINE), run.explain()


def test_what_has_no_test_is_a_failure(env: dict[str, str], tmp_path: Path) -> None:
    """On a machine without the library all tests are skipped."""
    with pytest.raises(AssertionError, match="no test ran on 1 ranks"):
        run_tests(
            ROOT / "tests" / "gpu" / "test_streams.py",
            1,
            test_limit_s=60,
            limit_s=LIMIT_S,
            env={**env, "PYTHONPATH": hidden(tmp_path)},
        )


def with_stand_in() -> str:
    """Return a PYTHONPATH with as much of CuPy as the tests need."""
    folders = [str(ROOT / "tests"), str(ROOT / "tests" / "support" / "standin")]
    return os.pathsep.join([*folders, os.environ.get("PYTHONPATH", "")])


def hidden(folder: Path) -> str:
    """Return a PYTHONPATH on which CuPy and PyTorch cannot be found."""
    (folder / "sitecustomize.py").write_text(
        "import importlib.util as u\n"
        "found = u.find_spec\n"
        "u.find_spec = lambda n, *a: None if n in ('cupy', 'torch') else found(n, *a)\n"
    )
    return os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
