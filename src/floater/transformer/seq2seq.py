"""The encoder-decoder of the reference Transformer as a Hugging Face model."""

# mypy: disable-error-code="no-untyped-call,untyped-decorator"
# (the base classes of transformers are untyped)

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import AutoModelForSeq2SeqLM, Cache, DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils.generic import can_return_tuple

from floater._hf import CACHE, one_cache
from floater.encodings import PositionError, catalogue
from floater.positions import Positions
from floater.transformer.base import (
    FloaterPreTrainedModel,
    cached_length,
    changed,
    embed,
    refuse,
    token_positions,
)
from floater.transformer.config import FloaterConfig
from floater.transformer.generation import FloaterGenerationMixin
from floater.transformer.length_predictor import LengthPredictor, check_lengths
from floater.transformer.outputs import IGNORED, Seq2SeqLM, with_auxiliary
from floater.transformer.reading import Reading, record_rule
from floater.transformer.recording import recording
from floater.transformer.stacks import Decoder, Encoder


class _EncoderOnly(nn.Module):
    """The encoder in the form that `generate` expects: token ids in, hidden states out."""

    main_input_name = "input_ids"
    model: FloaterForConditionalGeneration

    def __init__(self, model: FloaterForConditionalGeneration) -> None:
        super().__init__()
        object.__setattr__(self, "model", model)  # not a submodule: its parameters are the model's

    def forward(
        self, *args: Any, target_length: Tensor | None = None, return_dict: bool = True, **kwargs: Any
    ) -> BaseModelOutput:
        """Return the result of `FloaterForConditionalGeneration.encode`; the length is for the decoder."""
        return self.model.encode(*args, **kwargs)


class FloaterForConditionalGeneration(FloaterPreTrainedModel, FloaterGenerationMixin):
    """An encoder-decoder for translation; one matrix for source, target and output embeddings.

    With a position model that needs the target's length it has a `LengthPredictor` for lengths that
    are not given.

    Args:
        config: sizes and position model; the model keeps a copy with `is_encoder_decoder`.

    Raises:
        PositionError: if the position model is for the other kind of decoder.

    Example:
        >>> from floater.transformer import FloaterConfig, FloaterForConditionalGeneration
        >>> config = FloaterConfig.preset("tiny", vocab_size=99)
        >>> model = FloaterForConditionalGeneration(config).eval()
        >>> model.generate(torch.tensor([[5, 6, 7, 2]]), max_new_tokens=4, num_beams=2).shape[0]
        1
    """

    _tied_weights_keys = {"lm_head.weight": "embedding.weight"}  # noqa: RUF012
    autoregressive: ClassVar[bool] = True

    def __init__(self, config: FloaterConfig) -> None:
        config = changed(config, is_encoder_decoder=True)
        super().__init__(config)
        self.loss_type = "ForConditionalGeneration"
        self.embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        self.encoder = Encoder(config)
        self.decoder = Decoder(config, causal=self.autoregressive)
        name, _ = config.position_at("decoder")
        row = catalogue()[name]
        if row.autoregressive != self.autoregressive:
            kind = "autoregressive" if row.autoregressive else "non-autoregressive"
            raise PositionError(
                f"position model '{name}' needs a decoder that is {kind}: "
                "build the model with floater.transformer.encoder_decoder"
            )
        self.length = LengthPredictor(config) if row.length_aware else None
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def get_encoder(self, modality: str | None = None) -> nn.Module:
        return _EncoderOnly(self)

    def encode(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        positions: Positions | None = None,
        reading: Reading | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        position_ids: Tensor | None = None,
        **kwargs: Any,
    ) -> BaseModelOutput:
        """Return the encoder's output for source tokens (batch, S) or embeddings (batch, S, dim).

        The target length of the positions is for the decoder. Source and target have one `reading`. The other
        arguments are those of `forward`.
        """
        refuse(self, kwargs)
        x = embed(self.recipe, self.embedding, input_ids, inputs_embeds)
        positions = token_positions(x, positions, position_ids, mask=attention_mask).but(target_length=None)
        if input_ids is not None:
            positions = positions.but(token=input_ids)
        rule = self.encoder.rule(reading)
        (positions,) = self.encoder.timed(rule, positions, batch=x.shape[0], apart=True)
        with recording(self.encoder, output_hidden_states, output_attentions) as recorded:
            hidden = self.encoder(x, positions, reading=reading)
        out = recorded.output(hidden)
        record_rule(out, rule)
        return out

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        """Shift labels (batch, T) right by the decoder's start token; -100 becomes padding.

        Raises:
            ValueError: if the configuration has no start or padding token.
        """
        start, pad = self.config.decoder_start_token_id, self.config.pad_token_id
        if start is None or pad is None:
            raise ValueError(f"decoder_start_token_id is {start}, pad_token_id is {pad}; both must be given")
        shifted = torch.cat([labels.new_full((len(labels), 1), start), labels[:, :-1]], dim=1)
        return shifted.masked_fill(shifted == -100, pad)

    def training_inputs(self, labels: Tensor) -> dict[str, Tensor]:
        """Return arguments of `forward` in place of labels (batch, T), kept for a loss outside of it."""
        inputs = {"decoder_input_ids": self.prepare_decoder_input_ids_from_labels(labels)}
        if self.length is not None:
            inputs["target_length"] = _label_lengths(labels)
        return inputs

    def target_lengths(
        self,
        source: Tensor,
        source_positions: Positions,
        target_length: Tensor | None,
        labels: Tensor | None,
    ) -> tuple[Tensor | None, Tensor | None]:
        """Return the lengths of the targets, and in training the loss of the length predictor.

        Args:
            source: (batch, S, dim), the encoder's output.
            source_positions: positions of the source tokens.
            target_length: (batch,) lengths, or None for those of `source_positions`, the labels, or the
                predictor.
            labels: (batch, T), -100 ignored, or None.

        Returns:
            The lengths (batch or 1,), None without a length predictor; the loss, a scalar, or None.

        Raises:
            TypeError: if lengths are given to a model that does not read them.
            ValueError: if there is not one whole number of tokens for each source.
        """
        if self.length is None:
            if target_length is not None:
                name = self.config.position_name("decoder")
                raise TypeError(f"position model '{name}' does not take target_length")
            return source_positions.target_length, None
        if target_length is not None:
            check_lengths(target_length)
            if target_length.shape not in ((1,), (len(source),)):
                raise ValueError(
                    f"target_length is {tuple(target_length.shape)}; it must be ({len(source)},)"
                )
        length = source_positions.target_length if target_length is None else target_length
        if length is None and labels is not None:
            length = _label_lengths(labels)
        if length is None:
            return self.length(source, source_positions.key_valid), None
        learns = self.training or labels is not None
        return length, self.length.loss(source, source_positions.key_valid, length) if learns else None

    def loss_of(
        self, logits: Tensor, labels: Tensor | None, auxiliary: Tensor | None, items: Tensor | int | None
    ) -> Tensor | None:
        """Return the loss of labels that are aligned with their logits; None without labels."""
        if labels is None:
            return None
        size = logits.shape[-1]
        loss = self.loss_function(
            logits, labels, vocab_size=size, shift_labels=labels, num_items_in_batch=items
        )
        return with_auxiliary(loss, auxiliary, labels, items)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: BaseModelOutput | tuple[Tensor, ...] | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
        positions: Positions | None = None,
        target_length: Tensor | None = None,
        reading: Reading | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        decoder_positions: Positions | None = None,
        position_ids: Tensor | None = None,
        decoder_position_ids: Tensor | None = None,
        cache: Cache | None = None,
        **kwargs: Any,
    ) -> Seq2SeqLM:
        """Return logits of each next target token.

        Args:
            input_ids: (batch, S) source.
            attention_mask: (batch, S), zero where the source is padding.
            decoder_input_ids: (batch, T) target; by default the labels shifted right.
            decoder_attention_mask: (batch, cached + T), zero where the target is padding.
            encoder_outputs: the result of `encode`, instead of a source; its attention_mask is still needed.
            past_key_values: an `EncoderDecoderCache` of earlier target tokens, to be extended.
            inputs_embeds: (batch, S, dim), instead of input_ids.
            decoder_inputs_embeds: (batch, T, dim), instead of decoder_input_ids.
            labels: (batch, T), -100 ignored.
            use_cache: keep keys and values; by default `config.use_cache`, but False with labels or in
                training mode.
            num_items_in_batch: divisor of the loss; by default the number of labels.
            positions: positions of the source tokens, instead of those computed from the mask: trees, graphs,
                times, languages. Their target length goes to the decoder.
            target_length: (batch,) length of the target in tokens, the end included, for position models
                that read it; if None, that of the positions, the number of labels, or a prediction.
            reading: rule for long texts in evaluation mode, the same for all passes of a cache; None
                means `config.reading`.
            output_hidden_states: return the inputs of the first blocks of encoder and decoder and the outputs
                of each.
            output_attentions: return all attention weights, with `attn_implementation="eager"`.
            decoder_positions: positions of the T target tokens and of the cached ones before them, instead of
                those computed from the mask.
            position_ids: (batch or 1, S) positions of the source tokens, integers from 0; short for
                `positions`.
            decoder_position_ids: (batch or 1, T) positions of the target tokens; short for
                `decoder_positions`. With cached tokens both must be equal.
            cache: name of `past_key_values` since Transformers 5.24.
            kwargs: arguments that Hugging Face passes along; others are refused.

        Returns:
            `logits` (batch, T, vocabulary), `loss` if there are labels, the cache, the encoder's output, and
            `auxiliary_loss`, a part of `loss`, if there are labels or the model trains.

        Raises:
            ValueError: if there is no target, or a mask or the positions do not fit.
            TypeError: if an argument would be ignored.
        """
        refuse(self, kwargs)
        if decoder_input_ids is None and decoder_inputs_embeds is None:
            if labels is None:
                raise ValueError("give decoder_input_ids, decoder_inputs_embeds or labels")
            decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
        cache = one_cache(past_key_values, cache)
        if self.uses_cache(use_cache, labels) and cache is None:
            cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
        y = embed(self.recipe, self.embedding, decoder_input_ids, decoder_inputs_embeds)
        target_positions = token_positions(
            y,
            decoder_positions,
            decoder_position_ids,
            cached_length(cache),
            mask=decoder_attention_mask,
            prefix="decoder_",
        )
        if target_positions.document is not None:
            raise ValueError("decoder_positions have documents, which cross-attention would mix")
        read = inputs_embeds if input_ids is None else input_ids
        read = read if encoder_outputs is None else encoder_outputs[0]
        if read is None:
            raise ValueError("give exactly one of input_ids and inputs_embeds")
        source_positions = token_positions(read, positions, position_ids, mask=attention_mask)
        source_positions, target_positions = self.encoder.timed(
            self.encoder.rule(reading),
            source_positions,
            target_positions,
            batch=read.shape[0],
            before=(encoder_outputs, cache),
        )
        asked = output_hidden_states, output_attentions
        if encoder_outputs is None:
            encoder_outputs = self.encode(
                input_ids, attention_mask, inputs_embeds, source_positions, reading, *asked
            )
        source = encoder_outputs[0]
        target_length = target_positions.target_length if target_length is None else target_length
        length, auxiliary = self.target_lengths(source, source_positions, target_length, labels)
        target_positions = target_positions.but(target_length=length)
        if decoder_input_ids is not None:
            target_positions = target_positions.but(token=decoder_input_ids)
        with recording(self.decoder, *asked) as recorded:
            hidden = self.decoder(y, target_positions, source, source_positions, cache, reading)
        logits = self.lm_head(self.scaled(hidden))
        loss = self.loss_of(logits, labels, auxiliary, num_items_in_batch)
        carried: dict[str, Any] = {CACHE: cache}
        return Seq2SeqLM(
            loss=loss,
            logits=logits,
            **carried,
            decoder_hidden_states=recorded.hidden_states(hidden),
            decoder_attentions=tuple(recorded.attentions) or None,
            cross_attentions=tuple(recorded.cross) or None,
            encoder_last_hidden_state=source,
            encoder_hidden_states=getattr(encoder_outputs, "hidden_states", None),
            encoder_attentions=getattr(encoder_outputs, "attentions", None),
            auxiliary_loss=auxiliary,
        )


AutoModelForSeq2SeqLM.register(FloaterConfig, FloaterForConditionalGeneration)


def _label_lengths(labels: Tensor) -> Tensor:
    """Return the lengths of the targets, (batch,); that of a row without labels is 1."""
    return labels.ne(IGNORED).sum(1).clamp(min=1)
