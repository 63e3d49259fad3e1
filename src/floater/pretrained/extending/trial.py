"""Trial of a configuration: a model without weights, built from it and run at the cost of shapes alone.

A model of 7 billion parameters and a text of 128,000 tokens take seconds and no memory.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import PreTrainedModel

from floater.errors import first_line
from floater.pretrained.extending.errors import ExtendError

_ATEN = torch.ops.aten
_BYTES = 1 << 26
"""Size of the largest tensor of whole numbers that is computed; of larger ones only the shape is known."""

_INDICES: Mapping[Any, Callable[..., Iterator[tuple[Tensor, int]]]] = {
    _ATEN.embedding.default: lambda table, index, *_: iter([(index, len(table))]),
    _ATEN.index_select.default: lambda x, dim, index: iter([(index, x.shape[dim])]),
    _ATEN.gather.default: lambda x, dim, index, **_: iter([(index, x.shape[dim])]),
    _ATEN.index.Tensor: lambda x, indices: (
        (index, x.shape[dim])
        for dim, index in enumerate(indices)
        if index is not None and index.dtype != torch.bool
    ),
}
"""By operation: the indices among its arguments, each with the number of entries that it may choose from."""

_REMOVED = "floater", "floater_extension", "fusion_config", "quantization_config"
"""Fields of a configuration that are no part of the model of Transformers."""


class Shapes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Compute whole numbers and truth values, and of floating-point tensors their shapes alone.

    Floating-point tensors are on the device "meta". Indices are checked against the tables that they choose
    from, which "meta" does not do. Whole numbers that depend on floating-point ones, such as the experts of
    tokens, are 0. Each tensor carries the names of the marked tensors that it is computed from.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        # storages are kept alive, as their ids are the keys
        self._marks: dict[int, tuple[Any, frozenset[str]]] = {}
        self.first: dict[str, int] = {}

    def mark(self, tensor: Tensor, *names: str) -> None:
        """Mark a tensor, and what is computed from it."""
        storage = tensor.untyped_storage()
        self._marks[storage._cdata] = storage, self.marks(tensor).union(names)

    def marks(self, value: Any) -> frozenset[str]:
        """Return the names of the marked tensors that the tensors in a value are computed from."""
        names = frozenset[str]()
        for leaf in pytree.tree_leaves(value):
            if isinstance(leaf, Tensor):
                names |= self._marks.get(leaf.untyped_storage()._cdata, (None, frozenset()))[1]
        return names

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        result = self._result(func, args, kwargs, tensors)
        if names := self.marks(tensors):
            for leaf in pytree.tree_leaves(result):
                if isinstance(leaf, Tensor):
                    self.mark(leaf, *names)
        return result

    def _result(self, func: Any, args: Any, kwargs: Any, tensors: list[Tensor]) -> Any:
        known = not any(tensor.is_meta for tensor in tensors)
        if func is _ATEN._local_scalar_dense.default and not known:
            return torch.zeros((), dtype=args[0].dtype).item()
        for index, count in _INDICES[func](*args, **kwargs) if func in _INDICES else ():
            self._check(index, count, args[0])
        if "device" in kwargs:
            kwargs = {**kwargs, "device": torch.device("meta")}
        if not tensors and any(each.name == "device" for each in func._schema.arguments):
            kwargs = {**kwargs, "device": torch.device("meta")}
        if known and {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape} & {*func.tags}:
            return func(*args, **kwargs)
        unknown = pytree.tree_map_only(Tensor, lambda x: x if x.is_meta else x.to("meta"), (args, kwargs))
        result = func(*unknown[0], **unknown[1])
        outputs = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor)]
        small = all(leaf.numel() * leaf.element_size() <= _BYTES for leaf in outputs)
        if known and small and (tensors or not any(map(_has_fractions, outputs))):
            if "device" in kwargs:
                kwargs = {**kwargs, "device": torch.device("cpu")}
            return func(*args, **kwargs)
        if func._schema.is_mutable:
            return pytree.tree_map_only(Tensor, lambda x: args[0] if x is unknown[0][0] else x, result)
        return pytree.tree_map_only(
            Tensor,
            lambda x: x if _has_fractions(x) or not small else torch.zeros(x.shape, dtype=x.dtype),
            result,
        )

    def _check(self, index: Tensor, count: int, table: Tensor) -> None:
        if index.is_meta or not index.numel():
            return
        low, high = int(index.min()), int(index.max())
        if low < -count or high >= count:
            raise IndexError(f"index {low if low < -count else high} is out of range for {count} entries")
        for name in self.marks(table):
            self.first.setdefault(name, int(index.flatten()[0]))


def _has_fractions(x: Tensor) -> bool:
    return x.is_floating_point() or x.is_complex()


class Trial:
    """A model without weights, built from the configuration of a model.

    Args:
        model: model that is or contains models of Transformers.

    Raises:
        ExtendError: if a model of Transformers cannot be built from its configuration alone.
    """

    def __init__(self, model: nn.Module) -> None:
        self.shapes = Shapes()
        bodies = {path: part for path, part in model.named_modules() if isinstance(part, PreTrainedModel)}
        self.roots = {path: body for path, body in bodies.items() if not any(_around(bodies, path))}
        self.parts: dict[str, Any] = {}
        with self._abstract():
            for root, body in self.roots.items():
                built = _build(body)
                for path, part in built.named_modules():
                    self.parts[_join(root, path)] = part

    @contextmanager
    def _abstract(self) -> Iterator[None]:
        with torch.random.fork_rng(devices=[]), torch.no_grad(), self.shapes:
            yield

    def tensors(self) -> dict[str, Tensor]:
        """Return the parameters and buffers by their names in the model."""
        every: dict[str, Tensor] = {}
        for root in self.roots:
            part = self.parts[root]
            for name, tensor in (*part.named_parameters(), *part.named_buffers()):
                every[_join(root, name)] = tensor
        return every

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
        here = dict(model.named_parameters()) | dict(model.named_buffers())
        return {name for name, x in self.tensors().items() if name in here and here[name].shape != x.shape}

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

    def runner(self, path: str, length: int, *, image: bool) -> tuple[str, frozenset[str]]:
        """Return the largest part around a body that runs on a text or an image alone, and the marks reached.

        Args:
            path: name of the body in the model.
            length: number of tokens, or side of the image.
            image: True to run an image.

        Raises:
            ExtendError: if none of them runs.
        """
        outer = [at for at in self.parts if isinstance(self.parts[at], PreTrainedModel) and _inside(path, at)]
        error = None
        for at in sorted(outer, key=len):
            try:
                return at, self.run(at, length, image=image)
            except Exception as failure:  # any error of any model: the next part may take less
                error = failure
        if path not in self.parts:
            raise ExtendError(f"'{path}' is no part of what the configuration of the model builds")
        kind = type(self.parts[path])
        what = "an image" if image else "tokens"
        raise ExtendError(
            f"{kind.__name__} cannot be run on {what} alone, so that an extension of it cannot be checked "
            f"({first_line(error) if error else 'nothing to run'})"
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
            for inputs in _inputs(part, length, image):
                try:
                    output = part(**inputs)
                    output = output if isinstance(output, tuple | Tensor) else dict(output)
                    return self.shapes.marks(output)
                except Exception as failure:  # any error of any model
                    error = error or failure
        raise error or TypeError(f"{type(part).__name__} takes neither tokens nor images")


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


def _inputs(part: Any, length: int, image: bool) -> Iterator[dict[str, Any]]:
    """Return arguments of a part's forward pass to try, for one text or image."""
    names, config = inspect.signature(type(part).forward).parameters, part.config
    fixed = {name: value for name, value in (("use_cache", False), ("return_dict", True)) if name in names}
    if image:
        if "pixel_values" in names:
            channels = getattr(config, "num_channels", 3)
            yield fixed | {"pixel_values": torch.empty(1, channels, length, length)}
        return
    ids = torch.full((1, length), _word(config))
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


def _word(config: Any) -> int:
    """Return the id of a token that is not special."""
    special: set[Any] = set()
    for each in (config, config.get_text_config()):
        for name, value in vars(each).items():
            if name.endswith(("token_id", "token_ids", "token_index")):
                special.update(value if isinstance(value, list | tuple) else [value])
    return next(word for word in range(len(special) + 1) if word not in special)


def _join(*parts: str) -> str:
    return ".".join(part for part in parts if part)


def _inside(path: str, outer: str) -> bool:
    return not outer or path == outer or path.startswith(f"{outer}.")


def _around(bodies: Mapping[str, Any], path: str) -> Iterator[bool]:
    return (other != path and _inside(path, other) for other in bodies)
