"""Ctrl-C in a Wait whose groups MPI averages.

What the other member has done with this rank happens once, and the call can be repeated.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

import numpy as np
import pytest
from support.on_device import soon

import pypartial as pp
from pypartial import _group_elements

pytestmark = [pytest.mark.mpi(min_size=2), pytest.mark.sizes(2)]

PAIR = [[0, 1]]

# Phases, and options.
GROUPS = {"kept": ([PAIR], {}), "not kept": ([PAIR], {"cache": 0})}


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
    return ctx.Preduce_init(model, pp.groups.Table(phases), backend="comm", **options)


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
