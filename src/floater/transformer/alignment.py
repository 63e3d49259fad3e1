"""Weights at aligned addresses, where kernels round alike."""

from __future__ import annotations

from itertools import chain
from typing import TypeVar

import torch
from torch import Tensor, nn

ALIGNMENT = 64
"""Alignment in bytes: that of torch's allocations on a CPU, and the size of a cache line."""

_Module = TypeVar("_Module", bound=nn.Module)


@torch.no_grad()
def align(module: _Module) -> _Module:
    """Move parameters and buffers in a CPU's memory to aligned addresses, where they are not at one.

    safetensors maps a file into memory, so that a tensor's address depends on the length of the file's header
    and on the tensors before it. Matrix products sum in another order at other addresses: Intel's MKL, on
    whose products torch rests, promises equal results only for equal alignment. A module with aligned weights
    therefore computes what the saved one did, bit for bit, whose weights torch had allocated.

    Args:
        module: on any device, with weights of any kind. Those on other devices, quantized, sparse or
            distributed ones stay where they are.

    Returns:
        The module, whose parameters are the same objects: tied ones stay tied, and optimizers keep them.

    Example:
        >>> layer = nn.Linear(3, 1)
        >>> layer.weight.data = torch.arange(4.0)[1:].view(1, 3)
        >>> layer.weight.data_ptr() % 64, align(layer).weight.data_ptr() % 64
        (4, 0)
    """
    for tensor in chain(module.parameters(), module.buffers()):
        plain = type(tensor) in (Tensor, nn.Parameter) and tensor.layout == torch.strided
        if plain and tensor.device.type == "cpu" and tensor.data_ptr() % ALIGNMENT:
            tensor.data = tensor.clone()
    return module
