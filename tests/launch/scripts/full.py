"""Synchronous rounds: the digest of every result, and where the ranks are: full.py LIMIT.

Every rank prints "on HOST with N neighbours", and rank 0 a line for every handle. With messages
between all ranks the sums are of floating-point numbers that have to be rounded, so that another
order of the operands shows. Ranks that share memory may add in another order: integers there.
After LIMIT seconds the ranks print their stacks and end.
"""

import faulthandler
import itertools
import sys
import zlib

import numpy as np
from mpi4py import MPI

import pypartial as pp
from pypartial._core import ffi, lib
from pypartial._names import algorithm_options

ELEMENTS = (3001, 300_007)  # the larger are more than 1 MiB
ALGORITHMS = tuple(algorithm_options(ffi, lib))
DELIVERIES = ("latest", "sum", "each")
ROUNDS = 2
WAIT_S = 60.0

comm = MPI.COMM_WORLD


def fill(send, random):
    if send.dtype.kind == "f":
        send[:] = random.standard_normal(len(send), np.float32)
    else:
        send[:] = random.integers(-(1 << 40), 1 << 40, len(send))


def digests(request, send, out):
    """Call for some rounds, and once more just before the end.

    Whether that last call gets a round of its own or all of them the flush is a matter of timing,
    hence it is collected first if a flush would replace its result, and summed up otherwise.
    """
    random = np.random.default_rng(comm.rank)
    found, status = [], pp.Status()
    for _ in range(ROUNDS + (request.deliver == "latest")):
        fill(send, random)
        request.Start()
        request.Wait(status, WAIT_S)
        found.append(zlib.crc32(out))
        assert status.active == status.contributions == comm.size
        assert status.contributors == tuple(range(comm.size))
    if request.deliver == "latest":
        request.Flush(status)
        found.append(zlib.crc32(out))
        assert status.contributions == 0
        assert request.Free() == 0
        return found
    fill(send, random)
    request.Start()
    if request.deliver == "each":
        given = sum(out.copy() for _ in request.Drain())
    else:
        request.Flush(status)
        given = out
    found.append(zlib.crc32(given))
    assert request.Free() == 0
    return found


def live(ctx, transport, kind, algorithms):
    for case in itertools.product(ELEMENTS, algorithms, DELIVERIES):
        elements, algorithm, deliver = case
        send, out = np.zeros(elements, kind), np.zeros(elements, kind)
        request = ctx.Allreduce_init(
            send, out, policy=pp.Full(), deliver=deliver, algorithm=algorithm
        )
        by_rank = comm.allgather(digests(request, send, out))
        assert by_rank.count(by_rank[0]) == comm.size, f"{case}: the ranks have {by_rank}"
        if comm.rank == 0:
            shown = " ".join(f"{digest:08x}" for digest in by_rank[0])
            print("full", transport, kind, *case, shown, flush=True)


def main():
    with pp.Context(comm, seed=5) as ctx:
        host, neighbours = MPI.Get_processor_name(), ctx.stats().neighbours
        print(f"on {host} with {neighbours} neighbours", flush=True)
        live(ctx, "auto", "i8", ["auto"])
    with pp.Context(comm, seed=5, transport="mpi") as ctx:
        live(ctx, "mpi", "f4", ALGORITHMS)


faulthandler.dump_traceback_later(float(sys.argv[1]), exit=True)
main()
faulthandler.cancel_dump_traceback_later()
