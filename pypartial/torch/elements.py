"""Tensors as MPI takes them: checks, contiguous elements, element types, operations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist

from _pypartial_torch import DEVICES  # elements on cuda travel by host memory

from ..errors import ArgumentError

if TYPE_CHECKING:
    from mpi4py import MPI

__all__ = [
    "DEVICES",
    "Reduction",
    "apart",
    "as_list",
    "check",
    "counts_of",
    "elements",
    "joined",
    "message",
    "only",
    "only_list",
    "put_back",
    "spread",
]

# Element types that MPI reduces, and its names for them.
_REDUCED = {
    torch.float32: "FLOAT",
    torch.float64: "DOUBLE",
    torch.complex64: "C_FLOAT_COMPLEX",
    torch.complex128: "C_DOUBLE_COMPLEX",
    torch.int8: "INT8_T",
    torch.int16: "INT16_T",
    torch.int32: "INT32_T",
    torch.int64: "INT64_T",
    torch.uint8: "UINT8_T",
    torch.uint16: "UINT16_T",
    torch.uint32: "UINT32_T",
    torch.uint64: "UINT64_T",
}
# MPI's types to move elements of so many bytes. A count in elements overflows later than in bytes.
_MOVED = {1: "BYTE", 2: "INT16_T", 4: "INT32_T", 8: "INT64_T", 16: "C_DOUBLE_COMPLEX"}
# MPI does not reduce these everywhere: they are reduced as others.
_INSTEAD = {
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.bool: torch.uint8,
}
_OPS = {
    "SUM": "SUM",
    "AVG": "SUM",
    "PRODUCT": "PROD",
    "MIN": "MIN",
    "MAX": "MAX",
    "BAND": "BAND",
    "BOR": "BOR",
    "BXOR": "BXOR",
}
# Of bytes that are 0 or 1: a sum of bools is true if one of them is.
_BOOL_OPS = {
    "SUM": "MAX",
    "PRODUCT": "MIN",
    "MIN": "MIN",
    "MAX": "MAX",
    "BAND": "BAND",
    "BOR": "BOR",
    "BXOR": "BXOR",
}
_BITS, _ORDER = ("BAND", "BOR", "BXOR"), ("MIN", "MAX")


def check(call: str, *tensors: Any, sparse: bool = False) -> None:
    """Raise unless MPI can be given these tensors; nothing was communicated then."""
    for tensor in tensors:
        if not isinstance(tensor, torch.Tensor):
            raise ArgumentError(f"{call}: this is not a tensor: {tensor!r}")
        if tensor.device.type not in DEVICES:
            raise ArgumentError(
                f"{call}: a tensor is on the device {tensor.device}; only the CPU and CUDA devices "
                "are supported"
            )
        fits = tensor.layout == torch.strided or (sparse and tensor.layout == torch.sparse_coo)
        if not fits or tensor.is_quantized:
            raise ArgumentError(
                f"{call}: a tensor is {tensor.layout} or quantized; tensors must be dense and "
                "plain (all_reduce also takes torch.sparse_coo)"
            )


def as_list(tensors: Any) -> list[Any]:
    """Return what torch calls with one tensor or with a list of them, as a list."""
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


def only(call: str, tensors: Any) -> torch.Tensor:
    """Return the tensor of a list of one; a rank has one tensor, as it has one device."""
    found = as_list(tensors)
    check(call, *found)
    if len(found) != 1:
        raise ArgumentError(f"{call}: {len(found)} tensors of one rank; pass one")
    tensor: torch.Tensor = found[0]
    return tensor


def only_list(call: str, lists: Any) -> list[torch.Tensor]:
    """Return the list in a list of one."""
    found = list(lists)
    if found and isinstance(found[0], torch.Tensor):
        return found
    if len(found) != 1:
        raise ArgumentError(f"{call}: {len(found)} lists of tensors of one rank; pass one")
    return list(found[0])


def counts_of(tensors: Sequence[torch.Tensor]) -> list[int]:
    """Return the number of elements of each tensor."""
    return [tensor.numel() for tensor in tensors]


def elements(tensor: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Return the elements as a contiguous vector in host memory: the tensor's own if it is that.

    The host waits for a tensor on a device.

    Parameters
    ----------
    tensor : torch.Tensor
    dtype : torch.dtype, optional
        Another type to convert them to.
    """
    plain = tensor.detach().resolve_conj().resolve_neg()
    vector = plain.to("cpu", dtype or plain.dtype).contiguous()
    # One element is contiguous with any stride.
    return vector.as_strided((vector.numel(),), (1,))


def apart(vector: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return a vector of `elements`, or a copy if it shares memory with another one.

    MPI must not be given the same memory twice.
    """
    start, place = vector.data_ptr(), other.data_ptr()
    is_apart = start + vector.nbytes <= place or place + other.nbytes <= start
    return vector if is_apart else vector.clone()


def put_back(vector: torch.Tensor, tensor: torch.Tensor) -> None:
    """Copy a vector of `elements` to its tensor, unless it is the tensor's own memory."""
    if vector.data_ptr() != tensor.data_ptr() or vector.dtype != tensor.dtype:
        tensor.detach().copy_(vector.view(tensor.shape))


def joined(tensors: Sequence[torch.Tensor], dtype: torch.dtype | None = None) -> torch.Tensor:
    """Return the elements of several tensors of one type as a new vector."""
    return torch.cat([elements(tensor, dtype) for tensor in tensors])


def spread(vector: torch.Tensor, tensors: Sequence[torch.Tensor]) -> None:
    """Copy a vector's elements to tensors, one behind the other."""
    parts = torch.split(vector, counts_of(tensors))
    for part, tensor in zip(parts, tensors, strict=True):
        tensor.detach().copy_(part.view(tensor.shape))


def message(vector: torch.Tensor, counts: Sequence[int] | int | None = None) -> list[Any]:
    """Return a contiguous vector as mpi4py takes it, for calls that move elements.

    Parameters
    ----------
    vector : torch.Tensor
    counts : sequence of int or int, optional
        Elements for, or from, each rank; an integer if they are the same.
    """
    return _message(vector, counts, _constant(_MOVED[vector.element_size()]))


@cache
def _constant(name: str) -> Any:
    from mpi4py import MPI

    return getattr(MPI, name)


def _message(vector: torch.Tensor, counts: Sequence[int] | int | None, kind: Any) -> list[Any]:
    memory = np.asarray(_Memory(vector))  # keeps the vector alive
    if counts is None or isinstance(counts, int):
        return [memory, vector.numel() if counts is None else counts, kind]
    starts = [sum(counts[:rank]) for rank in range(len(counts))]
    return [memory, (list(counts), starts), kind]


class _Memory:
    """A vector's bytes, as NumPy takes them.

    After `torch.Tensor.numpy` the vector's storage could not be resized any more, as FSDP does.
    """

    def __init__(self, vector: torch.Tensor) -> None:
        self._vector = vector
        self.__array_interface__ = {
            "version": 3,
            "typestr": "|u1",
            "shape": (vector.nbytes,),
            "data": (vector.data_ptr(), False),
        }


@dataclass(frozen=True)
class Reduction:
    """How elements of one type are reduced by one operation.

    Attributes
    ----------
    dtype : torch.dtype
        What they are converted to before, and back from afterwards.
    op : MPI.Op
    name : str
        Of torch's operation. AVG is a sum, divided by the number of ranks.
    """

    dtype: torch.dtype
    op: MPI.Op
    name: str

    @classmethod
    def of(cls, call: str, op: Any, tensor: torch.Tensor) -> Reduction:
        """Return how `op` of torch reduces such a tensor.

        Raises
        ------
        NotImplementedError
            If it does not.
        """
        name = op_name(op)
        if tensor.is_sparse and name != "SUM":
            raise NotImplementedError(
                f"{call} by {name} of a sparse tensor is not implemented by the backend "
                "pypartial, only SUM"
            )
        return _reduction(call, name, tensor.dtype)

    def what(self, tensor: torch.Tensor) -> tuple[object, ...]:
        """Return what is the same on all ranks that reduce the tensor."""
        return tensor.numel(), tensor.dtype, self.name

    def message(self, vector: torch.Tensor) -> list[Any]:
        """Return a vector of the type `dtype` as mpi4py takes it, for calls that reduce."""
        return _message(vector, None, _constant(_REDUCED[self.dtype]))

    def finish(self, vector: torch.Tensor, ranks: int) -> None:
        """Divide a reduced vector, if the operation is an average; integers toward zero."""
        if self.name != "AVG":
            return
        if vector.dtype.is_floating_point or vector.dtype.is_complex:
            vector.div_(ranks)
        elif vector.dtype.is_signed:
            vector.div_(ranks, rounding_mode="trunc")
        else:  # which torch divides of one type only
            numbers = np.asarray(_Memory(vector)).view(f"u{vector.element_size()}")
            numbers //= numbers.dtype.type(ranks)


@cache
def _reduction(call: str, name: str, dtype: torch.dtype) -> Reduction:
    wire = _INSTEAD.get(dtype, dtype)
    known = (_BOOL_OPS if dtype == torch.bool else _OPS).get(name)
    is_real = dtype.is_floating_point
    wrong = (name in _BITS and (is_real or dtype.is_complex)) or (
        name in _ORDER and dtype.is_complex
    )
    if known is None or wire not in _REDUCED or wrong:
        raise NotImplementedError(
            f"{call} by {name} of {dtype} is not implemented by the backend pypartial"
        )
    keeps_nan = name in _ORDER and is_real
    return Reduction(wire, _ordering(name) if keeps_nan else _constant(known), name)


@cache
def _ordering(name: str) -> MPI.Op:
    """Return MIN or MAX of floats that keeps NaN, as NumPy and the core do.

    MPI's own keeps or loses it as the order of its operands happens to be.
    """
    from mpi4py import MPI

    choose = {"MIN": np.minimum, "MAX": np.maximum}[name]

    def reduce(one: Any, into: Any, kind: MPI.Datatype) -> None:
        dtype = f"f{kind.Get_size()}"
        result = np.frombuffer(into, dtype)
        choose(np.frombuffer(one, dtype), result, out=result)

    return MPI.Op.Create(reduce, commute=True)


def op_name(op: Any) -> str:
    """Return the name of an operation of torch, such as ``"SUM"``."""
    if op is None:
        return "SUM"
    for name in (*_OPS, "PREMUL_SUM"):
        if op == getattr(dist.ReduceOp, name):
            return name
    return str(op)
