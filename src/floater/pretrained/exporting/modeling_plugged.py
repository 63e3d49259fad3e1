"""A model of Transformers with learned continuous positions (FLOATER, Liu et al. 2020), without its solver.

In each block a vector b(t) is added to the queries, keys and values of the token at position t (section 3.3
of https://arxiv.org/abs/2003.09229). The vectors of the positions 0, 1, ..., length - 1 are weights of the
model. This file needs torch and Transformers alone.
"""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import BertConfig, BertModel


class FloaterConfig(BertConfig):
    """Configuration of the model, with `position_biases`: the projections that get vectors, and how."""

    model_type = "floater_bert"


class FloaterModel(BertModel):
    """The model; each projection in `position_biases` has a table of vectors, (calls, length, width)."""

    config_class = FloaterConfig
    _supports_attention_backend = False  # servers that replace attention would run it without its positions

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        settings = config.position_biases
        self.position_biases = nn.Module()
        self._pass = SimpleNamespace(positions=None, calls={})
        body = self.get_submodule(settings["body"])
        body.register_forward_pre_hook(self._enter, with_kwargs=True)
        for path, (calls, length, width) in settings["projections"].items():
            self.position_biases.register_buffer(path.replace(".", "__"), torch.zeros(calls, length, width))
            body.get_submodule(path).register_forward_hook(self._adder(path))

    def _enter(self, body: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note the positions of the tokens of a forward pass."""
        arguments = inspect.signature(type(body).forward).bind_partial(body, *args, **kwargs).arguments
        arguments = {**arguments.pop("kwargs", {}), **arguments}
        self._pass.calls = {}
        self._pass.positions = token_positions(arguments, **self.config.position_biases["tokens"])

    def _adder(self, path: str) -> Any:
        """Return a forward hook that adds to the output of a projection the vectors of its tokens."""

        def add(projection: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor:
            tables = self.position_biases.get_buffer(path.replace(".", "__"))
            call = self._pass.calls.get(path, 0)
            self._pass.calls[path] = call + 1
            if call >= len(tables):  # DeBERTa projects its table of distances after the tokens
                return output
            positions = self._pass.positions
            if positions is None:  # patches of an image
                positions = torch.arange(output.shape[1], device=output.device)[None]
            if not torch.compiler.is_compiling() and (last := int(positions.max())) >= tables.shape[1]:
                raise ValueError(f"position {last} is beyond the last vector, {tables.shape[1] - 1}")
            return output + tables[call, positions].to(output)

        return add


def token_positions(arguments: dict[str, Any], image: bool, padding: int | None) -> Tensor | None:
    """Return the positions of the tokens of a forward pass, (batch or 1, T), counted without padding.

    Args:
        arguments: arguments of the forward pass by name.
        image: True for a model of images, whose patches are counted by their number.
        padding: id of padding tokens in models whose `position_ids` begin after it, as RoBERTa's; None for 0.
    """
    if image:
        return None
    words: Any = arguments.get("input_ids")
    words = arguments.get("inputs_embeds") if words is None else words
    first = 0 if padding is None else padding + 1
    if (ids := arguments.get("position_ids")) is not None:
        shifted: Tensor = (ids - first).clamp(min=0)
        return shifted
    cache, mask = arguments.get("past_key_values"), arguments.get("attention_mask")
    length, cached = words.shape[1], 0 if cache is None else cache.get_seq_length()
    if mask is None and padding is not None and arguments.get("input_ids") is not None:
        counted: Tensor = ((words != padding).cumsum(1) - 1 + cached).clamp(min=0)
        return counted
    if mask is None:
        return torch.arange(cached, cached + length, device=words.device)[None]
    if mask.ndim != 2 or mask.shape[1] != cached + length:
        raise ValueError(
            f"attention_mask is {tuple(mask.shape)}; it must be (batch, {cached + length}), or give "
            "position_ids"
        )
    indices: Tensor = (mask.long().cumsum(1) - 1).clamp(min=0)[:, -length:]
    return indices
