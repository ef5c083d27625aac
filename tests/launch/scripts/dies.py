"""One rank dies at some moment, and the launcher lets the others go on: dies.py MOMENT VICTIM TRANSPORT SEED.

Each of the others says what it sees, and how long after the death: ``rank 0 after 0.104 s:
PeerFailedError: ...``. Who is still waiting `HANGS_S` after the others should know says ``rank 0
hangs``. Who says nothing was ended with the job.
"""

import os
import random
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
from mpi4py import MPI

import pypartial as pp

HANGS_S, STAYS_S = 15.0, 2.5
ROUNDS, LARGE = 20, 1 << 20
SOON_S = 0.03  # a little more than what dies takes of these programs, so that it dies anywhere

moment, victim, transport, seed = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
comm = MPI.COMM_WORLD
dies = comm.rank == victim
died = None


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def die_soon():
    """End this process wherever it is then."""
    if dies:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, SOON_S * random.Random(seed).random() + 1e-6)


def give_up():
    print(f"rank {comm.rank} hangs", flush=True)
    os._exit(1)


def opened():
    ctx = pp.Context(comm, transport=transport)
    return ctx


def handle(ctx, count=4, policy=None):
    buffers = np.ones(count), np.zeros(count)
    return ctx.Allreduce_init(*buffers, policy=policy or pp.Full())


def rounds(request, number):
    for _ in range(number):
        request.Start()
        request.Wait()


def in_wait():
    request = handle(opened())
    rounds(request, ROUNDS)
    yield
    if dies:
        die()
    rounds(request, 1)


def in_a_round():
    """Of payloads, among nodes and on one, by whatever way."""
    ctx = opened()
    request = handle(ctx, LARGE, pp.Solo() if seed % 2 else pp.Full())
    rounds(request, 3)
    request.Flush()
    yield
    die_soon()
    while True:
        rounds(request, 1)


def in_flush():
    request = handle(opened(), policy=pp.Majority())
    rounds(request, ROUNDS)
    request.Flush()
    yield
    die_soon()
    while True:
        request.Start()
        request.Flush()


def in_init():
    ctx = opened()
    handle(ctx).Free()
    yield
    die_soon()
    while True:
        handle(ctx).Free()


def while_opening():
    opened().Free()
    yield
    die_soon()
    while True:
        opened().Free()


def before_any_handle():
    ctx = opened()
    yield
    if dies:
        die()
    handle(ctx)


MOMENTS = {
    "wait": in_wait,
    "round": in_a_round,
    "flush": in_flush,
    "init": in_init,
    "open": while_opening,
    "before": before_any_handle,
}

program = MOMENTS[moment]()
next(program)
comm.Barrier()
began = time.monotonic()
watchdog = threading.Timer(HANGS_S, give_up)
watchdog.daemon = True
watchdog.start()
try:
    next(program, None)
except pp.Error as error:
    seconds = time.monotonic() - began
    print(f"rank {comm.rank} after {seconds:.3f} s: {type(error).__name__}: {error}", flush=True)
# Not MPI_Finalize, which would wait for the dead; and not before the others have seen it: to them,
# who ends is one more rank that has died.
time.sleep(STAYS_S)
os._exit(0)
