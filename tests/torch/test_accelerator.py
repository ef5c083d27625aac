"""Where models are, and how streams, futures and memory of a device are used; needs no ranks.

The device is recorded: what is asked of it, and in which order.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import pypartial as pp
from pypartial.torch import accelerator, work
from pypartial.torch.accelerator import HOST, Cuda, Home
from pypartial.torch.buckets import Buckets
from pypartial.torch.elements import check
from pypartial.torch.flags import DeviceFlags
from pypartial.torch.flat import FlatParameters
from pypartial.torch.gradients import Gradients
from pypartial.torch.layout import Layout
from pypartial.torch.overlap import Piece


def on(device: str, count: int = 2) -> torch.Tensor:
    """Return a parameter on a device, which need not be there."""
    with FakeTensorMode():
        return torch.nn.Parameter(torch.empty(count, device=device))


class TestFind:
    def test_the_cpu(self):
        assert Layout([("a", on("cpu")), ("b", on("cpu"))]).home is HOST

    def test_a_device(self):
        home = Layout([("a", on("cuda:1")), ("b", on("cuda:1"))]).home
        assert isinstance(home, Cuda) and home._device == torch.device("cuda:1")
        assert home.is_device and home.name != HOST.name

    @pytest.mark.parametrize("other", ["cpu", "cuda:1", "meta"])
    def test_two_places_are_refused(self, other):
        text = f"parameter a is on cuda:0 and parameter b on {other}: all must be on the CPU, or"
        with pytest.raises(pp.ArgumentError, match=text):
            Layout([("a", on("cuda:0")), ("b", on(other))])

    def test_a_frozen_parameter_may_be_elsewhere(self):
        frozen = on("cpu").requires_grad_(False)
        assert Layout([("a", frozen), ("b", on("cuda:0"))]).home.is_device

    def test_other_devices_are_refused(self):
        with pytest.raises(pp.ArgumentError, match="the device meta; only the CPU and CUDA"):
            Layout([("a", on("meta"))])


class Stream:
    """A stream that notes for which others it waits."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.behind: list[str] = []

    def wait_stream(self, other: Stream) -> None:
        self.behind.append(other.name)

    def synchronize(self) -> None:
        self.behind.append("the host waits")


class TestCuda:
    @pytest.fixture
    def cuda(self, monkeypatch):
        """A device with a current stream, which a test may exchange."""
        current = SimpleNamespace(stream=Stream("main"))
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: current.stream)
        return current

    def test_a_stream_waits_for_each_other_one_once(self, cuda):
        side, third = Stream("side"), Stream("third")
        assert Cuda(torch.device("cuda:0")).follow([side, cuda.stream, third, side])
        assert cuda.stream.behind == ["side", "third"]

    def test_no_stream_waits_for_itself(self, cuda):
        assert not Cuda(torch.device("cuda:0")).follow([cuda.stream] * 3)
        assert cuda.stream.behind == []

    def test_the_allocator_is_told_of_the_current_stream(self, cuda):
        told = []
        Cuda(torch.device("cuda:0")).keep(SimpleNamespace(record_stream=told.append))
        assert told == [cuda.stream]

    def test_the_device_is_that_of_the_parameters(self, monkeypatch):
        asked = []
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: asked.append(device))
        monkeypatch.setattr(torch.futures, "Future", lambda *, devices: asked.extend(devices))
        home = Cuda(torch.device("cuda:1"))
        home.stream()
        home.future()
        assert asked == [torch.device("cuda:1")] * 2

    def test_zeros_are_there_for_all_streams(self, cuda, monkeypatch):
        monkeypatch.setattr(torch, "zeros", lambda count, dtype, device: (count, dtype, device))
        device = torch.device("cuda:0")
        zeros = Cuda(device).zeros(None, 3, np.dtype("f8"))
        assert zeros == (3, torch.float64, device)
        assert cuda.stream.behind == ["the host waits"]


class Recorder(Home):
    """A device that notes what is asked of it; its current stream is `current`."""

    name, is_device = "a device", True

    def __init__(self) -> None:
        self.log: list[object] = []
        self.current = "main"

    def zeros(self, ctx, count, dtype):
        return torch.zeros(count)

    def view(self, vector):
        return vector

    def future(self):
        home = self

        class Future(torch.futures.Future):
            def set_result(self, result):
                home.log.append(("result", home.current))
                super().set_result(result)

        self.log.append("future")
        return Future()

    def stream(self):
        return self.current

    def follow(self, streams):
        streams = list(streams)
        self.log.append((self.current, "follows", streams))
        return any(stream != self.current for stream in streams)

    def keep(self, vector):
        self.log.append(("keep", self.current))


class Bucket:
    """What DDP gives a hook."""

    def __init__(self, parameters, value):
        self._parameters = parameters
        self._buffer = torch.full((sum(p.numel() for p in parameters),), value)

    def parameters(self):
        return self._parameters

    def buffer(self):
        return self._buffer


def test_buckets_of_several_streams_share_a_round():
    """The stream of the round follows those of the copies, and the futures are completed on it."""
    one, two = torch.nn.Parameter(torch.zeros(2)), torch.nn.Parameter(torch.zeros(3))
    home = Recorder()
    vector = home.zeros(None, 5, None)
    buckets = Buckets(vector, [one, two], home)
    given = Bucket([two], 1.0), Bucket([one], 2.0)
    home.current = "side"
    futures = [buckets.put(given[0])]
    home.current = "main"
    futures.append(buckets.put(given[1]))
    assert vector.tolist() == [1, 1, 1, 2, 2]
    home.current = "round"
    arrived = buckets.take()
    vector *= 10  # the round
    for bucket in arrived:
        bucket.give()
    assert home.log == [
        *["future", "future"],
        ("round", "follows", ["side", "main"]),
        *[("result", "round"), ("result", "round")],
    ]
    for future, bucket, value in zip(futures, given, (10.0, 20.0), strict=True):
        result = future.value()
        # DDP counts from the beginning of a storage, and the allocator knows this memory.
        assert result.data_ptr() == bucket.buffer().data_ptr()
        assert result.storage_offset() == 0
        assert set(result.tolist()) == {value}


class TestFlags:
    """What the host knows of the flags of a round, and when it has to read them."""

    @pytest.fixture
    def part(self):
        return torch.full((3,), 7.0)

    @staticmethod
    def round_of(*contributors, included=True):
        return SimpleNamespace(contributors=contributors, included=included)

    def reads(self, part, flags, status) -> bool:
        """Whether the vector was read; its values are told from all others."""
        part.copy_(torch.tensor([0.25, 0.0, 0.5]))
        found = flags.read(status)
        assert list(found) in ([0.25, 0.0, 0.5], [1.0, 1.0, 1.0])
        return found[1] == 0

    def test_a_round_with_this_rank_is_known(self, part):
        flags = DeviceFlags(part, rank=1)
        flags.write([True, True, True])
        assert part.tolist() == [1, 1, 1]
        assert not self.reads(part, flags, self.round_of(0, 1))

    def test_a_round_without_this_rank_is_read(self, part):
        flags = DeviceFlags(part, rank=1)
        flags.write([True, True, True])
        assert self.reads(part, flags, self.round_of(0, 2, included=False))

    def test_contributors_that_are_not_known_are_read(self, part):
        flags = DeviceFlags(part, rank=1)
        flags.write([True, True, True])
        assert self.reads(part, flags, SimpleNamespace(contributors=None, included=True))

    @pytest.mark.parametrize("how", ["lacks one", "skips"])
    def test_gradients_that_this_rank_lacks_are_read(self, part, how):
        """Until a round has this contribution; later ones cannot have it."""
        flags = DeviceFlags(part, rank=1)
        if how == "skips":
            flags.lack()
        else:
            flags.write([True, False, True])
            assert part.tolist() == [1, 0, 1]
        late = self.round_of(0, 2, included=False)
        assert self.reads(part, flags, late)
        flags.write([True, True, True])
        assert part.tolist() == [1, 1, 1]
        assert self.reads(part, flags, self.round_of(0, 1))  # with both
        flags.write([True, True, True])
        assert not self.reads(part, flags, self.round_of(1, 2))

    def test_the_default_device_does_not_matter(self, part):
        flags = DeviceFlags(part, rank=0)
        with torch.device("meta"):  # it may be another device than the vector's
            flags.write([True, False, True])
        assert part.tolist() == [1, 0, 1]

    def test_a_vector_that_was_not_reduced_has_what_was_written(self, part):
        flags = DeviceFlags(part, rank=0)
        flags.write([True, False, True])
        assert flags.read(None) == [True, False, True]


def test_lists_that_are_copied_have_one_type(monkeypatch):
    """Some versions of torch take the first one's for that of all, on a device."""
    copied, copy = [], torch._foreach_copy_

    def noted(to, of):
        copied.extend({one.dtype for one in some} for some in (to, of))
        copy(to, of)

    monkeypatch.setattr(torch, "_foreach_copy_", noted)
    types = [torch.float32, torch.bfloat16, torch.float16, torch.bfloat16]
    parameters = [torch.nn.Parameter(torch.full((4, 2), 2.0, dtype=one).T) for one in types]
    layout = Layout([(str(number), one) for number, one in enumerate(parameters)])
    model = FlatParameters(layout, np.zeros(layout.size, np.float32))
    assert model.vector.tolist() == [2] * 32
    model.vector[:] = range(32)
    model.scatter()
    model.vector[:] = 0
    model.gather()
    assert model.vector.tolist() == list(range(32))
    vector = np.zeros(Gradients.length(layout), np.float32)
    for number, one in enumerate(parameters):
        one.grad = torch.full_like(one, number)
    Gradients(layout, vector, 0, Gradients.others(layout)).collect()
    assert vector[: layout.size].reshape(4, 8).T.tolist() == [[0, 1, 2, 3]] * 8
    assert len(copied) == 2 * 3 * 3 and all(len(types) == 1 for types in copied)


@pytest.mark.parametrize("last", ["main", "side"])
def test_a_piece_keeps_gradients_of_other_streams(last, monkeypatch):
    """The one that starts it copies them all; their memory may be given back before."""
    home, ctx = Recorder(), SimpleNamespace(rank=0, Allreduce_init=lambda *_, **__: request)
    request = SimpleNamespace(
        Start=lambda: home.log.append("start"), _collected=bytes, _is_outstanding=bool
    )
    monkeypatch.setattr(accelerator, "find", lambda parameters: home)
    parameters = [torch.nn.Parameter(torch.zeros(2)) for _ in range(3)]
    places = [(str(n), parameter) for n, parameter in enumerate(parameters)]
    piece = Piece(ctx, places)
    piece.open(ctx, pp.Full(), "auto")
    for number, stream in enumerate(["main", "main", last]):
        home.current = stream
        if number != 1:
            parameters[number].grad = torch.ones(2)
        piece.arrive(number)
    piece.start()
    kept = home.log.index("start") - home.log.index((last, "follows", ["main", "main", last])) - 1
    assert kept == (1 if last == "main" else 3)  # the vector, and gradients
    assert ("keep", last) in home.log


def test_work_knows_the_devices_of_its_tensors(monkeypatch):
    """A future refuses tensors of devices that it was not made for."""
    asked, make = [], torch.futures.Future

    def future(*, devices):
        asked.append(devices)
        return make()

    monkeypatch.setattr(torch.futures, "Future", future)
    host, first = torch.zeros(1), SimpleNamespace(device=torch.device("cuda:0"))
    work.Done([host]).get_future()
    work.Done([[host, first], [first]]).get_future()
    work.Done([first, first]).get_future()
    assert asked == [[], [torch.device("cuda:0")], [torch.device("cuda:0")]]


def test_the_backend_serves_cuda_and_no_other_device():
    assert torch.distributed.Backend.backend_capability["pypartial"] == ["cpu", "cuda"]
    check("broadcast", on("cuda:0"))
    with pytest.raises(pp.ArgumentError, match="broadcast: a tensor is on the device meta; only"):
        check("broadcast", on("meta"))
