"""Base class of the Hugging Face models of the reference Transformer, and their shared functions."""

# mypy: disable-error-code="no-untyped-call"
# (the base class of transformers is untyped)

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import Cache, PreTrainedModel

from floater.encodings import PositionError, PositionModel
from floater.flow import FlowEncoder
from floater.flow.checks import check_length
from floater.flow.vector_fields import FieldLinear
from floater.positions import Positions, build_positions, merge_positions
from floater.positions.tracing import refuse_counting
from floater.transformer.alignment import align
from floater.transformer.blocks import Block
from floater.transformer.config import FloaterConfig
from floater.transformer.recipe import Recipe
from floater.transformer.stacks import Stack
from floater.transformer.times import Times

# arguments of Hugging Face's Trainer and generate that change no result here
_HARMLESS = {"cache_position", "logits_to_keep", "num_items_in_batch", "use_cache"}


def refuse(model: nn.Module, unused: Mapping[str, Any]) -> None:
    """Refuse arguments of a forward pass that would be ignored silently.

    Raises:
        TypeError: if an argument is set and is not one that changes no result.

    Example:
        >>> refuse(nn.Identity(), {"position_ids": torch.arange(3)})
        Traceback (most recent call last):
        TypeError: Identity does not take position_ids
    """
    names = [name for name, value in unused.items() if value is not None and value is not False]
    if names := [name for name in names if name not in _HARMLESS]:
        instead = (
            "; pass positions=Positions.from_cu_seqlens(cu_seq_lens_q)" if "cu_seq_lens_q" in names else ""
        )
        raise TypeError(f"{type(model).__name__} does not take {', '.join(names)}{instead}")


def check_right_padding(mask: Tensor, name: str) -> None:
    """Refuse rows with padding before or between what they have.

    Args:
        mask: (N, T) bool, False at padding.
        name: name of what the rows have, for the message.

    Raises:
        ValueError: if padding is followed by something else.

    Example:
        >>> check_right_padding(torch.tensor([[False, True]]), "events")
        Traceback (most recent call last):
        ValueError: events are padded on the left or between; padding must be on the right
    """
    if bool((mask[:, 1:] & ~mask[:, :-1]).any()):
        raise ValueError(f"{name} are padded on the left or between; padding must be on the right")


def changed(config: FloaterConfig, **fields: Any) -> FloaterConfig:
    """Return a copy of a configuration with some fields changed.

    Example:
        >>> config = FloaterConfig()
        >>> changed(config, is_decoder=True).is_decoder, config.is_decoder
        (True, False)
    """
    config = copy.deepcopy(config)
    for name, value in fields.items():
        setattr(config, name, value)
    return config


def bidirectional(config: FloaterConfig) -> FloaterConfig:
    """Return the configuration itself, if its tokens may attend to later ones.

    Raises:
        ValueError: if `config.is_decoder`.

    Example:
        >>> bidirectional(FloaterConfig(is_decoder=True))
        Traceback (most recent call last):
        ValueError: is_decoder is True; this model attends to both sides and needs is_decoder=False
    """
    if config.is_decoder:
        raise ValueError("is_decoder is True; this model attends to both sides and needs is_decoder=False")
    return config


def cached_length(cache: Cache | None) -> int:
    """Return the number of tokens in a cache of Transformers; 0 without one.

    Example:
        >>> cached_length(None)
        0
    """
    return 0 if cache is None else int(cache.get_seq_length())


def embed(recipe: Recipe, embedding: nn.Embedding, ids: Tensor | None, embeds: Tensor | None) -> Tensor:
    """Return token embeddings, by the recipe scaled by sqrt(d) (Vaswani et al. 2017, section 3.4).

    Args:
        recipe: the recipe, which decides on the scale.
        embedding: the table.
        ids: (batch, T), or None.
        embeds: (batch, T, dim), rows of the table that are not scaled yet, or None.

    Returns:
        (batch, T, dim).

    Raises:
        ValueError: unless exactly one of ids and embeds is given.

    Example:
        >>> table = nn.Embedding.from_pretrained(torch.ones(3, 4))
        >>> embed(Recipe(), table, torch.tensor([[2]]), None)
        tensor([[[2., 2., 2., 2.]]])
    """
    if (ids is None) == (embeds is None):
        raise ValueError("give exactly one of input_ids and inputs_embeds")
    x: Tensor = embedding(ids) if embeds is None else embeds
    factor = recipe.embedding_factor(embedding.embedding_dim)
    return x if factor == 1.0 else x * factor


def require_positions(value: object, name: str) -> None:
    """Refuse an argument that is neither a `Positions` nor None.

    Args:
        value: the argument.
        name: its name, for the message.

    Raises:
        TypeError: if it is something else.

    Example:
        >>> require_positions(torch.arange(3), "positions")
        Traceback (most recent call last):
        TypeError: positions is a Tensor; it must be a Positions; numbers of tokens are position_ids
    """
    if value is not None and not isinstance(value, Positions):
        ids = f"{name.removesuffix('positions')}position_ids"
        raise TypeError(
            f"{name} is a {type(value).__name__}; it must be a Positions; numbers of tokens are {ids}"
        )


def token_positions(
    x: Tensor,
    positions: Positions | None,
    position_ids: Tensor | None,
    earlier: int = 0,
    *,
    mask: Tensor | None = None,
    document_ids: Tensor | None = None,
    prefix: str = "",
) -> Positions:
    """Return the positions of tokens, by the arguments of a model.

    Args:
        x: (batch, T, dim), their embeddings, or ids (batch, T).
        positions: positions of the caller, completed by mask and document ids, or None.
        position_ids: (batch or 1, T) ids of the caller, or None.
        earlier: number of cached tokens.
        mask: (batch, earlier + T) attention mask, or None.
        document_ids: (batch, earlier + T) ids of documents, or None.
        prefix: prefix of the arguments' names, for the message.

    Raises:
        TypeError: if positions is not a `Positions`.
        ValueError: if both positions and ids are given, or they do not fit.

    Example:
        >>> token_positions(torch.zeros(1, 3, 8), None, None).query
        tensor([[0, 1, 2]])
    """
    require_positions(positions, f"{prefix}positions")
    if positions is not None and position_ids is not None:
        raise ValueError(f"give {prefix}positions or {prefix}position_ids, not both")
    if positions is None and position_ids is None:
        refuse_counting(ValueError)
    defaults = build_positions(
        x.shape[:2],
        earlier,
        mask=mask,
        document_ids=document_ids,
        position_ids=position_ids,
        device=x.device,
    )
    return defaults if positions is None else merge_positions(positions, defaults, mask, len(x))


def init_roles(stack: Stack) -> None:
    """Initialise weights whose scale depends on their role: queries, and outputs to the residual stream.

    Args:
        stack: the stack, whose other weights are initialised already.
    """
    config, recipe = stack.config, stack.recipe
    head_dim = config.hidden_size // config.num_attention_heads
    gain, cross = stack.position.query_gain(head_dim), 1.0 if recipe.scale_cross_attention else head_dim**-0.5
    for block in stack.blocks:
        assert isinstance(block, Block)
        if gain != 1.0:
            recipe.init_linear(block.attention.query.weight, gain)
        writes = [block.attention.output, block.feed_forward.outer]
        if hasattr(block, "cross_attention"):
            writes.append(block.cross_attention.output)
            if cross != 1.0:
                recipe.init_linear(block.cross_attention.query.weight, cross)
        if recipe.initialization == "gpt":
            for linear in writes:
                count = len(writes) * len(stack.blocks) * stack.repeats
                recipe.init_linear(linear.weight, count**-0.5)


class FloaterPreTrainedModel(PreTrainedModel):
    """Base class of all models: initialisation, saving and loading."""

    config_class = FloaterConfig
    base_model_prefix = "model"
    _input_embed_layer = "embedding"
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _supports_flex_attn = True
    _no_split_modules = [Block.__name__]  # noqa: RUF012
    _keep_in_fp32_modules_strict = ["position.frequency"]  # noqa: RUF012 (see `floater.encodings.precise`)

    def __init__(self, config: FloaterConfig) -> None:
        super().__init__(config)
        self.recipe = config.resolved_recipe

    def post_init(self) -> None:
        super().post_init()
        if self.config.baked is not None and not any(
            isinstance(module, PositionModel) and type(module).bake is not PositionModel.bake
            for module in self.modules()
        ):
            raise PositionError(f"baked is {self.config.baked}, but '{self.config.position}' has no flow")

    @classmethod
    def from_pretrained(cls, *args: Any, **kwargs: Any) -> Self:
        """Load a model, as `PreTrainedModel.from_pretrained` does, into aligned memory.

        Args:
            args: see `PreTrainedModel.from_pretrained`.
            kwargs: see `PreTrainedModel.from_pretrained`.

        Returns:
            The model, which computes what the saved one did, bit for bit; see `alignment.align`. With
            `output_loading_info`, a pair of it and a dict.

        Example:
            >>> import tempfile
            >>> from floater.transformer import FloaterModel
            >>> model = FloaterModel(FloaterConfig.preset("tiny", vocab_size=9)).eval()
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     model.save_pretrained(folder)
            ...     loaded = FloaterModel.from_pretrained(folder)
            >>> ids = torch.tensor([[3, 4]])
            >>> torch.equal(loaded(ids)[0], model(ids)[0])
            True
        """
        loaded = super().from_pretrained(*args, **kwargs)
        align(loaded[0] if isinstance(loaded, tuple) else loaded)
        return loaded

    def bake(self, length: int) -> None:
        """Store the position vectors of the model's flows and drop their fields: inference without solving.

        Liu et al. 2020, section 4.4. The vectors, or the biases of a flow over distances, are saved with the
        model and are not trained further. At `length` tokens the outputs are those of before, bit for bit. At
        fewer, where a flow is solved only up to the last position of a call, they may differ in the last
        digits.

        Args:
            length: number of positions, at least 1; a later one is an error.

        Raises:
            PositionError: if the model has no flow, or one that cannot be baked, or is baked already.
            ValueError: if length is less than 1.

        Example:
            >>> from floater.transformer import FloaterModel
            >>> model = FloaterModel(FloaterConfig.preset("tiny", vocab_size=9)).eval()
            >>> ids = torch.tensor([[3, 4]])
            >>> before = model(ids)[0]
            >>> model.bake(2)
            >>> torch.equal(model(ids)[0], before)
            True
        """
        if self.config.baked is not None:
            raise PositionError(f"this model is baked already, for {self.config.baked} positions")
        check_length(length)
        models = [module for module in self.modules() if isinstance(module, PositionModel)]
        for model in models:  # before one is baked
            model.check_bake()
        if not any(isinstance(module, FlowEncoder) for module in self.modules()):
            raise PositionError(f"'{self.config.position}' has no flow to bake")
        times = Times.of(self.config.times, self.config.training_length)
        if times is not None and times.mode == "float" and times.max_scale > 1:
            raise PositionError(
                "times.mode is 'float', so that texts are read at times between whole ones; vectors and "
                "biases are baked at whole ones"
            )
        for model in models:
            model.bake(length)
        shared, baked = self.config, copy.copy(self.config)
        baked.baked = length
        for module in self.modules():
            if module.__dict__.get("config") is shared:
                module.config = baked  # type: ignore[assignment]

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear | FieldLinear):
            self.recipe.init_linear(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            self.recipe.init_embedding(module.weight)
        elif isinstance(module, nn.LayerNorm | nn.RMSNorm):
            nn.init.ones_(module.weight)
            if isinstance(module, nn.LayerNorm):
                nn.init.zeros_(module.bias)
        elif isinstance(module, Stack):
            # its projections are initialised by now; weights of a checkpoint are left alone by nn.init
            init_roles(module)
        elif isinstance(module, PositionModel):
            # a position model initialises all of its parameters at once: keep those that a checkpoint gave
            tensors = (*module.parameters(), *module.buffers())
            loaded = [(t, t.clone()) for t in tensors if getattr(t, "_is_hf_initialized", False)]
            module.reset_parameters()
            for tensor, value in loaded:
                tensor.copy_(value)

    def _initialize_weights(self, module: nn.Module, is_custom_code: bool = False) -> None:
        # for code outside transformers its default passes over modules that hold parameters only in their
        # parts, as position models do
        super()._initialize_weights(module, is_custom_code=False)

    def _set_gradient_checkpointing(
        self,
        enable: bool = True,
        gradient_checkpointing_func: Callable[..., Any] = checkpoint,
        every_n_layers: int = 1,
    ) -> None:
        # Such a checkpoint gives gradients to its own arguments alone, not to the tensors that they are
        # computed from.
        if enable and getattr(gradient_checkpointing_func, "keywords", {}).get("use_reentrant"):
            raise ValueError(
                "use_reentrant is True; blocks share what the position model prepared, which needs False, "
                "the default"
            )
        super()._set_gradient_checkpointing(enable, gradient_checkpointing_func, every_n_layers)

    def scaled(self, hidden: Tensor) -> Tensor:
        """Scale the input of the output matrix by d^-1/2, if the recipe has this scale and the matrix is
        tied."""
        if not (self.recipe.scale_logits and self.config.tie_word_embeddings):
            return hidden
        return hidden * float(hidden.shape[-1] ** -0.5)

    def uses_cache(self, asked: bool | None, labels: Tensor | None) -> bool:
        """Return whether to keep keys and values; by default as configured, but never in training."""
        if asked is None:
            return bool(self.config.use_cache) and labels is None and not self.training
        return asked
