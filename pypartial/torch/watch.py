"""What ranks tell each other about the calls they are in, while they wait and while they compute.

Messages go by the group's communicator, with a tag that no transfer has. A thread of the process
answers for it, so that a rank that computes can be asked, too.
"""

from __future__ import annotations

import atexit
import functools
import os
import secrets
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from .._explain import LISTED
from .._native import LOGGER
from ..errors import PeerFailedError, TimeoutError

if TYPE_CHECKING:
    from mpi4py import MPI

__all__ = ["Watch"]

STALL_S = 30.0
_ANSWER_S = 1.0  # how long a rank that has waited long waits for answers
_HEAR_S = 0.1  # how often the thread looks for questions
_SPINS = 50  # tests before a waiting rank leaves its core to others
_ASK, _ANSWER, _GONE = range(3)

_watches: WeakSet[Watch] = WeakSet()


class Watch:
    """What one rank knows of the calls of a process group. Making it is collective.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
        Of the group.
    timeout : datetime.timedelta
        Of calls that have none of their own.
    """

    def __init__(self, comm: MPI.Comm, timeout: timedelta) -> None:
        from mpi4py import MPI

        self._comm, self._rank, self._size = comm, comm.rank, comm.size
        largest: Any = comm.Get_attr(MPI.TAG_UB)
        self.tag = int(largest)
        # MPI gives a communicator the place of one that was freed, and the messages that are left.
        self._token = comm.bcast(secrets.token_bytes(8))
        self.timeout = timeout
        self.number = 0  # of the last call
        self._call, self._inside = "", False
        self._what: tuple[object, ...] = ()
        self._since = time.monotonic()
        self._lock = threading.Lock()  # for what follows
        self._question = 0
        self._answers: dict[int, tuple[int, str]] = {}
        self._sent: list[MPI.Request] = []
        self._ended = False
        self._gave_up: Exception | None = None

    def open(self) -> None:
        """Answer questions from now on."""
        _watches.add(self)
        _start()

    # ---- what this rank does ---------------------------------------------------------------------

    def begin(self, call: str, what: tuple[object, ...]) -> None:
        """Note that this rank is in a call; raise as `check`."""
        self.check()
        self._call, self._what, self._inside = call, what, True
        self.number += 1
        self._since = time.monotonic()

    def end(self) -> None:
        """Note that the call is over."""
        self._inside = False
        self._since = time.monotonic()

    def doing(self) -> str:
        """Return which call this rank is in, or how long it has been in none."""
        seconds = f"{time.monotonic() - self._since:.1f} s"
        if not self.number:
            return f"in no call for {seconds}, and has made none yet"
        call = describe(self._call, self._what)
        if self._inside:
            return f"in {call}, call {self.number}, for {seconds}"
        return f"in no call for {seconds}, after {call}, call {self.number}"

    # ---- waiting --------------------------------------------------------------------------------

    def wait(
        self,
        test: Callable[[], bool],
        call: str,
        what: tuple[object, ...],
        timeout: timedelta | None,
        peers: list[int],
    ) -> None:
        """Wait until the test says so, for at most the timeout.

        Parameters
        ----------
        test : callable
            Drives MPI, and returns whether that which this rank waits for is there.
        call : str
        what : tuple
            For the texts.
        timeout : datetime.timedelta or None
            None, or less than 0, as torch has it: the group's.
        peers : list of int
            The ranks that may be late.

        Raises
        ------
        TimeoutError, PeerFailedError
            After the timeout; if another rank has given up. The text says what each rank does.
        """
        began = time.monotonic()
        chosen = self.timeout if timeout is None or timeout < timedelta(0) else timeout
        deadline, warn_at = began + chosen.total_seconds(), began + STALL_S
        ask_by = None
        spins = 0
        while not test():
            spins += 1
            if spins < _SPINS:
                continue
            os.sched_yield()
            now = time.monotonic()
            if spins % _SPINS == 0:
                self.hear()
                self.check()
            if ask_by is None and now >= min(deadline, warn_at):
                ask_by = now + _ANSWER_S
                self._ask(peers)
            if ask_by is None or (now < ask_by and not self._all_told(peers)):
                continue
            doing, name = self._told(peers), describe(call, what)
            if now >= deadline:
                limit = f"{chosen.total_seconds():g} s"
                raise TimeoutError(f"{name}: not complete within the timeout of {limit}; {doing}")
            LOGGER.warning("%s: not complete after %.1f s; %s", name, now - began, doing)
            ask_by, warn_at = None, began + 2 * (now - began)

    def check(self) -> None:
        """Raise if a rank has given up a call."""
        if self._gave_up is not None:
            raise type(self._gave_up)(*self._gave_up.args)

    def give_up(self, error: BaseException) -> None:
        """Tell the others that this rank will not take part in the call that it is in."""
        is_late = isinstance(error, TimeoutError)
        kind = TimeoutError if is_late else PeerFailedError
        why = str(error) or type(error).__name__
        text = f"rank {self._rank} has given up {self._call}, call {self.number}: {why}"
        with self._lock:
            if self._gave_up is None:
                self._gave_up = kind(f"{text}. The process group cannot be used any more")
                for rank in range(self._size):
                    self._send(rank, _GONE, self.number, (is_late, text))

    # ---- questions and answers ------------------------------------------------------------------

    def _ask(self, peers: list[int]) -> None:
        with self._lock:
            self._question += 1
            self._answers = {}
            for rank in peers:
                self._send(rank, _ASK, self._question, None)

    def _all_told(self, peers: list[int]) -> bool:
        return all(rank in self._answers or rank == self._rank for rank in peers)

    def _told(self, peers: list[int]) -> str:
        """Return what the ranks do that may be late, those first that are in no call."""
        answers = {rank: self._answers.get(rank) for rank in peers if rank != self._rank}
        own = self.number
        late = {rank: it for rank, it in answers.items() if it is None or it[0] < own}
        lines = [
            f"rank {rank} {'does not answer' if it is None else 'is ' + it[1]}"
            for rank, it in (late or answers).items()
        ]
        more = len(lines) - LISTED
        return "; ".join(lines[:LISTED]) + (f"; and {more} more ranks" if more > 0 else "")

    def _send(self, rank: int, kind: int, number: int, text: Any) -> None:
        if rank != self._rank:
            self._sent = [request for request in self._sent if not request.Test()]
            message = self._token, kind, number, text
            self._sent.append(self._comm.isend(message, rank, self.tag))

    def hear(self) -> None:
        """Take what other ranks have sent, and answer their questions; any thread may call this."""
        from mpi4py import MPI

        if not self._lock.acquire(blocking=False):
            return
        try:
            status = MPI.Status()
            while not self._ended:
                message = self._comm.improbe(MPI.ANY_SOURCE, self.tag, status)
                if message is None:
                    return
                token, kind, number, content = message.recv()
                rank = status.Get_source()
                if token != self._token:
                    continue
                if kind == _ASK:
                    self._send(rank, _ANSWER, number, (self.number, self.doing()))
                elif kind == _ANSWER and number == self._question:
                    self._answers[rank] = content
                elif kind == _GONE and self._gave_up is None:
                    is_late, text = content
                    self._gave_up = (TimeoutError if is_late else PeerFailedError)(text)
        finally:
            self._lock.release()

    def close(self) -> None:
        """Use the communicator no more."""
        with self._lock:
            self._ended = True
        _watches.discard(self)


def describe(call: str, what: tuple[object, ...]) -> str:
    """Return a call and what is the same in it on all ranks, in words."""
    words = " ".join(str(it).removeprefix("torch.") for it in what if it is not None)
    return f"{call} ({words})" if words else call


# ---- the thread ---------------------------------------------------------------------------------

_stopping = threading.Event()


@functools.cache
def _start() -> None:
    """Start the thread that answers for the process, once; MPI's end stops it."""
    from mpi4py import MPI

    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        return  # ranks answer only while they wait themselves
    thread = threading.Thread(target=_answer, name="pypartial.torch watch", daemon=True)
    thread.start()

    def stop(*_: Any) -> None:
        _stopping.set()
        if threading.current_thread() is not thread:
            thread.join()

    atexit.register(stop)
    # MPI_Finalize begins by deleting the attributes of COMM_SELF (MPI 4.0, section 11.2.4).
    MPI.COMM_SELF.Set_attr(MPI.Comm.Create_keyval(delete_fn=stop), None)


def _answer() -> None:
    while not _stopping.wait(_HEAR_S):
        for watch in list(_watches):
            try:
                watch.hear()
            except Exception as error:  # of MPI: the application meets it in its own calls
                LOGGER.debug("the watch of a process group: %s", error)
                watch.close()
