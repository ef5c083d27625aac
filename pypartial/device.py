"""Requests whose buffers are in the memory of a CUDA device."""

from ._allreduce_device import DeviceAllreduceRequest
from ._preduce_device import DevicePreduceRequest

__all__ = ["DeviceAllreduceRequest", "DevicePreduceRequest"]
