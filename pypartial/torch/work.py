"""What calls of the backend return: work that is done already, and transfers that are not."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from .._aside import aside
from ..errors import Error, MismatchError, TimeoutError
from .watch import Watch, came_soon

if TYPE_CHECKING:
    from mpi4py import MPI

__all__ = ["Done", "Transfer", "mpi_errors"]

_NO_TIMEOUT = timedelta(0)


@contextmanager
def mpi_errors(call: str) -> Iterator[None]:
    """Turn errors that MPI reports into those of this package."""
    from mpi4py import MPI

    try:
        yield
    except MPI.Exception as error:
        raise Error(f"{call}: MPI reports: {error}") from error


class Done(dist.Work):
    """Work that is complete.

    Parameters
    ----------
    tensors : sequence
        Tensors, or lists of them, that its future holds.
    """

    def __init__(self, tensors: Sequence[Any]) -> None:
        super().__init__()
        self._tensors = list(tensors)

    def wait(self, timeout: timedelta = _NO_TIMEOUT) -> bool:
        """Return True."""
        return True

    is_completed = is_success = wait

    def synchronize(self) -> None:
        """Return at once."""

    def exception(self) -> None:
        """Return None."""

    def result(self) -> list[Any]:
        """Return the tensors."""
        return self._tensors

    def get_future(self) -> torch.futures.Future[Any]:
        """Return a future that holds the tensors."""
        # It must know the devices of its tensors. One call has tensors of one device.
        flat = [
            one
            for some in self._tensors
            for one in (some if isinstance(some, (list, tuple)) else [some])
        ]
        devices = {tensor.device for tensor in flat if tensor.device.type != "cpu"}
        future: torch.futures.Future[Any] = torch.futures.Future(devices=list(devices))
        future.set_result(self._tensors)
        return future


class Transfer(dist.Work):
    """A send or a receive, from its call until `wait`. One thread of the application uses it.

    Parameters
    ----------
    call : str
    request : mpi4py.MPI.Request
    vector : torch.Tensor
        Its elements; they belong to MPI until the transfer is complete.
    done : callable
        Called once, when the transfer is complete.
    watch : Watch
        Of its group.
    peers : list of int
        The ranks at its other end.
    expected : int or None
        How many elements a receive is for; None for a send.
    """

    def __init__(
        self,
        call: str,
        request: MPI.Request,
        vector: torch.Tensor,
        done: Callable[[Transfer], None],
        watch: Watch,
        peers: list[int],
        expected: int | None = None,
    ) -> None:
        from mpi4py import MPI

        super().__init__()
        self._call, self._request, self.vector = call, request, vector
        self._done, self._expected = done, expected
        self._watch, self._peers = watch, peers
        self._status = MPI.Status()
        self._complete = self._withdrawn = False
        self._lock = threading.Lock()

    def is_completed(self) -> bool:
        """Return whether the transfer is complete; if it is, this completes it. Never blocks."""
        with self._lock:
            return self._is_completed()

    def _is_completed(self) -> bool:
        if not self._complete and self._test():
            self._finish()
        return self._complete

    def reap(self) -> None:
        """Complete a send if it is through: the application may have dropped its work.

        Any thread may call this. Receives stay the application's, which is told of their errors.
        """
        if self._expected is None and self._lock.acquire(blocking=False):
            try:
                self._is_completed()
            finally:
                self._lock.release()

    def is_success(self) -> bool:
        """Return whether the transfer is complete."""
        return self.is_completed()

    def exception(self) -> None:
        """Return None: a transfer that fails raises."""

    def wait(self, timeout: timedelta = _NO_TIMEOUT) -> bool:
        """Wait until the transfer is complete, and return True.

        Parameters
        ----------
        timeout : datetime.timedelta, optional
            Raise `pypartial.TimeoutError` after this time; the transfer goes on. 0, or less: the
            group's, after which a receive is withdrawn, and the message is that of the next one.
        """
        with self._lock:
            if self._withdrawn:
                raise TimeoutError(f"{self._call}: withdrawn after an earlier timeout")
            if not self._is_completed():
                with aside():
                    limit = timeout if timeout > _NO_TIMEOUT else None
                    try:
                        if not came_soon(self._test):
                            self._watch.wait(self._test, self._call, (), limit, self._peers)
                    except TimeoutError:
                        is_over = limit is None and self._expected is not None
                        if not is_over or self._withdraw():
                            raise
                self._finish()
        return True

    def _withdraw(self) -> bool:
        """Take back a receive, so that the message is for the next one; False: it has come."""
        self._request.Cancel()
        self._request.Wait(self._status)
        if self._status.Is_cancelled():
            self._withdrawn = self._complete = True
            self._done(self)
        return self._withdrawn

    def _test(self) -> bool:
        try:
            with mpi_errors(self._call):
                return self._request.Test(self._status)
        except Error:
            self._complete = True
            self._done(self)
            raise

    def _finish(self) -> None:
        self._complete = True
        self._done(self)
        if self._expected is None:
            return
        size_bytes = self.vector.element_size()
        from mpi4py import MPI

        came = self._status.Get_count(MPI.BYTE) // size_bytes
        if came != self._expected:
            raise MismatchError(
                f"{self._call}: rank {self._status.Get_source()} sent {came} elements, and this "
                f"rank receives {self._expected}"
            )

    def synchronize(self) -> None:
        """Do as `wait`."""
        self.wait()

    def result(self) -> list[torch.Tensor]:
        """Return the elements, when they are there."""
        self.wait()
        return [self.vector]

    def source_rank(self) -> int:
        """Return the rank, in the group, that the message came from."""
        return int(self._status.Get_source())

    _source_rank = source_rank

    def get_future(self) -> torch.futures.Future[Any]:
        """Raise: nobody could complete the future while this rank computes."""
        raise NotImplementedError(f"{self._call}: get_future; use wait() or is_completed()")
