"""What a request was asked for, until it is applied; also behind exceptions such as Ctrl-C."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import PeerFailedError
from ..status import Status

if TYPE_CHECKING:
    from .._handle import Request

__all__ = ["Asked"]


class Asked:
    """The Starts and Waits of a request, of which an exception may end any.

    Parameters
    ----------
    request : Request

    Attributes
    ----------
    is_open : bool
        A Start was made whose Wait has not returned: what it contributes may be on its way, and
        must not be overwritten.
    """

    def __init__(self, request: Request) -> None:
        self._request, self.is_open = request, False
        self._applied = request._collected()

    def ask(self) -> Status:
        """Contribute, and wait for a round; return its status."""
        self.start()
        return self.wait()

    def start(self) -> None:
        """Contribute."""
        try:
            self.is_open = True
            self._request.Start()
        except BaseException:  # it may have contributed, and an older Start may be on its way
            self.is_open = self._request._is_outstanding()
            raise

    def wait(self) -> Status:
        """Wait for the round; return its status."""
        status = Status()
        try:
            self._request.Wait(status)
        except PeerFailedError:  # each further call says so, too
            self.is_open = False
            raise
        self.is_open = False
        return status

    def apply(self) -> None:
        """Note that what was collected last has been applied."""
        self._applied = self._request._collected()

    @property
    def lost(self) -> int | None:
        """The round of a result that was collected, and not applied; None if there is none."""
        collected = self._request._collected()
        if collected == self._applied:
            return None
        status = Status()
        status._fill(collected)
        return status.round
