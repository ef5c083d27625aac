"""What the requests of averages share: groups, gossip and queues."""

from __future__ import annotations

from typing import NoReturn

from ._handle import Request
from .errors import Error


class AverageRequest(Request):
    """A request whose every Start has one average, which is in the buffers after Wait."""

    __slots__ = ()

    def View(self, *_: object, **__: object) -> NoReturn:
        """Raise `Error`: the average is in the buffers after `Wait`."""
        raise Error(f"{self._name()}: averages have no View; call Wait, and read the buffers")

    def More(self, *_: object, **__: object) -> NoReturn:
        """Raise `Error`: each Start has one average."""
        raise Error(f"{self._name()}: averages have no More: each Start has one; call Wait")

    def Drain(self, *_: object, **__: object) -> NoReturn:
        """Raise `Error`: `Flush` averages over all ranks."""
        raise Error(f"{self._name()}: averages have no Drain; call Flush to average over all ranks")
