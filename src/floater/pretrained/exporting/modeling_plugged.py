"""A model of Transformers with learned continuous positions (FLOATER, Liu et al. 2020), without its solver.

In each block a vector b(t) is added to the queries, keys and values of the token at position t (section 3.3
of https://arxiv.org/abs/2003.09229). The vectors of the positions 0, 1, ..., length - 1 are weights of the
model. This file needs torch and Transformers alone.
"""

from __future__ import annotations

import inspect
import threading
from types import CodeType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import BertConfig, BertModel
from transformers.cache_utils import Cache


class FloaterConfig(BertConfig):
    """Configuration of the model, with `position_biases`: the projections that get vectors, and how."""

    model_type = "floater_bert"


class FloaterModel(BertModel):
    """The model; each projection in `position_biases` has a table of vectors, (calls, length, width)."""

    config_class = FloaterConfig
    _supports_attention_backend = False  # servers that replace attention would run it without its positions
    supports_gradient_checkpointing = False  # a checkpoint runs again when the pass has ended

    @classmethod
    def is_custom_code(cls) -> bool:
        """Return False: Transformers would leave some buffers of its own class without values."""
        return False

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        settings = config.position_biases
        self.position_biases = nn.Module()
        body, passes, additions = self.get_submodule(settings["body"]), _Passes(), {}
        for path, (calls, length, width) in settings["projections"].items():
            name = path.replace(".", "__")
            self.position_biases.register_buffer(name, torch.zeros(calls, length, width))
            additions[path] = _Addition(self.position_biases, name, passes)
        # not a hook: sentence-transformers and others call `model.forward(...)`, which runs no hooks
        body.forward = _Forward(body, passes, settings["tokens"], additions)


class _Passes:
    """The forward pass of each thread: the positions of its tokens, and the calls of each projection.

    Compiled code cannot read what belongs to a thread: while there is one pass, it is an attribute, too.
    """

    def __init__(self) -> None:
        self._local, self._shared = threading.local(), None

    def __reduce__(self) -> tuple[type[_Passes], tuple[()]]:
        return _Passes, ()  # a copy of a model is in no forward pass

    @property
    def current(self) -> Any:
        """Return the pass of this thread; None outside of any."""
        local = None if torch.compiler.is_compiling() else getattr(self._local, "current", None)
        return local or self._shared

    @current.setter
    def current(self, current: Any) -> None:
        if torch.compiler.is_compiling():
            self._shared = current
            return
        before, self._local.current = getattr(self._local, "current", None), current
        self._shared = current if self._shared is before else None


class _Forward:
    """The forward function of the body, which notes the positions of its tokens."""

    def __init__(
        self, body: nn.Module, passes: _Passes, tokens: dict[str, Any], additions: dict[str, _Addition]
    ) -> None:
        self.body, self.passes, self.tokens, self.additions = body, passes, tokens, additions
        self._attach()

    def _attach(self) -> None:
        """Hook the additions into their projections, also after a quantizer has replaced these."""
        for path, addition in self.additions.items():
            projection = self.body.get_submodule(path)
            hooks = (hook for part in projection.modules() for hook in part._forward_hooks.values())
            if not any(isinstance(hook, _Addition) for hook in hooks):
                projection.register_forward_hook(addition)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        names = [*inspect.signature(type(self.body).forward).parameters][1:]
        arguments = {**dict(zip(names, args, strict=False)), **kwargs}
        for name in ("positions", "times"):
            if name not in names and arguments.get(name) is not None:
                raise ValueError(f"{type(self.body).__name__} does not take {name}; pass position_ids")
        if not torch.compiler.is_compiling():
            self._attach()
        self.passes.current = SimpleNamespace(positions=token_positions(arguments, **self.tokens), calls={})
        try:
            return type(self.body).forward(self.body, *args, **kwargs)
        finally:
            self.passes.current = None

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(type(self.body).forward.__get__(self.body))  # Transformers reads its names

    @property
    def __code__(self) -> CodeType:
        code: CodeType = inspect.unwrap(type(self.body).forward).__code__  # torch.export reads it
        return code


class _Addition:
    """A forward hook that adds to the output of a projection the vectors of its tokens."""

    def __init__(self, tables: nn.Module, name: str, passes: _Passes) -> None:
        self.tables, self.name, self.passes = tables, name, passes

    def __call__(self, projection: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor:
        current, tables = self.passes.current, self.tables.get_buffer(self.name)
        if current is None:
            raise RuntimeError("a part of the model was called alone, without positions; call the model")
        call = current.calls.get(self.name, 0)
        current.calls[self.name] = call + 1
        if call >= len(tables):  # DeBERTa projects its table of distances after the tokens
            return output
        positions = current.positions
        if positions is None:  # patches of an image
            positions = torch.arange(output.shape[1], device=output.device)[None]
        if not torch.compiler.is_compiling() and (last := int(positions.max())) >= tables.shape[1]:
            raise ValueError(f"position {last} is beyond the last vector, {tables.shape[1] - 1}")
        return output + tables[call, positions].to(output)


def token_positions(arguments: dict[str, Any], image: bool, padding: int | None) -> Tensor | None:
    """Return the positions of the tokens of a forward pass, (batch or 1, T), counted without padding.

    Args:
        arguments: arguments of the forward pass by name.
        image: True for a model of images, whose patches are counted by their number.
        padding: id of padding tokens in models whose `position_ids` begin after it, as RoBERTa's; None for 0.
    """
    if image:
        return None
    mask: Any = arguments.get("attention_mask")
    words: Any = arguments.get("input_ids")
    words = arguments.get("inputs_embeds") if words is None else words
    cache = arguments.get("past_key_values")
    if cache is None and isinstance(arguments.get("cache"), Cache):  # its name since Transformers 5.24
        cache = arguments["cache"]
    elif arguments.get("cache") is not None:  # continuous batching counts from 0 for all models
        padding = None
    first = 0 if padding is None else padding + 1
    length, cached = words.shape[1], 0 if cache is None else cache.get_seq_length()
    if isinstance(mask, dict) and "full_attention" in mask:  # a mask for each kind of layer, as in Gemma 4
        mask = mask["full_attention"]
        if isinstance(mask, Tensor) and mask.ndim == 4:  # no token sees padding
            keys = mask[:, 0, :, : cached + length]
            mask = (keys if keys.dtype == torch.bool else keys >= 0).any(1)
    ids = arguments.get("position_ids")
    counts = ids is not None and padding is not None and cache is not None
    if counts and isinstance(mask, Tensor) and mask.ndim == 4:  # of a static cache
        seen = mask[:, 0, -1, : cached + length]  # the last token sees all but padding
        mask = seen if seen.dtype == torch.bool else seen >= 0
    every = torch.ones(1, cached + length, device=words.device) if mask is None else mask
    covers = isinstance(every, Tensor) and every.shape[1:] == (cached + length,)
    counted = (every.long().cumsum(1) - 1).clamp(min=0)[:, -length:] if covers else None
    if ids is not None and ids.ndim == 3:
        ids = ids[0] if len(ids) == 4 else None  # beside time, height and width
    if ids is not None and padding is None and len(ids) == 1 and mask is not None and counted is not None:
        # models around the body give it one row of ids for all texts, and leave padding to the mask
        slots = torch.arange(cached, cached + length, device=ids.device)
        ids = torch.where((ids == slots).all(), counted, ids)
    if ids is not None:
        before = ids < first
        if mask is not None and covers:
            before = before & (every[:, -length:] != 0)
        elif padding is not None:
            before = before & (ids != padding)
        shifted: Tensor = (ids - first).clamp(min=0)
        if padding is not None and counted is not None:
            # generate counts from 0 for models that begin elsewhere, too
            from_zero = ((ids == counted) | (every[:, -length:] == 0)).all()
            before, shifted = before & ~from_zero, torch.where(from_zero, ids, shifted)
        if not torch.compiler.is_compiling() and bool(before.any()):
            least = int(ids[before].min())
            raise ValueError(f"position_ids begin at {least}; the first of this model is {first}")
        return shifted
    if arguments.get("cu_seq_lens_q") is not None:
        raise ValueError(
            "cu_seq_lens_q packs texts, whose tokens would be counted as those of one; pass position_ids, too"
        )
    attention = getattr(F.scaled_dot_product_attention, "__module__", None)
    if not torch.compiler.is_compiling() and "context_parallel" in (attention or ""):
        raise ValueError(
            "context_parallel shows a part of a text, whose tokens cannot be counted; pass position_ids"
        )
    if mask is None and padding is not None and arguments.get("input_ids") is not None:
        valid: Tensor = words != padding
        return (valid.cumsum(1) - 1 + cached).clamp(min=0)
    if counted is None:
        shape = tuple(every.shape) if isinstance(every, Tensor) else type(every).__name__
        raise ValueError(
            f"attention_mask is {shape}; it must be (batch, {cached + length}), or give position_ids"
        )
    return counted
