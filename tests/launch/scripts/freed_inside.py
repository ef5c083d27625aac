"""Threads call contexts that the main thread frees: freed_inside.py CALL SECONDS.

CALL: "alloc" or "stats", which may be called at any time. A thread may be on its way into the call
when the context is gone: it must be refused, and must not look at memory that is.
"""

import sys
import threading
import time

from mpi4py import MPI

import pypartial as pp

THREADS, FREED_AFTER_S = 3, 0.002

call, seconds = sys.argv[1], float(sys.argv[2])
sys.setswitchinterval(1e-6)  # a thread may lose the GIL anywhere


def go_on(ctx, told):
    try:
        while True:
            ctx.alloc(4) if call == "alloc" else ctx.stats()
    except pp.Error as error:
        told.append(str(error))


until, contexts = time.monotonic() + seconds, 0
while contexts == 0 or time.monotonic() < until:
    ctx, told = pp.Context(MPI.COMM_SELF), []
    threads = [threading.Thread(target=go_on, args=(ctx, told)) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    time.sleep(FREED_AFTER_S)  # some calls are made; none of them would do as well
    ctx.Free()
    for thread in threads:
        thread.join()
    assert told == ["the context was freed"] * THREADS, told
    contexts += 1
print(f"end of rank {MPI.COMM_WORLD.rank}", flush=True)
