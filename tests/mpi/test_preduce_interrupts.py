"""Ctrl-C at every place in a Start and in a Wait whose groups MPI averages, and in a worker's step.

What the other member has done with this rank happens once, and the call can be repeated.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from contextlib import contextmanager, nullcontext
from dis import opname

import numpy as np
import pytest
from support.on_device import soon

import pypartial as pp
from pypartial import _group_comm, _group_elements, _handle, preduce
from pypartial.methods import PartialReduce, groups, worker

pytestmark = [pytest.mark.mpi(min_size=2), pytest.mark.sizes(2)]

FILES = {module.__file__ for module in (preduce, _group_comm, _group_elements)}
STEP_FILES = FILES | {module.__file__ for module in (_handle, groups, worker)}
PAIR, APART = [[0, 1]], []
INITIAL = -1.0
DYNAMIC = {"weights": "dynamic", "missing": "initial"}

# Phases, and options; "anew": each request has a handle of its own, whose communicator is new.
GROUPS = {
    "kept": ([PAIR], {}),
    "anew": ([PAIR], {}),
    "not kept": ([PAIR], {"cache": 0}),
    "dynamic": ([PAIR], DYNAMIC),
    "alone": ([APART], {}),
    "splits": (None, {}),
}


class Ctrl:
    """Raises KeyboardInterrupt at a place in the library where Python may, counted from 0.

    It does so where a function begins, and behind calls: before what they return is stored.
    """

    def __init__(self, at, files=FILES):
        self.left, self.came, self.files = at, False, files
        self.may = {}  # by frame: whether it may at the next instruction

    def __call__(self, frame, event, _):
        code = frame.f_code
        if code.co_filename not in self.files:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            if self.may.get(frame, True):
                self.came = self.left == 0
                self.left -= 1
            if self.came:
                raise KeyboardInterrupt
            self.may[frame] = opname[code.co_code[frame.f_lasti]].startswith("CALL")
        return self

    @contextmanager
    def c(self):
        """Do so in this block, which the interrupt ends."""
        before = sys.gettrace()
        sys.settrace(self)
        try:
            yield
        except KeyboardInterrupt:
            assert self.came
        finally:
            sys.settrace(before)


def start_again(request, model):
    """Start with another model, unless the interrupted one has started; return what it adds."""
    model += 2
    try:
        request.Start()
    except pp.Error as error:
        assert "not collected" in str(error)
        return 0
    return 2


def wait_again(request, model):
    """Wait, unless the interrupted one was over: then the average is there."""
    average = model.copy()
    model[:] = -1
    try:
        request.Wait()
    except pp.Error as error:
        assert "nothing was started" in str(error)
        model[:] = average


def opened(ctx, model, phases, options):
    groups = pp.groups.Table(phases) if phases else pp.groups.Static(nodes=1, per_node=2)
    return ctx.Preduce_init(model, groups, backend="comm", **options)


def expected(status, models):
    """Return what the models of ranks 0 and 1 have become on this rank."""
    average = sum(models[rank] for rank in status.group) / len(status.group)
    return [(1 - status.initial) * average + status.initial * INITIAL] * 2


@pytest.mark.parametrize(
    ("call", "name"), [("Start", "kept"), ("Start", "alone"), *(("Wait", name) for name in GROUPS)]
)
def test_ctrl_c_at_every_place(comm, ctx, call, name):
    """The models are known at every step, so what ran twice, or never, is seen in all after it."""
    model, status = np.full(2, INITIAL), pp.Status()
    request, step, goes_on = opened(ctx, model, *GROUPS[name]), 0, True
    while goes_on:
        models = [step, step + 1]
        model[:] = models[comm.rank]
        interrupt = Ctrl(step if comm.rank == 0 else sys.maxsize)
        with interrupt.c() if call == "Start" else nullcontext():
            request.Start()
        if interrupt.came:
            models[0] += start_again(request, model)
        model[:] = -1  # the copy counts
        with interrupt.c() if call == "Wait" else nullcontext():
            request.Wait(status)
        if interrupt.came and call == "Wait":
            wait_again(request, model)
            request._fill(status)
        models = comm.bcast(models)
        assert model.tolist() == pytest.approx(expected(status, models))
        # Of the phases of "splits" some have no group, and fewer places.
        ends = not interrupt.came and (name != "splits" or len(status.group) == 2)
        step, goes_on = step + 1, comm.bcast(not ends)
        if name == "anew":
            assert request.Free() == 0
            model[:] = INITIAL
            request = opened(ctx, model, *GROUPS[name])
    assert step > 10  # it was interrupted
    model[:] = comm.rank
    request.Flush()
    assert model.tolist() == [0.5, 0.5]
    assert request.Free() == 0


@pytest.mark.parametrize("name", ["kept", "not kept"])
def test_ctrl_c_while_mpi_averages(comm, ctx, name):
    """A signal is handled when MPI has returned, which has no result for a second call."""
    model = np.zeros(2)
    request = opened(ctx, model, *GROUPS[name])
    here = threading.get_ident()

    def interrupt():
        soon(lambda: sys._current_frames()[here].f_code is _group_elements.record.__code__)
        os.kill(os.getpid(), signal.SIGINT)
        comm.send(None, dest=1)

    for step in range(3):
        model[:] = comm.rank + step
        request.Start()
        if comm.rank == 0:
            thread = threading.Thread(target=interrupt)
            thread.start()
            with pytest.raises(KeyboardInterrupt):
                request.Wait()
                soon(lambda: False)  # the signal may come a moment later
            thread.join()
            wait_again(request, model)
        else:
            comm.recv(source=0)
            request.Wait()
        assert model.tolist() == [step + 0.5, step + 0.5]
    assert request.Free() == 0


@pytest.mark.parametrize("backend", ["auto", "schedule", "comm"])
def test_ctrl_c_at_every_place_of_a_step(comm, ctx, backend):
    """A gradient is applied once, and the next step goes on.

    Groups preserve the sum of the models, whichever there are, so that an average tells.
    """
    x, one, applied = np.zeros(2), np.ones(2), []

    def update(gradient):
        np.add(x, gradient, out=x)
        applied.append(1)

    worker = PartialReduce(2, backend=backend, final="equal").worker(ctx, x)
    place, goes_on = 0, True
    while goes_on:
        applied.clear()
        interrupt = Ctrl(place if comm.rank == 0 else sys.maxsize, STEP_FILES)
        with interrupt.c():
            worker.step(one, update)
        if interrupt.came or comm.rank == 1:
            worker.step(None if applied else one, update)
        worker.flush()
        place += 1
        assert x.tolist() == [place, place]
        goes_on = comm.bcast(interrupt.came)
    assert place > 20  # it was interrupted
    worker.finish()
