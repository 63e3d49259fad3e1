"""Stacks of blocks with one position model: the encoder and the decoder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from transformers import Cache

from floater.encodings import PositionError, PositionModel, build, options
from floater.encodings.spec import Site
from floater.positions import Positions
from floater.transformer.blocks import DecoderBlock, EncoderBlock
from floater.transformer.config import FloaterConfig
from floater.transformer.halting import Halting
from floater.transformer.memory import Earlier, Memory, check_memory
from floater.transformer.reading import Reading, check_reading, record_rule, spaced
from floater.transformer.recipe import Recipe
from floater.transformer.times import Times, check_times, randomised


def position_model(config: FloaterConfig, layers: int, site: Site, *, causal: bool = False) -> PositionModel:
    """Build the position model that a configuration names, for one stack of blocks.

    In an encoder-decoder a model with the option `plain` has it by default: there it acts in the decoder.

    Args:
        config: its `position`, `position_options`, sizes and `training_length`.
        layers: blocks of the stack.
        site: see `floater.encodings.StackSpec`.
        causal: see `floater.encodings.StackSpec`.

    Raises:
        PositionError: if the name, an option or a value is not valid, or the model would not read the random
            times of the configuration.
    """
    given = config.position_options or {}
    times = Times.of(config.times, config.training_length)
    if config.is_encoder_decoder and "plain" in options(config.position):
        given = {"plain": True} | given
    model = build(
        config.position,
        dim=config.hidden_size,
        heads=config.num_attention_heads,
        layers=layers,
        max_length=config.training_length,
        site=site,
        vocabulary=config.vocab_size,
        causal=causal,
        horizon=None if times is None else times.horizon,
        initializer_range=Recipe.of(config).table_std,
        **given,
    )
    if model.needs_cross_attention and not config.is_encoder_decoder:
        raise PositionError(
            f"position '{config.position}' acts in cross-attention, which only an encoder-decoder has"
        )
    if times is not None and site == "self":
        check_times(times, model, config.position_name)
    if site == "self":
        check_reading(Reading.of(config.reading), model, config)
    if config.attention == "linear" and model.overrides("bias", "logits", "weights", "mask", "value_bias"):
        raise PositionError(
            f"attention is 'linear', but '{config.position}' changes the attention matrix, which linear "
            "attention does not compute; models of embeddings, queries and keys, such as 'spe_sine', do not"
        )
    if config.baked is not None:
        for part in [module for module in model.modules() if isinstance(module, PositionModel)]:
            part.bake(config.baked)
    return model


class Stack(nn.Module):
    """A sequence of blocks, or one block applied repeatedly, with or without halting.

    With `config.share_layers` all steps share one block (Dehghani et al. 2019, section 2.1); with
    `config.halting` each position decides how many of them it takes (see `Halting`).

    Args:
        config: sizes.
        positions: the position models, for `layers` steps: that of its tokens is "position".
        blocks: makes a block of the stack from its index.
        layers: number of steps.
    """

    position: PositionModel
    times: Times | None

    def __init__(
        self,
        config: FloaterConfig,
        positions: dict[str, PositionModel],
        blocks: Callable[[int], nn.Module],
        layers: int,
    ) -> None:
        super().__init__()
        for name, model in positions.items():
            self.add_module(name, model)
        self.config = config
        self.times = Times.of(config.times, config.training_length)
        self.dropout = nn.Dropout(config.dropout)
        self.repeats = layers if config.share_layers else 1
        self.blocks = nn.ModuleList(map(blocks, range(1 if config.share_layers else layers)))
        self.recipe = recipe = Recipe.of(config)
        self.embedding_norm, self.norm = (
            recipe.normalization(config.hidden_size) if wanted else nn.Identity()
            for wanted in (recipe.embedding_norm, config.norm_first)
        )
        self.halting = None if config.halting is None else Halting(config.hidden_size, config.halting)

    def rule(self, reading: Reading | None, *, check: bool = True) -> Reading:
        """Return the reading rule of this pass.

        Args:
            reading: the requested rule; None means `config.reading` in evaluation mode, none in
                training.
            check: whether to refuse a rule that would change nothing.

        Raises:
            ValueError: if a rule is given in training mode.
            PositionError: see `check_reading`.
        """
        if self.training:
            if reading is not None:
                raise ValueError("a reading is for a trained model: call eval() first")
            return Reading()
        found = Reading.of(self.config.reading if reading is None else reading)
        if check:
            check_reading(found, self.position, self.config)
        return found

    def spaced(self, rule: Reading, *several: Positions, apart: bool) -> tuple[Positions, ...]:
        """Return positions at the times of a rule; see `floater.transformer.reading.spaced`."""
        return spaced(rule, self.times, self.config.training_length, *several, apart=apart)

    def steps(
        self,
        x: Tensor,
        state: Any,
        positions: Positions,
        step: Callable[[Tensor, int], Tensor],
        *,
        every: bool,
        costs: list[Tensor] | None,
        counted: Tensor | None = None,
    ) -> Tensor:
        """Take all steps.

        Args:
            x: (batch, T, dim), the input of the first block.
            state: the position model's state.
            positions: positions of the tokens.
            step: function that applies the block of a step: states and number of the step to states.
            every: with halting, take steps that no position needs, as later tokens read them from a cache.
            costs: list to which, with halting, the mean of steps and remainders over the tokens is appended.
            counted: (batch, T) bool mask of the tokens of that mean; None means those that are keys.

        Returns:
            (batch, T, dim).
        """
        if self.halting is None:
            for layer in range(self.repeats * len(self.blocks)):
                x = step(x, layer)
        else:
            found = self.halting(
                x, self.repeats, step, lambda x, layer: self.position.block(x, state, layer), every
            )
            valid, x = positions.key_valid, found.hidden
            if counted is None and valid is not None:
                counted = valid[:, valid.shape[1] - x.shape[1] :]
            if costs is not None:
                costs.append(found.cost(counted))
        out: Tensor = self.norm(x)
        return self.dropout(out) if self.recipe.final_dropout else out


class Encoder(Stack):
    """A stack of blocks over one sequence: an encoder, or with `causal` the decoder of a language model.

    Args:
        config: sizes.
        causal: a token may attend to itself and earlier ones only.
    """

    main_input_name = "input_ids"  # Hugging Face's generate asks the encoder of an encoder-decoder

    def __init__(self, config: FloaterConfig, *, causal: bool = False) -> None:
        layers = config.num_hidden_layers
        super().__init__(
            config,
            {"position": position_model(config, layers, "self", causal=causal)},
            lambda layer: EncoderBlock(config, layer, causal=causal),
            layers,
        )
        self.causal = causal

    def forward(
        self,
        x: Tensor,
        positions: Positions,
        cache: Cache | None = None,
        memory: Memory | None = None,
        costs: list[Tensor] | None = None,
        counted: Tensor | None = None,
        reading: Reading | None = None,
    ) -> Tensor:
        """Encode embeddings.

        Args:
            x: (batch, T, dim).
            positions: positions of the tokens, and of the cached or remembered ones before them.
            cache: keys and values of earlier steps (a causal stack).
            memory: memory of earlier segments (a causal stack), which is extended.
            costs: list to which, with halting, the mean of steps and remainders over the tokens is appended.
            counted: (batch, T) bool mask of the tokens of that mean; None means those that are keys.
            reading: rule for long texts in evaluation mode; None means `config.reading`.

        Returns:
            (batch, T, dim).

        Raises:
            PositionError: if the position model does not support a memory, or the reading rule.
            ValueError: if a reading or a cache is given where times are random.
        """
        rule = self.rule(reading)
        if self.training and self.times is not None and positions.query_time is None:
            if cache is not None:
                raise ValueError(
                    "random times of training are new in each pass, but cached keys have those of "
                    "earlier ones: give no cache, or call eval()"
                )
            (positions,) = randomised(self.times, positions)
        elif not self.training:
            record_rule(cache, rule)
            (positions,) = self.spaced(rule, positions, apart=cache is not None)
        positions = positions if rule.group is None else positions.but(group=rule.group)
        whole: Any = None
        read: list[Tensor] = []
        if memory is not None:
            check_memory(self.position, self.causal)
            if memory.length:
                whole = self.position.prepared(positions.keys_as_queries)
        state = self.position.prepared(positions)
        visible = positions.visible

        def step(x: Tensor, layer: int) -> Tensor:
            earlier = None
            if memory is not None:
                read.append(x)
                earlier = Earlier(memory.hidden[layer], whole) if memory.length else None
            block = self.blocks[layer % len(self.blocks)]
            out: Tensor = block(
                x,
                self.position,
                state,
                visible,
                past_key_values=cache,
                layer=layer,
                earlier=earlier,
                sharpen=rule.temperature,
            )
            return out

        x = self.dropout(self.embedding_norm(self.position.embed(x, state)))
        every = cache is not None or memory is not None
        x = self.steps(x, state, positions, step, every=every, costs=costs, counted=counted)
        if memory is not None:
            memory.extend(read)
        return x


class Decoder(Stack):
    """The decoder of an encoder-decoder; causal, unless it writes all tokens at once.

    Position acts in its self-attention and, if the position model overrides these hooks, in the queries
    (target positions) and the keys and values (source positions) of cross-attention.

    Args:
        config: sizes.
        causal: a token may attend to itself and earlier ones only.
    """

    cross_position: PositionModel

    def __init__(self, config: FloaterConfig, *, causal: bool = True) -> None:
        layers = config.decoder_layers
        super().__init__(
            config,
            {
                "position": position_model(config, layers, "decoder", causal=causal),
                "cross_position": position_model(config, layers, "cross"),
            },
            lambda layer: DecoderBlock(config, layer, causal=causal),
            layers,
        )

    def forward(
        self,
        x: Tensor,
        positions: Positions,
        source: Tensor,
        source_positions: Positions,
        cache: Cache | None = None,
        costs: list[Tensor] | None = None,
        counted: Tensor | None = None,
        reading: Reading | None = None,
    ) -> Tensor:
        """Decode target embeddings.

        Args:
            x: (batch, T, dim), embeddings of the target.
            positions: their positions.
            source: (batch, S, dim), the encoder's output.
            source_positions: positions of the source tokens.
            cache: an `EncoderDecoderCache` of earlier steps.
            costs: see `Encoder.forward`.
            counted: see `Encoder.forward`.
            reading: see `Encoder.forward`; both positions have its times already.

        Returns:
            (batch, T, dim).
        """
        rule = self.rule(reading, check=False)
        positions = positions if rule.group is None else positions.but(group=rule.group)
        state = self.position.prepared(positions)
        source_state = self.cross_position.prepared(source_positions)
        visible = positions.visible

        def step(x: Tensor, layer: int) -> Tensor:
            out: Tensor = self.blocks[layer % len(self.blocks)](
                x,
                source,
                self.position,
                state,
                self.cross_position,
                source_state,
                visible,
                source_positions.key_valid,
                past_key_values=cache,
                layer=layer,
                sharpen=rule.temperature,
            )
            return out

        x = self.dropout(self.embedding_norm(self.position.embed(x, state)))
        every = cache is not None
        return self.steps(x, state, positions, step, every=every, costs=costs, counted=counted)
