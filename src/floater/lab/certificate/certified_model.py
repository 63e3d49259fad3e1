"""The model that a certificate is about: how it is loaded, extended, and what memory it needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import psutil
import torch
import transformers
from transformers import PreTrainedModel
from transformers.models.auto import modeling_auto

import floater
from floater.errors import DataError
from floater.lab.certificate.loss import CHUNK
from floater.lab.tasks.finetuning.checkpoint import load_pretrained, read_config
from floater.lab.training.digests import values_digest
from floater.lab.training.model import available_device

UNEXTENDED = "unextended"

CANDIDATES: dict[str, tuple[tuple[str, Mapping[str, Any]], ...]] = {
    "rotary": (
        ("self_extend", {}),
        ("yarn", {}),
        ("self_extend", {"temperature": True}),
        ("ntk", {}),
        ("dynamic", {}),
        ("llama3", {}),
        ("linear", {}),
        ("log_n", {}),
        ("longrope", {}),
        ("clipped", {}),
    ),
    "table": (("flow", {}), ("repeat", {}), ("hierarchical", {}), ("interpolation", {})),
    "bias": (("flow", {}),),
}
"""Methods that need no training, by kind of positions; the first ones are compared if not all are."""


@dataclass(frozen=True)
class Method:
    """A method of extension, or none.

    Args:
        name: name of the method; None for the model without an extension.
        options: options of the method.

    Example:
        >>> str(Method("self_extend", {"temperature": True})), str(Method(None))
        ('self_extend temperature=True', 'unextended')
    """

    name: str | None
    options: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return " ".join([self.name or UNEXTENDED, *(f"{key}={value}" for key, value in self.options.items())])


@dataclass(frozen=True)
class CertifiedModel:
    """A checkpoint and the length to which it is extended.

    Args:
        folder: directory of the checkpoint, or its name on the Hugging Face hub.
        length: new length in tokens.
        old: present length in tokens.
        kind: "causal" or "masked".
        positions: kind of positions, as in `floater.pretrained.Extension`.
        default: default method for the model.
        parameters: number of parameters.
        weights: digest of the parameters and persistent buffers.
        quadratic: length at which attention over a text costs as much as the matrices of the model.
    """

    folder: str
    length: int
    old: int
    kind: Literal["causal", "masked"]
    positions: str
    default: str
    parameters: int
    weights: str
    quadratic: float

    def load(self) -> PreTrainedModel:
        """Load the model, on a GPU if there is one, in evaluation mode."""
        model = load_pretrained(self.folder)
        model.eval()
        model.to(available_device())  # type: ignore[arg-type]
        return model

    def cost(self, length: int) -> float:
        """Return the relative cost of reading a text, used to estimate progress."""
        return length * (1 + length / self.quadratic)


def subject(folder: str, length: int, method: Method | None = None) -> CertifiedModel:
    """Check that a checkpoint can be extended and measured here, before anything is read with it.

    Args:
        folder: directory or name, as returned by `locate`.
        length: new length in tokens.
        method: method that must be possible, if one is named.

    Raises:
        DataError: if the model is neither a causal nor a masked language model, or needs more memory than
            there is.
        ExtendError: if the model cannot be extended to this length, or not by this method.
    """
    config = read_config(folder)
    architecture = [*(config.architectures or ()), "none"][0]
    causal = architecture in modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()
    if not causal and architecture not in modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES.values():
        raise DataError(
            f"{folder}: a certificate measures the loss of causal and masked language models; "
            f"{architecture} is neither"
        )
    with torch.device("meta"):
        empty = getattr(transformers, architecture)(config)
    parameters = sum(p.numel() for p in empty.parameters())
    size = (config.dtype or torch.float32).itemsize
    text = config.get_text_config()
    layers, width = int(text.num_hidden_layers), int(text.hidden_size)
    check_memory(parameters * size, activations(text, length, size, causal), length)
    if method is not None:
        floater.extend(load_pretrained(folder), length, method.name, **method.options)
    model = load_pretrained(folder)
    weights = values_digest(model.state_dict())
    assert weights is not None  # all are tensors
    summary = floater.extend(model, length)
    return CertifiedModel(
        folder, length, summary.old, "causal" if causal else "masked", summary.positions, summary.method,
        parameters, weights[:16], parameters / (layers * width),
    )  # fmt: skip


def activations(config: Any, length: int, size: int, causal: bool) -> int:
    """Estimate the bytes, besides the weights, that reading one text of a length takes.

    Hidden states and the widest feed-forward layer, cached keys and values, and one chunk of logits.

    Args:
        config: configuration of the model that reads text.
        length: number of tokens.
        size: bytes of a number.
        causal: whether keys and values are cached.
    """
    width, layers = int(config.hidden_size), int(config.num_hidden_layers)
    heads = int(getattr(config, "num_attention_heads", 1) or 1)
    head = int(getattr(config, "head_dim", None) or width // heads)
    cached = int(getattr(config, "num_key_value_heads", None) or heads) * head * layers * 2
    inner = int(getattr(config, "intermediate_size", None) or 4 * width)
    numbers = length * (8 * width + 3 * inner + 2 * cached * causal) + 3 * CHUNK * int(config.vocab_size)
    return numbers * size


def check_memory(weights: int, beside: int, length: int) -> None:
    """Refuse a measurement that does not fit.

    Args:
        weights: bytes of the weights.
        beside: bytes of the activations.
        length: number of tokens of a text.

    Raises:
        DataError: if there is less memory than both take; it says how much they take.
    """
    needed, where, free = weights + beside, "main memory", psutil.virtual_memory().available
    if torch.cuda.is_available():
        where, free = "memory of the GPU", torch.cuda.mem_get_info()[0]
    if needed > free:
        raise DataError(
            f"a certificate at {length} tokens needs about {needed / 2**30:.1f} GiB of {where}, "
            f"{weights / 2**30:.1f} of them for the weights; {free / 2**30:.1f} GiB are free"
        )


def methods(model: CertifiedModel, chosen: str, options: Mapping[str, Any]) -> list[Method]:
    """Return the methods that a certificate measures, the chosen one first.

    Args:
        model: the model.
        chosen: name of a method, which two others are compared with, or "auto" for all.
        options: options of the method.
    """
    candidates = [Method(name, dict(values)) for name, values in CANDIDATES.get(model.positions, ())]
    names = {each.name for each in candidates}
    if model.default not in names:  # its own scaling, made wider, excludes other scalings
        others = [each for each in candidates if each.name in ("self_extend", "log_n")]
        candidates = [Method(model.default), *others]
    if chosen == "auto":
        return candidates
    first = Method(chosen, dict(options))
    return [first, *(each for each in candidates if each != first)][:3]
