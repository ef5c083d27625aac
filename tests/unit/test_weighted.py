"""Elements times weights: what the bits are, and that every build gives the same."""

import subprocess
from pathlib import Path

import numpy as np
import pytest
from support.c_cases import SANITIZED, compiled
from support.once import once

BUILDS = {
    "plain": ["-O0"],
    "as installed": ["-O3"],
    "with a fused multiply-add": ["-O3", "-mfma", "-mavx2"],
    "sanitized": SANITIZED,
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    flags = Path("/proc/cpuinfo").read_text().split()
    builds = {
        build: options
        for build, options in BUILDS.items()
        if "-mfma" not in options or {"fma", "avx2"} <= set(flags)  # this machine can run it
    }

    def compile_all(folder):
        for build, options in builds.items():
            made = compiled(folder, "weighted_cases", ["base/*.c", "reduce/*.c"], *options, "-lm")
            made.rename(folder / build.replace(" ", "_"))

    folder = once(tmp_path_factory, "weighted", compile_all)
    programs = {build: folder / build.replace(" ", "_") for build in builds}

    def run(kind, seed):
        outputs = {
            build: subprocess.run(
                [program, kind, str(seed)], check=True, capture_output=True, text=True, timeout=60
            ).stdout
            for build, program in programs.items()
        }
        assert len(set(outputs.values())) == 1, f"{list(outputs)} differ"
        return outputs["plain"].splitlines()

    return run


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", ["float32", "float64", "longdouble"])
def test_builds_give_the_same_bits(run, kind, seed):
    """And the padding of a long double is 0, whatever was in the target."""
    lines = run(kind, seed)
    assert len(lines) == 6 * 1002
    assert lines.count("in place") == 6


@pytest.mark.parametrize(("kind", "bits"), [("float32", "u4"), ("float64", "u8")])
def test_a_product_is_rounded_and_then_the_sum(run, kind, bits):
    dtype = np.dtype(kind)
    one = dtype.type
    canonical = np.array(np.nan, dtype).view(bits)
    weight = None
    for line in run(kind, 7):
        if line.startswith("weight"):
            weight = one(float.fromhex(line.split()[1]))
        elif " " in line and line != "in place":
            words = [np.array(int(word, 16), bits) for word in line.split()]
            given, _, kept, _ = (word.view(dtype)[()] for word in words)
            with np.errstate(all="ignore"):
                product = one(weight * given)
                total = one(kept + product)
            for value, word in ((product, words[1]), (total, words[3])):
                wanted = canonical if np.isnan(value) else np.array(value, dtype).view(bits)
                assert wanted == word, (line, weight)
        else:
            assert line == "in place"


def test_only_floating_types_have_weights(run):
    for kind in ("int32", "complex64", "bool"):
        with pytest.raises(subprocess.CalledProcessError):
            run(kind, 0)
