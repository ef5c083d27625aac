"""One rank of each group dies at some moment, and the launcher lets the others go on.

``dies.py MOMENTS VICTIM TRANSPORT SEED FOLDER``: the ranks make as many groups as there are moments
(separated by commas), each with some ranks of every host; in each of them the rank VICTIM dies.

Each says when it is ready, and each of the others what it sees, and how long after the beginning of
that moment, in which a rank lives for `SOON_S` at most: ``rank 0 in wait after 0.104 s:
PeerFailedError: ...``. Who waits for ever says ``rank 0 in wait hangs``. Who says nothing then was
ended with the job. FOLDER is one that all ranks see, for them to end together.
"""

import os
import random
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np
from mpi4py import MPI

import pypartial as pp

READY_S, HANGS_S, STAYS_S = 60.0, 30.0, 3.0
ROUNDS, LARGE = 20, 1 << 20
SMALL = 1000  # elements of two models that are averaged under the node's lock
SOON_S = 0.03  # a little more than what dies takes of these programs, so that it dies anywhere

moments, victim, transport = sys.argv[1].split(","), int(sys.argv[2]), sys.argv[3]
seed, folder = int(sys.argv[4]), Path(sys.argv[5])
world = MPI.COMM_WORLD
group, comm = 0, world
if len(moments) > 1:  # else there is no connection that the library has not made
    group = world.Split_type(MPI.COMM_TYPE_SHARED).rank % len(moments)
    comm = world.Split(group)
moment = moments[group]
victim %= comm.size
dies = comm.rank == victim


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def die_soon():
    """End this process wherever it is then."""
    if dies:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        lives_s = SOON_S * random.Random(f"{seed} {moment}").random() + 1e-6
        signal.setitimer(signal.ITIMER_REAL, lives_s)


def give_up():
    print(f"rank {world.rank} in {moment} hangs", flush=True)
    os._exit(1)


def opened():
    return pp.Context(comm, transport=transport)


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


def in_groups(ctx, count):
    """Of which a rank that dies may be a member, or not."""
    request = ctx.Preduce_init(np.ones(count), pp.groups.Random(2))
    rounds(request, 3)
    request.Flush()
    yield
    die_soon()
    while True:
        rounds(request, 1)


def in_small_groups():
    """Averaged under the node's lock, so that a rank may die with it."""
    yield from in_groups(opened(), SMALL)


def in_large_groups():
    yield from in_groups(opened(), LARGE)


def in_flush_of_groups():
    request = opened().Preduce_init(np.ones(4), pp.groups.Controller(2))
    rounds(request, 3)
    request.Flush()
    yield
    die_soon()
    while True:
        request.Start()
        request.Flush()


def in_gossip(count):
    request = opened().Gossip_init(np.ones(count), pp.topology.complete())
    rounds(request, 3)
    request.Flush()
    yield
    die_soon()
    while True:
        request.Start(add=np.ones(count))
        request.Wait()


def while_it_holds_its_model():
    request = opened().Gossip_init(np.ones(4), pp.topology.complete())
    request.Flush()
    yield
    if dies:
        with request.locked():
            die()
    while True:  # one of these averages is with the dead
        rounds(request, 1)


def in_queues(count, **options):
    request = opened().Queue_init(np.ones(count), pp.topology.ring(), **options)
    rounds(request, 3)
    request.Flush()
    yield
    die_soon()
    while True:
        rounds(request, 1)


def in_flush_of_queues():
    request = opened().Queue_init(np.ones(SMALL), pp.topology.complete())
    rounds(request, 3)
    yield
    die_soon()
    while True:
        request.Start()
        request.Flush()


def while_it_is_away():
    """Nobody waits for it."""
    ctx = opened()
    request = ctx.Queue_init(np.ones(4), pp.topology.complete())
    rounds(request, 3)
    yield
    if dies:
        with ctx.away():
            time.sleep(SOON_S)
            die()
    while True:
        rounds(request, 1)


MOMENTS = {
    "wait": in_wait,
    "round": in_a_round,
    "flush": in_flush,
    "init": in_init,
    "open": while_opening,
    "before": before_any_handle,
    "groups": in_small_groups,
    "models": in_large_groups,
    "averages": in_flush_of_groups,
    "gossip": lambda: in_gossip(SMALL),
    "neighbours": lambda: in_gossip(LARGE),
    "held": while_it_holds_its_model,
    "queues": lambda: in_queues(SMALL, backup=1),
    "updates": lambda: in_queues(LARGE, protocol="none"),
    "ends": in_flush_of_queues,
    "away": while_it_is_away,
}


def together(what, ranks, limit_s):
    """Wait for others to come to the same point, without MPI, which would find some dead."""
    (folder / f"{what}-{world.rank}").touch()
    until = time.monotonic() + limit_s
    while len(list(folder.glob(f"{what}-*"))) < ranks and time.monotonic() < until:
        time.sleep(0.01)


program = MOMENTS[moment]()
next(program)
print(f"rank {world.rank} is ready", flush=True)  # one that dies may take others along
together("ready", world.size, READY_S)
began = time.monotonic()
watchdog = threading.Timer(HANGS_S, give_up)
watchdog.daemon = True
watchdog.start()
try:
    next(program, None)
except pp.Error as error:
    what = f"after {time.monotonic() - began:.3f} s: {type(error).__name__}: {error}"
    print(f"rank {world.rank} in {moment} {what}", flush=True)
# Not MPI_Finalize, which would wait for the dead; and not before the others have seen it: to them,
# who ends is one more rank that has died.
together("over", world.size - len(moments), STAYS_S)
os._exit(0)
