"""Dry run of a configuration: a model without weights, built from it and run at the cost of shapes alone.

A model of 7 billion parameters and a text of 128,000 tokens take seconds and no memory.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from transformers import PreTrainedConfig, PreTrainedModel

from floater.errors import first_line
from floater.pretrained.extending.errors import ExtendError
from floater.pretrained.extending.shapes import Shapes
from floater.pretrained.find import is_inside

_REMOVED = "floater", "floater_extension", "fusion_config", "quantization_config"
"""Fields of a configuration that do not belong to the model of Transformers."""


class DryRun:
    """A model without weights, built from the configuration of a model.

    Args:
        model: model that is or contains models of Transformers.

    Raises:
        ExtendError: if a model of Transformers cannot be built from its configuration alone.
    """

    def __init__(self, model: nn.Module) -> None:
        self.shapes = Shapes()
        bodies = {path: part for path, part in model.named_modules() if isinstance(part, PreTrainedModel)}
        self.roots = {
            path: body
            for path, body in bodies.items()
            if not any(path != other and is_inside(path, other) for other in bodies)
        }
        self.parts: dict[str, Any] = {}
        with self._abstract():
            for root, body in self.roots.items():
                built = _build(body)
                for path, part in built.named_modules():
                    self.parts[_join(root, path)] = part

    @contextmanager
    def _abstract(self) -> Iterator[None]:
        with torch.device("cpu"), torch.random.fork_rng(devices=[]), torch.no_grad(), self.shapes:
            yield

    def tensors(self) -> dict[str, Tensor]:
        """Return the parameters and buffers by their names in the model."""
        tensors: dict[str, Tensor] = {}
        for root in self.roots:
            part = self.parts[root]
            for name, tensor in (*part.named_parameters(), *part.named_buffers()):
                tensors[_join(root, name)] = tensor
        return tensors

    def numbers(self) -> dict[tuple[str, str], float]:
        """Return the numbers among the attributes of the parts, by the names of part and attribute."""
        return {
            (path, name): value
            for path, part in self.parts.items()
            for name, value in vars(part).items()
            if isinstance(value, int | float) and not isinstance(value, bool)
        }

    def differing(self, model: nn.Module) -> set[str]:
        """Return the names of the tensors of a model whose shapes differ from those that are built."""
        tensors = dict(model.named_parameters()) | dict(model.named_buffers())
        built = self.tensors()
        return {name for name in tensors.keys() & built.keys() if tensors[name].shape != built[name].shape}

    def mark(self, marks: Mapping[str, str]) -> None:
        """Mark parameters and buffers, to learn from `run` which of them the output depends on.

        Args:
            marks: mark of each, by its name in the model.
        """
        tensors = self.tensors()
        for name, mark in marks.items():
            if name in tensors:
                self.shapes.mark(tensors[name], mark)

    def mark_output(self, path: str, mark: str) -> None:
        """Mark what a part returns in a run, as if it were computed from marked tensors."""

        def hook(part: nn.Module, args: Any, output: Any) -> None:
            for leaf in pytree.tree_leaves(output):
                if isinstance(leaf, Tensor):
                    self.shapes.mark(leaf, mark)

        if path in self.parts:
            self.parts[path].register_forward_hook(hook)

    def mark_argument(self, path: str, argument: str, mark: str) -> None:
        """Mark what a part gets as an argument in a run, but not what other parts get with it."""

        def hook(part: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
            if argument not in kwargs:
                return None
            copied = pytree.tree_map_only(Tensor, torch.clone, kwargs[argument])
            for leaf in pytree.tree_leaves(copied):
                if isinstance(leaf, Tensor):
                    self.shapes.mark(leaf, mark)
            return args, {**kwargs, argument: copied}

        self.parts[path].register_forward_pre_hook(hook, with_kwargs=True)

    def runner(self, path: str, length: int, *, image: bool) -> tuple[str, frozenset[str]]:
        """Return the largest part around a body that runs on a text or an image alone, and the marks reached.

        Args:
            path: name of the body in the model.
            length: number of tokens, or side of the image.
            image: True to run an image.

        Raises:
            ExtendError: if none of them runs.
        """
        models = [name for name, part in self.parts.items() if isinstance(part, PreTrainedModel)]
        error = None
        for outer in sorted((name for name in models if is_inside(path, name)), key=len):
            try:
                return outer, self.run(outer, length, image=image)
            except Exception as failure:  # any error of any model: the next part may take less
                error = failure
        if path not in self.parts:
            raise ExtendError(f"'{path}' is not a part of what the configuration of the model builds")
        kind = type(self.parts[path])
        what = "an image" if image else "tokens"
        raise ExtendError(
            f"{kind.__name__} cannot be run on {what} alone, so that an extension of it cannot be checked "
            f"({first_line(error) if error else 'nothing to run'}); extend a part or a whole that can"
        ) from error

    def run(self, path: str, length: int, *, image: bool) -> frozenset[str]:
        """Run a part on a text or an image, and return the marks that its output depends on.

        Args:
            path: name of the part in the model.
            length: number of tokens, or side of the image.
            image: True to run an image.
        """
        part = self.parts[path]
        error: Exception | None = None
        with self._abstract():
            for inputs in example_inputs(part, length, image):
                try:
                    output = part(**inputs)
                    output = output if isinstance(output, tuple | Tensor) else dict(output)
                    return self.shapes.marks(output)
                except Exception as failure:  # any error of any model
                    error = error or failure
        raise error or TypeError(f"{type(part).__name__} takes no {'images' if image else 'tokens'}")


def check_extended(
    model: nn.Module, before: DryRun, differing: set[str], runners: Mapping[str, bool], length: int
) -> None:
    """Check that the configuration of an extended model builds its shapes, and takes the new length.

    Buffers of whole numbers and truth values, such as masks, are replaced by those that it builds, as are
    triangular masks and zeros, and numbers of its parts, such as DeepSeek's scale of logits.

    Args:
        model: extended model.
        before: dry run of the configuration before it was extended.
        differing: names of the tensors that had other shapes than the configuration builds before it was
            extended, such as those of quantized weights.
        runners: parts to run, with whether they take images; see `DryRun.runner`.
        length: number of tokens, or side of the image.

    Raises:
        ExtendError: if shapes differ, or the model does not take the new length.
    """
    dry_run, name = DryRun(model), type(model).__name__
    tensors, buffers = dry_run.tensors(), dict(model.named_buffers())
    parts, numbers = dict(model.named_modules()), before.numbers()
    for (path, attribute), number in dry_run.numbers().items():
        part = parts.get(path)
        if part is not None and numbers.get((path, attribute)) == getattr(part, attribute, None) != number:
            setattr(part, attribute, number)
    for each in sorted(dry_run.differing(model) - differing):
        built = _with_values(buffers.get(each), tensors[each])
        if each not in buffers or built.is_meta:
            extended = dict(model.named_parameters()) | buffers
            raise ExtendError(
                f"{name} cannot be extended to {length}: '{each}' is {tuple(extended[each].shape)}, and "
                f"{tuple(built.shape)} by the configuration of that length"
            )
        holder, _, attribute = each.rpartition(".")
        setattr(model.get_submodule(holder), attribute, built.to(buffers[each].device))
    for runner, image in runners.items():
        try:
            dry_run.run(runner, length, image=image)
        except Exception as error:  # any error of the code of any model
            raise ExtendError(
                f"{name} cannot be extended to {length}: other parts of it fail there ({first_line(error)})"
            ) from error


def _with_values(before: Tensor | None, built: Tensor) -> Tensor:
    """Return a buffer of the new size, filled as the old one is: with zeros, or ones up to the diagonal."""
    if before is None or not built.is_meta or before.is_meta or before.dtype != built.dtype:
        return built
    if not bool(before.any()):
        return torch.zeros(built.shape, dtype=before.dtype)
    if before.ndim >= 2 and torch.equal(before, torch.ones_like(before).tril()):
        return torch.ones(built.shape, dtype=before.dtype).tril()
    return built


def _build(model: PreTrainedModel) -> nn.Module:
    config = copy.deepcopy(model.config)
    for name in _REMOVED:
        config.__dict__.pop(name, None)
    try:
        built: nn.Module = type(model)._from_config(
            config, attn_implementation="eager", experts_implementation="eager"
        )
    except Exception as error:
        raise ExtendError(
            f"{type(model).__name__} cannot be built from its configuration alone, so that it could not be "
            f"loaded again ({first_line(error)})"
        ) from error
    return built.eval()


def example_inputs(part: Any, length: int, image: bool) -> Iterator[dict[str, Any]]:
    """Return arguments of a part's forward pass to try, for one text or image."""
    names, config = inspect.signature(type(part).forward).parameters, part.config
    fixed = {name: value for name, value in (("use_cache", False), ("return_dict", True)) if name in names}
    if image:
        if "pixel_values" in names:
            channels = getattr(config, "num_channels", 3)
            yield fixed | {"pixel_values": torch.empty(1, channels, length, length)}
        return
    choices = [1] if type(part).__name__.endswith("MultipleChoice") else []
    ids = torch.full((1, *choices, length), ordinary_tokens(config, 1)[0])
    decoder = {"decoder_input_ids": ids} if "decoder_input_ids" in names else {}
    if "input_ids" in names:
        yield fixed | decoder | {"input_ids": ids}
        if "bbox" in names:
            box = torch.zeros(1, length, getattr(config, "dim_bbox", 4), dtype=torch.long)
            yield fixed | decoder | {"input_ids": ids, "bbox": box}
    width = getattr(config, "hidden_size", None)
    for name in ("inputs_embeds", "hidden_states"):
        if name in names and isinstance(width, int):
            yield fixed | {name: torch.empty(1, length, width)}


def ordinary_tokens(config: Any, count: int) -> list[int]:
    """Return the first ids of tokens that are not special.

    Args:
        config: configuration of the model that reads them.
        count: number of ids.
    """
    special: set[Any] = set()
    for each in _configs(config):
        for name, value in vars(each).items():
            if name.endswith(("token_id", "token_ids", "token_index")):
                special.update(value if isinstance(value, list | tuple) else [value])
    return [word for word in range(len(special) + count) if word not in special][:count]


def _configs(config: Any) -> Iterator[Any]:
    """Yield a configuration and those of its parts: some have several texts, such as MusicGen."""
    yield config
    for value in vars(config).values():
        if isinstance(value, PreTrainedConfig):
            yield from _configs(value)


def _join(*parts: str) -> str:
    return ".".join(part for part in parts if part)
