"""The reference Transformer as Hugging Face models."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    Cache,
    DynamicCache,
    EncoderDecoderCache,
    GenerationMixin,
    PreTrainedModel,
)
from transformers.modeling_outputs import (
    BaseModelOutput,
    CausalLMOutputWithPast,
    MaskedLMOutput,
    Seq2SeqLMOutput,
    SequenceClassifierOutput,
)
from transformers.utils.generic import can_return_tuple

from floater.encodings import PositionModel
from floater.flow import FlowEncoder
from floater.transformer.blocks import Decoder, DecoderBlock, Encoder, EncoderBlock, place
from floater.transformer.config import FloaterConfig


class FloaterPreTrainedModel(PreTrainedModel):
    """What all models share: initialisation, saving and loading."""

    config_class = FloaterConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _no_split_modules = [EncoderBlock.__name__, DecoderBlock.__name__]  # noqa: RUF012

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=self.config.hidden_size**-0.5)
        elif isinstance(module, nn.LayerNorm):
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)
        elif isinstance(module, PositionModel):
            # a position model draws all of its parameters at once: keep those that a checkpoint gave
            loaded = [(p, p.clone()) for p in module.parameters() if getattr(p, "_is_hf_initialized", False)]
            module.reset_parameters()
            for parameter, value in loaded:
                parameter.copy_(value)

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """Hugging Face's `generate`, its position vectors solved once and extended as the output grows."""
        with contextlib.ExitStack() as stack:
            for module in self.modules():
                if isinstance(module, FlowEncoder):
                    stack.enter_context(module.baked())
            return super().generate(*args, **kwargs)  # type: ignore[misc]


class _Embedded(FloaterPreTrainedModel):
    """A model with one token embedding, scaled by sqrt(d) (Vaswani et al. 2017, section 3.4)."""

    embedding: nn.Embedding

    def get_input_embeddings(self) -> nn.Module:
        return self.embedding

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        self.embedding = value

    def embed(self, ids: Tensor | None, embeds: Tensor | None) -> Tensor:
        """Scaled token embeddings; given embeddings are taken as they are, before scaling."""
        if (ids is None) == (embeds is None):
            raise ValueError("give exactly one of input_ids and inputs_embeds")
        x: Tensor = self.embedding(ids) if embeds is None else embeds
        return x * math.sqrt(self.config.hidden_size)


class FloaterModel(_Embedded):
    """An encoder (or with `is_decoder` a causal decoder) without a head.

    Example:
        >>> from floater.transformer import FloaterConfig, FloaterModel
        >>> model = FloaterModel(FloaterConfig.preset("tiny", vocab_size=99)).eval()
        >>> model(torch.tensor([[5, 6, 7]])).last_hidden_state.shape
        torch.Size([1, 3, 128])
    """

    def __init__(self, config: FloaterConfig) -> None:
        super().__init__(config)
        self.embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        self.encoder = Encoder(config, causal=config.is_decoder)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        past_key_values: Cache | None = None,
        **kwargs: Any,
    ) -> BaseModelOutput:
        x = self.embed(input_ids, inputs_embeds)
        earlier = past_key_values.get_seq_length() if past_key_values is not None else 0
        positions = place(attention_mask, x.shape[1], earlier, x.device)
        return BaseModelOutput(last_hidden_state=self.encoder(x, positions, past_key_values))


class FloaterForMaskedLM(FloaterPreTrainedModel):
    """An encoder that predicts masked tokens; the output matrix is the embedding's."""

    _tied_weights_keys = {"lm_head.weight": "model.embedding.weight"}  # noqa: RUF012

    def __init__(self, config: FloaterConfig) -> None:
        super().__init__(config)
        self.model = FloaterModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size)
        self.post_init()

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        **kwargs: Any,
    ) -> MaskedLMOutput:
        hidden = self.model(input_ids, attention_mask, inputs_embeds).last_hidden_state
        logits = self.lm_head(hidden)
        loss = None if labels is None else F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())
        return MaskedLMOutput(loss=loss, logits=logits)


class FloaterForSequenceClassification(FloaterPreTrainedModel):
    """An encoder and a classifier on its first token."""

    def __init__(self, config: FloaterConfig) -> None:
        super().__init__(config)
        self.num_labels = config.num_labels
        self.model = FloaterModel(config)
        self.dropout = nn.Dropout(config.dropout)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        **kwargs: Any,
    ) -> SequenceClassifierOutput:
        hidden = self.model(input_ids, attention_mask, inputs_embeds).last_hidden_state
        first = 0 if attention_mask is None else attention_mask.long().argmax(1)
        pooled = hidden[torch.arange(len(hidden), device=hidden.device), first]
        logits = self.classifier(self.dropout(pooled))
        loss = None
        if labels is not None:
            loss = self.loss_function(labels=labels, pooled_logits=logits, config=self.config)
        return SequenceClassifierOutput(loss=loss, logits=logits)


class FloaterForCausalLM(FloaterPreTrainedModel, GenerationMixin):
    """A decoder that predicts the next token, with a key/value cache."""

    _tied_weights_keys = {"lm_head.weight": "model.embedding.weight"}  # noqa: RUF012

    def __init__(self, config: FloaterConfig) -> None:
        config.is_decoder = True
        super().__init__(config)
        self.model = FloaterModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        past_key_values: Cache | None = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        use_cache = (self.config.use_cache and labels is None) if use_cache is None else use_cache
        if use_cache and past_key_values is None:
            past_key_values = DynamicCache()
        hidden = self.model(input_ids, attention_mask, inputs_embeds, past_key_values).last_hidden_state
        logits = self.lm_head(hidden)
        loss = None
        if labels is not None:
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten())
        return CausalLMOutputWithPast(loss=loss, logits=logits, past_key_values=past_key_values)


class _EncoderOnly(nn.Module):
    """The encoder as `generate` wants it: token ids in, hidden states out."""

    main_input_name = "input_ids"

    def __init__(self, model: FloaterForConditionalGeneration) -> None:
        super().__init__()
        object.__setattr__(self, "model", model)  # not a submodule: its parameters are the model's

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        **kwargs: Any,
    ) -> BaseModelOutput:
        return self.model.encode(input_ids, attention_mask, inputs_embeds)


class FloaterForConditionalGeneration(_Embedded, GenerationMixin):
    """An encoder-decoder for translation; one matrix for source, target and output embeddings.

    Example:
        >>> from floater.transformer import FloaterConfig, FloaterForConditionalGeneration
        >>> config = FloaterConfig.preset("tiny", vocab_size=99)
        >>> model = FloaterForConditionalGeneration(config).eval()
        >>> model.generate(torch.tensor([[5, 6, 7, 2]]), max_new_tokens=4, num_beams=2).shape[0]
        1
    """

    _tied_weights_keys = {"lm_head.weight": "embedding.weight"}  # noqa: RUF012

    def __init__(self, config: FloaterConfig) -> None:
        config.is_encoder_decoder = True
        super().__init__(config)
        self.embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        self.encoder = Encoder(config)
        self.decoder = Decoder(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head

    def get_encoder(self, modality: str | None = None) -> nn.Module:
        return _EncoderOnly(self)

    def encode(
        self, input_ids: Tensor | None, attention_mask: Tensor | None = None, inputs_embeds: Tensor | None = None
    ) -> BaseModelOutput:
        """The encoder's output for source tokens (batch, S) or embeddings (batch, S, dim)."""
        x = self.embed(input_ids, inputs_embeds)
        return BaseModelOutput(last_hidden_state=self.encoder(x, place(attention_mask, x.shape[1], 0, x.device)))

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        """Labels shifted right by the decoder's start token."""
        start, pad = self.config.decoder_start_token_id, self.config.pad_token_id
        shifted = torch.cat([labels.new_full((len(labels), 1), start), labels[:, :-1]], dim=1)
        return shifted.masked_fill(shifted == -100, pad)

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
        **kwargs: Any,
    ) -> Seq2SeqLMOutput:
        if encoder_outputs is None:
            encoder_outputs = self.encode(input_ids, attention_mask, inputs_embeds)
        source = encoder_outputs[0]
        if decoder_input_ids is None and decoder_inputs_embeds is None:
            if labels is None:
                raise ValueError("give decoder_input_ids, decoder_inputs_embeds or labels")
            decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
        use_cache = (self.config.use_cache and labels is None) if use_cache is None else use_cache
        if use_cache and past_key_values is None:
            past_key_values = EncoderDecoderCache(DynamicCache(), DynamicCache())
        y = self.embed(decoder_input_ids, decoder_inputs_embeds)
        earlier = past_key_values.get_seq_length() if past_key_values is not None else 0
        hidden = self.decoder(
            y,
            place(decoder_attention_mask, y.shape[1], earlier, y.device),
            source,
            place(attention_mask, source.shape[1], 0, source.device),
            past_key_values,
        )
        logits = self.lm_head(hidden)
        loss = None if labels is None else F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())
        return Seq2SeqLMOutput(
            loss=loss, logits=logits, past_key_values=past_key_values, encoder_last_hidden_state=source
        )


AutoConfig.register("floater", FloaterConfig)
AutoModel.register(FloaterConfig, FloaterModel)
AutoModelForMaskedLM.register(FloaterConfig, FloaterForMaskedLM)
AutoModelForSequenceClassification.register(FloaterConfig, FloaterForSequenceClassification)
AutoModelForCausalLM.register(FloaterConfig, FloaterForCausalLM)
AutoModelForSeq2SeqLM.register(FloaterConfig, FloaterForConditionalGeneration)
