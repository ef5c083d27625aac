"""What is understood as a buffer of a device: no device is needed, because nothing touches one."""

import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.dlpack import Capsule, address
from support.pytorch import need_torch

import pypartial as pp
from pypartial._device import (
    DeviceMemory,
    as_stream,
    check_one_device,
    current_stream,
    device_place,
    is_row_major,
    stream_finder,
    streams_finder,
    type_of_string,
    understand_device,
)
from pypartial._device_array import stream_at
from pypartial._device_buffer import parse_in_place_on_device, parse_on_device

ml_dtypes = pytest.importorskip("ml_dtypes")

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
ABSENT = object()
CUDA = (2, 1)  # DLPack's device type, and a number
MANAGED = (13, 1)


class Array:
    """An object with an interface, as CuPy's and Numba's arrays are; its address is a number."""

    def __init__(self, **changed):
        fields = {
            "version": 3,
            "shape": (2, 3),
            "typestr": "<f4",
            "data": (0x7000, False),
            "strides": None,
            "stream": 7,
        }
        fields.update(changed)
        self.__cuda_array_interface__ = {
            key: value for key, value in fields.items() if value is not ABSENT
        }


class Placed(Array):
    """One that says its device by DLPack, too, as CuPy's arrays do."""

    def __init__(self, place, **changed):
        super().__init__(**changed)
        self.place = place

    def __dlpack_device__(self):
        return self.place


class Nowhere:
    """One that raises when it is asked whether it knows DLPack."""

    @property
    def __dlpack_device__(self):
        raise RuntimeError("it has no place")


class Ended:
    """A stream that does not say its address any more."""

    @property
    def cuda_stream(self):
        raise RuntimeError("it has ended")


class Failing:
    """An object whose properties raise what they like, as tensors that require a gradient do."""

    @property
    def __cuda_array_interface__(self):
        raise RuntimeError("it requires grad")


def understand(buffer, *, writable=True):
    return understand_device("recvbuf", buffer, writable=writable)


def refused(text, buffer, *, writable=True):
    with pytest.raises(pp.ArgumentError, match=rf"^recvbuf\b.*{text}"):
        understand(buffer, writable=writable)


# ---- __cuda_array_interface__ -------------------------------------------------------------------


def test_an_interface_of_version_3():
    buffer = Array()
    memory = understand(buffer)
    assert memory == DeviceMemory("recvbuf", 0x7000, np.dtype("f4"), 6, None, False, 7, buffer)
    assert memory.owner is buffer
    assert memory.capsule is None


def test_an_interface_of_version_2_says_no_stream():
    memory = understand(Array(version=2, stream=ABSENT))
    assert (memory.address, memory.count, memory.stream) == (0x7000, 6, 1)


@pytest.mark.parametrize(
    ("changed", "count"),
    [
        ({"strides": ABSENT}, 6),
        ({"strides": (12, 4)}, 6),
        ({"strides": (12, 4), "shape": (1, 3)}, 3),
        ({"strides": (-100, 4), "shape": (1, 3)}, 3),
        ({"strides": (4, 1000), "shape": (3, 1)}, 3),
        ({"strides": (), "shape": ()}, 1),
        ({"shape": ()}, 1),
        ({"shape": (0,), "data": (0, False)}, 0),
        ({"shape": (4, 0), "strides": (7, 9), "data": (1, False)}, 0),
        ({"shape": (np.int64(6),), "data": (np.uint64(0x7000), np.False_)}, 6),
        ({"mask": None}, 6),
        ({"data": ((1 << 64) - 4096, False)}, 6),
    ],
)
def test_accepted_interfaces(changed, count):
    memory = understand(Array(**changed))
    assert memory.count == count
    assert type(memory.address) is int


@pytest.mark.parametrize("shape", [(1 << 62,), (1 << 40, 1 << 40), (1 << 55,)])
def test_more_than_any_memory_has(shape):
    refused(
        rf"has shape \({shape[0]},.*, of elements of 4 bytes: no memory has so", Array(shape=shape)
    )


@pytest.mark.parametrize("wrong", [ABSENT, None, 0, 1, 4, "3", 3.0, True, [3]])
def test_a_wrong_or_missing_version(wrong):
    refused("has version .*; versions 2 and 3 are understood", Array(version=wrong))


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"shape": ABSENT}, "has 'shape': None, which"),
        ({"shape": 6}, "has 'shape': 6, which"),
        ({"shape": [6]}, r"has 'shape': \[6\], which"),
        ({"shape": (2, -3)}, "has 'shape': .*-3.*, which"),
        ({"shape": (2, 3.0)}, r"has 'shape': \(2, 3.0\), which"),
        ({"shape": (2, True)}, r"has 'shape': \(2, True\), which"),
        ({"strides": (4,)}, r"has 'strides': \(4,\), which"),
        ({"strides": (12, None)}, r"has 'strides': \(12, None\), which"),
        ({"strides": 4}, "has 'strides': 4, which"),
        ({"data": ABSENT}, "has 'data': None, which"),
        ({"data": None}, "has 'data': None, which"),
        ({"data": 0x7000}, "has 'data': 28672, which"),
        ({"data": (0x7000,)}, r"has 'data': \(28672,\), which"),
        ({"data": (-8, False)}, r"has 'data': \(-8, False\), which"),
        ({"data": (1 << 64, False)}, r"has 'data': .*, which"),
        ({"data": ("7000", False)}, "has 'data': .*, which"),
        ({"data": (0x7000, np.zeros(2))}, "has 'data': .*, which"),
        ({"typestr": ABSENT}, "has 'typestr': None, which"),
        ({"typestr": np.dtype("f4")}, "has 'typestr': dtype.*, which"),
    ],
)
def test_fields_that_the_specification_does_not_know(changed, text):
    wrong = f"its __cuda_array_interface__ {text} is not what the specification says"
    refused(wrong, Array(**changed))


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"strides": (4, 8)}, r"in row-major order \(shape \(2, 3\), strides \(4, 8\) bytes"),
        ({"strides": (24, 8)}, "not contiguous"),
        ({"strides": (0, 4)}, "not contiguous"),
        ({"strides": (-12, 4)}, "not contiguous"),
        ({"mask": Array()}, "is a masked array"),
        ({"data": (0, False)}, "its address is 0"),
        ({"data": (0x7002, False)}, "not aligned: its address 0x7002 is not a multiple of 4 bytes"),
        ({"stream": 0}, "is 0, which may mean two default streams"),
        ({"stream": -1}, "must be a positive integer, not -1"),
        ({"stream": "7"}, "must be a positive integer, not '7'"),
    ],
)
def test_wrong_interfaces(changed, text):
    refused(text, Array(**changed))


def test_an_interface_that_is_no_dictionary():
    buffer = Array()
    buffer.__cuda_array_interface__ = (3, 0x7000)
    refused(r"its __cuda_array_interface__ is \(3, 28672\), not a dictionary", buffer)


def test_read_only_memory_takes_no_result():
    buffer = Array(data=(0x7000, True))
    refused("is read-only, so the result cannot be written to it", buffer)
    memory = understand(buffer, writable=False)
    assert memory.readonly
    assert not understand(Array(), writable=False).readonly


def test_objects_that_fail():
    refused("whose __cuda_array_interface__ failed: it requires grad", Failing())
    refused("whose __dlpack_device__ failed: cannot unpack", Placed(None))
    refused("whose __dlpack_device__ failed: it has no place", Nowhere())


def test_numbers_that_no_device_has():
    refused("says that it is on device 2147483648, which is none", Placed((2, 1 << 31)))


@pytest.mark.parametrize("host", [np.zeros(6), b"123", None, 3])
def test_what_is_not_on_a_device(host):
    refused("not in device memory", host)


def test_the_device_of_an_object_that_says_it():
    assert understand(Placed(CUDA)).device == 1
    assert understand(Array()).device is None


@pytest.mark.parametrize("kind", [1, 3, 8, 10])
def test_an_interface_of_memory_that_is_not_cudas(kind):
    text = f"DLPack device type {kind}, number 0, which is not in device memory"
    refused(text, Placed((kind, 0)))


def test_managed_memory():
    bits, text = np.zeros(6, "u2"), r"in managed memory \(DLPack device type 13\)"
    refused(text, Placed(MANAGED))
    refused(text, Capsule(bits, place=MANAGED))
    refused(text, Capsule(bits, place=CUDA, device=MANAGED))


# ---- types --------------------------------------------------------------------------------------

ORDERS = st.sampled_from("<>")


@given(st.sampled_from(np.typecodes["All"]), ORDERS)
def test_type_strings_of_numpy(code, order):
    """Those of numbers are understood as NumPy does; the others are refused by name."""
    dtype = np.dtype(code).newbyteorder(order)
    buffer = Array(typestr=dtype.str)
    if dtype.kind not in "biufc":
        refused("has elements of type .*, which cannot be reduced", buffer)
    elif not dtype.isnative:
        refused("not in native byte order", buffer)
    elif code in "gG":
        refused("long double", buffer)
    else:
        assert understand(buffer).dtype == dtype


@given(st.from_regex(r"\A[<>|=]?[a-zA-Z?][0-9]{0,3}\Z") | st.text(max_size=6))
@example("f4,i4")
@example("float32")
@example("<f4 ")
@example("<f4,<i4")
@example("<i16")
@example("<b2")
@example("<f0")
@example("<f99999999999999999999")
@example("<f٤")
def test_other_type_strings(spelled):
    """What is understood is what NumPy understands; nothing else comes out than an error."""
    try:
        dtype = type_of_string("recvbuf", spelled)
    except pp.ArgumentError as error:
        assert f"recvbuf has elements of type {spelled}, which cannot be reduced" in str(error)
        return
    assert dtype == np.dtype(spelled)
    assert dtype.kind in "biufc"
    assert spelled[0] in "<>|="


def test_bfloat16_of_an_interface():
    """It has no type string of its own; ml_dtypes, and CuPy with it, writes that of two bytes."""
    buffer = Array(typestr="<V2")
    refused("elements of type <V2, which cannot be reduced", buffer)
    buffer.dtype = BFLOAT16
    assert understand(buffer).dtype == BFLOAT16
    buffer.dtype = np.dtype("V2")
    refused("elements of type <V2, which cannot be reduced", buffer)


def test_bfloat16_without_ml_dtypes(monkeypatch):
    buffer = Array(typestr="<V2")
    buffer.dtype = BFLOAT16
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    refused("of bfloat16 elements, which need ml_dtypes", buffer)


# ---- contiguity ---------------------------------------------------------------------------------


@st.composite
def layouts(draw):
    """Draw a shape, and strides that are often those of row-major order, in bytes."""
    shape = tuple(draw(st.lists(st.integers(0, 3), max_size=4)))
    strides, expected = [], 4
    for length in reversed(shape):
        other = st.integers(-12, 12).map(lambda elements: 4 * elements)
        strides.append(draw(st.just(expected) | other))
        expected *= length
    return shape, tuple(reversed(strides))


@given(layouts())
@example(((), ()))
@example(((2, 3), (12, 4)))
@example(((2, 3), (4, 8)))
@example(((3, 1), (4, -40)))
@example(((1, 3), (0, 4)))
@example(((2, 1, 3), (12, 0, 4)))
@example(((3, 0), (20, 20)))
@example(((3,), (0,)))
@example(((2, 3), (16, 4)))
def test_contiguous_is_what_numpy_calls_so(layout):
    shape, strides = layout
    memory = np.zeros(4096, np.uint8)
    array = np.ndarray(shape, np.float32, memory, offset=2048, strides=strides)
    assert is_row_major(shape, strides, 4) is array.flags.c_contiguous


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("shape", [(), (4,), (2, 3), (1, 5), (5, 1), (2, 3, 4), (0, 3)])
def test_strides_that_numpy_writes(shape, order):
    array = np.zeros(shape, "f8", order)
    buffer = Array(shape=shape, strides=array.strides, typestr="<f8")
    if array.flags.c_contiguous:
        assert understand(buffer).count == array.size
    else:
        refused("not contiguous", buffer)


# ---- DLPack -------------------------------------------------------------------------------------


class Negative(np.ndarray):
    """Its shape is said to be another one."""

    shape = (-2, -3)


def test_a_negative_shape_or_device():
    bits = np.zeros((2, 3), "u2")
    refused(r"has shape \(-2, -3\): no length can be negative", exported(bits.view(Negative)))
    elsewhere = Capsule(bits, dtype=(1, 16, 1), place=(2, -1), device=(2, -1))
    refused("says that it is on device -1, which is none", elsewhere)


def exported(bits, **options):
    return Capsule(bits, place=CUDA, device=CUDA, **options)


@pytest.mark.parametrize("versioned", [True, False])
def test_an_export(versioned):
    bits = np.zeros((2, 3), "f4")
    buffer = exported(bits, versioned=versioned, dtype=(2, 32, 1))
    memory = understand(buffer)
    assert memory == DeviceMemory("recvbuf", address(bits), np.dtype("f4"), 6, 1, False, 1, buffer)
    assert memory.owner is buffer
    assert buffer.streams == [1]  # what the exporter has queued elsewhere, this stream waits for
    assert buffer.in_use() == 1
    del memory
    assert buffer.in_use() == 0


def test_an_export_without_dimensions_or_elements():
    assert understand(exported(np.zeros((), "u2"))).count == 1
    assert understand(exported(np.zeros((3, 0), "u2"))).count == 0


def test_wrong_exports():
    bits = np.zeros(12, "u2")
    refused("is read-only", exported(bits, readonly=True))
    assert understand(exported(bits, readonly=True), writable=False).readonly
    refused(r"not contiguous .*\(shape \(6,\), strides \(4,\) bytes\)", exported(bits[::2]))
    refused("export failed: it is not a capsule of a known version", exported(bits, major=2))
    refused("DLPack device type 1, number 0, which is not in", Capsule(bits, place=CUDA))
    refused("export failed: 'NoneType' object is not callable", missing_export(bits))
    copied = exported(bits)
    copied.copied = True
    refused("which exports only a copy by DLPack", copied)
    with pytest.raises(pp.ArgumentError, match="exports only a copy"):
        understand(copied, writable=False)


def missing_export(bits):
    buffer = exported(bits)
    buffer.__class__ = type("NoExport", (Capsule,), {"__dlpack__": None})
    return buffer


def test_long_double_of_an_export():
    refused("has elements of long double", exported(np.zeros(2, "g"), dtype=(2, 128, 1)))


# ---- torch --------------------------------------------------------------------------------------


@pytest.fixture
def torch(monkeypatch):
    """PyTorch, whose tensors of `on_device` are in host memory and say that it is a device's."""
    need_torch()
    import torch

    class Tensor(torch.Tensor):
        @property
        def __cuda_array_interface__(self):
            raise RuntimeError("it requires grad")

        def __dlpack_device__(self):
            return CUDA

    asked = []

    def stream(device):
        asked.append(device)
        return SimpleNamespace(cuda_stream=torch.pointer)

    monkeypatch.setattr(torch.cuda, "current_stream", stream)
    monkeypatch.setattr(torch, "pointer", 0x5000, raising=False)
    monkeypatch.setattr(torch, "asked", asked, raising=False)
    monkeypatch.setattr(torch, "on_device", lambda t: t.as_subclass(Tensor), raising=False)
    return torch


def test_a_tensor(torch):
    tensor = torch.on_device(torch.zeros(2, 3))
    memory = understand(tensor)
    assert memory == DeviceMemory(
        "recvbuf", tensor.data_ptr(), np.dtype("f4"), 6, 1, False, 0x5000, tensor
    )
    assert memory.owner is tensor
    assert torch.asked == [tensor.device]


@pytest.mark.parametrize(
    "name",
    [
        *("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"),
        *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
    ],
)
def test_types_of_tensors(torch, name):
    memory = understand(torch.on_device(torch.zeros(3, dtype=getattr(torch, name))))
    assert memory.dtype.name == name


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("name", ["complex32", "float8_e5m2", "float8_e4m3fn"])
def test_types_of_tensors_that_cannot_be_reduced(torch, name):
    tensor = torch.on_device(torch.empty(3, dtype=getattr(torch, name)))
    refused(f"{name}, which cannot be reduced", tensor)


def test_parts_of_tensors(torch):
    tensor = torch.on_device(torch.zeros(4, 6))
    assert understand(tensor[2]).address == tensor.data_ptr() + 2 * 6 * 4
    assert understand(tensor[1:2, 2:4]).count == 2
    assert understand(tensor[:, :0].t()).count == 0
    refused(r"not contiguous .*\(shape \(6, 4\), strides \(4, 24\) bytes\)", tensor.t())
    refused("not contiguous", tensor[:, 0])
    refused("not contiguous", tensor[:1].expand(4, 6))


def test_tensors_that_are_more_than_memory(torch):
    parameter = torch.on_device(torch.ones(2)).requires_grad_()
    refused("requires a gradient: pass tensor.detach()", parameter)
    assert understand(parameter.detach()).count == 2
    numbers = torch.on_device(torch.ones(2, dtype=torch.complex64))
    refused("conjugation or negation is still to be done", numbers.conj())
    refused("conjugation or negation is still to be done", numbers[:1].conj().imag)
    assert understand(numbers.conj().resolve_conj()).count == 2
    sparse = torch.eye(2).to_sparse()
    sparse.__dlpack_device__ = lambda: CUDA
    refused("of layout torch.sparse_coo: pass a dense one", sparse)


def test_a_tensor_without_memory(torch):
    """Such as those that only stand for a tensor while a graph is traced."""
    tensor = torch.on_device(torch.zeros(2))

    def data_ptr():
        raise RuntimeError("cannot access data pointer")

    tensor.data_ptr = data_ptr
    refused("which tells no address: cannot access data pointer", tensor)


def test_a_tensor_in_host_memory(torch):
    assert device_place("recvbuf", torch.zeros(2)) is None
    refused("DLPack device type 1, number 0, which is not in device memory", torch.zeros(2))


# ---- which memory -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("buffer", "place"),
    [
        (np.zeros(2), None),
        (b"12", None),
        (3, None),
        (Capsule(np.zeros(2, "u2"), place=(3, 0)), None),
        (Capsule(np.zeros(2, "u2"), place=(11, 0)), None),
        (Array(), "__cuda_array_interface__"),
        (Array(version=0), "__cuda_array_interface__"),
        (Placed(CUDA), "__cuda_array_interface__"),
        (Capsule(np.zeros(2, "u2"), place=CUDA), "DLPack device type 2, number 1"),
        (Capsule(np.zeros(2, "u2"), place=(10, 3)), "DLPack device type 10, number 3"),
        (Capsule(np.zeros(2, "u2"), place=MANAGED), "DLPack device type 13, number 1"),
    ],
)
def test_places(buffer, place):
    assert device_place("recvbuf", buffer) == place


def test_the_place_of_a_tensor_does_not_ask_for_its_gradient(torch):
    tensor = torch.on_device(torch.ones(2)).requires_grad_()
    assert device_place("recvbuf", tensor) == "DLPack device type 2, number 1"


def test_the_place_of_an_object_that_fails():
    with pytest.raises(pp.ArgumentError, match=r"recvbuf is a .*Failing, whose .* requires grad"):
        device_place("recvbuf", Failing())


def memory_on(device, name):
    buffer = Array() if device is None else Placed((2, device))
    return name, understand_device(name, buffer, writable=True)


@pytest.mark.parametrize(
    "devices", [[], ["host"], ["host", "host"], [0], [1, 1], [None, None], [None, 1, None, 1]]
)
def test_buffers_that_go_together(devices):
    check_one_device(places_of(devices))


@pytest.mark.parametrize(
    ("devices", "text"),
    [
        ([0, 1], "b0 is on device 0 and b1 on device 1: the buffers of one handle must be on one"),
        ([None, 1, 1, 0], "b1 is on device 1 and b3 on device 0"),
        (["host", 0], "b1 is in device memory and b0 in host memory"),
        ([None, "host"], "b0 is in device memory and b1 in host memory"),
        ([0, 0, "host"], "b0 is in device memory and b2 in host memory"),
    ],
)
def test_buffers_that_do_not_go_together(devices, text):
    with pytest.raises(pp.ArgumentError, match=text):
        check_one_device(places_of(devices))


def places_of(devices):
    return [
        (f"b{index}", None) if device == "host" else memory_on(device, f"b{index}")
        for index, device in enumerate(devices)
    ]


# ---- the buffers of a handle --------------------------------------------------------------------


class Native:
    """As much of the core as buffers are checked with: all memory is on device 1."""

    ffi = SimpleNamespace(new=lambda kind: [0], cast=lambda kind, address: address)

    def __init__(self):
        self.lib = SimpleNamespace(PP_ERR_ARGUMENT=-1, pp_device_of=self._device_of)

    @staticmethod
    def _device_of(address, count, number):
        number[0] = 1
        return 0

    def check(self, status):
        assert status == 0


class Counted:
    """An object that counts how often its interface is read."""

    def __init__(self, place=0x7000):
        self.reads, self.place = 0, place

    @property
    def __cuda_array_interface__(self):
        self.reads += 1
        return {"version": 3, "shape": (3,), "typestr": "<f4", "data": (self.place, False)}


def test_each_export_is_made_once():
    """A capsule may cost its exporter work, such as an event for streams."""
    send, receive, model = (exported(np.zeros(3, "f4"), dtype=(2, 32, 1)) for _ in range(3))
    vectors = [
        parse_on_device(Native(), [send], [receive]),
        parse_in_place_on_device(Native(), "buf", model),
    ]
    assert [one.streams for one in (send, receive, model)] == [[1]] * 3
    assert [one.in_use() for one in (send, receive, model)] == [1] * 3
    vectors.clear()
    assert [one.in_use() for one in (send, receive, model)] == [0] * 3


def test_each_interface_is_understood_once():
    alone = Counted()
    device_place("buf", alone)
    understand(alone)
    send, receive, model = Counted(), Counted(0x8000), Counted()
    parse_on_device(Native(), send, receive)
    parse_in_place_on_device(Native(), "buf", model)
    assert [one.reads for one in (send, receive, model)] == [alone.reads] * 3


READ_ONLY = Array(data=(0x7000, True))


@pytest.mark.parametrize(
    ("send", "receive", "text"),
    [
        (Array(version=1), READ_ONLY, "sendbuf: its __cuda_array_interface__ has version 1"),
        (READ_ONLY, Array(version=1), "recvbuf: its __cuda_array_interface__ has version 1"),
        (np.zeros(6), READ_ONLY, "recvbuf is in device memory and sendbuf in host memory"),
        (Array(), 7, r"recvbuf is 7 \(int\)"),
        ([Array()], [np.zeros(6)[::2]], r"recvbuf\[0\] is not contiguous"),
        (Placed((2, 0)), Placed((2, 1), data=(1, True)), "recvbuf .*align"),
        (Placed((2, 0)), Placed((2, 1), data=(8, True)), "sendbuf is on device 0 and recvbuf on d"),
        (None, [[READ_ONLY], None], r"recvbuf\[0\] is read-only"),
        (None, [None, READ_ONLY], r"recvbuf\[0\] is None: pass a buffer"),
        (None, [[READ_ONLY, 7], READ_ONLY], r"recvbuf\[0\]: the count is 7"),
        ([READ_ONLY, READ_ONLY], [READ_ONLY], r"recvbuf\[0\] is read-only"),
        ([READ_ONLY, READ_ONLY], [Array()], "sendbuf is a list of 2 buffers and recvbuf one of 1"),
        ([READ_ONLY, None], [Array(), np.zeros(6)], r"in device memory and recvbuf\[1\] in host"),
    ],
)
def test_which_of_several_errors_is_told(send, receive, text):
    with pytest.raises(pp.ArgumentError, match=text):
        parse_on_device(Native(), send, receive)


def test_which_of_several_errors_is_told_of_what_is_replaced():
    with pytest.raises(pp.ArgumentError, match=r"buf\[1\]: its .* has version 1"):
        parse_in_place_on_device(Native(), "buf", [READ_ONLY, Array(version=1)])
    with pytest.raises(pp.ArgumentError, match=r"buf\[0\] is read-only"):
        parse_in_place_on_device(Native(), "buf", [[READ_ONLY], None])


# ---- streams ------------------------------------------------------------------------------------


class Stream:
    """A stream of CuPy."""

    def __init__(self, ptr):
        self.ptr = ptr

    def wait_event(self, event):
        raise AssertionError("nothing is queued here")


class Event:
    """One of CuPy, which has an address, too."""

    ptr = 0x6000

    def synchronize(self):
        raise AssertionError("nothing is waited for here")


class Protocol:
    def __init__(self, answer):
        self.answer = answer

    def __cuda_stream__(self):
        return self.answer


@pytest.mark.parametrize(
    ("value", "stream"),
    [
        (1, 1),
        (2, 2),
        (0x6000, 0x6000),
        (np.int64(0x6000), 0x6000),
        ((1 << 64) - 1, (1 << 64) - 1),
        (Stream(0x6000), 0x6000),
        (Stream(2), 2),
        (Stream(0), 1),
        (SimpleNamespace(cuda_stream=0x6000), 0x6000),
        (SimpleNamespace(cuda_stream=0), 1),
        (Protocol((0, 0x6000)), 0x6000),
        (Protocol([0, 0]), 1),
    ],
)
def test_streams(value, stream):
    found = as_stream(value, 0)
    assert found == stream
    assert type(found) is int


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "stream is 0, which may mean two default streams: pass 1 for the legacy default"),
        (np.int32(0), "stream is 0, which may mean two default streams"),
        (-1, "stream must be a positive integer, not -1"),
        (1 << 64, "stream must be a positive integer, not 18446744073709551616"),
        (1.0, "stream must be an integer, a stream .*, not 1.0"),
        (True, "stream must be an integer, a stream .*, not True"),
        (None, "stream must be an integer, a stream .*, not None"),
        ("1", "stream must be an integer, a stream .*, not '1'"),
        (Event(), "stream must be an integer, a stream .*, not <.*Event object"),
        (Stream(-3), "the address in stream must be a positive integer, not -3"),
        (Stream(None), "the address in stream must be a positive integer, not None"),
        (SimpleNamespace(cuda_stream="x"), "the address in stream must be .*, not 'x'"),
        (Protocol((1, 0x6000)), "whose __cuda_stream__ has version 1; version 0 is understood"),
        (Protocol((0, -5)), "the address in stream must be a positive integer, not -5"),
        (Protocol(0x6000), "whose __cuda_stream__ failed: cannot unpack"),
        (Protocol((0, 1, 2)), "whose __cuda_stream__ failed: too many values"),
        (Ended(), "which does not say its address: it has ended"),
    ],
)
def test_wrong_streams(value, text):
    with pytest.raises(pp.ArgumentError, match=f"^{text}|^stream is a .*{text}"):
        as_stream(value, 0)


class OfDevice(Stream):
    """A stream that says of which device it is, as torch or CuPy do."""

    def __init__(self, pointer, name, device):
        super().__init__(pointer)
        setattr(self, name, device)


@pytest.mark.parametrize("name", ["device_index", "device_id"])
def test_a_default_stream_of_another_device(name):
    """They have the same number; of other streams the driver says of which device they are."""
    for pointer, number in ((0, 1), (1, 1), (2, 2)):
        assert as_stream(OfDevice(pointer, name, 1), 1) == number
        assert as_stream(OfDevice(pointer, name, -1), 1) == number
        with pytest.raises(
            pp.ArgumentError,
            match=r"^stream is a default stream of device 0, and the buffers are on device 1: pass",
        ):
            as_stream(OfDevice(pointer, name, 0), 1)
    assert as_stream(OfDevice(0x6000, name, 0), 1) == 0x6000


def test_the_current_stream_of_an_interface_is_read_anew():
    buffer = Array(stream=7)
    assert current_stream(buffer) == 7
    buffer.__cuda_array_interface__["stream"] = 9
    assert current_stream(buffer) == 9
    for stream in (None, ABSENT):
        assert current_stream(Array(stream=stream)) == 1


def test_the_current_stream_of_a_tensor_is_read_anew(torch, monkeypatch):
    find = stream_finder("the buffer", torch.on_device(torch.zeros(2)))
    assert find() == 0x5000
    for said, number in ((0x6000, 0x6000), (0, 1)):
        monkeypatch.setattr(torch, "pointer", said)
        assert find() == number


def test_the_current_stream_of_an_array_of_cupy_is_read_anew(monkeypatch):
    kind = type("ndarray", (), {"__module__": "cupy", "device": SimpleNamespace(id=3)})
    streams = {3: SimpleNamespace(ptr=0x5000)}
    cuda = SimpleNamespace(get_current_stream=streams.__getitem__)
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=cuda, ndarray=kind))
    find = stream_finder("the buffer", kind())
    assert find() == 0x5000
    for said, number in ((0x6000, 0x6000), (0, 1)):
        streams[3] = SimpleNamespace(ptr=said)
        assert find() == number


def test_the_current_stream_of_several_buffers(torch, monkeypatch):
    """It is asked for once for the buffers of a library, and for each other one."""
    tensors = [torch.on_device(torch.zeros(2)) for _ in range(3)]
    others = [Array(stream=0x5000), exported(np.zeros(2, "u2"))]
    named = [(f"sendbuf[{i}]", each) for i, each in enumerate([*tensors, *others])]
    assert streams_finder(named[:1])() == streams_finder(named[:4])() == 0x5000
    assert len(torch.asked) == 2
    monkeypatch.setattr(torch, "pointer", 0)
    find = streams_finder([*named[:3], named[4]])
    assert others[1].streams == []
    assert find() == 1
    assert others[1].streams == [1]


def test_current_streams_that_differ():
    one, other = Array(stream=7), Array(stream=9)
    find = streams_finder([("recvbuf[0]", one), ("recvbuf[1]", other)])
    with pytest.raises(
        pp.ArgumentError,
        match=r"^the current stream of recvbuf\[0\] is 0x7, and that of recvbuf\[1\] is 0x9: pa",
    ):
        find()
    other.__cuda_array_interface__["stream"] = 7
    assert find() == 7


@pytest.mark.parametrize("wrong", [0, -1, "7"])
def test_a_wrong_current_stream(wrong):
    with pytest.raises(pp.ArgumentError, match=r"^the buffer: its stream"):
        current_stream(Array(stream=wrong))


def test_the_current_stream_of_an_export_is_made_to_wait():
    buffer = exported(np.zeros(2, "u2"))
    assert current_stream(buffer) == 1
    assert buffer.streams == [1]
    with pytest.raises(pp.ArgumentError, match=r"the buffer is .*, whose DLPack export failed"):
        current_stream(missing_export(np.zeros(2, "u2")))


def test_the_current_stream_of_nothing():
    assert current_stream(object()) == 1


@pytest.mark.parametrize(("pointer", "stream"), [(0, 1), (0x6000, 0x6000)])
def test_the_current_stream_of_torch(torch, monkeypatch, pointer, stream):
    monkeypatch.setattr(torch, "pointer", pointer)
    tensor = torch.on_device(torch.zeros(2))
    assert current_stream(tensor) == stream
    assert torch.asked == [tensor.device]


@pytest.mark.parametrize(("pointer", "stream"), [(0, 1), (2, 2), (0x6000, 0x6000)])
def test_the_current_stream_of_cupy(monkeypatch, pointer, stream):
    """It is that of the array's device, whose interface would say that of the current device."""
    asked = []

    def get_current_stream(device_id):
        asked.append(device_id)
        return Stream(pointer)

    cuda = SimpleNamespace(get_current_stream=get_current_stream)
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(ndarray=Placed, cuda=cuda))
    buffer = Placed(CUDA, stream=7)
    buffer.device = SimpleNamespace(id=3)
    assert current_stream(buffer) == stream
    assert understand(buffer).stream == stream
    assert asked == [3, 3]
    assert current_stream(Array(stream=7)) == 7


@pytest.mark.parametrize("version", [13, 14])
def test_streams_of_others_for_cupy(version):
    """CuPy 14 has another way, and warns of the one that those before have."""
    if version == 14:
        made = SimpleNamespace(from_external=lambda stream: ("new", stream.__cuda_stream__()))
        cuda, wanted = SimpleNamespace(Stream=made), ("new", (0, 1234))
    else:
        made = SimpleNamespace(Stream=object, ExternalStream=lambda *given: ("old", given))
        cuda, wanted = made, ("old", (1234, 2))
    assert stream_at(SimpleNamespace(cuda=cuda), 2, 1234) == wanted


def test_nothing_is_loaded():
    code = (
        "import sys\n"
        "from types import SimpleNamespace\n"
        "from pypartial import _device\n"
        "fields = dict(version=3, shape=(2,), typestr='<f4', data=(64, False), stream=7)\n"
        "buffer = SimpleNamespace(__cuda_array_interface__=fields)\n"
        "assert _device.understand_device('buf', buffer, writable=True).stream == 7\n"
        "print(sorted({'cupy', 'torch', 'ml_dtypes', 'numba'} & set(sys.modules)))\n"
        "print([line for line in open('/proc/self/maps') if 'libcuda' in line])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.split("\n") == ["[]", "[]", ""], done.stderr
