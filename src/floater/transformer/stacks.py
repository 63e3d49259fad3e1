"""Stacks of blocks with one position model: the encoder and the decoder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from transformers import Cache

from floater._hf import CACHE
from floater.encodings import PositionError, PositionModel, build, options
from floater.encodings.sharded import gather_weights
from floater.encodings.spec import Site
from floater.positions import Positions
from floater.transformer.attention import SharedInputs, Source
from floater.transformer.blocks import Block
from floater.transformer.config import FloaterConfig
from floater.transformer.memory import Earlier, Memory, check_memory
from floater.transformer.reading import Reading, check_reading, read_times, record_rule, spaced
from floater.transformer.times import Times, check_times, randomised
from floater.transformer.uncast import Uncast


def position_model(config: FloaterConfig, layers: int, site: Site, *, causal: bool = False) -> PositionModel:
    """Build the position model that a configuration names, for one stack of blocks.

    In an encoder-decoder a model with the option `plain` has it by default: there it acts in the decoder.

    Args:
        config: the configuration, which names the position model, its options and the sizes.
        layers: blocks of the stack.
        site: see `floater.encodings.StackSpec`.
        causal: see `floater.encodings.StackSpec`.

    Raises:
        PositionError: if the name, an option or a value is not valid, or the model would not read the random
            times of the configuration.
    """
    name, chosen = config.position_at(site)
    times = Times.of(config.times, config.training_length)
    if config.is_encoder_decoder and "plain" in options(name):
        chosen = {"plain": True} | chosen
    model = build(
        name,
        dim=config.hidden_size,
        heads=config.num_attention_heads,
        layers=layers,
        # where relative encodings read times, in training and in evaluation, lengths are counted in times
        max_length=times.horizon if times is not None and times.spreads else config.training_length,
        site=site,
        vocabulary=config.vocab_size,
        causal=causal,
        horizon=None if times is None else times.horizon,
        initializer_range=config.resolved_recipe.table_std,
        **chosen,
    )
    if model.needs_cross_attention and not config.is_encoder_decoder:
        raise PositionError(f"position '{name}' acts in cross-attention, which only an encoder-decoder has")
    if config.decoder_position is not None:
        _check_apart(config, model)
    if site == "self" or (site == "decoder" and config.decoder_position is not None):
        if times is not None:
            check_times(times, model, config.position_name(site))
        check_reading(Reading.of(config.reading), model, config)
    changes = model.overrides("bias", "logits", "weights", "mask", "value_bias")
    if config.attention != "softmax" and changes:
        raise PositionError(
            f"attention is '{config.attention}', but '{name}' changes the attention matrix, which linear "
            "attention does not compute; models of embeddings, queries and keys, such as 'spe_sine', do not"
        )
    if config.baked is not None:
        for part in [module for module in model.modules() if isinstance(module, PositionModel)]:
            part.bake(config.baked)
    return model


def _check_apart(config: FloaterConfig, model: PositionModel) -> None:
    """Refuse a position model of one stack alone that would not act there.

    Raises:
        PositionError: if there is no decoder with a position model of its own, or the model acts elsewhere.
    """
    name = config.position_name(model.spec.site)
    if not config.is_encoder_decoder:
        raise PositionError(
            f"decoder_position is '{config.decoder_position}', but only an encoder-decoder has a decoder of "
            "its own; this model has `position`"
        )
    if model.spec.site == "decoder" and any(type(part) is PositionModel for part in model.modules()):
        raise PositionError(f"decoder_position is '{name}', which acts in encoders only, and not in decoders")
    if model.spec.site == "self" and (model.needs_cross_attention or model.length_aware):
        raise PositionError(
            f"position is '{name}', which acts in the decoder, and that has decoder_position "
            f"'{config.position_name('decoder')}': name it there"
        )


class Stack(nn.Module):
    """A sequence of blocks, or one block applied repeatedly.

    With `config.share_layers` all steps share one block (Dehghani et al. 2019, section 2.1).

    Args:
        config: sizes.
        layers: number of steps.
        site: "self" for blocks over one sequence, "decoder" for blocks with cross-attention.
        causal: a token may attend to itself and earlier ones only.
    """

    position: PositionModel

    def __init__(self, config: FloaterConfig, layers: int, site: Site, *, causal: bool) -> None:
        super().__init__()
        self.config, self.site, self.causal = config, site, causal
        self.times = Times.of(config.times, config.training_length)
        self.position = position_model(config, layers, site, causal=causal)
        self.read_times = read_times(config, self.position)
        if site == "decoder":
            self.cross_position = position_model(config, layers, "cross")
        self.dropout = nn.Dropout(config.dropout)
        self.repeats = layers if config.share_layers else 1
        self.blocks = nn.ModuleList(
            Block(config, layer, causal=causal, cross=site == "decoder")
            for layer in range(1 if config.share_layers else layers)
        )
        self.recipe = recipe = config.resolved_recipe
        self.embedding_norm, self.norm = (
            recipe.normalization(config.hidden_size) if wanted else nn.Identity()
            for wanted in (recipe.embedding_norm, config.norm_first)
        )

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
        rule = Reading.of(self.config.reading if reading is None else reading)
        if check:
            check_reading(rule, self.position, self.config)
        return rule

    def timed(
        self,
        rule: Reading,
        *several: Positions,
        batch: int = 1,
        before: Sequence[Any] = (),
        apart: bool = False,
    ) -> tuple[Positions, ...]:
        """Give positions the times of one rule: random ones in training, else those of the reading.

        Args:
            rule: the reading rule of this pass.
            several: positions that share their times, as source and target do; unchanged if they have times
                already.
            batch: number of texts.
            before: the cache and the encoder's output of earlier calls, or None for each; in evaluation mode
                the rule is recorded on them.
            apart: whether keys of a later call will have times of the same rule.

        Raises:
            ValueError: in training, if times would differ from those of earlier calls.
            PositionError: if earlier calls had another rule, or a text exceeds its length.
        """
        holders = [holder for holder in before if holder is not None]
        if not self.training:
            for holder in holders:
                record_rule(holder, rule)
            apart = apart or bool(holders)
            return spaced(rule, self.read_times, self.config.training_length, *several, apart=apart)
        if self.times is None or several[0].query_time is not None:
            return several
        if holders:
            raise ValueError(
                "in training source and target share random times, new in each pass: give input_ids and no "
                "cache, or call eval()"
                if len(several) > 1
                else "random times of training are new in each pass, but cached keys have those of earlier "
                "ones: give no cache, or call eval()"
            )
        return randomised(self.times, *several, batch=batch)

    def start(self, x: Tensor, state: Any) -> Tensor:
        """Return the input of the first block for embeddings (batch, T, dim) and a state of the positions."""
        out: Tensor = self.dropout(self.embedding_norm(self.position.embed(x, state)))
        return out

    def steps(self) -> list[tuple[int, nn.Module]]:
        """Return the index and the block of each step, fewer while Transformers drafts by an early exit."""
        count = len(self.blocks)
        exit_after = self.config.decoder_layers if self.site == "decoder" else self.config.num_hidden_layers
        steps = range(min(exit_after, self.repeats * count))
        return [(layer, self.blocks[layer % count]) for layer in steps]

    def finish(self, x: Tensor) -> Tensor:
        """Return the output of the stack for that of the last block."""
        out: Tensor = self.norm(x)
        return self.dropout(out) if self.recipe.final_dropout else out


class Encoder(Stack):
    """A stack of blocks over one sequence: an encoder, or with `causal` the decoder of a language model.

    Args:
        config: sizes.
        causal: a token may attend to itself and earlier ones only.
    """

    main_input_name = "input_ids"  # Hugging Face's generate reads it from the encoder of an encoder-decoder

    def __init__(self, config: FloaterConfig, *, causal: bool = False) -> None:
        super().__init__(config, config.num_hidden_layers, "self", causal=causal)

    def forward(
        self,
        x: Tensor,
        positions: Positions,
        cache: Cache | None = None,
        memory: Memory | None = None,
        reading: Reading | None = None,
    ) -> Tensor:
        """Encode embeddings.

        Args:
            x: (batch, T, dim).
            positions: positions of the tokens, and of the cached or remembered ones before them.
            cache: keys and values of earlier steps (a causal stack).
            memory: memory of earlier segments (a causal stack), which is extended.
            reading: rule for long texts in evaluation mode; None means `config.reading`.

        Returns:
            (batch, T, dim).

        Raises:
            PositionError: if the position model does not support a memory, or the reading rule.
            ValueError: if a reading or a cache is given where times are random.
        """
        gather_weights(self.position)
        rule = self.rule(reading)
        (positions,) = self.timed(rule, positions, batch=x.shape[0], before=(cache,))
        positions = positions if rule.group is None else positions.but(group=rule.group)
        memory_state: Any = None  # of the remembered and the new tokens, as queries and keys
        if memory is not None:
            check_memory(self.position, self.causal)
            if memory.length:
                memory_state = Uncast(self.position.prepared(positions.keys_as_queries))
        state, visible = self.position.prepared(positions), positions.visible
        inputs: list[Tensor] = []
        shared = SharedInputs(self.position, Uncast(state), visible, rule.temperature)
        x = self.start(x, state)
        for layer, block in self.steps():
            earlier = None
            if memory is not None:
                inputs.append(x)
                earlier = Earlier(memory.hidden[layer], memory_state) if memory.length else None
            x = block(x, shared, **{CACHE: cache}, layer=layer, earlier=earlier)
        if memory is not None:
            memory.extend(inputs)
        return self.finish(x)


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
        super().__init__(config, config.decoder_layers, "decoder", causal=causal)

    def forward(
        self,
        x: Tensor,
        positions: Positions,
        source: Tensor,
        source_positions: Positions,
        cache: Cache | None = None,
        reading: Reading | None = None,
    ) -> Tensor:
        """Decode target embeddings.

        Args:
            x: (batch, T, dim), embeddings of the target.
            positions: positions of the target tokens.
            source: (batch, S, dim), the encoder's output.
            source_positions: positions of the source tokens.
            cache: an `EncoderDecoderCache` of earlier steps.
            reading: see `Encoder.forward`; both positions have its times already.

        Returns:
            (batch, T, dim).
        """
        gather_weights(self.position, self.cross_position)
        rule = self.rule(reading, check=self.config.decoder_position is not None)
        positions = positions if rule.group is None else positions.but(group=rule.group)
        state, visible = self.position.prepared(positions), positions.visible
        source_state = Uncast(self.cross_position.prepared(source_positions))
        read = Source(source, self.cross_position, source_state, source_positions.key_valid)
        shared = SharedInputs(self.position, Uncast(state), visible, rule.temperature)
        x = self.start(x, state)
        for layer, block in self.steps():
            x = block(x, shared, **{CACHE: cache}, layer=layer, source=read)
        return self.finish(x)
