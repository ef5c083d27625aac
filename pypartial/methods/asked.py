"""What a request was asked for, until it is applied; also after exceptions such as Ctrl-C."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..status import Status

if TYPE_CHECKING:
    from .._handle import Request

__all__ = ["Asked"]


class Asked:
    """The Starts and Waits of a request, of which an exception may end any.

    Parameters
    ----------
    request : Request
    """

    def __init__(self, request: Request) -> None:
        self._request = request
        self._applied = request._collected()

    def ask(self) -> Status:
        """Contribute, and wait for a round; return its status."""
        self._request.Start()
        return self.wait()

    def wait(self) -> Status:
        """Wait for the round; return its status."""
        status = Status()
        self._request.Wait(status)
        return status

    def apply(self) -> None:
        """Note that what was collected last has been applied."""
        self._applied = self._request._collected()

    @property
    def is_open(self) -> bool:
        """Whether a Start was made and not collected.

        What it contributes may be on its way, and must not be overwritten.
        """
        return self._request._is_outstanding()

    @property
    def lost(self) -> int | None:
        """The round of a result that was collected, and not applied; None if there is none."""
        collected = self._request._collected()
        if collected == self._applied:
            return None
        status = Status()
        status._fill(collected)
        return status.round
