"""The exceptions of the library: each of them is an `Error`."""

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

    The library raises it directly for three kinds of failures: a call that is not allowed at this
    moment (a handle used after `Request.Free`, `Request.Start` on a request that was not collected,
    a context in a forked child), an error that the MPI library reports, and an internal failure.
    """


class ArgumentError(Error, ValueError):
    """An argument of this rank is wrong; the text names the argument and its value.

    When a context or a handle is made, every rank raises: the rank with the wrong argument this
    error, the other ranks a `MismatchError` that quotes it. In all other calls the error is local:
    nothing was communicated, and the call can be repeated with a correct argument.
    """


class MismatchError(Error):
    """The ranks made a collective call differently.

    Their arguments differ, another rank's arguments are wrong, or the ranks are in different
    collective calls. The text names the ranks and the values. When a context or a handle is made,
    every rank raises.
    """


class TimeoutError(Error, builtins.TimeoutError):
    """A wait took longer than its ``timeout=``.

    The text names the handle or the call, the ranks that it waits for, and why. This rank asks the
    others shortly before a timeout of a second or more is over, and for a stall warning; else the
    text says what this rank knows without asking.

    Nothing is lost. A request is still outstanding: the application can wait for it again, and a
    `Request.Start` adds to what is pending. A collective call is still in progress: the same call,
    made again, goes on with it. If the text says that copies have not come to or from their device,
    the call has not begun, and this rank has not left: any call may be next.
    """


class ThreadLevelError(Error):
    """MPI's thread level is too low for ``progress="thread"``.

    The progress thread needs ``MPI_THREAD_MULTIPLE``. Ask for it before MPI is initialised, which
    mpi4py does by default, or make the context with ``progress="caller"``.
    """


class PeerFailedError(Error):
    """Another rank died or gave up, so no further round can complete.

    By default the launcher ends the whole job when a rank dies. The other ranks see this error only
    if the launcher lets the job go on (Open MPI: ``--with-ft ulfm`` or
    ``--runtime-options recoverable,continuous``). Between hosts over TCP give ``--mca btl_tcp_flags
    9`` as well: otherwise Open MPI 5 may never return when a connection breaks under a large
    payload.
    """
