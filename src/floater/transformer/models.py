"""The reference Transformer as Hugging Face models: an encoder or causal decoder, and its heads."""

# mypy: disable-error-code="no-untyped-call,untyped-decorator"
# (the base classes of transformers are untyped)

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    Cache,
    DynamicCache,
)
from transformers.modeling_outputs import (
    BaseModelOutput,
    CausalLMOutputWithPast,
    MaskedLMOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)
from transformers.utils.generic import can_return_tuple

from floater.positions import Positions
from floater.transformer.base import FloaterPreTrainedModel, bidirectional, cached, changed, embed, refuse
from floater.transformer.blocks import Encoder, fitted, place
from floater.transformer.config import FloaterConfig
from floater.transformer.generation import FloaterGenerationMixin


class FloaterModel(FloaterPreTrainedModel):
    """An encoder (or with `is_decoder` a causal decoder) without a head.

    Args:
        config: sizes, position model, and `is_decoder`.

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
        document_ids: Tensor | None = None,
        positions: Positions | None = None,
        **kwargs: Any,
    ) -> BaseModelOutput:
        """Hidden states of token ids (batch, T).

        Args:
            input_ids: (batch, T).
            attention_mask: (batch, cached + T), zero where there is padding, on any side.
            inputs_embeds: (batch, T, dim), instead of ids.
            past_key_values: keys and values of earlier tokens, to be extended.
            document_ids: (batch, cached + T) ids of documents packed into a row: a token attends within its
                own only, and positions start at 0 in each.
            positions: where the T tokens stand, and the cached ones before them, instead of what the mask
                says: trees, graphs, times, languages, a target length.
            kwargs: nothing but what Hugging Face passes along.

        Returns:
            `last_hidden_state` (batch, T, dim).

        Raises:
            ValueError: if not exactly one of ids and embeddings is given, the mask or the positions do not
                fit, or the cache has a fixed length.
            TypeError: if an argument would be ignored.
        """
        refuse(self, kwargs)
        x = embed(self.embedding, input_ids, inputs_embeds)
        placed = place(attention_mask, x.shape[1], cached(past_key_values), x.device, document_ids)
        if positions is not None:
            placed = fitted(positions, placed, attention_mask, len(x))
        return BaseModelOutput(last_hidden_state=self.encoder(x, placed, past_key_values))

    def hidden(self, *args: Any, **kwargs: Any) -> Tensor:
        """`last_hidden_state` alone; arguments as in `forward`."""
        out: Tensor = self(*args, **kwargs, return_dict=True).last_hidden_state
        return out


class FloaterForMaskedLM(FloaterPreTrainedModel):
    """An encoder that predicts masked tokens; the output matrix is the embedding's.

    Args:
        config: sizes and position model.

    Raises:
        ValueError: if `config.is_decoder`.

    Example:
        >>> model = FloaterForMaskedLM(FloaterConfig.preset("tiny", vocab_size=99))
        >>> model(torch.tensor([[5, 6, 7]]), labels=torch.tensor([[-100, 6, -100]])).logits.shape
        torch.Size([1, 3, 99])
    """

    _tied_weights_keys = {"lm_head.weight": "model.embedding.weight"}  # noqa: RUF012

    def __init__(self, config: FloaterConfig) -> None:
        super().__init__(bidirectional(config))
        self.model = FloaterModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **kwargs: Any,
    ) -> MaskedLMOutput:
        """Logits (batch, T, vocabulary), and with labels (batch, T), -100 ignored, the mean loss.

        `num_items_in_batch` replaces the number of labels that the loss is divided by. The other arguments
        are those of `FloaterModel.forward`.
        """
        logits = self.lm_head(self.model.hidden(input_ids, attention_mask, inputs_embeds, **kwargs))
        loss = None
        if labels is not None:
            loss = self.loss_function(
                logits, labels, vocab_size=logits.shape[-1], num_items_in_batch=num_items_in_batch
            )
        return MaskedLMOutput(loss=loss, logits=logits)


class FloaterForSequenceClassification(FloaterPreTrainedModel):
    """An encoder and a classifier on its first token.

    Args:
        config: sizes, position model, `num_labels` and `problem_type`.

    Raises:
        ValueError: if `config.is_decoder`.

    Example:
        >>> config = FloaterConfig.preset("tiny", vocab_size=99, num_labels=3)
        >>> FloaterForSequenceClassification(config)(torch.tensor([[5, 6, 7]])).logits.shape
        torch.Size([1, 3])
    """

    accepts_loss_kwargs = False  # the loss is a mean over this batch, whatever the Trainer accumulates

    def __init__(self, config: FloaterConfig) -> None:
        super().__init__(bidirectional(config))
        self.model = FloaterModel(config)
        self.dropout = nn.Dropout(config.dropout)
        self.classifier = nn.Linear(config.hidden_size, int(config.num_labels or 0))
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        positions: Positions | None = None,
        **kwargs: Any,
    ) -> SequenceClassifierOutput:
        """Logits (batch, labels), and with labels (batch,) or (batch, labels) the mean loss.

        The other arguments are those of `FloaterModel.forward`.
        """
        hidden = self.model.hidden(input_ids, attention_mask, inputs_embeds, positions=positions, **kwargs)
        valid = attention_mask if positions is None or positions.key_valid is None else positions.key_valid
        first = 0 if valid is None else valid.long().argmax(1)
        pooled = hidden[torch.arange(len(hidden), device=hidden.device), first]
        logits = self.classifier(self.dropout(pooled))
        loss = None
        if labels is not None:
            loss = self.loss_function(labels=labels, pooled_logits=logits, config=self.config)
        return SequenceClassifierOutput(loss=loss, logits=logits)


class FloaterForTokenClassification(FloaterPreTrainedModel):
    """An encoder and a classifier on every token.

    Args:
        config: sizes, position model and `num_labels`.

    Raises:
        ValueError: if `config.is_decoder`.

    Example:
        >>> config = FloaterConfig.preset("tiny", vocab_size=99, num_labels=17)
        >>> model = FloaterForTokenClassification(config)
        >>> model(torch.tensor([[5, 6, 7]]), labels=torch.tensor([[3, -100, 16]])).logits.shape
        torch.Size([1, 3, 17])
    """

    def __init__(self, config: FloaterConfig) -> None:
        super().__init__(bidirectional(config))
        self.model = FloaterModel(config)
        self.dropout = nn.Dropout(config.dropout)
        self.classifier = nn.Linear(config.hidden_size, int(config.num_labels or 0))
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **kwargs: Any,
    ) -> TokenClassifierOutput:
        """Logits (batch, T, labels), and with labels (batch, T), -100 ignored, the mean loss.

        `num_items_in_batch` replaces the number of labels that the loss is divided by. The other arguments
        are those of `FloaterModel.forward`.
        """
        hidden = self.model.hidden(input_ids, attention_mask, inputs_embeds, **kwargs)
        logits = self.classifier(self.dropout(hidden))
        loss = None
        if labels is not None:
            loss = self.loss_function(logits, labels, self.config, num_items_in_batch=num_items_in_batch)
        return TokenClassifierOutput(loss=loss, logits=logits)


class FloaterForCausalLM(FloaterPreTrainedModel, FloaterGenerationMixin):
    """A decoder that predicts the next token, with a key/value cache.

    Args:
        config: sizes and position model; the model keeps a copy with `is_decoder`.

    Example:
        >>> model = FloaterForCausalLM(FloaterConfig.preset("tiny", vocab_size=99)).eval()
        >>> model.generate(torch.tensor([[5, 6]]), max_new_tokens=2, do_sample=False).shape
        torch.Size([1, 4])
    """

    _tied_weights_keys = {"lm_head.weight": "model.embedding.weight"}  # noqa: RUF012

    def __init__(self, config: FloaterConfig) -> None:
        config = changed(config, is_decoder=True)
        super().__init__(config)
        self.model = FloaterModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        past_key_values: Cache | None = None,
        use_cache: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """Logits (batch, T, vocabulary), and with labels (batch, T), -100 ignored, the mean loss.

        Labels are the inputs: the loss compares each with the logits one token earlier. The first token of
        a packed document is not predicted, as nothing of the document comes before. `use_cache` keeps
        keys and values in `past_key_values`; left out, it is `config.use_cache`, but False with labels or in
        training mode. `num_items_in_batch` replaces the number of labels that the loss is divided by. The
        other arguments are those of `FloaterModel.forward`.
        """
        if self.uses_cache(use_cache, labels) and past_key_values is None:
            past_key_values = DynamicCache()
        hidden = self.model.hidden(input_ids, attention_mask, inputs_embeds, past_key_values, **kwargs)
        logits = self.lm_head(hidden)
        loss = None
        if labels is not None:
            documents = kwargs.get("document_ids")
            if documents is not None:
                begins = F.pad(documents[:, 1:] != documents[:, :-1], (1, 0))
                labels = labels.masked_fill(begins, -100)
            loss = self.loss_function(
                logits, labels, vocab_size=logits.shape[-1], num_items_in_batch=num_items_in_batch
            )
        return CausalLMOutputWithPast(loss=loss, logits=logits, past_key_values=past_key_values)


AutoConfig.register("floater", FloaterConfig)
AutoModel.register(FloaterConfig, FloaterModel)
AutoModelForMaskedLM.register(FloaterConfig, FloaterForMaskedLM)
AutoModelForSequenceClassification.register(FloaterConfig, FloaterForSequenceClassification)
AutoModelForTokenClassification.register(FloaterConfig, FloaterForTokenClassification)
AutoModelForCausalLM.register(FloaterConfig, FloaterForCausalLM)
