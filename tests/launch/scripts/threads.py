"""Several threads of every rank in Start and Wait of handles of their own, all at once.

Full: every round has all ranks' contributions. Solo: nothing is lost or comes twice.
"""

import threading

import numpy as np
from mpi4py import MPI

import pypartial as pp

SIZES, STEPS = (3, 5000, 40_000, 3, 5000), 150
comm = MPI.COMM_WORLD
ctx = pp.Context(comm)
handles = []
for i, size in enumerate(SIZES):
    send, receive = np.ones(size, np.int64), np.zeros(size, np.int64)
    deliver, policy = ("latest", pp.Full()) if i < 3 else ("sum", pp.Solo())
    request = ctx.Allreduce_init(send, receive, policy=policy, deliver=deliver)
    handles.append((request, receive))
sums = [0] * len(handles)
problems = []


def work(index):
    request, receive = handles[index]
    for _ in range(STEPS):
        request.Start()
        request.Wait(timeout=20)
        if receive.min() != receive.max():
            problems.append(f"handle {index}: torn, {receive.min()}..{receive.max()}")
        if index < 3 and receive[0] != comm.size:
            problems.append(f"handle {index}: {receive[0]}")
        sums[index] += int(receive[0])


threads = [threading.Thread(target=work, args=(i,)) for i in range(len(handles))]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
for index, (request, receive) in enumerate(handles):
    request.Flush()
    sums[index] += int(receive[0]) if index >= 3 else 0
    if sums[index] != STEPS * comm.size:
        problems.append(f"handle {index}: {sums[index]} of {STEPS * comm.size}")
    request.Free()
ctx.Free()
assert not problems, problems
print(f"end of rank {comm.rank}", flush=True)
