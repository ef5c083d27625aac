"""Rounds merged in the memory of devices: no thread waits for that, and nothing is lost."""

from __future__ import annotations

import threading
import time
from contextlib import suppress

import numpy as np
import pytest
from support.device import Stream, device, order
from support.explained import PART, STALL_WARNING_S
from support.on_device import LIMIT_S, devices_that_stay, soon
from support.reports import said_of_ranks

import pypartial as pp

pytestmark = [pytest.mark.mpi, pytest.mark.usefixtures("needs_ipc")]

COUNT = 1003
MISSED = 3  # rounds, as many as max_lag allows: window - 1


class Merging:
    """A handle of which the last rank misses rounds that rank 0 makes; it merges them.

    While that is held, its device does nothing of it. Contributions are large numbers at random,
    so a sum is right only if each is in it once.
    """

    def __init__(self, comm, ctx, array, stand_in):
        self.comm, self.stand_in = comm, stand_in
        self.last = comm.rank == comm.size - 1
        self.send, self.out = array(COUNT, "i8"), array(COUNT, "i8")
        self.request = ctx.Allreduce_init(
            self.send, self.out, policy=pp.Solo(), deliver="sum", device_path="ipc"
        )
        assert self.request.device_path == "ipc"
        folds = stand_in.fake_newest_stream()
        self.work = stand_in.fake_stream_before(folds)
        self.draw = np.random.default_rng(comm.rank)

    def hold(self, held):
        if self.last:
            self.stand_in.fake_hold(self.work, held)

    def start(self):
        value = int(self.draw.integers(1 << 40))
        self.send.put(value)
        self.request.Start()
        return value

    def miss(self):
        """Rank 0 makes rounds; the last rank has merged them, as far as it is a thread's work."""
        merges = self.stand_in.fake_calls(b"cuLaunchKernel")
        self.comm.Barrier()
        given = sum([self.made() for _ in range(MISSED)] if self.comm.rank == 0 else [])
        self.comm.Barrier()
        merged = merges + MISSED - 1
        soon(lambda: not self.last or self.stand_in.fake_calls(b"cuLaunchKernel") >= merged)
        return given

    def made(self):
        value = self.start()
        self.request.Wait()
        self.out.settle()
        return value


@pytest.fixture
def merging(comm, array, stand_in):
    with pp.Context(comm, seed=7, patience=None, stall_warning=STALL_WARNING_S) as ctx:
        yield ctx, Merging(comm, ctx, array, stand_in)


@pytest.mark.sizes(2, 3, 5)
def test_nothing_waits_for_rounds_that_are_merged(comm, merging, array, stand_in):
    """Another handle's rounds complete, and Wait returns before the device has merged."""
    ctx, this = merging
    ones, total, seen, consumer = np.ones(3), np.zeros(3), array(COUNT, "i8"), Stream()
    host = ctx.Allreduce_init(ones, total, policy=pp.Full())
    this.hold(True)
    with devices_that_stay(stand_in):
        given = this.miss()
        for _ in range(3):
            host.Start()
            host.Wait()
            assert total.tolist() == [comm.size] * 3
        if this.last:
            this.start()
            this.request.Wait(stream=consumer)
            seen.copy(this.out, consumer)
        comm.Barrier()
    this.hold(False)
    given = comm.bcast(given)
    if this.last:
        assert (seen.get(consumer) == given).all()
    this.request.Flush()
    this.request.Free()
    host.Free()
    consumer.close()


class Results:
    """What the last rank is given, by work behind each result on a stream of its own."""

    TURNS = 8  # in which the ring is filled, whatever the number of ranks

    def __init__(self, array):
        self.stream, self.total = Stream(), 0
        self.seen = [array(COUNT, "i8") for _ in range(self.TURNS)]
        self.taken = []

    def take(self, out):
        self.taken.append(self.seen[len(self.taken)])
        self.taken[-1].copy(out, self.stream)

    def sum(self):
        return sum(int(one.get(self.stream)[-1]) for one in self.taken)


def waits_for_the_device_of(rank, request):
    """Wait, and return whether that is in vain because of a rank's device, as the error must say.

    A rank that stands still gives no answer in time.
    """
    limit = time.monotonic() + LIMIT_S
    while True:
        try:
            request.Wait(timeout=1)
        except pp.TimeoutError as error:
            said = said_of_ranks(str(error))
            if any(PART in does for ranks, does in said if ranks == [rank]):
                return True
            assert time.monotonic() < limit, error
        else:
            return False


def fill_the_ring(comm, this, results, after_a_turn):
    """Rank 0 makes rounds until it waits for the last rank's device; return what was given.

    What is given in that round counts, too.
    """
    given, stuck = 0, False
    for turn in range(Results.TURNS):
        if comm.rank == 0:
            for _ in range(MISSED):
                given += this.start()
                stuck = waits_for_the_device_of(comm.size - 1, this.request)
                if stuck:
                    break
        stuck = comm.bcast(stuck)
        if stuck:
            break
        if this.last:
            given += this.start()
            this.request.Wait(stream=results.stream)
            results.take(this.out)
            after_a_turn(turn)
        elif comm.rank > 0:
            given += this.made()
        comm.Barrier()
    assert stuck
    return given


def nothing_is_lost(comm, this, results, given):
    """The last rank's results have all that was given; Flush gives the rest."""
    this.request.Flush(stream=results.stream)  # behind what reads the results before
    total = results.sum() + int(this.out.get(results.stream)[-1]) if this.last else 0
    assert comm.bcast(total, comm.size - 1) == comm.allreduce(given)
    this.request.Free()
    results.stream.close()


@pytest.mark.sizes(2, 3, 5)
def test_results_stay_in_the_ring_until_the_device_has_merged_them(comm, merging, array):
    """At last rounds wait for that, and an error says so; then all results are right."""
    this, results = merging[1], Results(array)
    this.hold(True)
    given = fill_the_ring(comm, this, results, after_a_turn=lambda turn: None)
    this.hold(False)
    if comm.rank == 0:
        this.request.Wait(timeout=LIMIT_S)
    nothing_is_lost(comm, this, results, given)


@pytest.mark.sizes(2, 3, 5)
def test_results_leave_the_ring_one_by_one(comm, merging, array):
    """The device is at later ones, and those before have made room."""
    this, results, slow = merging[1], Results(array), Stream()

    def stop_there(turn):
        if turn == 0:
            order(slow.ptr, this.work)

    slow.hold(True)
    this.hold(True)
    given = fill_the_ring(comm, this, results, after_a_turn=stop_there)
    this.hold(False)
    if comm.rank == 0:
        this.request.Wait(timeout=LIMIT_S)
    comm.Barrier()
    slow.hold(False)
    nothing_is_lost(comm, this, results, given)
    slow.close()


@pytest.mark.sizes(2, 3)
@pytest.mark.parametrize("at_once", [False, True], ids=["waits", "at-once"])
def test_free_does_not_wait_for_rounds_that_are_merged(merging, stand_in, at_once):
    """The device merges them afterwards; nothing is left then, whatever the driver waits for.

    And no thread looks for them any more.
    """
    ctx, this = merging
    stand_in.fake_free_at_once(at_once)
    this.hold(True)
    with devices_that_stay(stand_in):
        this.miss()
        this.request.Free()
    this.hold(False)

    def is_idle():
        sleeps = ctx.stats().sleeps
        time.sleep(0.3)
        return ctx.stats().sleeps - sleeps < 50

    soon(is_idle)


@pytest.mark.sizes(2, 3)
def test_a_contribution_is_linked_when_the_device_has_combined_it(comm, merging, stand_in):
    """Rank 0 starts more often than it has parts; a round reads only what is there."""
    ctx, (send, out), results = merging[0], (merging[1].send, merging[1].out), []
    request = ctx.Allreduce_init(send, out, policy=pp.Quorum(2), deliver="sum", device_path="ipc")
    work = stand_in.fake_stream_before(stand_in.fake_newest_stream())
    stand_in.fake_hold(work, comm.rank == 0)
    before = stand_in.fake_calls(b"cuLaunchKernel")

    def collect(timeout=None):
        request.Wait(timeout=timeout)
        results.append(int(out.get()[-1]))

    def start_often():
        """A call that combines waits for the device."""
        with device(0):
            for step in range(10):
                send.put(10**step)
                request.Start()
                if step < 9:
                    with suppress(pp.TimeoutError):
                        collect(timeout=0)

    starts = threading.Thread(target=start_often)
    if comm.rank == 0:
        starts.start()
        soon(lambda: stand_in.fake_calls(b"cuLaunchKernel") > before)
    comm.Barrier()
    if comm.rank > 0:
        send.put(0)
        request.Start()
        with pytest.raises(pp.TimeoutError):
            request.Wait(timeout=0.2)
    comm.Barrier()
    stand_in.fake_hold(work, False)
    if comm.rank == 0:
        starts.join()
    collect()
    request.Flush()
    assert sum(results) + int(out.get()[-1]) == 1_111_111_111
    request.Free()
    merging[1].request.Free()


@pytest.mark.sizes(2, 3)
def test_a_result_is_read_in_the_ring_before_wait_returns(comm, array, stand_in):
    """That before it is still in use, so it goes by a bounce buffer; its entry is used again.

    The last rank's device reads it when Wait waits for that; if it does not, after rounds that use
    the entry again.
    """
    slow, other, last = Stream(), Stream(), comm.size - 1
    send, out, seen = (array(COUNT, "i8") for _ in range(3))
    waits = b"cuStreamSynchronize"
    used_again, waited = threading.Event(), []
    with pp.Context(comm, seed=7, patience=None) as ctx:
        request = ctx.Allreduce_init(
            send, out, policy=pp.Solo(), deliver="latest", device_path="ipc"
        )
        work = stand_in.fake_stream_before(stand_in.fake_newest_stream())

        def read_later():
            soon(lambda: stand_in.fake_held_calls(waits) or used_again.is_set())
            waited.append(stand_in.fake_held_calls(waits) > 0)
            stand_in.fake_hold(work, False)

        later = threading.Thread(target=read_later)
        send.put(1)
        send.settle()
        for turn in range(2):
            if comm.rank == 0:
                request.Start()
                request.Wait()
            comm.Barrier()
            if comm.rank == last and turn == 0:
                slow.hold(True)
                request.Start()
                request.Wait(stream=slow)
            elif comm.rank == last:
                stand_in.fake_hold(work, True)
                later.start()
                request.Start()
                request.Wait(stream=other)
                seen.copy(out, other)
            comm.Barrier()
        for _ in range(12 if comm.rank == 0 else 0):
            send.put(1000)
            request.Start()
            request.Wait()
        comm.Barrier()
        if comm.rank == last:
            used_again.set()
            later.join()
            slow.hold(False)
            values = seen.get(other)
            assert (values == values[0]).all()
            assert values[0] in (1, 2)
            assert waited == [True]
        request.Flush()
        request.Free()
    slow.close()
    other.close()
