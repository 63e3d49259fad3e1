"""A second device in Python: its tensors compute on the CPU, refuse to meet the CPU's, and count read-backs.

Importing this module registers the device with PyTorch for the rest of the process, so only a process of its
own imports it (`read_backs.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

aten = torch.ops.aten
# Tags of operations whose result or its shape depends on values: the device must finish all its work before.
_READS = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
# packed sequences have their lengths on the CPU, on every device
_COPIES = {
    aten._to_copy.default,
    aten.copy_.default,
    aten._copy_from.default,
    aten._pack_padded_sequence.default,
}
_INDEXING = {
    aten.index.Tensor,
    aten.index_put.default,
    aten.index_put_.default,
    aten._index_put_impl_.default,
}
reads: Counter[str] = Counter()
uploads: Counter[str] = Counter()


class _Module:
    """What PyTorch asks of the module of a device."""

    def is_initialized(self) -> bool:
        return True

    def is_available(self) -> bool:
        return True

    def current_device(self) -> int:
        return 0

    def device_count(self) -> int:
        return 1

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None:
        torch.default_generator.manual_seed(seed)

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]

    def get_rng_state(self, device: Any = None) -> Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state: Tensor, device: Any = None) -> None:
        torch.set_rng_state(state)

    def synchronize(self, device: Any = None) -> None: ...


_setup_privateuseone_for_python_backend("second", backend_module=_Module())
DEVICE = torch.device("second:0")


class Remote(Tensor):
    """A tensor of the second device.

    Args:
        inner: Its values, on the CPU.
    """

    @staticmethod
    def __new__(cls, inner: Tensor) -> Remote:
        remote: Remote = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=DEVICE,
        )
        return remote

    def __init__(self, inner: Tensor) -> None:
        self.inner = inner

    def __repr__(self) -> str:  # type: ignore[override]
        return f"Remote({self.inner})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _call(func, args, kwargs or {})


class SecondDevice(TorchDispatchMode):
    """Let factories such as `torch.arange(3, device=DEVICE)` make tensors of the second device."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _call(func, args, kwargs or {})


def _call(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    tensors = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
    remote = [x for x in tensors if isinstance(x, Remote)]
    local = [x for x in tensors if not isinstance(x, Remote) and x.ndim]
    if remote and local and func not in _COPIES | _INDEXING:
        shapes = [[tuple(x.shape) for x in side] for side in (remote, local)]
        raise RuntimeError(f"{func} of tensors on the second device {shapes[0]} and on the CPU {shapes[1]}")
    target = kwargs.get("device")
    if local and (remote or (target is not None and torch.device(target).type == DEVICE.type)):
        uploads[func.__name__] += (
            1  # memory of the CPU, which a captured graph would read again at each replay
        )
    if func is aten.copy_.default:
        if isinstance(args[1], Remote) and not isinstance(args[0], Remote):
            _count("copy_")
        _inner(args[0]).copy_(_inner(args[1]))
        return args[0]
    if remote and (_by_mask(args[1]) if func in _INDEXING else not _READS.isdisjoint(func.tags)):
        _count(func.__name__)
    if func is aten._conj.default:  # the bit of a lazy conjugate is not resolved below the dispatch to Python
        return to_second(torch.ops.aten._conj_physical.default(_inner(args[0])))
    kwargs, stays = dict(kwargs), bool(remote)
    if kwargs.get("device") is not None:
        stays = torch.device(kwargs["device"]).type == DEVICE.type
        kwargs |= {"device": torch.device("cpu")} | ({"pin_memory": None} if "pin_memory" in kwargs else {})
        if remote and not stays:
            _count("to the CPU")
    result = func(*pytree.tree_map(_inner, args), **pytree.tree_map(_inner, kwargs))
    if not stays or not any(isinstance(x, Tensor) for x in pytree.tree_leaves(result)):
        return result
    result = pytree.tree_map(to_second, result)
    return return_and_correct_aliasing(func, args, kwargs, result) if remote else result


def _by_mask(indices: Any) -> bool:
    return any(x is not None and x.dtype == torch.bool for x in indices)


def _inner(x: Any) -> Any:
    return x.inner if isinstance(x, Remote) else x


def _count(what: str) -> None:
    reads[what] += 1


def to_second(x: Any) -> Any:
    """Return a tensor on the second device; anything else as it is."""
    return Remote(x.detach()) if isinstance(x, Tensor) and not isinstance(x, Remote) else x


def move(module: nn.Module) -> nn.Module:
    """Move the parameters and buffers of a module to the second device, in place."""
    moved: dict[int, nn.Parameter] = {}
    for part in module.modules():
        for name, parameter in part._parameters.items():
            if parameter is not None:
                second = nn.Parameter(to_second(parameter.data), parameter.requires_grad)
                part._parameters[name] = moved.setdefault(id(parameter), second)
        for name, buffer in part._buffers.items():
            part._buffers[name] = to_second(buffer)
    return module


@contextmanager
def captured() -> Iterator[Counter[str]]:
    """Count what CUDA cannot capture in a graph: what is read back, and tensors that come from the CPU."""
    reads.clear()
    uploads.clear()
    unsafe: Counter[str] = Counter()
    yield unsafe
    unsafe.update(reads + uploads)


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """Count what is read back within the context."""
    reads.clear()
    yield reads


_library = torch.library.Library("aten", "IMPL")


def _empty_strided(size: Any, stride: Any, dtype: Any = None, **_: Any) -> Tensor:
    return Remote(torch.empty_strided(size, stride, dtype=dtype))


def _empty(size: Any, dtype: Any = None, **_: Any) -> Tensor:
    return Remote(torch.empty(size, dtype=dtype))


def _copy_from(source: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:
    if isinstance(source, Remote) and not isinstance(target, Remote):
        _count("copy_")
    elif isinstance(target, Remote) and not isinstance(source, Remote) and source.numel():
        uploads["copy_"] += 1
    _inner(target).copy_(_inner(source))
    return target


_library.impl("empty_strided", _empty_strided, "PrivateUse1")
_library.impl("empty.memory_format", _empty, "PrivateUse1")
_library.impl("_copy_from", _copy_from, "PrivateUse1")

_tolist = Tensor.tolist


def _counted_tolist(self: Tensor) -> Any:
    if isinstance(self, Remote):
        _count("tolist")
        return self.inner.tolist()
    return _tolist(self)


Tensor.tolist = _counted_tolist  # type: ignore[method-assign]
