"""The exceptions of the library. Every one of them is an `Error`."""

from __future__ import annotations

import builtins

__all__ = [
    "ArgumentError",
    "Error",
    "MismatchError",
    "PeerFailedError",
    "ThreadLevelError",
    "TimeoutError",
]


class Error(Exception):
    """Base of all errors of pypartial.

    Raised itself for calls that are not allowed now (a handle used after `Free`, `Start` on a
    request that was not collected, a context in a forked child), for errors that the MPI library
    reports, and for internal failures.
    """


class ArgumentError(Error, ValueError):
    """An argument of this rank is wrong; the text names the value.

    In a collective call every rank raises: the rank with the wrong argument this error, the others
    a `MismatchError` that quotes it.
    """


class MismatchError(Error):
    """The ranks called a collective function with arguments that do not go together."""


class TimeoutError(Error, builtins.TimeoutError):
    """A wait took longer than its timeout.

    The text names the handle or the call, and says at once what is known on this rank: what stands
    in its way as seen from here, and what the ranks answered if they were asked, as they are when a
    stall warning is due. A request is still outstanding: it can be waited for again, and the next
    `Start` adds to what is pending. A collective call goes on when it is called again.
    """


class ThreadLevelError(Error):
    """MPI was initialised with a thread level that is too low for ``progress="thread"``."""


class PeerFailedError(Error):
    """Another rank died or gave up, so rounds can no longer complete.

    A rank lives to see it if the launcher lets jobs go on (Open MPI: ``--with-ft ulfm`` or
    ``--runtime-options recoverable,continuous``). Between hosts over TCP give ``--mca btl_tcp_flags
    9`` as well: Open MPI 5 may otherwise never return when a connection breaks under a large
    payload.
    """
