"""Names of weights in files, which Transformers changes when it saves some models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import torch
from transformers.core_model_loading import revert_weight_conversion

_Value = TypeVar("_Value")


def rename_weights(model: Any, weights: Mapping[str, _Value]) -> dict[str, _Value]:
    """Return weights under the names of a model's parameters and buffers.

    `save_pretrained` writes GPT-NeoX, ViT and others by the names of their first release. `from_pretrained`
    reads these, and a Trainer that resumes leaves them out (transformers#43701).

    Args:
        model: model of Transformers.
        weights: weights by the names of the model's tensors, or by those in its files.

    Example:
        >>> from transformers import GPTNeoXConfig, GPTNeoXForCausalLM
        >>> sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 8}
        >>> model = GPTNeoXForCausalLM(GPTNeoXConfig(**sizes, intermediate_size=8))
        >>> rename_weights(model, {"embed_out.weight": 1, "other": 2})
        {'lm_head.weight': 1, 'other': 2}
    """
    tensors = dict(model.named_parameters(remove_duplicate=False))
    tensors |= dict(model.named_buffers(remove_duplicate=False))
    if weights.keys() <= tensors.keys():
        return dict(weights)
    shapes = {name: torch.empty_like(tensor, device="meta") for name, tensor in tensors.items()}
    names = {id(tensor): name for name, tensor in shapes.items()}
    in_files = revert_weight_conversion(model, shapes)  # a tensor that is only renamed is the same object
    renamed = {file_name: names.get(id(tensor), file_name) for file_name, tensor in in_files.items()}
    return {name if name in shapes else renamed.get(name, name): value for name, value in weights.items()}
