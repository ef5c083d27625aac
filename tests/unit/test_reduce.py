"""The element kernels: every operation on every type, against NumPy."""

import itertools
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
from support.modes import MODES, WHY_NONE, changed

from pypartial._core import ffi, lib

INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
HALVES = {"float16": np.dtype("f2"), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
FLOATS = [*HALVES, "float32", "float64", "longdouble"]
COMPLEXES = ["complex64", "complex128", "clongdouble"]
TYPES = [*INTEGERS, *FLOATS, *COMPLEXES, "bool"]
ARITHMETIC, ORDER = ["SUM", "PROD"], ["MIN", "MAX"]
LOGICAL, BITWISE = ["LAND", "LOR", "LXOR"], ["BAND", "BOR", "BXOR"]
OPS = [*ARITHMETIC, *ORDER, *LOGICAL, *BITWISE]

DEFINED = {
    *itertools.product(ARITHMETIC, [*INTEGERS, *FLOATS, *COMPLEXES]),
    *itertools.product(ORDER, [*INTEGERS, *FLOATS]),
    *itertools.product(LOGICAL, [*INTEGERS, "bool"]),
    *itertools.product(BITWISE, INTEGERS),
}
EVERY_PAIR = sorted(itertools.product(OPS, TYPES))
# Around the vector widths and around the blocks in which the 16-bit floats are converted.
SIZES = [0, 1, 2, 7, 8, 9, 31, 511, 512, 513, 100_003]


def op_number(op):
    return getattr(lib, "PP_" + op)


def type_number(name):
    return getattr(lib, "PP_" + name.upper())


def dtype_of(name):
    return HALVES.get(name) or np.dtype(name)


def address(array):
    return ffi.cast("void *", array.ctypes.data)


def reduce_local(op, name, given, kept, kept_is_left):
    """The status; the result is in `kept`."""
    return lib.pp_reduce_local(
        op_number(op), type_number(name), address(given), address(kept), kept.size, kept_is_left
    )


def reduced(op, name, left, right, kept_is_left):
    """left (op) right by the kernel; checks that the operand that is given stays as it was."""
    kept, given = (left.copy(), right.copy()) if kept_is_left else (right.copy(), left.copy())
    before = given.tobytes()
    assert reduce_local(op, name, given, kept, kept_is_left) == lib.PP_OK
    assert given.tobytes() == before
    return kept


def refused(status, *words):
    assert status == lib.PP_ERR_ARGUMENT
    text = ffi.string(lib.pp_error_text()).decode()
    for word in words:
        assert word in text
    return True


# ---- the oracle -------------------------------------------------------------------------------
ELEMENTWISE = {
    "SUM": np.add,
    "PROD": np.multiply,
    "MIN": np.minimum,
    "MAX": np.maximum,
    "LAND": np.logical_and,
    "LOR": np.logical_or,
    "LXOR": np.logical_xor,
    "BAND": np.bitwise_and,
    "BOR": np.bitwise_or,
    "BXOR": np.bitwise_xor,
}


def ordered(op, left, right):
    """minimum and maximum of IEEE 754-2019 (NumPy's do not order -0 and 0)."""
    left_first = (left < right) | ((left == right) & np.signbit(left))
    result = np.where(left_first == (op == "MIN"), left, right)
    return np.where(np.isnan(left) | np.isnan(right), left.dtype.type(np.nan), result)


def product_of_parts(left, right):
    """The plain formula; NumPy's own may fuse the multiplications and additions."""
    result = np.empty_like(left)
    result.real = left.real * right.real - left.imag * right.imag
    result.imag = left.real * right.imag + left.imag * right.real
    return result


def expected(op, name, left, right):
    with np.errstate(all="ignore"):
        if name in HALVES:
            wide = expected(op, "float32", left.astype("f4"), right.astype("f4"))
            return wide.astype(left.dtype)
        if name in FLOATS and op in ORDER:
            return ordered(op, left, right)
        if name in COMPLEXES and op == "PROD":
            return product_of_parts(left, right)
        return ELEMENTWISE[op](left, right).astype(left.dtype)


def parts(array):
    """Real and imaginary parts as numbers of their own; anything else as it is."""
    return array.view(array.real.dtype) if array.dtype.kind == "c" else array


def same(result, wanted):
    """Equal as values, with NaN equal to NaN and -0 different from 0."""
    result, wanted = parts(result), parts(wanted)
    if result.dtype.kind in "iub":
        return np.array_equal(result, wanted)
    nan = np.isnan(wanted)
    return (
        np.array_equal(np.isnan(result), nan)
        and np.array_equal(result[~nan], wanted[~nan])
        and np.array_equal(np.signbit(result[~nan]), np.signbit(wanted[~nan]))
    )


def sample(name, size, seed):
    rng = np.random.default_rng([seed, size])
    dtype = dtype_of(name)
    if name == "bool":
        return rng.integers(0, 2, size).astype(bool)
    if name in INTEGERS:
        values = rng.integers(0, 256, size * dtype.itemsize, dtype="u1").view(dtype)
        return np.where(rng.random(size) < 0.2, dtype.type(0), values)
    numbers = rng.normal(size=(2, size)) * 2.0 ** rng.integers(-12, 13, (2, size))
    if name in COMPLEXES:
        return (numbers[0] + 1j * numbers[1]).astype(dtype)
    return numbers[0].astype(dtype)


def special(name):
    """Every pair of the values at which the type is likely to go wrong."""
    dtype = dtype_of(name)
    if name == "bool":
        values = np.array([False, True])
    elif name in INTEGERS:
        info = np.iinfo(dtype)
        values = np.array(
            [
                info.min,
                info.max,
                info.min + 1,
                info.max - 1,
                0,
                1,
                2,
                info.max // 3,
                info.max // 2,
                info.max // 2 + 1,
            ],
            dtype,
        )
    else:
        info = ml_dtypes.finfo(dtype)
        numbers = [
            0,
            1,
            1.5,
            3,
            np.inf,
            np.nan,
            info.max,
            info.tiny,
            info.smallest_subnormal,
            info.tiny / 2,
            info.eps,
            1 + info.eps,
            1 + 2 * info.eps,
        ]
        values = np.array(numbers, parts(np.empty(0, dtype)).dtype)
        values = np.concatenate([values, -values])
        if name in COMPLEXES:
            grid = np.array(list(itertools.product(values, values)))
            values = np.ascontiguousarray(grid).view(dtype).ravel()
    left, right = np.meshgrid(values, values)
    return left.ravel(), right.ravel()


# ---- names ------------------------------------------------------------------------------------
def test_every_operation_and_type_is_in_the_matrix():
    assert sorted(map(op_number, OPS)) == list(range(lib.PP_OP_COUNT))
    assert sorted(map(type_number, TYPES)) == list(range(lib.PP_TYPE_COUNT))


@pytest.mark.parametrize("name", TYPES)
def test_type(name):
    assert lib.pp_type_bytes(type_number(name)) == dtype_of(name).itemsize
    assert ffi.string(lib.pp_type_name(type_number(name))).decode() == name


@pytest.mark.parametrize("op", OPS)
def test_op_name(op):
    assert ffi.string(lib.pp_op_name(op_number(op))).decode() == op


@pytest.mark.parametrize("number", [-1, 17, 2**31 - 1, -(2**31)])
def test_unknown_numbers(number):
    assert lib.pp_type_bytes(number) == 0
    assert ffi.string(lib.pp_type_name(number)) == b"unknown"
    assert ffi.string(lib.pp_op_name(number)) == b"unknown"
    assert lib.pp_op_supports(lib.PP_SUM, number) == 0
    assert lib.pp_op_supports(number, lib.PP_INT32) == 0
    values = np.zeros(2, "i4")
    one, other = address(values[:1]), address(values[1:])
    for op, kind in [(number, lib.PP_INT32), (lib.PP_SUM, number)]:
        assert refused(lib.pp_reduce_local(op, kind, one, other, 1, 1), str(number))


# ---- values -----------------------------------------------------------------------------------
@pytest.mark.parametrize("op, name", EVERY_PAIR)
def test_supports(op, name):
    assert lib.pp_op_supports(op_number(op), type_number(name)) == ((op, name) in DEFINED)


@pytest.mark.parametrize("op, name", sorted(set(EVERY_PAIR) - DEFINED))
def test_undefined_pair_is_refused(op, name):
    kept, given = np.ones(3, dtype_of(name)), np.ones(3, dtype_of(name))
    assert refused(reduce_local(op, name, given, kept, 1), op, name)
    assert np.array_equal(kept, given)


@pytest.mark.parametrize("kept_is_left", [1, 0])
@pytest.mark.parametrize("op, name", sorted(DEFINED))
def test_random_values(op, name, kept_is_left):
    for size in SIZES:
        left, right = sample(name, size, 1), sample(name, size, 2)
        result = reduced(op, name, left, right, kept_is_left)
        assert same(result, expected(op, name, left, right)), size


@pytest.mark.parametrize("kept_is_left", [1, 0])
@pytest.mark.parametrize("op, name", sorted(DEFINED))
def test_special_values(op, name, kept_is_left):
    left, right = special(name)
    result = reduced(op, name, left, right, kept_is_left)
    assert same(result, expected(op, name, left, right))


@pytest.mark.parametrize("op", ["SUM", "PROD", "MIN", "MAX"])
@pytest.mark.parametrize("name", sorted(HALVES))
def test_every_half(op, name):
    """All 65536 numbers, each with one that makes the operation keep it and one that does not."""
    left = np.arange(1 << 16, dtype="u2").view(dtype_of(name))
    for other in {"SUM": (0, 1.25), "PROD": (1, 0.3)}.get(op, (0, 1e-3)):
        right = np.full_like(left, other)
        assert same(reduced(op, name, left, right, 1), expected(op, name, left, right))


@pytest.mark.parametrize("name", sorted(HALVES))
def test_random_pairs_of_halves(name):
    """Bit patterns drawn evenly: as many subnormals, ties and overflows as the format has."""
    bits = np.random.default_rng(3).integers(0, 1 << 16, (2, 1 << 20), dtype="u2")
    left, right = bits.view(dtype_of(name))
    for op in ["SUM", "PROD", "MIN", "MAX"]:
        assert same(reduced(op, name, left, right, 1), expected(op, name, left, right))


@pytest.mark.parametrize("op, name", sorted(DEFINED))
def test_the_order_of_the_operands_does_not_change_a_bit(op, name):
    """Ranks that hold the operands the other way round agree, on NaN and -0 too."""
    left, right = special(name)
    results = [
        reduced(op, name, a, b, keep) for a, b in [(left, right), (right, left)] for keep in (0, 1)
    ]
    # A long double of 16 bytes has 6 that belong to no value.
    significant = 10 if name in ("longdouble", "clongdouble") else None
    width = parts(left).itemsize
    columns = [parts(r).view("u1").reshape(-1, width)[:, :significant] for r in results]
    for column in columns[1:]:
        assert np.array_equal(column, columns[0])


@pytest.mark.parametrize("op", ["SUM", "PROD", "MIN", "MAX"])
@pytest.mark.parametrize(
    "name, canonical",
    [
        ("float16", 0x7E00),
        ("bfloat16", 0x7FC0),
        ("float32", 0x7FC00000),
        ("float64", 0x7FF8000000000000),
    ],
)
def test_nan_is_canonical(op, name, canonical):
    dtype = dtype_of(name)
    bits = np.dtype(f"u{dtype.itemsize}")
    sign, digit = 1 << (8 * dtype.itemsize - 1), 1
    nans = np.array(
        [canonical, canonical | sign, canonical | digit, canonical | sign | digit], bits
    ).view(dtype)
    left = np.concatenate([nans, np.ones(4, dtype), nans])
    right = np.concatenate([np.ones(4, dtype), nans, nans[::-1]])
    for kept_is_left in (0, 1):
        result = reduced(op, name, left, right, kept_is_left).view(bits)
        assert set(result.tolist()) == {canonical}


@pytest.mark.parametrize("name", [*INTEGERS, "bool"])
@pytest.mark.parametrize("op", LOGICAL)
def test_logical_operations_give_0_or_1(op, name):
    raw = np.array([0, 1, 2, 64, 127], "u1")
    left, right = (
        side.ravel().astype("u1" if name == "bool" else name) for side in np.meshgrid(raw, raw)
    )
    wanted = ELEMENTWISE[op](left, right).astype(left.dtype)
    assert np.array_equal(reduced(op, name, left, right, 1), wanted)


# ---- refused buffers --------------------------------------------------------------------------
def local_i4(given, kept, count):
    return lib.pp_reduce_local(lib.PP_SUM, lib.PP_INT32, given, kept, count, 1)


def test_null_buffers():
    values = np.zeros(4, "i4")
    assert refused(local_i4(ffi.NULL, address(values), 4), "in is NULL", "4")
    assert refused(local_i4(address(values), ffi.NULL, 4), "inout is NULL", "4")
    assert local_i4(ffi.NULL, ffi.NULL, 0) == lib.PP_OK


def test_too_many_elements():
    one, other = np.zeros(1, "i4"), np.zeros(1, "i4")
    for count in (2**62, 2**64 - 1, 2**61):
        assert refused(local_i4(address(one), address(other), count), str(count), "int32")


def test_overlapping_buffers():
    values = np.arange(8, dtype="i4")
    assert refused(local_i4(address(values), address(values), 4), "overlap")
    assert refused(local_i4(address(values[3:]), address(values), 4), "overlap")
    assert refused(local_i4(address(values), address(values[3:]), 4), "overlap")
    assert np.array_equal(values, np.arange(8))
    assert local_i4(address(values), address(values[4:]), 4) == lib.PP_OK
    assert np.array_equal(values[4:], [4, 6, 8, 10])


def test_unaligned_buffers():
    raw, aligned = np.zeros(20, "u1"), np.zeros(4, "i4")
    off = ffi.cast("void *", raw.ctypes.data + 1)
    assert refused(local_i4(off, address(aligned), 4), "in is not aligned", "int32")
    assert refused(local_i4(address(aligned), off, 4), "inout is not aligned", "int32")


# ---- the thread's modes -----------------------------------------------------------------------


@pytest.mark.skipif(bool(WHY_NONE), reason=WHY_NONE)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("op", "name"), sorted(pair for pair in DEFINED if pair[1] in FLOATS + COMPLEXES)
)
def test_the_modes_of_the_thread_do_not_matter(op, name, mode):
    """Which thread of which rank reduces depends on time, and the result must not."""
    dtype = dtype_of(name)
    rng = np.random.default_rng(3)
    # Sums of subnormal numbers, and products that are some; and what has to be rounded.
    scale = 1e-4 if dtype.itemsize == 2 else 1e-160 if name in ("float64", "complex128") else 1e-20
    left, right = ((rng.standard_normal(1000) * scale).astype(dtype) for _ in range(2))
    bits = np.finfo(dtype).bits if name not in HALVES else 16
    if op != "PROD" and bits <= 64:
        for values in (left, right):
            values.view(f"u{bits // 8}")[::2] >>= {16: 5, 32: 7, 64: 10}[bits]
    kept = left.copy()
    assert reduce_local(op, name, right, kept, True) == lib.PP_OK
    with changed(mode):
        again = left.copy()
        status = reduce_local(op, name, right, again, True)
    assert status == lib.PP_OK
    assert again.tobytes() == kept.tobytes()


TRAPS = """
import ctypes
import numpy as np
from pypartial._core import ffi, lib

INVALID, DIVISION, OVERFLOW = 1, 4, 8  # of fenv.h
values = np.full(9, np.finfo("{name}").max, "{name}")
one = np.ones(1, "{name}")
into = values.copy()
where = [ffi.cast("void *", array.ctypes.data) for array in (values, into)]
libm = ctypes.CDLL("libm.so.6")


def enable():
    assert libm.feenableexcept(INVALID | DIVISION | OVERFLOW) != -1


def add():
    status = lib.pp_reduce_local(lib.PP_SUM, lib.PP_{type}, *where, into.size, True)
    assert status == lib.PP_OK


if {late}:
    assert libm.feclearexcept(OVERFLOW) == 0
    add()
    assert libm.fetestexcept(OVERFLOW) == 0
    enable()
else:
    enable()
    for _ in range(2):  # what the first sum has raised would trap in the second
        add()
    assert libm.fegetexcept() == INVALID | DIVISION | OVERFLOW
assert (one + one)[0] == 2  # ... or here
assert libm.fedisableexcept(INVALID | DIVISION | OVERFLOW) != -1
assert np.isinf(into).all()
"""


@pytest.mark.skipif(bool(WHY_NONE), reason=WHY_NONE)
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("name", ["float32", "float64", "longdouble"])
def test_an_overflow_does_not_trap_in_an_application_that_traps_its_own(name, late):
    """Whether it enables traps before the sum or behind it."""
    script = TRAPS.format(name=name, type=name.upper(), late=late)
    made = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert made.returncode == 0, (made.returncode, made.stderr)
