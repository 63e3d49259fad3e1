"""The configuration of the reference Transformer, and the sizes of the papers by name."""

# mypy: disable-error-code="no-untyped-call"
# (the base class of transformers is untyped)

# annotations stay types here, not text: `strict` checks values against them

import copy
import difflib
from dataclasses import fields
from inspect import Parameter
from typing import TYPE_CHECKING, Any, Self

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig
from transformers.activations import ACT2FN

from floater._hf import CACHE
from floater.encodings.checks import at_least_one, one_of
from floater.encodings.composed.parts import named, resolved
from floater.encodings.errors import PositionError
from floater.encodings.registry import catalogue
from floater.encodings.registry import options as default_options
from floater.encodings.spec import Site
from floater.transformer.reading import Reading, check_temperature
from floater.transformer.recipe import Recipe
from floater.transformer.times import Times

_SIZES = (
    *("hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers", "decoder_layers"),
    "dropout",
)
PRESETS: dict[str, dict[str, Any]] = {
    name: dict(zip(_SIZES, sizes, strict=True))
    for name, sizes in {
        # Vaswani et al. 2017, Table 3
        "transformer-base": (512, 2048, 8, 6, 6, 0.1),
        "transformer-big": (1024, 4096, 16, 6, 6, 0.3),
        # Sizes for a laptop
        "tiny": (128, 512, 4, 2, 2, 0.1),
        "small": (256, 1024, 4, 4, 4, 0.1),
    }.items()
}

_THEIRS = frozenset(
    {
        "attn_implementation",
        "experts_implementation",
        "label2id",
        "model_type",
        "name_or_path",
        "_name_or_path",
        "num_labels",
        "output_attentions",
        "torch_dtype",
    }
)
"""Arguments that Hugging Face accepts besides the fields."""

_TP_PLAN = {
    f"{module}.{name}": style
    for module, styles in (
        ("encoder.blocks.*.attention", {"query": "colwise", "key": "colwise", "value": "colwise"}),
        ("encoder.blocks.*.attention", {"output": "rowwise"}),
        ("encoder.blocks.*.feed_forward", {"inner": "colwise", "outer": "rowwise"}),
    )
    for name, style in styles.items()
}
"""The tensor-parallel plan of Transformers for an encoder or a language model."""


_COUNTS = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers"),
    *("decoder_layers", "training_length", "baked"),
)


@strict
class FloaterConfig(PreTrainedConfig):
    """Configuration of the reference Transformer (Vaswani et al. 2017) with any position model.

    Args:
        vocab_size: size of the joint vocabulary.
        hidden_size: width d.
        intermediate_size: inner width of the feed-forward layers.
        num_attention_heads: heads; they divide hidden_size.
        num_hidden_layers: blocks of the encoder, or of the decoder of a language model.
        decoder_layers: blocks of the decoder of an encoder-decoder.
        position: name of a position model (`floater.catalogue()`); or a list of names and of mappings of
            `name` and options, short for "compose" with the option `models`; or one such mapping. `clock` in
            a mapping, or among the options, wraps the encoding in "clock", as in {"name": "rotary", "clock":
            {"per": "head"}}.
        position_options: options of the position model; none with a list or a mapping.
        decoder_position: position model of the decoder of an encoder-decoder, as `position`, which is then
            that of the encoder: a tree or a graph of the source, say, and a sequence as the target. It acts
            in cross-attention, too. None means `position` in both.
        decoder_position_options: options of the decoder's position model; none with a list or a mapping.
        training_length: training length in tokens; see `StackSpec.max_length`.
        times: random times of training, as in {"mode": "stretch", "max_scale": 4.0}; see
            `floater.transformer.times.Times`. None trains at the positions.
        reading: default rule for long texts in evaluation mode, as in {"group": [32, 4]}; see
            `floater.transformer.reading.Reading`.
        attention_temperature: factor of the attention logits: "log" multiplies them by max(1, log n / log L),
            n the number of keys that a query sees and L the training length; "learned" by s log n, s learned
            for each head of a block, at first 1 / log L (Nakanishi 2025, Scalable-Softmax). None leaves
            logits alone.
        dropout: dropout probability after the embeddings and after each sub-layer.
        attention_dropout: dropout probability of the attention weights.
        activation_dropout: dropout probability inside the feed-forward layers.
        activation_function: activation of the feed-forward layers, by its Hugging Face name.
        norm_first: whether norms come before the sub-layers, with a last norm, instead of after them.
        recipe: initialisation, scales and norms of the Transformer around the encoding: a name of
            `floater.transformer.RECIPES`, or a mapping of `preset`, such a name, and of other values
            (see `Recipe`). None takes the recipe on the encoding's card: "bert" for BERT's and TUPE's,
            else "transformer".
        attention: kind of attention: "softmax"; or in time that grows with the length, for position models
            that leave the attention matrix alone, "linear" (Katharopoulos et al. 2020) or "performer", which
            estimates the softmax by random features (Choromanski et al. 2021). The features of a block are
            always the same.
        attention_features: number of random features of "performer"; None means w ln w, w the width of
            queries and keys.
        share_layers: whether one block is applied as often as there are layers (Dehghani et al. 2019).
        use_cache: whether models keep keys and values by default; never in training.
        tie_word_embeddings: whether source, target and output embeddings are one matrix.
        pad_token_id: id of the padding token.
        bos_token_id: id of the token that starts a text.
        eos_token_id: id of the token that ends a text, or ids.
        decoder_start_token_id: id of the first token of the decoder of an encoder-decoder.
        is_decoder: whether the stack is causal (a language model).
        baked: number of positions whose vectors are stored in place of a flow; see
            `FloaterPreTrainedModel.bake`.

    Raises:
        ValueError: if num_attention_heads does not divide hidden_size, or another value is not valid.
        StrictDataclassFieldValidationError: if a value has the wrong type.

    Example:
        >>> from floater.transformer import FloaterConfig
        >>> FloaterConfig.preset("transformer-base", vocab_size=32000).hidden_size
        512
    """

    model_type = "floater"
    keys_to_ignore_at_inference = [CACHE]  # noqa: RUF012
    base_model_tp_plan = _TP_PLAN

    vocab_size: int = 32000
    hidden_size: int = 512
    intermediate_size: int = 2048
    num_attention_heads: int = 8
    num_hidden_layers: int = 6
    decoder_layers: int = 6
    if TYPE_CHECKING:
        position: str = "floater"
        decoder_position: str | None = None
    else:
        position: str | list[Any] | dict[str, Any] = "floater"  # which become names at once
        decoder_position: str | list[Any] | dict[str, Any] | None = None
    position_options: dict[str, Any] | None = None
    decoder_position_options: dict[str, Any] | None = None
    training_length: int = 512
    times: dict[str, Any] | None = None
    reading: dict[str, Any] | None = None
    attention_temperature: str | None = None
    dropout: float | int = 0.1
    attention_dropout: float | int = 0.0
    activation_dropout: float | int = 0.0
    activation_function: str = "relu"
    norm_first: bool = False
    recipe: str | dict[str, Any] | None = None
    attention: str = "softmax"
    attention_features: int | None = None
    share_layers: bool = False
    use_cache: bool = True
    tie_word_embeddings: bool = True
    pad_token_id: int | None = 0
    bos_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2
    decoder_start_token_id: int | None = 1
    is_decoder: bool = False
    baked: int | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        # Configurations that were saved when positions could halt have these.
        kwargs.pop("ponder_cost", None)
        if (halting := kwargs.pop("halting", None)) is not None:
            raise ValueError(
                f"halting is {halting}; adaptive halting is no longer supported, only null is valid"
            )
        for name in kwargs.keys() - _THEIRS:
            if (meant := _nearest(name)) is not None:
                raise ValueError(f"FloaterConfig has no '{name}'; did you mean '{meant}'?")
        at_least_one(**{name: getattr(self, name) for name in _COUNTS})
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size {self.hidden_size} is not a multiple of "
                f"num_attention_heads {self.num_attention_heads}"
            )
        if self.activation_function not in ACT2FN:
            valid = ", ".join(ACT2FN)
            raise ValueError(f"activation_function is '{self.activation_function}'; there are: {valid}")
        one_of("attention", self.attention, ("softmax", "linear", "performer"))
        if self.attention != "softmax" and self.attention_dropout:
            raise ValueError(
                f"attention_dropout is {self.attention_dropout}; linear attention has no weights to drop"
            )
        if self.attention_features is not None:
            if self.attention != "performer":
                raise ValueError(f"attention_features are given, but attention is {self.attention!r}")
            at_least_one(attention_features=self.attention_features)
        for name in ("position", "decoder_position"):
            position, chosen = getattr(self, name), getattr(self, f"{name}_options")
            if position is not None:
                position, chosen = resolved(position, chosen or {}, name)
                setattr(self, name, position)
                setattr(self, f"{name}_options", chosen)
            elif chosen:
                raise ValueError(f"{name}_options are given, but no {name}")
        if self.recipe is not None:
            _ = self.resolved_recipe  # refuses invalid values
        Times.of(self.times, self.training_length)
        Reading.of(self.reading)
        if self.attention_temperature is not None:
            one_of("attention_temperature", self.attention_temperature, ("log", "learned"))
            check_temperature(self)
        super().__post_init__(**kwargs)

    def position_at(self, site: Site) -> tuple[str, dict[str, Any]]:
        """Return the name of the position model at a site (see `StackSpec`), and its options.

        Example:
            >>> FloaterConfig(position="tree", decoder_position="sinusoidal").position_at("decoder")
            ('sinusoidal', {})
        """
        if site == "self" or self.decoder_position is None:
            return self.position, dict(self.position_options or {})
        return self.decoder_position, dict(self.decoder_position_options or {})

    def position_name(self, site: Site) -> str:
        """Return the name of the encoding at a site, or of the parts that compose it, for messages."""
        name, chosen = self.position_at(site)
        if name == "clock":
            return f"{named(chosen.get('model', 'rotary'))[0]} + clock"
        if name != "compose":
            return str(name)
        return " + ".join(named(part)[0] for part in chosen.get("models", ()))

    @property
    def resolved_recipe(self) -> Recipe:
        """Return the recipe with all of its values.

        `recipe` is a name, or a mapping of values and of `preset`, the name of the recipe that they change.
        Without a name it is the recipe on the card of the position encoding.

        Raises:
            PositionError: if no recipe is named and there is no such position encoding, or those of encoder
                and decoder ask for different ones.
            ValueError: see `Recipe.named`.

        Example:
            >>> FloaterConfig(position=["alibi", "bert_a"]).resolved_recipe.head
            'transform'
            >>> FloaterConfig(recipe={"preset": "gpt", "embedding_norm": True}).resolved_recipe.embedding_norm
            True
        """
        values = {"preset": self.recipe} if isinstance(self.recipe, str) else dict(self.recipe or {})
        name = values.pop("preset", None)
        if name is None:
            sites: tuple[Site, ...] = ("self",) if self.decoder_position is None else ("self", "decoder")
            models = [
                {"name": part, **default_options(part), **chosen}
                for part, chosen in map(self.position_at, sites)
            ]
            name = catalogue()["compose"].recipe({"models": models})
        return Recipe.named(name, values)

    @classmethod
    def preset(cls, name: str, **changes: Any) -> Self:
        """Return a configuration of a named size, with changes.

        Args:
            name: a key of `PRESETS`.
            changes: values of other fields, or other values of the preset's fields.

        Raises:
            ValueError: if there is no such preset or field.

        Example:
            >>> FloaterConfig.preset("tiny", dropout=0.0).dropout
            0.0
        """
        if name not in PRESETS:
            near = difflib.get_close_matches(name, PRESETS, n=1, cutoff=0.0)
            raise ValueError(f"unknown preset '{name}'; nearest: {near[0]!r}; valid: {', '.join(PRESETS)}")
        names = {field.name for field in fields(cls)} | _THEIRS
        for unknown in changes.keys() - names:
            meant = _nearest(unknown) or difflib.get_close_matches(unknown, names, n=1, cutoff=0.0)[0]
            raise ValueError(f"FloaterConfig has no '{unknown}'; did you mean '{meant}'?")
        return cls(**{**PRESETS[name], **changes})

    def get_text_config(self, decoder: bool | None = None, encoder: bool | None = None) -> PreTrainedConfig:
        """Return the configuration of a stack; that of a decoder has the decoder's values without prefix.

        Example:
            >>> config = FloaterConfig(is_encoder_decoder=True, decoder_layers=2, decoder_position="alibi")
            >>> stack = config.get_text_config(decoder=True)
            >>> stack.num_hidden_layers, stack.position
            (2, 'alibi')
        """
        config = self
        if decoder and not encoder and self.decoder_position is None:  # Transformers would copy the None
            config = copy.copy(self)
            config.decoder_position, config.decoder_position_options = self.position_at("decoder")
        return super(FloaterConfig, config).get_text_config(decoder, encoder)

    def to_diff_dict(self) -> dict[str, Any]:
        """Return the fields that `save_pretrained` writes, with every option of the position model.

        So a default that changes later does not change saved models.

        Example:
            >>> FloaterConfig(position="t5").to_diff_dict()["position_options"]["buckets"]
            32
        """
        written: dict[str, Any] = super().to_diff_dict()
        for name in ("position", "decoder_position"):
            if (position := getattr(self, name)) is not None:
                chosen = written.get(f"{name}_options") or {}
                written[f"{name}_options"] = _completed(position, chosen, plain=self.is_encoder_decoder)
        return written


def _nearest(name: str) -> str | None:
    """Return the field with a similar name, or the one that a synonym means; None if there is none."""
    if name in ("max_length", "max_position_embeddings"):
        return "training_length"
    names = [field.name for field in fields(FloaterConfig)]
    return next(iter(difflib.get_close_matches(name, names, n=1, cutoff=0.8)), None)


def _completed(position: str, options: dict[str, Any], *, plain: bool) -> dict[str, Any]:
    """Return the options of a position model, with the defaults of those that are missing.

    Args:
        position: name of the position model.
        options: options of the position model.
        plain: whether `plain` is on by default, as it is in an encoder-decoder.
    """
    try:
        defaults = default_options(position)
    except PositionError:
        return options  # building the model raises the error
    completed = {name: value for name, value in defaults.items() if value is not Parameter.empty}
    if plain and "plain" in completed:
        completed["plain"] = True
    completed |= options
    if position == "compose":
        completed["models"] = [_completed_part(part, plain=plain) for part in completed["models"]]
    if position == "mix":
        completed |= {key: _completed_part(completed[key], plain=plain) for key in ("model", "other")}
    if position == "clock":
        completed["model"] = _completed_part(completed["model"], plain=plain)
    return completed


def _completed_part(part: str | dict[str, Any], *, plain: bool) -> dict[str, Any]:
    """Return one of several position models, with all of its options."""
    name, options = named(part)
    return {"name": name, **_completed(name, options, plain=plain)}
