"""What users pass as buffers."""

import array
import ctypes
import subprocess
import sys

import numpy as np
import pytest
from support.dlpack import Capsule, address
from support.pytorch import need_torch

import pypartial as pp
from pypartial._buffer import Piece, parse_allreduce
from pypartial._elements import type_name

MPI = pytest.importorskip("mpi4py.MPI")
ml_dtypes = pytest.importorskip("ml_dtypes")


def pair(dtype="f4", shape=6):
    return np.ones(shape, dtype), np.zeros(shape, dtype)


def refused(text, send, receive):
    with pytest.raises(pp.ArgumentError, match=text):
        parse_allreduce(send, receive)


# ---- accepted -----------------------------------------------------------------------------------


def test_arrays():
    send, receive = pair()
    vector = parse_allreduce(send, receive)
    assert vector.pieces == [Piece(address(send), address(receive), 6)]
    assert vector.dtype == np.float32
    assert vector.count == 6


@pytest.mark.parametrize("in_place", [MPI.IN_PLACE, None])
def test_in_place(in_place):
    _, receive = pair()
    assert parse_allreduce(in_place, receive).pieces == [Piece(None, address(receive), 6)]


@pytest.mark.parametrize("kind", [list, tuple])
def test_specifications(kind):
    send, receive = pair()
    for spec in ([send, 4], [send, 4, MPI.FLOAT], [send, 4, "f"], [send, np.int64(4)]):
        assert parse_allreduce(kind(spec), kind([receive, 4])).count == 4
    for spec in ([send], [send, MPI.FLOAT], [send, None, MPI.FLOAT], [send, "f"], [send, None]):
        assert parse_allreduce(kind(spec), receive).count == 6


@pytest.mark.parametrize("kind", [list, tuple])
def test_list_of_buffers(kind):
    (g1, o1), (g2, o2) = pair(shape=3), pair(shape=(2, 2))
    vector = parse_allreduce(kind([g1, g2]), kind([o1, o2]))
    assert [piece.count for piece in vector.pieces] == [3, 4]
    assert vector.count == 7
    assert parse_allreduce(MPI.IN_PLACE, kind([o1, o2])).pieces[1] == Piece(None, address(o2), 4)
    mixed = parse_allreduce([g1, MPI.IN_PLACE], [[o1, 3, MPI.FLOAT], o2])
    assert [piece.send for piece in mixed.pieces] == [address(g1), None]
    first_in_place = parse_allreduce([None, g2], [o1, o2])
    assert [piece.send for piece in first_in_place.pieces] == [None, address(g2)]


def test_list_of_specifications():
    (g1, o1), (g2, o2) = pair(), pair()
    vector = parse_allreduce([(g1, 2), g2], [(o1, 2), [o2, MPI.FLOAT]])
    assert [piece.count for piece in vector.pieces] == [2, 6]
    vector = parse_allreduce([g1, (g2, 1)], [o1, (o2, 1)])
    assert [piece.count for piece in vector.pieces] == [6, 1]


def test_other_objects_with_memory():
    receive = np.zeros(4)
    assert parse_allreduce(array.array("d", range(4)), receive).count == 4
    assert parse_allreduce(memoryview(np.ones((2, 2))), receive).count == 4
    assert parse_allreduce([bytes(32), MPI.DOUBLE], [bytearray(32), MPI.DOUBLE]).count == 4
    assert parse_allreduce(b"1234", bytearray(4)).dtype == np.uint8


def test_a_bytearray_is_pinned():
    receive = bytearray(8)
    vector = parse_allreduce(bytes(8), receive)
    with pytest.raises(BufferError):
        receive.append(1)
    del vector
    receive.append(1)


def test_no_elements():
    assert parse_allreduce(np.empty(0), np.empty(0)).count == 0
    assert parse_allreduce([np.ones(3), 0], [np.ones(2), 0]).count == 0
    assert parse_allreduce(bytearray(), bytearray()).count == 0


def test_fortran_order():
    send, receive = np.asfortranarray(np.ones((2, 3))), np.zeros((2, 3), order="F")
    assert parse_allreduce(send, receive).count == 6
    refused("opposite memory order", send, np.zeros((2, 3)))
    assert parse_allreduce(send, np.zeros(6)).count == 6


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        ("?", "bool"),
        ("b", "int8"),
        ("h", "int16"),
        ("i", "int32"),
        ("q", "int64"),
        ("B", "uint8"),
        ("H", "uint16"),
        ("I", "uint32"),
        ("Q", "uint64"),
        ("e", "float16"),
        ("f", "float32"),
        ("d", "float64"),
        ("g", "longdouble"),
        ("F", "complex64"),
        ("D", "complex128"),
        ("G", "clongdouble"),
        (ml_dtypes.bfloat16, "bfloat16"),
    ],
)
def test_element_types(dtype, name):
    send, receive = pair(dtype)
    assert type_name(parse_allreduce(send, receive).dtype) == name


@pytest.mark.parametrize("code", ["l", "L", "p", "P"])
def test_integers_go_by_their_size(code):
    dtype = np.dtype(code)
    assert type_name(dtype) == f"{'u' if code.isupper() else ''}int{8 * dtype.itemsize}"


@pytest.mark.parametrize(
    ("datatype", "dtype"),
    [
        (MPI.FLOAT, "f4"),
        (MPI.DOUBLE, "f8"),
        (MPI.LONG_DOUBLE, "g"),
        (MPI.C_FLOAT_COMPLEX, "c8"),
        (MPI.C_DOUBLE_COMPLEX, "c16"),
        (MPI.C_BOOL, "?"),
        (MPI.SIGNED_CHAR, "i1"),
        (MPI.UNSIGNED_CHAR, "u1"),
        (MPI.BYTE, "u1"),
        (MPI.INT, "i4"),
        (MPI.LONG, "l"),
        (MPI.INT64_T, "i8"),
        (MPI.UINT16_T, "u2"),
        (MPI.AINT, "p"),
    ],
)
def test_mpi_datatypes(datatype, dtype):
    send, receive = pair(dtype)
    assert parse_allreduce([send, 6, datatype], [receive, datatype]).dtype == np.dtype(dtype)


class Exporter:
    """A DLPack exporter without the buffer protocol, as torch's CPU tensors are."""

    def __init__(self, values):
        self.values = values

    def __dlpack_device__(self):
        return self.values.__dlpack_device__()

    def __dlpack__(self, **options):
        return self.values.__dlpack__(**options)


class OldExporter(Exporter):
    """One of the first DLPack version, which cannot say whether it is read-only."""

    def __dlpack__(self, stream=None):
        return self.values.__dlpack__()


@pytest.mark.parametrize("exporter", [Exporter, OldExporter])
def test_dlpack(exporter):
    send, receive = pair()
    vector = parse_allreduce(exporter(send), exporter(receive))
    assert vector.pieces == [Piece(address(send), address(receive), 6)]


BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
# All that ml_dtypes has besides: some have a character, or a kind, of a type of NumPy's.
OTHERS = [
    dtype
    for dtype in map(vars(ml_dtypes).get, ml_dtypes.__all__)
    if isinstance(dtype, type) and issubclass(dtype, np.generic) and dtype != BFLOAT16
]


@pytest.mark.parametrize("versioned", [True, False])
def test_bfloat16_by_dlpack(versioned):
    """NumPy does not read it from a capsule; what it says about its own types stays in force."""
    with pytest.raises((BufferError, RuntimeError)):
        np.from_dlpack(Capsule(np.zeros(6, "u2"), versioned=versioned))
    send, receive = np.arange(6, dtype=BFLOAT16).reshape(2, 3), np.zeros((2, 3), "u2")
    exporters = [Capsule(bits, versioned=versioned) for bits in (send.view("u2"), receive)]
    vector = parse_allreduce(*exporters)
    assert vector.pieces == [Piece(address(send), address(receive), 6)]
    assert vector.dtype == BFLOAT16
    assert type_name(vector.dtype) == "bfloat16"
    arrays = [owner[1] for owner in vector.owners]
    assert np.array_equal(arrays[0], send)
    arrays[1][:] = send
    assert np.array_equal(receive, send.view("u2"))
    assert [exporter.in_use() for exporter in exporters] == [1, 1]
    del vector
    assert [exporter.in_use() for exporter in exporters] == [1, 1]
    del arrays
    assert [exporter.in_use() for exporter in exporters] == [0, 0]


@pytest.mark.parametrize("name", ["PyCapsule_IsValid", "PyCapsule_GetPointer"])
def test_types_that_another_library_gave_pythons_functions_do_not_matter_and_stay(
    monkeypatch, name
):
    """`ctypes.pythonapi` is one object for the whole process."""
    shared, wrong = getattr(ctypes.pythonapi, name), (ctypes.c_double,)
    monkeypatch.setattr(shared, "argtypes", wrong)
    monkeypatch.setattr(shared, "restype", ctypes.c_char)
    assert parse_allreduce(np.ones(6, BFLOAT16), Capsule(np.zeros(6, "u2"))).count == 6
    assert (shared.argtypes, shared.restype) == (wrong, ctypes.c_char)


def test_bfloat16_by_dlpack_goes_with_arrays():
    send, receive = np.ones(6, BFLOAT16), np.zeros(6, "u2")
    assert parse_allreduce(send, Capsule(receive)).count == 6
    assert parse_allreduce(Capsule(receive), send).count == 6
    assert parse_allreduce(Capsule(receive[:0]), send[:0]).count == 0
    refused("sendbuf has dtype float32 and recvbuf bfloat16", np.ones(6, "f4"), Capsule(receive))
    refused("overlap", Capsule(receive[:4]), Capsule(receive[2:]))


def test_wrong_bfloat16_by_dlpack():
    send, receive = np.ones(6, BFLOAT16), np.zeros(12, "u2")
    refused("recvbuf is read-only", send, Capsule(receive[:6], readonly=True))
    assert parse_allreduce(Capsule(receive[:6], readonly=True), send).count == 6
    refused(r"not contiguous \(shape \(6,\), strides \(4,\)", send, Capsule(receive[::2]))


@pytest.mark.parametrize(
    "dtype",
    [(4, 32, 1), (4, 16, 2), (2, 32, 4), (10, 8, 1), (0, 12, 1), (3, 64, 1)],
)
def test_other_elements_by_dlpack_are_refused(dtype):
    """Such as float8."""
    send = np.ones(6, BFLOAT16)
    wrong = Capsule(send.view("u2"), dtype=dtype)
    code, bits, lanes = dtype
    text = rf"recvbuf has elements of type DLPack type \(code {code}, {bits} bits, {lanes} lanes\)"
    refused(text, send, wrong)


@pytest.mark.parametrize(("dtype", "name"), [((6, 16, 1), "=b2"), ((0, 128, 1), "=i16")])
def test_types_by_dlpack_that_numpy_does_not_have_are_refused(dtype, name):
    text = f"recvbuf has elements of type {name}, which cannot be reduced"
    refused(text, np.ones(6, "f4"), Capsule(np.zeros(6, "u2"), dtype=dtype))


def test_long_double_by_dlpack_is_refused():
    """An export does not say which type of so many bits it has."""
    values, text = (
        np.zeros(6, "g"),
        "DLPack export failed: elements of 128 bits may be long doubles",
    )
    refused(f"recvbuf is .*{text}", values.copy(), Capsule(values, dtype=(2, 128, 1)))


@pytest.mark.parametrize("versioned", [True, False])
@pytest.mark.parametrize(
    ("dtype", "element"),
    [
        ("i1", (0, 8, 1)),
        ("u8", (1, 64, 1)),
        ("f2", (2, 16, 1)),
        ("f4", (2, 32, 1)),
        ("c16", (5, 128, 1)),
        ("?", (6, 8, 1)),
    ],
)
def test_every_kind_of_elements_by_dlpack(dtype, element, versioned):
    """Writable where exporters of the first versions cannot say so, whatever NumPy makes of it."""
    send, receive = pair(dtype)
    exporters = [Capsule(a, dtype=element, versioned=versioned) for a in (send, receive)]
    vector = parse_allreduce(*exporters)
    assert vector.dtype == np.dtype(dtype)
    assert vector.pieces == [Piece(address(send), address(receive), 6)]
    assert [exporter.in_use() for exporter in exporters] == [1, 1]
    none = [Capsule(a[:0], dtype=element, versioned=versioned) for a in (send, receive)]
    assert parse_allreduce(*none).count == 0
    single = [
        Capsule(a[:1].reshape(()), dtype=element, versioned=versioned) for a in (send, receive)
    ]
    assert parse_allreduce(*single).count == 1


def test_an_exporter_that_knows_versions_but_gives_a_capsule_of_the_first():
    class Knows(Capsule):
        def __dlpack__(self, *, max_version=None, **options):
            return super().__dlpack__(**options)

    send, receive = pair()
    vector = parse_allreduce(send, Knows(receive, dtype=(2, 32, 1)))
    assert vector.pieces[0].recv == address(receive)


def test_memory_of_a_device_is_not_read_as_the_hosts():
    """Although the exporter says that it is the host's."""
    send, receive = np.ones(6, BFLOAT16), np.zeros(6, "u2")
    refused("whose DLPack export failed", send, Capsule(receive, device=(2, 0)))
    refused("whose DLPack export failed", send, Capsule(receive, device=(2, 0), versioned=False))


@pytest.mark.parametrize("element", [(4, 16, 1), (1, 16, 1)], ids=["bfloat16", "uint16"])
def test_a_copy_is_refused(element):
    """What is written into it its owner never sees, and a Start not what the owner writes."""
    copy = Capsule(np.zeros(6, "u2"), dtype=element)
    copy.copied = True
    array = np.ones(6, BFLOAT16 if element[0] == 4 else "u2")
    refused("recvbuf is .*, which exports only a copy by DLPack", array, copy)
    refused("sendbuf is .*, which exports only a copy by DLPack", copy, array)


def test_an_export_without_memory_is_refused():
    class Nowhere(Capsule):
        def __dlpack__(self, **options):
            capsule = super().__dlpack__(**options)
            tensor = self.kept[-1][0].tensor
            tensor.data, tensor.byte_offset = None, 0
            return capsule

    text = "DLPack export failed: it has elements, but its address is 0"
    refused(text, np.ones(6, "f4"), Nowhere(np.zeros(6, "f4"), dtype=(2, 32, 1)))


def test_an_export_with_a_negative_length_is_refused():
    class Negative(Capsule):
        def __dlpack__(self, **options):
            capsule = super().__dlpack__(**options)
            self.kept[-1][0].tensor.shape[0] = -6
            return capsule

    text = "DLPack export failed: .*negative"
    refused(text, np.ones(6, "f4"), Negative(np.zeros(6, "f4"), dtype=(2, 32, 1)))


def test_a_capsule_of_an_unknown_version_is_refused():
    send, receive = np.ones(6, BFLOAT16), np.zeros(6, "u2")
    refused("whose DLPack export failed", send, Capsule(receive, major=2))


def test_bfloat16_by_dlpack_without_ml_dtypes(monkeypatch):
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    exporter = Capsule(np.zeros(6, "u2"))
    refused("recvbuf is .*of bfloat16 elements, which need ml_dtypes", np.ones(6, "f4"), exporter)


def test_bfloat16_tensors_of_torch():
    need_torch()
    import torch

    send, receive = (torch.full((3, 2), value, dtype=torch.bfloat16) for value in (1.5, 0))
    vector = parse_allreduce(send, receive)
    assert vector.pieces == [Piece(send.data_ptr(), receive.data_ptr(), 6)]
    assert vector.dtype == BFLOAT16
    vector.owners[1][1][:] = vector.owners[0][1]
    assert torch.equal(send, receive)
    refused("opposite memory order", send, receive.t())
    refused("negation is still to be done", torch._neg_view(send), receive)
    refused("conjugation or negation", torch.ones(2, dtype=torch.complex64).conj().imag, receive)
    refused("recvbuf is not contiguous", send[:, :1], receive[:, :1])


# ---- refused ------------------------------------------------------------------------------------


def test_read_only_memory():
    send, receive = pair()
    receive.flags.writeable = False
    refused("recvbuf is read-only", send, receive)
    assert parse_allreduce(receive, send).count == 6
    refused("recvbuf is read-only", bytes(4), bytes(4))
    refused(r"recvbuf\[1\] is read-only", [send, send], [np.zeros(6, "f4"), receive])


@pytest.mark.skipif(np.lib.NumpyVersion(np.__version__) < "2.1.0", reason="needs DLPack 1.0")
def test_read_only_dlpack():
    send, receive = pair()
    receive.flags.writeable = False
    refused("recvbuf is read-only", send, Exporter(receive))


def test_memory_that_is_not_contiguous():
    send, receive = pair(shape=12)
    refused(r"sendbuf is not contiguous \(shape \(6,\), strides \(8,\)", send[::2], receive[:6])
    refused("recvbuf is not contiguous", send[:6], receive[::2])
    refused("recvbuf is not contiguous", send, receive[::-1])
    refused("not contiguous", memoryview(send)[::2], receive[:6])


def test_counts_that_differ():
    send, receive = pair()
    refused("sendbuf has 5 elements and recvbuf 6", send[:5], receive)
    refused("sendbuf has 6 elements and recvbuf 3", send, [receive, 3])
    refused(
        r"sendbuf\[1\] has 6 elements and recvbuf\[1\] 2",
        [send, send],
        [receive, np.empty(2, "f4")],
    )


def test_counts_beyond_the_buffer():
    send, receive = pair()
    refused("sendbuf: the count is 7, but the buffer has 6 elements", [send, 7], receive)
    refused("the count is -1", send, [receive, -1])
    refused("not a count", send, [receive, (6, 0)])
    refused("not a count", send, [receive, 3, 3])
    refused("4 items", send, [receive, 3, 0, MPI.FLOAT])
    refused("10 bytes, not a multiple of the 8", [bytearray(10), MPI.DOUBLE], np.zeros(1))


def test_lists_that_do_not_go_together():
    (g1, o1), (g2, o2) = pair(), pair()
    refused("list of 2 buffers and recvbuf one of 1", [g1, g2], o1)
    refused("list of 1 buffers and recvbuf one of 2", g1, [o1, o2])
    refused("recvbuf is an empty list", [], [])
    refused("one dtype", [g1, np.ones(2)], [o1, np.zeros(2)])


def test_types_that_differ():
    refused("sendbuf has dtype float64 and recvbuf float32", np.ones(3), np.zeros(3, "f4"))
    refused("sendbuf has dtype int32 and recvbuf uint32", np.ones(3, "i4"), np.zeros(3, "u4"))
    refused(
        "recvbuf holds float32 elements but is passed as MPI_DOUBLE, which is float64",
        np.ones(3),
        [np.zeros(6, "f4"), MPI.DOUBLE],
    )
    refused("holds float32", np.ones(3), [np.zeros(6, "f4"), MPI.BYTE])


@pytest.mark.parametrize(
    "dtype",
    ["S4", "U2", "O", "M8[s]", "m8[s]", "f4,i4", *OTHERS],
)
def test_types_that_cannot_be_reduced(dtype):
    refused("cannot be reduced|not know", np.empty(2, dtype), np.empty(2, dtype))


@pytest.mark.parametrize("datatype", [MPI.CHAR, MPI.WCHAR, MPI.LOGICAL, MPI.DOUBLE_INT])
def test_mpi_types_that_cannot_be_reduced(datatype):
    refused("cannot be reduced", [bytearray(64), datatype], [bytearray(64), datatype])


@pytest.mark.skipif(np.finfo("g").nmant == 112, reason="a long double is such a number here")
@pytest.mark.parametrize("datatype", [MPI.REAL16, MPI.COMPLEX32], ids=["REAL16", "COMPLEX32"])
def test_numbers_of_16_bytes_are_no_long_doubles(datatype):
    text = "cannot be reduced|DATATYPE_NULL"  # an MPI may have none
    refused(text, [bytearray(64), datatype], [bytearray(64), datatype])


def test_odd_datatypes():
    receive = np.zeros(4)
    refused("MPI_DATATYPE_NULL", [receive, MPI.DATATYPE_NULL], np.zeros(4))
    refused("'what' is not a typecode", [receive, "what"], np.zeros(4))
    huge = "1000000000000000000f4"
    refused(f"{huge!r} is not a typecode", [receive, huge], np.zeros(4))
    derived = MPI.DOUBLE.Create_contiguous(2)
    refused("derived datatype", [receive, 2, derived], np.zeros(4))
    derived.Free()


def test_foreign_byte_order():
    dtype = np.dtype("f8").newbyteorder()
    refused("native byte order", np.ones(3, dtype), np.ones(3, dtype))
    refused("native byte order", [bytearray(24), dtype.str], [bytearray(24), dtype.str])
    refused("native byte order", [np.ones(3), dtype.str], np.ones(3))


@pytest.mark.parametrize("spelled", ["S", "U", "V", "S4", "M8[s]", "(2,)f4", "float8_e4m3fnuz"])
def test_typecodes_that_cannot_be_reduced(spelled):
    """Some have no size."""
    refused("recvbuf has dtype .*cannot be reduced", [bytes(8), spelled], [bytearray(8), spelled])


def test_memory_that_is_not_aligned():
    raw = np.zeros(33, np.uint8)
    refused("recvbuf is not aligned", np.ones(4), raw[1:].view("f8"))


def test_overlaps():
    memory = np.zeros(12)
    refused("sendbuf and recvbuf overlap; for the same memory pass MPI.IN_PLACE", memory, memory)
    refused("overlap", memory[:6], memory[5:11])
    refused("overlap", memory[5:11], memory[:6])
    refused(r"recvbuf\[0\] and recvbuf\[1\] overlap", None, [memory[:6], memory[5:]])
    refused("overlap", [memory[:4], np.ones(4)], [np.ones(4), memory[2:6]])
    refused("overlap", None, [memory, memory[3:5]])
    assert parse_allreduce(memory[:6], memory[6:]).count == 6
    assert parse_allreduce([memory, memory], [np.ones(12), np.ones(12)]).count == 24
    assert parse_allreduce([memory[:9], memory[:1]], [np.ones(9), memory[9:10]]).count == 10
    assert parse_allreduce(memory[:0], memory[:0]).count == 0


@pytest.mark.parametrize("thing", [3.5, object(), {1: 2}, MPI.COMM_SELF])
def test_things_without_memory(thing):
    refused("recvbuf is .*expected an object with the buffer protocol", np.ones(1), thing)
    refused("sendbuf is ", thing, np.ones(1))


@pytest.mark.parametrize("nothing", [None, MPI.IN_PLACE])
def test_a_missing_receive_buffer(nothing):
    refused("are for the sendbuf", np.ones(1), nothing)
    refused("are for the sendbuf", np.ones(1), [nothing, 1])


class Cupy:
    def __init__(self, **interface):
        self.__cuda_array_interface__ = interface


def test_device_memory():
    """Where host memory is needed, what is wrong with a device's does not matter."""
    send, right = np.ones(1), {"version": 3, "shape": (1,), "typestr": "<f8", "data": (64, False)}
    for buffer in (Cupy(), Cupy(**right)):
        text = r"Cupy in device memory \(__cuda_array_interface__\): .* buffers in host memory"
        refused(f"sendbuf is a .*{text}", buffer, np.ones(1))
        refused(f"recvbuf is a .*{text}", send, [buffer, 1])


@pytest.mark.parametrize("place", [(2, 1), (10, 1), (13, 1)])
def test_device_memory_by_dlpack(place):
    """Managed memory, too: a device may be writing it while the host reads it."""
    exporter = Capsule(np.zeros(1, "u2"), place=place, device=place)
    kind, number = place
    text = rf"in device memory \(DLPack device type {kind}, number {number}\): .* in host memory"
    refused(f"sendbuf is .*{text}", exporter, np.ones(1, BFLOAT16))
    assert not exporter.kept


def test_a_tensor_of_a_device_that_requires_a_gradient():
    """It has an interface, which raises something else than AttributeError."""
    need_torch()
    import torch

    class OnDevice(torch.Tensor):
        __cuda_array_interface__ = property(lambda self: 1 // 0)

        def __dlpack_device__(self):
            return 2, 0

    tensor = torch.ones(1).as_subclass(OnDevice).requires_grad_()
    text = "recvbuf is a .*OnDevice in device memory .* host memory; copy it there first"
    refused(text, np.ones(1, "f4"), tensor)


def test_an_object_that_fails_when_it_is_asked():
    class Failing:
        @property
        def __cuda_array_interface__(self):
            raise RuntimeError("no driver")

    refused("recvbuf is a .*Failing, whose .* failed: no driver", np.ones(1), Failing())


def test_an_export_that_fails():
    class Tensor(Exporter):
        def __dlpack__(self, **options):
            raise RuntimeError("it requires grad")

    refused("it requires grad", Tensor(np.ones(1)), np.ones(1))


@pytest.mark.parametrize("wrap", [lambda a: a, lambda a: [a, 2]])
@pytest.mark.parametrize("which", ["sendbuf", "recvbuf"])
def test_masked_arrays_are_refused(which, wrap):
    plain, masked = np.zeros(2), np.ma.zeros(2)
    pair = (wrap(masked), wrap(plain)) if which == "sendbuf" else (wrap(plain), wrap(masked))
    with pytest.raises(pp.ArgumentError, match=f"{which}.* is a masked array"):
        parse_allreduce(*pair)


def test_a_plain_array_does_not_import_numpy_ma():
    """That takes 8 ms on one rank, and 365 ms on 64."""
    code = (
        "import array, sys\n"
        "import numpy as np\n"
        "before = 'numpy.ma' in sys.modules\n"
        "from mpi4py import MPI\n"
        "import pypartial as pp\n"
        "with pp.Context(MPI.COMM_SELF) as ctx:\n"
        "    plain = [np.zeros(2), bytearray(8), array.array('d', [0, 0])]\n"
        "    plain += [[np.zeros(2), 1], [bytearray(8), MPI.DOUBLE], [np.zeros(2), np.zeros(3)]]\n"
        "    for receive in plain:\n"
        "        ctx.Allreduce_init(None, receive).Free()\n"
        "    ctx.Allreduce_init(np.zeros(2), np.zeros(2)).Free()\n"
        "print(before, 'numpy.ma' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    before, after = done.stdout.split() or pytest.fail(done.stderr)
    if before == "True":
        pytest.skip("this NumPy imports numpy.ma itself")
    assert after == "False"
