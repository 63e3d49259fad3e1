"""Weights at odd addresses (`pytest --misaligned`), where matrix products round otherwise."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from floater.transformer import alignment

ALIGNED = alignment.ALIGNMENT


def misalign() -> pytest.MonkeyPatch:
    """Move the weights of every module that is built or loaded; return the patches, to be undone."""
    patch = pytest.MonkeyPatch()
    patch.setattr(alignment, "ALIGNMENT", 1)  # what is loaded stays as odd as what was built
    for name in ("register_parameter", "register_buffer"):
        patch.setattr(nn.Module, name, _moving(getattr(nn.Module, name)))
    return patch


def odd(tensor: Tensor) -> int:
    """The distance of a misaligned tensor from an aligned address, in bytes: 44 for float32."""
    return ALIGNED - 5 * tensor.element_size()


def misaligned(tensor: Tensor) -> Tensor:
    """A contiguous copy at an odd address, in memory of its own, as safetensors gives it from a file."""
    memory = torch.empty(2 * ALIGNED + tensor.nbytes, dtype=torch.uint8)
    offset = -memory.data_ptr() % ALIGNED + odd(tensor)
    # no view, whose whole storage would be saved with it
    flat = torch.frombuffer(memory.numpy(), dtype=tensor.dtype, count=tensor.numel(), offset=offset)
    return flat.view(tensor.shape).copy_(tensor)


def _moving(register: Callable[..., None]) -> Callable[..., None]:
    @torch.no_grad()
    def registered(module: nn.Module, name: str, tensor: Any, *args: Any, **kwargs: Any) -> None:
        register(module, name, tensor, *args, **kwargs)
        plain = type(tensor) in (Tensor, nn.Parameter) and tensor.layout == torch.strided and tensor.numel()
        if plain and tensor.device.type == "cpu" and tensor.data_ptr() % ALIGNED != odd(tensor):
            tensor.data = misaligned(tensor.data)

    return registered
