"""Seeded numbers and permutations of the core: right, uniform, the same on every machine."""

import ctypes
import os
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest

PERMUTED_8 = (2, 1, 3, 4, 0, 5, 6, 7)
PERMUTED_5 = (0, 1, 2, 3, 4)

CORE = Path(__file__).resolve().parents[2] / "csrc"


@pytest.fixture(scope="module")
def core(tmp_path_factory):
    """random.c alone, as a library."""
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    assert compiler, "a C compiler is needed"
    library = tmp_path_factory.mktemp("random") / "random.so"
    source = CORE / "base" / "random.c"
    subprocess.run(
        [*compiler.split(), "-std=gnu11", "-O1", "-shared", "-fPIC", "-o", library, source],
        check=True,
    )
    loaded = ctypes.CDLL(str(library))
    loaded.pp_mix.restype = ctypes.c_uint64
    loaded.pp_mix.argtypes = [ctypes.c_uint64] * 2
    for name in ("pp_permuted", "pp_permuted_place"):
        function = getattr(loaded, name)
        function.restype = ctypes.c_int32
        function.argtypes = [ctypes.c_uint64] * 2 + [ctypes.c_int32] * 2
    return loaded


def permutation(core, seed, index, count):
    return tuple(core.pp_permuted(seed, index, count, place) for place in range(count))


@pytest.mark.parametrize("count", [*range(1, 40), 64, 100, 255, 256, 257, 1000, 4096, 4097])
def test_permutations_are_permutations_and_run_backwards(core, count):
    for index in range(3):
        order = permutation(core, 7, index, count)
        assert sorted(order) == list(range(count))
        places = [core.pp_permuted_place(7, index, count, value) for value in order]
        assert places == list(range(count))


def chi_square(counts, cells, draws):
    expected = draws / cells
    return sum((counts[cell] - expected) ** 2 / expected for cell in range(cells))


@pytest.mark.parametrize("count", [2, 3, 5, 6, 7, 8, 12, 17, 33])
def test_every_value_is_as_likely_at_every_place(core, count):
    """Chi-square of `count` cells; the limit is passed by chance once in 10^5 tests of a place."""
    draws = 2000 * count
    for place in {0, 1, count - 1}:
        counts = Counter(core.pp_permuted(11, i, count, place) for i in range(draws))
        freedom = count - 1
        # Wilson-Hilferty: the 1 - 10^-5 quantile of chi-square.
        limit = freedom * (1 - 2 / (9 * freedom) + 4.265 * (2 / (9 * freedom)) ** 0.5) ** 3
        assert chi_square(counts, count, draws) < limit


@pytest.mark.parametrize("count", [3, 4, 5])
def test_every_order_is_as_likely(core, count):
    """The first m of an order are drawn together, so pairs matter as well."""
    draws = 60_000
    orders = Counter(permutation(core, 13, i, count) for i in range(draws))
    cells = {3: 6, 4: 24, 5: 120}[count]
    assert len(orders) == cells
    expected = draws / cells
    statistic = sum((seen - expected) ** 2 / expected for seen in orders.values())
    freedom = cells - 1
    limit = freedom * (1 - 2 / (9 * freedom) + 4.265 * (2 / (9 * freedom)) ** 0.5) ** 3
    assert statistic < limit


def test_streams_are_the_same_on_every_machine(core):
    """splitmix64 from seed 0 begins with these numbers; draws follow from it."""
    first = [core.pp_mix(0, index) for index in range(3)]
    assert first == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert permutation(core, 0, 0, 8) == PERMUTED_8
    assert permutation(core, 1, 2, 5) == PERMUTED_5
