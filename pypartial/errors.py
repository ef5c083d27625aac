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

    The text names the handle, the round, the ranks that are waited for and what each of them is
    doing. The request is still outstanding: it can be waited for again.
    """


class ThreadLevelError(Error):
    """MPI was initialised with a thread level that is too low for ``progress="thread"``."""


class PeerFailedError(Error):
    """Another rank died or gave up, so rounds can no longer complete."""
