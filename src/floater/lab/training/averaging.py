"""The mean of the weights of several checkpoints."""

import json
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME


def average(paths: Sequence[Path | str]) -> dict[str, Tensor]:
    """Average the model weights of several checkpoints.

    Means are computed in float64 and rounded once to the type in which the tensors are saved. Tensors
    that are tied in the model are returned once, as they are saved. Tensors that are not floating
    point, such as counters, must be the same in all checkpoints.

    Source: Vaswani et al. 2017, section 6.1; Liu et al. 2020, appendix B.2.

    Args:
        paths: checkpoint directories with weights in safetensors format, in one file or in shards.

    Returns:
        Mean of each tensor by its name, a state dict.

    Raises:
        ValueError: there is no path, or names, shapes, types or integers differ between checkpoints.
        FileNotFoundError: a directory has no safetensors weights.

    Example:
        >>> import tempfile
        >>> from safetensors.torch import save_file
        >>> folders = [Path(tempfile.mkdtemp()) for _ in range(2)]
        >>> for folder, weight in zip(folders, (1.0, 2.0)):
        ...     save_file({"weight": torch.tensor([weight])}, folder / "model.safetensors")
        >>> average(folders)
        {'weight': tensor([1.5000])}
    """
    if not paths:
        raise ValueError("no checkpoints to average; give at least one")
    with ExitStack() as stack:
        files = [_open(Path(path), stack) for path in paths]
        first = files[0]
        for path, other in zip(paths, files, strict=True):
            for key in sorted(first.keys() ^ other.keys()):
                raise ValueError(f"{key} is in only one of {paths[0]} and {path}")
        return {key: _mean(key, paths, [file[key].get_tensor(key) for file in files]) for key in first}


def _open(path: Path, stack: ExitStack) -> dict[str, Any]:
    """Map each key of a checkpoint's weights to the open file it is in."""
    index = path / SAFE_WEIGHTS_INDEX_NAME
    if index.is_file():
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    elif (path / SAFE_WEIGHTS_NAME).is_file():
        names = [SAFE_WEIGHTS_NAME]
    else:
        raise FileNotFoundError(
            f"{path} has no weights: neither {SAFE_WEIGHTS_NAME} nor {SAFE_WEIGHTS_INDEX_NAME}"
        )
    files = [stack.enter_context(safe_open(path / name, framework="pt")) for name in names]
    return {key: file for file in files for key in file.keys()}  # noqa: SIM118, it is not a dict


def _mean(key: str, paths: Sequence[Path | str], tensors: list[Tensor]) -> Tensor:
    first = tensors[0]
    for path, tensor in zip(paths, tensors, strict=True):
        if tensor.shape != first.shape or tensor.dtype != first.dtype:
            raise ValueError(
                f"{key} is {tuple(tensor.shape)} {tensor.dtype} in {path}, "
                f"but {tuple(first.shape)} {first.dtype} in {paths[0]}"
            )
        if not first.is_floating_point() and not torch.equal(tensor, first):
            raise ValueError(f"{key} is {first.dtype}, so it must be the same in {path} and {paths[0]}")
    if not first.is_floating_point():
        return first
    total = torch.zeros(first.shape, dtype=torch.float64)
    for tensor in tensors:
        total += tensor
    return (total / len(tensors)).to(first.dtype)
