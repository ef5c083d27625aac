"""The rendezvous ``mpi://``: rank, size and store of torch.distributed come from MPI.

It serves every backend: ``dist.init_process_group("gloo", init_method="mpi://")``.
"""

from __future__ import annotations

import fcntl
import socket
import struct
from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlparse

import torch.distributed

from .._aside import aside
from ..errors import Error
from .agreement import agree

if TYPE_CHECKING:
    from mpi4py import MPI

__all__ = ["rendezvous"]

_distributed: Any = torch.distributed  # its types do not name all that is there
_TIMEOUT = timedelta(minutes=30)  # torch's default
_CONNECT_S = 3.0
_SIOCGIFADDR = 0x8915
_LOOPBACK = "127.0.0.1"


def rendezvous(url: str, timeout: timedelta = _TIMEOUT, **_: Any) -> Iterator[tuple[Any, int, int]]:
    """Yield a store, this process's rank and the number of ranks. Collective over MPI's world.

    Parameters
    ----------
    url : str
        ``mpi://``. Torch appends the rank and the number of ranks if the application gives them;
        they must be those of MPI.
    timeout : datetime.timedelta, optional
        Of the store.

    Raises
    ------
    ArgumentError
        If this rank's URL is wrong; the other ranks raise `MismatchError`.
    Error
        If a rank cannot reach the store of rank 0.
    """
    yield _meet(url, timeout)
    raise Error("mpi:// cannot be used a second time by the same init_process_group()")


@aside()
def _meet(url: str, timeout: timedelta) -> tuple[Any, int, int]:
    """Return what the rendezvous yields."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD.Dup()
    try:
        agree(comm.allgather(_complaint(url, comm)), comm.rank)
        return _open_store(comm, timeout), comm.rank, comm.size
    finally:
        comm.Free()


def _complaint(url: str, comm: MPI.Comm) -> str | None:
    """Return what is wrong with the URL of this rank."""
    parsed = urlparse(url)
    given = dict(parse_qsl(parsed.query))
    should = {"rank": str(comm.rank), "world_size": str(comm.size)}
    if parsed.netloc or parsed.path:
        return f"init_method={url!r}: write mpi://, without an address"
    for name, value in given.items():
        if should.get(name) != value:
            return (
                f"init_method={url!r}: {name}={value}, but this process is rank {comm.rank} of "
                f"{comm.size} of MPI; leave {name} out"
            )
    return None


def _open_store(comm: MPI.Comm, timeout: timedelta) -> Any:
    """Return a store that rank 0 hosts, on a free port."""
    store, address, found = None, None, None
    if comm.rank == 0:
        store = _distributed.TCPStore(
            _LOOPBACK, 0, is_master=True, wait_for_workers=False, timeout=timeout
        )
        address = socket.gethostname(), _interface_addresses(), store.port
    name, addresses, port = comm.bcast(address)
    hosts = [*([_LOOPBACK] if socket.gethostname() == name else []), *addresses, name]
    if comm.rank > 0:
        found = next((host for host in hosts if _answers(host, port)), None)
    lost = [rank for rank, it in enumerate(comm.allgather(found)) if rank > 0 and it is None]
    if lost:
        raise Error(
            f"ranks {lost} cannot connect to rank 0 by TCP, at {[*addresses, name]}, port "
            f"{port}; give init_process_group() another store"
        )
    if found is not None:
        store = _distributed.TCPStore(found, port, wait_for_workers=False, timeout=timeout)
    assert store is not None
    return store


def _interface_addresses() -> list[str]:
    """Return this host's addresses, without the loopback's."""
    addresses = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for _, name in socket.if_nameindex():
            asked = struct.pack("256s", name.encode()[:15])
            try:
                answer = fcntl.ioctl(any_socket.fileno(), _SIOCGIFADDR, asked)
            except OSError:  # an interface without an IPv4 address
                continue
            address = socket.inet_ntoa(answer[20:24])
            if not address.startswith("127."):
                addresses.append(address)
    return addresses


def _answers(host: str, port: int) -> bool:
    """Return whether a connection to the port can be made."""
    try:
        with socket.create_connection((host, port), timeout=_CONNECT_S):
            return True
    except OSError:
        return False
