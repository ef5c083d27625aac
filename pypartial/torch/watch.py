"""What ranks tell each other about the calls they are in, while they wait and while they compute.

Messages go by the group's communicator, with a tag that no transfer has. A thread of the process
answers for it, so that a rank that computes can be asked, too.
"""

from __future__ import annotations

import atexit
import functools
import os
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

__all__ = ["Watch", "came_soon", "describe"]

STALL_S = 30.0
_ANSWER_S = 1.0  # how long a rank that has waited long waits for answers
_HEAR_S = 0.1  # how often the thread looks for questions
# How long a rank that ends a group waits for the others; less after one to which they did not come.
_CLOSE_S, _CLOSE_AGAIN_S = 1.0, 0.01
_SPINS = range(50)  # tests before a waiting rank leaves its core to others
_ASK, _ANSWER, _GONE = range(3)

_watches: WeakSet[Watch] = WeakSet()
_unsent: list[MPI.Request] = []  # of groups that have ended: MPI may use their memory


class Watch:
    """What one rank knows of the calls of a process group.

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
        self.timeout = timeout
        self.number = 0  # of the last call
        self._call, self._inside = "", False
        self._what: tuple[object, ...] = ()
        self._since = time.monotonic()
        self._lock = threading.Lock()  # for what follows
        self._question = 0
        self._answers: dict[int, tuple[int, str]] = {}
        self._sent: list[MPI.Request] = []
        self._closes = self._ended = False
        self._waits: tuple[str, tuple[object, ...], float] | None = None
        self.gave_up: Exception | None = None  # why the group cannot be used any more
        self._refuse: Callable[[], bool] | None = None  # what the thread does after a giving up

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
        now = time.monotonic()
        seconds = f"{now - self._since:.1f} s"
        call = describe(self._call, self._what)
        if self._inside:
            return f"in {call}, call {self.number}, for {seconds}"
        where = f"in no call for {seconds}"
        for watch in (self, *_watches):
            if (waits := watch._waits) is not None:  # in a transfer, or in another group's call
                of = "" if watch is self else " of another group"
                where = f"in {describe(*waits[:2])}{of} for {now - waits[2]:.1f} s"
                break
        last = f"after {call}, call {self.number}" if self.number else "and has made none yet"
        return f"{where}, {last}"

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
        self._waits = call, what, began
        chosen = self.timeout if timeout is None or timeout < timedelta(0) else timeout
        try:
            self._wait(test, call, what, began, chosen.total_seconds(), peers)
        finally:
            self._waits = None

    def _wait(
        self,
        test: Callable[[], bool],
        call: str,
        what: tuple[object, ...],
        began: float,
        limit: float,
        peers: list[int],
    ) -> None:
        deadline, warn_at = began + limit, began + STALL_S
        ask_by = None
        spins = 0
        while not test():
            spins += 1
            os.sched_yield()
            now = time.monotonic()
            if spins % len(_SPINS) == 0:
                self.hear()
                self.check()
            if ask_by is None and now >= min(deadline, warn_at):
                ask_by = now + _ANSWER_S
                self._ask(peers)
            if ask_by is None or (now < ask_by and not self._all_told(peers)):
                continue
            doing, name = self._told(peers), describe(call, what)
            if now >= deadline:
                raise TimeoutError(
                    f"{name}: not complete within the timeout of {limit:g} s; {doing}"
                )
            LOGGER.warning("%s: not complete after %.1f s; %s", name, now - began, doing)
            ask_by, warn_at = None, began + 2 * (now - began)

    def check(self) -> None:
        """Raise if a rank has given up a call."""
        if self.gave_up is not None:
            raise type(self.gave_up)(*self.gave_up.args)

    def wait_for_reason(self) -> None:
        """Raise: another rank has given up, and its message says why."""
        until = time.monotonic() + _ANSWER_S
        while time.monotonic() < until:
            self.hear()
            self.check()
            os.sched_yield()
        self.gave_up = PeerFailedError(f"another rank has given up {self._call}")
        self.check()

    def give_up(self, error: BaseException, refuse: Callable[[], bool]) -> None:
        """Tell the others that this rank will not take part in the call that it is in.

        `refuse` says so to those that have not heard it. The thread calls it until it returns True.
        """
        is_late = isinstance(error, TimeoutError)
        kind = TimeoutError if is_late else PeerFailedError
        why = str(error) or type(error).__name__
        text = f"rank {self._rank} has given up {self._call}, call {self.number}: {why}"
        with self._lock:
            self._refuse = refuse
            if self.gave_up is None:
                self.gave_up = kind(f"{text}. The process group cannot be used any more")
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
            self._sent.append(self._comm.issend((kind, number, text), rank, self.tag))

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
                kind, number, content = message.recv()
                rank = status.Get_source()
                if kind == _ASK and not self._closes:
                    self._send(rank, _ANSWER, number, (self.number, self.doing()))
                elif kind == _ANSWER and number == self._question:
                    self._answers[rank] = content
                elif kind == _GONE and self.gave_up is None:
                    is_late, text = content
                    self.gave_up = (TimeoutError if is_late else PeerFailedError)(text)
        finally:
            self._lock.release()

    def close(self) -> bool:
        """Use the communicator no more; return whether it may be freed.

        It may, if all ranks are here, and all that they have sent has come: a message for a freed
        communicator would disturb the next that MPI makes. So ranks meet, for a second at most.
        """
        until = time.monotonic() + (_CLOSE_AGAIN_S if _unsent else _CLOSE_S)
        meeting: MPI.Request | None = None
        may_be_freed = False
        self._closes = True
        while not (may_be_freed or self.gave_up or time.monotonic() > until):
            self.hear()
            if meeting is not None:
                may_be_freed = meeting.Test()
            elif self._all_sent():
                meeting = self._comm.Ibarrier()
            os.sched_yield()
        self.end_of_group()
        if meeting is not None and not may_be_freed:
            _unsent.append(meeting)
        return may_be_freed

    def _all_sent(self) -> bool:
        with self._lock:
            return all(request.Test() for request in self._sent)

    def end_of_group(self) -> None:
        """Use the communicator no more. Local."""
        with self._lock:
            self._ended = True
            _unsent.extend(request for request in self._sent if not request.Test())
        if self._refuse is None:
            _watches.discard(self)

    def answer(self) -> None:
        """Do what the thread does for the group now and then."""
        self.hear()
        if self._refuse is not None and self._refuse():
            self._refuse = None


def came_soon(test: Callable[[], bool]) -> bool:
    """Return whether a test says so within some microseconds."""
    for _ in _SPINS:  # noqa: SIM110  a generator would cost more than the test
        if test():
            return True
    return False


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
                watch.answer()
            except Exception as error:  # of MPI: the application meets it in its own calls
                LOGGER.debug("the watch of a process group: %s", error)
                watch.end_of_group()
