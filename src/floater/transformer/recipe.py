"""Initialisation, scales and normalisation of a Transformer around a position encoding."""

# annotations stay types here, not text: their literals are the valid values

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args

from torch import Tensor, nn

from floater.encodings.checks import one_of


@dataclass(frozen=True)
class Recipe:
    """Initialisation, scales, norms and head of the Transformer around a position encoding.

    A recipe decides whether an encoding is learned: a table of std d^-1/2 is small compared with tokens
    scaled by sqrt(d), whose std is 1, and as large as the token embeddings of BERT. The defaults are those of
    Vaswani et al. 2017 as fairseq has them, but for its smaller query, key and value weights; `RECIPES` has
    others by name. Whether norms come before or after the sub-layers is `FloaterConfig.norm_first`; the scale
    of the attention logits is the encoding's own.

    Args:
        scale_embedding: whether token embeddings are multiplied by sqrt(d).
        embedding_norm: whether the sum of tokens and positions is normalised, before the dropout.
        initialization: "xavier", "normal" (all weights of std `initializer_range`), "gpt" (the same, but
            those that write to the residual stream divided by the root of their number), or "t5" (by the
            width that a weight reads, embeddings of std 1).
        initializer_range: standard deviation of "normal" and "gpt", tables of positions included.
        norm: "layer" or "rms" (no mean, no bias).
        norm_eps: added to the variance.
        bias: whether the linear maps of the blocks have biases.
        head: "linear", or "transform": of masked language models a linear map, the activation and a norm
            before the output matrix; of classifiers of sequences and choices a linear map and tanh.
        scale_logits: whether output logits are multiplied by d^-1/2 where the output matrix is that of the
            embeddings.
        scale_cross_attention: whether cross-attention divides by sqrt(head_dim); else its query weights start
            that much smaller.
        final_dropout: whether the output of a stack is dropped out, too.

    Raises:
        ValueError: if a value is not valid.

    Example:
        >>> Recipe.named("bert").embedding_norm, Recipe.named("t5").norm
        (True, 'rms')
    """

    scale_embedding: bool = True
    embedding_norm: bool = False
    initialization: Literal["xavier", "normal", "gpt", "t5"] = "xavier"
    initializer_range: float = 0.02
    norm: Literal["layer", "rms"] = "layer"
    norm_eps: float = 1e-5
    bias: bool = True
    head: Literal["linear", "transform"] = "linear"
    scale_logits: bool = False
    scale_cross_attention: bool = True
    final_dropout: bool = False

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type is bool:
                one_of(f"recipe.{field.name}", value, (True, False))
            elif field.type is float:
                if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
                    raise ValueError(f"recipe.{field.name} is {value!r}; it must be a positive number")
            else:
                one_of(f"recipe.{field.name}", value, get_args(field.type))

    @classmethod
    def named(cls, name: str, changes: Mapping[str, Any] | None = None) -> "Recipe":
        """Return a recipe of `RECIPES` with some values changed.

        Args:
            name: a key of `RECIPES`.
            changes: values that differ from that recipe's, by name.

        Raises:
            ValueError: if there is no such recipe or no such name, or a value is not valid.

        Example:
            >>> Recipe.named("bert", {"head": "linear"}).head
            'linear'
            >>> Recipe.named("brt")
            Traceback (most recent call last):
            ValueError: unknown recipe 'brt'; nearest: 'bert'; valid: transformer, bert, roberta, t5, gpt
        """
        if name not in RECIPES:
            near = difflib.get_close_matches(str(name), RECIPES, n=1, cutoff=0.0)
            raise ValueError(f"unknown recipe {name!r}; nearest: {near[0]!r}; valid: {', '.join(RECIPES)}")
        valid = [field.name for field in fields(cls)]
        for key in changes or {}:
            if key not in valid:
                near = difflib.get_close_matches(str(key), valid, n=1, cutoff=0.0)
                raise ValueError(f"a recipe has no {key!r}; nearest: {near[0]!r}; valid: {', '.join(valid)}")
        return replace(RECIPES[name], **(changes or {}))

    @property
    def table_std(self) -> float | None:
        """Return the standard deviation of tables of positions; None leaves it to each encoding."""
        return self.initializer_range if self.initialization in ("normal", "gpt") else None

    def embedding_factor(self, dim: int) -> float:
        """Return the factor of token embeddings of width `dim`."""
        return math.sqrt(dim) if self.scale_embedding else 1.0

    def normalization(self, dim: int) -> nn.Module:
        """Return a norm of vectors of width `dim`."""
        kind = nn.LayerNorm if self.norm == "layer" else nn.RMSNorm
        return kind(dim, eps=self.norm_eps)

    def init_linear(self, weight: Tensor, gain: float = 1.0) -> None:
        """Initialise the weight (out, in) of a linear map, `gain` times as large as the recipe's."""
        if self.initialization == "xavier":
            nn.init.xavier_uniform_(weight, gain=gain)
        elif self.initialization == "t5":
            nn.init.normal_(weight, std=gain * weight.shape[1] ** -0.5)
        else:
            nn.init.normal_(weight, std=gain * self.initializer_range)

    def init_embedding(self, weight: Tensor) -> None:
        """Initialise the token embeddings (vocabulary, dim)."""
        std = {"xavier": weight.shape[1] ** -0.5, "t5": 1.0}.get(self.initialization, self.initializer_range)
        nn.init.normal_(weight, std=std)


RECIPES: dict[str, Recipe] = {
    "transformer": Recipe(),
    # Devlin et al. 2019 and google-research/bert
    "bert": Recipe(
        scale_embedding=False,
        embedding_norm=True,
        initialization="normal",
        norm_eps=1e-12,
        head="transform",
    ),
    # Liu et al. 2019 and fairseq, on which TUPE's code is based
    "roberta": Recipe(
        scale_embedding=False,
        embedding_norm=True,
        initialization="normal",
        head="transform",
    ),
    # Raffel et al. 2020 and google-research/text-to-text-transfer-transformer, version 1.0
    "t5": Recipe(
        scale_embedding=False,
        initialization="t5",
        norm="rms",
        norm_eps=1e-6,
        bias=False,
        scale_logits=True,
        scale_cross_attention=False,
        final_dropout=True,
    ),
    # Radford et al. 2019, section 2.3, with 0.02 for positions, too, as Hugging Face has it
    "gpt": Recipe(scale_embedding=False, initialization="gpt"),
}
