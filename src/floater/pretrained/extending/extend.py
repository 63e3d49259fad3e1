"""A longer context for a model that somebody else trained."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import nn
from transformers import PreTrainedModel

from floater.pretrained.extending import continuation, rotary
from floater.pretrained.extending.tables import Table, find_tables, lengthen
from floater.pretrained.plug import inner

_OPTIONS: Mapping[str, frozenset[str]] = {
    **dict.fromkeys(continuation.METHODS, frozenset({"special"})),
    "linear": frozenset(),
    "ntk": frozenset(),
    "dynamic": frozenset(),
    "yarn": frozenset({"attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"}),
    "longrope": frozenset({"short_factor", "long_factor", "attention_factor"}),
    "llama3": frozenset({"low_freq_factor", "high_freq_factor"}),
}


class ExtendError(ValueError):
    """A model cannot be extended as asked."""


@dataclass(frozen=True)
class Extension:
    """What `extend` did.

    Args:
        method: how.
        positions: "table", "image" or "rotary".
        old: tokens that the model took, or the side of its images in pixels.
        new: those that it takes now.
        unchanged: whether inputs of the old lengths give what they gave, bit for bit.

    Example:
        >>> print(Extension("flow", "table", 512, 2048, True))
        table of positions, 512 to 2048 by 'flow'; shorter inputs as before
    """

    method: str
    positions: str
    old: int
    new: int
    unchanged: bool

    def __str__(self) -> str:
        kind = {"table": "table of positions", "image": "grid of patches", "rotary": "rotary positions"}
        shorter = "as before" if self.unchanged else "changed, too"
        return (
            f"{kind[self.positions]}, {self.old} to {self.new} by {self.method!r}; shorter inputs {shorter}"
        )


@torch.no_grad()
def extend(model: nn.Module, length: int, method: str | None = None, **options: Any) -> Extension:
    """Let a Hugging Face model take longer inputs.

    **Learned tables** (BERT, RoBERTa, GPT-2, BART, Whisper's decoder and others): "flow", the default, fits a
    linear flow to the table's vectors and continues it (Liu et al. 2020 with h(t, p) = A (p - c)); "repeat",
    "interpolation" and "hierarchical" are what people do without one. The first and the last vector are
    special: `special=(1, 1)` is how many of them stay as they are and are not continued. But for
    "interpolation", shorter inputs give what they gave, bit for bit.

    **Images** (ViT, DINOv2, SigLIP): `length` is the side of the larger, square image in pixels;
    "interpolation" is the default.

    **Rotary positions** (Llama, Mistral, Qwen, Gemma, Phi-3, ModernBERT and others): "yarn", the default,
    "linear", "ntk", "dynamic", "longrope" and "llama3", by the configuration, with Transformers' functions;
    their parameters can be given. "dynamic" rescales keys as a text grows, which cached ones do not follow,
    so it turns the cache off.

    The result is an ordinary model: `save_pretrained` writes one that Transformers loads alone. Give its
    tokenizer the same length (`tokenizer.model_max_length`). Optimizers must be made after.

    Args:
        model: a model of `transformers`, plugged or not; changed in place.
        length: tokens that it shall take, more than it takes now.
        method: see above; None means the first that is named.
        options: see above.

    Returns:
        What was done.

    Raises:
        ExtendError: if the length is not above the present one, the model's positions do not allow the method
            or have no declared length, an option is unknown, or the configuration has a scaling already. The
            model is then as it was.

    Example:
        >>> from transformers import BertConfig, BertModel
        >>> model = BertModel(BertConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        ...                              intermediate_size=16, vocab_size=8, max_position_embeddings=32))
        >>> print(extend(model, 64))
        table of positions, 32 to 64 by 'flow'; shorter inputs as before
        >>> model(torch.ones(1, 64, dtype=torch.long)).last_hidden_state.shape
        torch.Size([1, 64, 16])
    """
    model = inner(model)
    if not isinstance(length, int) or isinstance(length, bool) or length < 1:
        raise ExtendError(f"length is {length!r}; it must be a whole number of at least 1")
    tables, rotary_bodies = find_tables(model), rotary.rotary_bodies(model)
    name = type(model).__name__
    if not tables and not rotary_bodies:
        raise ExtendError(
            f"{name} has neither a learned table of positions nor rotary ones, so it declares no length that "
            "could be extended: biases of distances, recurrences and sinusoids take any"
        )
    if len({table.image for table in tables}) > 1:
        raise ExtendError(f"{name} reads texts and images; extend the part that shall take more")
    kind = "rotary" if not tables else "image" if tables[0].image else "table"
    methods = rotary.METHODS if kind == "rotary" else tuple(continuation.METHODS)
    default = {"table": "flow", "image": "interpolation", "rotary": "yarn"}[kind]
    method = default if method is None else method
    if method not in methods:
        raise ExtendError(
            f"method is {method!r}; {name} has {_KINDS[kind]}, which allow {', '.join(map(repr, methods))}"
        )
    known = _OPTIONS[method] if kind != "image" else frozenset()
    if unknown := sorted(options.keys() - known):
        raise ExtendError(
            f"method {method!r} has no option {unknown[0]!r}; valid: {', '.join(sorted(known)) or 'none'}"
        )
    if kind == "rotary":
        return _extend_rotary(model, rotary_bodies, length, method, options)
    if kind == "image":
        return _extend_images(model, tables, length, method)
    return _extend_tables(model, tables, length, method, options)


_KINDS = {"table": "a learned table of positions", "image": "a grid of patches", "rotary": "rotary positions"}


def _check_longer(length: int, old: int, what: str) -> None:
    if length <= old:
        raise ExtendError(
            f"length is {length}; the model takes {what.format(old)} already, so it must be more"
        )


def _extend_tables(
    model: nn.Module, tables: list[Table], length: int, method: str, options: dict[str, Any]
) -> Extension:
    old = max(table.length for table in tables)
    _check_longer(length, old, "{} tokens")
    special = options.get("special", (1, 1))
    if (
        not isinstance(special, tuple | list)
        or len(special) != 2
        or any(not isinstance(count, int) or isinstance(count, bool) or count < 0 for count in special)
    ):
        raise ExtendError(
            f"special is {special!r}; it must be two whole numbers, of the first and last vectors"
        )
    if sum(special) + 2 > min(table.length for table in tables):
        raise ExtendError(f"special is {special!r}, but there are {old} vectors; at least 2 must be left")
    _own_configs(model)
    longer = []
    for table in tables:
        rows = table.weight
        try:
            more = continuation.continued(
                rows[table.first :], length, method, special=(special[0], special[1])
            )
        except ValueError as error:
            raise ExtendError(str(error)) from error
        longer.append(torch.cat((rows[: table.first], more)))
    for table, weight in zip(tables, longer, strict=True):
        lengthen(table.body.config, table.length, length, len(table.weight))
        table.replace(weight)
    return Extension(method, "table", old, length, method != "interpolation")


def _extend_images(model: nn.Module, tables: list[Table], length: int, method: str) -> Extension:
    (table,) = tables
    config: Any = table.body.config
    old, patch = config.image_size, config.patch_size
    if not isinstance(old, int) or not isinstance(patch, int):
        raise ExtendError(f"image_size is {old}, patch_size is {patch}; only square images are extended")
    _check_longer(length, old, "images of {0} x {0} pixels")
    if length % patch:
        raise ExtendError(f"length is {length}; it must be a multiple of the patches' side, {patch}")
    side, new = old // patch, length // patch
    rows = table.weight
    if method == "interpolation":  # the model's own, bicubic
        tokens = rows.new_zeros(1, table.first + new * new, rows.shape[1])
        holder: Any = table.holder
        larger = holder.interpolate_pos_encoding(tokens, length, length)[0]
    else:
        grid = continuation.continued_grid(rows[table.first :], (side, side), (new, new), method)
        larger = torch.cat((rows[: table.first], grid))
    _own_configs(model)
    table.body.config.image_size = length
    table.replace(larger)
    for part in table.holder.modules():
        for name, value in (("image_size", length), ("num_patches", new * new), ("num_positions", new * new)):
            if (known := getattr(part, name, None)) is not None:
                setattr(part, name, (value, value) if isinstance(known, tuple | list) else value)
    return Extension(method, "image", old, length, False)


def _extend_rotary(
    model: nn.Module, bodies: list[PreTrainedModel], length: int, method: str, options: dict[str, Any]
) -> Extension:
    old = max(int(body.config.max_position_embeddings) for body in bodies)
    _check_longer(length, old, "{} tokens")
    for body in bodies:
        kind = rotary.parameters(body.config).get("rope_type", "default")
        if kind != "default":
            raise ExtendError(
                f"the rotary positions of {type(body).__name__} are scaled already ('{kind}'); extend the "
                "model without its scaling"
            )
        half = rotary.rotated(body.config, rotary.parameters(body.config)) // 2
        for name in ("short_factor", "long_factor"):
            given = options.get(name, [1.0] * half)
            if not isinstance(given, list) or len(given) != half:
                raise ExtendError(f"{name} must be a list of {half} numbers, one for each frequency")
        trial: Any = copy.deepcopy(body.config)
        rotary.scale(trial, method, length, options)
        try:
            trial.validate()
        except (StrictDataclassError, ValueError) as error:
            reason = error.__cause__ or error
            raise ExtendError(f"{type(body).__name__} does not take {method!r}: {reason}") from error
    _own_configs(model)
    for body in bodies:
        rotary.scale(body.config, method, length, options)
        rotary.rebuild(body)
    if method == "dynamic" and (generation := getattr(model, "generation_config", None)) is not None:
        generation.use_cache = False
    return Extension(method, "rotary", old, length, method == "dynamic")


def _own_configs(model: nn.Module) -> None:
    """Give a model and its parts configurations of their own, as others may share them."""
    memo: dict[int, Any] = {}
    for module in model.modules():
        config = module.__dict__.get("config")
        if config is not None:
            module.config = copy.deepcopy(config, memo)
