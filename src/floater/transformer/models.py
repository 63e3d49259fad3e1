"""The reference Transformer as Hugging Face models: an encoder or causal decoder, and language models."""

# mypy: disable-error-code="no-untyped-call,untyped-decorator"
# (the base classes of transformers are untyped)

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    Cache,
    DynamicCache,
)
from transformers.modeling_outputs import BaseModelOutput, CausalLMOutputWithPast, MaskedLMOutput
from transformers.utils.generic import can_return_tuple

from floater._hf import CACHE, one_cache
from floater.positions import Positions
from floater.transformer.base import (
    FloaterPreTrainedModel,
    bidirectional,
    cached_length,
    changed,
    embed,
    refuse,
    token_positions,
)
from floater.transformer.blocks import activation
from floater.transformer.config import FloaterConfig
from floater.transformer.generation import FloaterGenerationMixin
from floater.transformer.memory import Memory
from floater.transformer.outputs import IGNORED
from floater.transformer.reading import Reading
from floater.transformer.recording import recording
from floater.transformer.stacks import Encoder


class FloaterModel(FloaterPreTrainedModel):
    """An encoder (or with `is_decoder` a causal decoder) without a head.

    Args:
        config: sizes, position model, and `is_decoder`.

    Example:
        >>> import torch
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
        memory: Memory | None = None,
        reading: Reading | None = None,
        position_ids: Tensor | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        cache: Cache | None = None,
        **kwargs: Any,
    ) -> BaseModelOutput:
        """Return hidden states of token ids (batch, T).

        Args:
            input_ids: (batch, T).
            attention_mask: (batch, cached + T), zero where there is padding, on any side.
            inputs_embeds: (batch, T, dim), instead of ids.
            past_key_values: keys and values of earlier tokens, to be extended.
            document_ids: (batch, cached + T) ids of documents packed into a row: a token attends within its
                own only, and positions start at 0 in each.
            positions: positions of the T tokens and of the cached ones before them, instead of those computed
                from the mask: trees, graphs, times, languages, a target length.
            memory: memory of earlier segments, which is extended; mask and document ids are then those of the
                T tokens alone.
            reading: rule for long texts in evaluation mode; None means `config.reading`.
            position_ids: (batch or 1, T) positions of the tokens, integers from 0, instead of those computed
                from the mask; short for `positions`. With cached tokens both must be equal.
            output_hidden_states: return the input of the first block and the output of each.
            output_attentions: return the attention weights, with `attn_implementation="eager"`.
            cache: name of `past_key_values` since Transformers 5.24.
            kwargs: arguments that Hugging Face passes along; others are refused.

        Returns:
            `last_hidden_state` (batch, T, dim), and the requested states and weights.

        Raises:
            ValueError: if not exactly one of ids and embeddings is given, the mask or the positions do not
                fit, there are a cache or positions besides a memory, or weights are requested that the
                attention does not compute.
            PositionError: if the position model does not support a memory.
            TypeError: if an argument would be ignored, or memory is not a `Memory`.
        """
        refuse(self, kwargs)
        x = embed(self.recipe, self.embedding, input_ids, inputs_embeds)
        cache = one_cache(past_key_values, cache)
        earlier = cached_length(cache)
        if memory is not None:
            if not isinstance(memory, Memory):
                raise TypeError(f"memory is {memory!r}; it must be a Memory, such as Memory(128)")
            if cache is not None or positions is not None or position_ids is not None:
                raise ValueError("a memory goes with neither a cache nor given positions")
            attention_mask, document_ids = memory.before(x, attention_mask, document_ids)
            earlier = memory.length
        positions = token_positions(
            x, positions, position_ids, earlier, mask=attention_mask, document_ids=document_ids
        )
        if input_ids is not None:
            positions = positions.but(token=input_ids)
        with recording(self.encoder, output_hidden_states, output_attentions) as recorded:
            hidden = self.encoder(x, positions, cache, memory, reading)
        return recorded.output(hidden)


class FloaterHead(FloaterPreTrainedModel):
    """Base class of the models with a head: a `FloaterModel` and its loss.

    Args:
        config: the model's configuration.
        loss_type: Hugging Face's name of the loss, which it would otherwise infer from the class name.
    """

    def __init__(self, config: FloaterConfig, loss_type: str) -> None:
        super().__init__(config)
        self.loss_type = loss_type
        self.model = FloaterModel(config)

    def loss_of(self, labels: Tensor | None, items: Tensor | int | None, **arguments: Any) -> Tensor | None:
        """Return the loss, a mean over `items` labels; None without labels."""
        if labels is None:
            return None
        loss: Tensor = self.loss_function(labels=labels, num_items_in_batch=items, **arguments)
        return loss


class HeadTransform(nn.Module):
    """A linear map, the activation and a norm, which BERT has before its output matrix.

    Source: google-research/bert, `get_masked_lm_output`.

    Args:
        config: width, activation and recipe.

    Example:
        >>> import torch
        >>> HeadTransform(FloaterConfig(hidden_size=8, num_attention_heads=2))(torch.zeros(1, 3, 8)).shape
        torch.Size([1, 3, 8])
    """

    def __init__(self, config: FloaterConfig) -> None:
        super().__init__()
        self.linear = nn.Linear(config.hidden_size, config.hidden_size)
        self.activation = activation(config.activation_function)
        self.norm = config.resolved_recipe.normalization(config.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., dim) to (..., dim)."""
        out: Tensor = self.norm(self.activation(self.linear(x)))
        return out


class FloaterForMaskedLM(FloaterHead):
    """An encoder that predicts masked tokens; the output matrix is the embedding's.

    With the recipes of BERT and RoBERTa a `HeadTransform` comes before the output matrix.

    Args:
        config: sizes and position model.

    Raises:
        ValueError: if `config.is_decoder`.

    Example:
        >>> import torch
        >>> model = FloaterForMaskedLM(FloaterConfig.preset("tiny", vocab_size=99))
        >>> model(torch.tensor([[5, 6, 7]]), labels=torch.tensor([[-100, 6, -100]])).logits.shape
        torch.Size([1, 3, 99])
    """

    _tied_weights_keys = {"lm_head.weight": "model.embedding.weight"}  # noqa: RUF012

    def __init__(self, config: FloaterConfig) -> None:
        super().__init__(bidirectional(config), "ForMaskedLM")
        transforms = self.recipe.head == "transform"
        self.transform = HeadTransform(config) if transforms else nn.Identity()
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
        """Return logits (batch, T, vocabulary), and with labels (batch, T), -100 ignored, the mean loss.

        `num_items_in_batch` replaces the number of labels that the loss is divided by. The other arguments
        are those of `FloaterModel.forward`.
        """
        outputs = self.model(input_ids, attention_mask, inputs_embeds, return_dict=True, **kwargs)
        logits = self.lm_head(self.scaled(self.transform(outputs.last_hidden_state)))
        loss = self.loss_of(labels, num_items_in_batch, logits=logits, vocab_size=logits.shape[-1])
        return MaskedLMOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


class FloaterForCausalLM(FloaterHead, FloaterGenerationMixin):
    """A decoder that predicts the next token, with a key/value cache.

    Args:
        config: sizes and position model; the model keeps a copy with `is_decoder`.

    Example:
        >>> import torch
        >>> model = FloaterForCausalLM(FloaterConfig.preset("tiny", vocab_size=99)).eval()
        >>> model.generate(torch.tensor([[5, 6]]), max_new_tokens=2, do_sample=False).shape
        torch.Size([1, 4])
    """

    _tied_weights_keys = {"lm_head.weight": "model.embedding.weight"}  # noqa: RUF012

    def __init__(self, config: FloaterConfig) -> None:
        super().__init__(changed(config, is_decoder=True), "ForCausalLM")
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
        positions: Positions | None = None,
        reading: Reading | None = None,
        cache: Cache | None = None,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """Return logits (batch, T, vocabulary), and with labels (batch, T), -100 ignored, the mean loss.

        Labels are the inputs: the loss compares each with the logits one token earlier. The first token of
        a packed document is not predicted, as no token of the document precedes it. `use_cache` returns
        a cache of keys and values; the default is `config.use_cache`, but False with labels or in training
        mode, or with a `memory`. `num_items_in_batch` replaces the number of labels that the loss
        is divided by. The other arguments are those of `FloaterModel.forward`.
        """
        caches = self.uses_cache(use_cache, labels) and kwargs.get("memory") is None
        cache = one_cache(past_key_values, cache)
        if caches and cache is None:
            cache = DynamicCache()
        outputs = self.model(
            input_ids,
            attention_mask,
            inputs_embeds,
            cache,
            positions=positions,
            reading=reading,
            return_dict=True,
            **kwargs,
        )
        logits = self.lm_head(self.scaled(outputs.last_hidden_state))
        documents = kwargs.get("document_ids")
        if documents is None and positions is not None:
            documents = positions.document
        if labels is not None and documents is not None:
            begins = F.pad(documents[:, 1:] != documents[:, :-1], (1, 0))
            labels = labels.masked_fill(begins[:, begins.shape[1] - labels.shape[1] :], IGNORED)
        loss = self.loss_of(labels, num_items_in_batch, logits=logits, vocab_size=logits.shape[-1])
        return CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            **{CACHE: cache},
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


AutoConfig.register("floater", FloaterConfig)
AutoModel.register(FloaterConfig, FloaterModel)
AutoModelForMaskedLM.register(FloaterConfig, FloaterForMaskedLM)
AutoModelForCausalLM.register(FloaterConfig, FloaterForCausalLM)
