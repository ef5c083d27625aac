"""Tables of the words that users write and the C core's constants for them.

The tables hold the names of the constants, so that this module can be imported without the core.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from . import errors

if TYPE_CHECKING:
    from ._core import FFI, CData, Lib
    from .policy import Policy

Value = TypeVar("Value")


class Names(Collection[Value]):
    """The values of one option or answer, in the core's order, and their constants.

    Parameters
    ----------
    what : str
        The option's name, for errors.
    constants : mapping
        For each value the name of its constant, or a number.
    """

    def __init__(self, what: str, constants: Mapping[Value, str | int]) -> None:
        self.what = what
        self._constants = dict(constants)

    def __iter__(self) -> Iterator[Value]:
        """Yield the values."""
        return iter(self._constants)

    def __len__(self) -> int:
        """Return how many values there are."""
        return len(self._constants)

    def __contains__(self, value: object) -> bool:
        """Return whether `value` is one of the values; an unhashable object is not."""
        try:
            return value in self._constants
        except TypeError:
            return False

    def constant(self, lib: Lib, value: Any, what: str | None = None) -> int:
        """Return the constant of a value.

        Raises
        ------
        ArgumentError
            If `value` is not one of the values. The error calls the option `what`.
        """
        self.check(value, what)
        return _number(lib, self._constants[value])

    def check(self, value: Any, what: str | None = None) -> None:
        """Raise ArgumentError if `value` is not one of the values; the error names `what`."""
        if value not in self:
            allowed = ", ".join(map(repr, self._constants))
            raise errors.ArgumentError(
                f"{what or self.what} must be one of {allowed}, not {value!r}"
            )

    def values(self, lib: Lib) -> dict[int, Value]:
        """Return a dict from constants to values."""
        return {_number(lib, name): value for value, name in self._constants.items()}

    def value(self, lib: Lib, constant: int) -> Value:
        """Return the value that a constant stands for.

        Raises
        ------
        KeyError
            If the constant belongs to no value.
        """
        return self.values(lib)[constant]


def _number(lib: Lib, constant: str | int) -> int:
    return int(getattr(lib, constant) if isinstance(constant, str) else constant)


def _named(what: str, prefix: str, *values: str) -> Names[str]:
    """Return values whose constants are named after them."""
    return Names(what, {value: f"{prefix}{value.upper()}" for value in values})


PROGRESS = _named("progress", "PP_PROGRESS_", "thread", "caller")
TRANSPORT = _named("transport", "PP_PATH_", "auto", "mpi")
DELIVER = Names("deliver", {"latest": "PP_LATEST", "sum": "PP_DELIVER_SUM", "each": "PP_EACH"})
DEVICE_PATH = _named("device_path", "PP_DEVICE_", "auto", "staged", "ipc", "direct")
AVERAGE: Names[str | None] = Names(
    "average",
    {
        None: "PP_AVERAGE_NONE",
        "size": "PP_AVERAGE_SIZE",
        "contributors": "PP_AVERAGE_CONTRIBUTORS",
        "contributions": "PP_AVERAGE_CONTRIBUTIONS",
    },
)
WEIGHTS = Names("weights", {"constant": "PP_WEIGHTS_CONSTANT", "dynamic": "PP_WEIGHTS_CLOSEST"})
MISSING = Names("missing", {"closest": "PP_WEIGHTS_CLOSEST", "initial": "PP_WEIGHTS_INITIAL"})
MODE = Names("mode", {"async": 0, "sync": 1})  # of gossip, as the next one
INITIATORS = Names("initiators", {"all": 0, "active": 1})
PROTOCOL = Names(
    "protocol",
    {
        "tokens": "PP_QUEUES_TOKENS",
        "notify-ack": "PP_QUEUES_NOTIFY_ACK",
        "none": "PP_QUEUES_NONE",
    },
)
BACKEND = _named("backend", "PP_BACKEND_", "auto", "node", "schedule", "comm")
OP = Names(
    "op",
    {
        name: f"PP_{name}"
        for name in ("SUM", "PROD", "MIN", "MAX", "LAND", "LOR", "LXOR", "BAND", "BOR", "BXOR")
    },
)
# The names are NumPy's where these do not depend on the machine.
TYPE = _named(
    *("type", "PP_"),
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "bfloat16", "float32", "float64", "longdouble"),
    *("complex64", "complex128", "clongdouble", "bool"),
)
CAUSE = _named("cause", "PP_CAUSE_", "policy", "departed", "deadline", "flush")
ACTIVITY = Names(
    "activity",
    {"computing": "PP_COMPUTING", "waiting": "PP_WAITING", "in a call": "PP_IN_CALL"},
)
DEVICE_WAIT = Names(
    "device_wait",
    {
        "none": "PP_WAITS_FOR_NO_DEVICE",
        "contribution": "PP_CONTRIBUTION_ON_ITS_WAY",
        "part": "PP_DEVICE_PART",
    },
)
FORMAT = _named("format", "PP_", "goal", "dot")
LINK = _named("link", "PP_LINK_", "node", "network")
REASON = Names(
    "reason",
    {
        "asked for by algorithm=": "PP_REASON_ASKED",
        "all ranks share memory": "PP_REASON_SHARED_MEMORY",
        "by the cost model, with default parameters": "PP_REASON_DEFAULTS",
        "by the cost model, measured on another number of ranks": "PP_REASON_MODEL",
        "measured on this number of ranks": "PP_REASON_MEASURED",
    },
)
PLANT: Names[str | None] = Names(
    "plant",
    {
        None: "PP_PLANT_NONE",
        "lost-start": "PP_PLANT_LOST_START",
        "round-twice": "PP_PLANT_ROUND_TWICE",
        "lost-draw": "PP_PLANT_LOST_DRAW",
        "no-patience": "PP_PLANT_NO_PATIENCE",
        "deadline-twice": "PP_PLANT_DEADLINE_TWICE",
        "lost-early": "PP_PLANT_LOST_EARLY",
    },
)
ERROR: Names[type[Exception]] = Names(
    "error",
    {
        errors.ArgumentError: "PP_ERR_ARGUMENT",
        errors.MismatchError: "PP_ERR_MISMATCH",
        errors.ThreadLevelError: "PP_ERR_THREAD_LEVEL",
        errors.PeerFailedError: "PP_ERR_PEER_FAILED",
        MemoryError: "PP_ERR_MEMORY",
    },
)


@functools.cache
def algorithms(ffi: FFI, lib: Lib) -> Names[str]:
    """Return the algorithms of the core, whose table is the only place that names them."""
    names = [lib.pp_algorithm_name(number) for number in range(1, lib.pp_algorithm_count() + 1)]
    numbers = {ffi.string(name).decode(): number for number, name in enumerate(names, 1)}
    return Names("algorithm", numbers)


def algorithm_options(ffi: FFI, lib: Lib) -> Names[str]:
    """Return the values of ``algorithm=``: "auto", and the algorithms of the core."""
    known = algorithms(ffi, lib)
    numbers: dict[str, str | int] = {"auto": "PP_ALGORITHM_AUTO"}
    return Names("algorithm", numbers | {name: known.constant(lib, name) for name in known})


@functools.cache
def triggers(ffi: FFI, lib: Lib) -> Names[str]:
    """Return what may trigger a round: the policies of the core, whose table names them."""
    names = itertools.takewhile(bool, map(lib.pp_policy_name, itertools.count()))
    return Names("trigger", {ffi.string(name).decode(): at for at, name in enumerate(names)})


def describe_policy(ffi: FFI, lib: Lib, policy: Policy, size: int, config: CData) -> CData:
    """Fill in the policy of a ``pp_allreduce_config_t``.

    Returns
    -------
    CData
        A C string that must live until the core has read the configuration.
    """
    kind, count = policy.trigger(size)
    text = ffi.new("char[]", repr(policy).encode(errors="backslashreplace"))
    config.policy = triggers(ffi, lib).constant(lib, kind)
    config.policy_k = count
    config.deadline_ns = policy.deadline_ns
    config.grace_ns = policy.grace_ns
    config.policy_text = text
    return text
