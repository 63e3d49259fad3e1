"""Initialisation, scales and normalisation of a Transformer around a position encoding."""

# annotations stay types here, not text: their literals are the valid values

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

from torch import Tensor, nn
from transformers.activations import ACT2FN

from floater.encodings.checks import one_of
from floater.encodings.registry import catalogue, options

if TYPE_CHECKING:
    from floater.transformer.config import FloaterConfig


@dataclass(frozen=True)
class Recipe:
    """Initialisation, scales, norms and head of the Transformer around a position encoding.

    A recipe decides whether an encoding is learned: a table of std d^-1/2 is small compared with tokens
    scaled by sqrt(d), whose std is 1, and as large as the tokens of BERT. The defaults are those of Vaswani
    et al. 2017 as fairseq has them, but for its smaller query, key and value weights; `RECIPES` has others by
    name. Whether norms come before or after the sub-layers is `FloaterConfig.norm_first`; the scale of the
    attention logits is the encoding's own.

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
            changes: other values, by name.

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
        known = [field.name for field in fields(cls)]
        for key in changes or {}:
            if key not in known:
                near = difflib.get_close_matches(str(key), known, n=1, cutoff=0.0)
                raise ValueError(f"a recipe has no {key!r}; nearest: {near[0]!r}; valid: {', '.join(known)}")
        return replace(RECIPES[name], **(changes or {}))

    @classmethod
    def of(cls, config: "FloaterConfig") -> "Recipe":
        """Return the recipe of a configuration.

        `config.recipe` is a name, or a mapping of values and of `preset`, the name of the recipe that they
        change. Without a name it is the recipe on the card of the position encoding.

        Raises:
            PositionError: if none is named and there is no such position encoding.
            ValueError: see `named`.

        Example:
            >>> from floater.transformer import FloaterConfig
            >>> Recipe.of(FloaterConfig(position="bert_a")) == RECIPES["bert"]
            True
            >>> Recipe.of(FloaterConfig(recipe={"preset": "gpt", "embedding_norm": True})).embedding_norm
            True
        """
        given = {"preset": config.recipe} if isinstance(config.recipe, str) else dict(config.recipe or {})
        name = given.pop("preset", None)
        return cls.named(of_encoding(config) if name is None else name, given)

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
    # Liu et al. 2019 and fairseq; TUPE's code is made from it
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


def of_encoding(config: "FloaterConfig") -> str:
    """Return the name of the recipe on the card of a configuration's position encoding.

    Raises:
        PositionError: if there is no such encoding.

    Example:
        >>> from floater.transformer import FloaterConfig
        >>> of_encoding(FloaterConfig(position=["alibi", "bert_a"]))
        'bert'
    """
    given = options(config.position) | (config.position_options or {})
    return catalogue()[config.position].recipe(given)


def pooler(config: "FloaterConfig") -> nn.Module:
    """Return the layers of a classifier before its last map: BERT's linear map and tanh.

    With the head "linear" there are none. Source: google-research/bert, `BertModel`; fairseq's RoBERTa
    initialises it for each task.

    Args:
        config: width and recipe.

    Example:
        >>> from floater.transformer import FloaterConfig
        >>> pooler(FloaterConfig(recipe="bert"))
        Sequential(
          (0): Linear(in_features=512, out_features=512, bias=True)
          (1): Tanh()
        )
    """
    if Recipe.of(config).head == "linear":
        return nn.Identity()
    return nn.Sequential(nn.Linear(config.hidden_size, config.hidden_size), nn.Tanh())


class HeadTransform(nn.Module):
    """A linear map, the activation and a norm, which BERT has before its output matrix.

    Source: google-research/bert, `get_masked_lm_output`.

    Args:
        config: width and activation.

    Example:
        >>> import torch
        >>> from floater.transformer import FloaterConfig
        >>> HeadTransform(FloaterConfig(hidden_size=8, num_attention_heads=2))(torch.zeros(1, 3, 8)).shape
        torch.Size([1, 3, 8])
    """

    def __init__(self, config: "FloaterConfig") -> None:
        super().__init__()
        self.linear = nn.Linear(config.hidden_size, config.hidden_size)
        self.activation = ACT2FN[config.activation_function]
        self.norm = Recipe.of(config).normalization(config.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., dim) to (..., dim)."""
        out: Tensor = self.norm(self.activation(self.linear(x)))
        return out
