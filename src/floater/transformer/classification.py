"""Heads of the reference Transformer that classify: texts, tokens, answers to questions."""

# mypy: disable-error-code="no-untyped-call,untyped-decorator"
# (the base classes of transformers are untyped)

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import (
    AutoModelForMultipleChoice,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)
from transformers.modeling_outputs import (
    MultipleChoiceModelOutput,
    QuestionAnsweringModelOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)
from transformers.utils.generic import can_return_tuple

from floater.positions import Positions
from floater.transformer.base import bidirectional
from floater.transformer.config import FloaterConfig
from floater.transformer.models import FloaterHead


def first_tokens(hidden: Tensor, mask: Tensor | None, positions: Positions | None = None) -> Tensor:
    """Return the hidden state of the first token of each row that is no padding: (batch, dim).

    Args:
        hidden: (batch, T, dim).
        mask: (batch, T), 0 at padding, or None.
        positions: positions of the tokens, whose `key_valid` marks padding if it is given.

    Example:
        >>> first_tokens(torch.arange(3.0).view(1, 3, 1), torch.tensor([[0, 1, 1]]))
        tensor([[1.]])
    """
    valid = mask if positions is None or positions.key_valid is None else positions.key_valid
    first = 0 if valid is None else valid.long().argmax(1)
    return hidden[torch.arange(len(hidden), device=hidden.device), first]


def pooler(config: FloaterConfig) -> nn.Module:
    """Return the layers of a classifier before its last map: BERT's linear map and tanh.

    With the head "linear" there are none. Source: google-research/bert, `BertModel`; fairseq's RoBERTa
    initialises it for each task.

    Args:
        config: width and recipe.

    Example:
        >>> pooler(FloaterConfig(recipe="bert"))
        Sequential(
          (0): Linear(in_features=512, out_features=512, bias=True)
          (1): Tanh()
        )
    """
    if config.resolved_recipe.head == "linear":
        return nn.Identity()
    return nn.Sequential(nn.Linear(config.hidden_size, config.hidden_size), nn.Tanh())


class _FirstTokenClassifier(FloaterHead):
    """An encoder and a classifier on its first token, after a `pooler`.

    Args:
        config: the model's configuration.
        loss_type: see `FloaterHead`.
        labels: number of outputs of the classifier.
    """

    accepts_loss_kwargs = False  # the loss is a mean over this batch, whatever the Trainer accumulates

    def __init__(self, config: FloaterConfig, loss_type: str, labels: int) -> None:
        super().__init__(bidirectional(config), loss_type)
        self.pooler, self.dropout = pooler(config), nn.Dropout(config.dropout)
        self.classifier = nn.Linear(config.hidden_size, labels)
        self.post_init()

    def classify(self, hidden: Tensor, mask: Tensor | None, positions: Positions | None) -> Tensor:
        """Return logits (batch, labels) of hidden states (batch, T, dim)."""
        first = first_tokens(hidden, mask, positions)
        logits: Tensor = self.classifier(self.dropout(self.pooler(first)))
        return logits


class FloaterForSequenceClassification(_FirstTokenClassifier):
    """An encoder and a classifier on its first token, after a `pooler` with the recipes of BERT and RoBERTa.

    Args:
        config: sizes, position model, `num_labels` and `problem_type`.

    Raises:
        ValueError: if `config.is_decoder`.

    Example:
        >>> import torch
        >>> config = FloaterConfig.preset("tiny", vocab_size=99, num_labels=3)
        >>> FloaterForSequenceClassification(config)(torch.tensor([[5, 6, 7]])).logits.shape
        torch.Size([1, 3])
    """

    def __init__(self, config: FloaterConfig) -> None:
        super().__init__(config, "ForSequenceClassification", int(config.num_labels or 0))

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
        """Return logits (batch, labels), and with labels (batch,) or (batch, labels) the mean loss.

        The other arguments are those of `FloaterModel.forward`.
        """
        outputs = self.model(
            input_ids, attention_mask, inputs_embeds, positions=positions, return_dict=True, **kwargs
        )
        logits = self.classify(outputs.last_hidden_state, attention_mask, positions)
        loss = self.loss_of(labels, None, pooled_logits=logits, config=self.config)
        return SequenceClassifierOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


class FloaterForTokenClassification(FloaterHead):
    """An encoder and a classifier on every token.

    Args:
        config: sizes, position model and `num_labels`.

    Raises:
        ValueError: if `config.is_decoder`.

    Example:
        >>> import torch
        >>> config = FloaterConfig.preset("tiny", vocab_size=99, num_labels=17)
        >>> model = FloaterForTokenClassification(config)
        >>> model(torch.tensor([[5, 6, 7]]), labels=torch.tensor([[3, -100, 16]])).logits.shape
        torch.Size([1, 3, 17])
    """

    def __init__(self, config: FloaterConfig) -> None:
        super().__init__(bidirectional(config), "ForTokenClassification")
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
        """Return logits (batch, T, labels), and with labels (batch, T), -100 ignored, the mean loss.

        `num_items_in_batch` replaces the number of labels that the loss is divided by. The other arguments
        are those of `FloaterModel.forward`.
        """
        outputs = self.model(input_ids, attention_mask, inputs_embeds, return_dict=True, **kwargs)
        logits = self.classifier(self.dropout(outputs.last_hidden_state))
        loss = self.loss_of(labels, num_items_in_batch, logits=logits, config=self.config)
        return TokenClassifierOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


class FloaterForQuestionAnswering(FloaterHead):
    """An encoder that finds where an answer starts and ends (Devlin et al. 2019, section 4.2).

    Args:
        config: sizes and position model.

    Raises:
        ValueError: if `config.is_decoder`.

    Example:
        >>> import torch
        >>> config = FloaterConfig.preset("tiny", vocab_size=99)
        >>> FloaterForQuestionAnswering(config)(torch.tensor([[5, 6, 7]])).start_logits.shape
        torch.Size([1, 3])
    """

    accepts_loss_kwargs = False  # the loss is a mean over this batch, whatever the Trainer accumulates

    def __init__(self, config: FloaterConfig) -> None:
        super().__init__(bidirectional(config), "ForQuestionAnswering")
        self.qa_outputs = nn.Linear(config.hidden_size, 2)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        start_positions: Tensor | None = None,
        end_positions: Tensor | None = None,
        **kwargs: Any,
    ) -> QuestionAnsweringModelOutput:
        """Return logits of start and end (batch, T) each, and with both positions (batch,) the mean loss.

        The other arguments are those of `FloaterModel.forward`.

        Raises:
            ValueError: if only one of the positions is given.
        """
        if (start_positions is None) != (end_positions is None):
            raise ValueError("give both start_positions and end_positions, or neither")
        outputs = self.model(input_ids, attention_mask, inputs_embeds, return_dict=True, **kwargs)
        start, end = self.qa_outputs(outputs.last_hidden_state).unbind(-1)
        loss = None
        if start_positions is not None and end_positions is not None:
            loss = (F.cross_entropy(start, start_positions) + F.cross_entropy(end, end_positions)) / 2
        return QuestionAnsweringModelOutput(
            loss=loss,
            start_logits=start,
            end_logits=end,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


class FloaterForMultipleChoice(_FirstTokenClassifier):
    """An encoder that scores each choice by its first token.

    Args:
        config: sizes and position model.

    Raises:
        ValueError: if `config.is_decoder`.

    Example:
        >>> import torch
        >>> config = FloaterConfig.preset("tiny", vocab_size=99)
        >>> FloaterForMultipleChoice(config)(torch.tensor([[[5, 6, 7], [5, 8, 7]]])).logits.shape
        torch.Size([1, 2])
    """

    def __init__(self, config: FloaterConfig) -> None:
        super().__init__(config, "ForMultipleChoice", 1)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        positions: Positions | None = None,
        **kwargs: Any,
    ) -> MultipleChoiceModelOutput:
        """Return logits (batch, choices) of texts (batch, choices, T), and with labels (batch,) a mean loss.

        The mask has the shape of the ids; embeddings are (batch, choices, T, dim). The other arguments are
        those of `FloaterModel.forward`, over batch x choices rows.
        """
        inputs = input_ids if inputs_embeds is None else inputs_embeds
        if inputs is None:
            raise ValueError("give exactly one of input_ids and inputs_embeds")
        rows = [None if x is None else x.flatten(0, 1) for x in (input_ids, attention_mask, inputs_embeds)]
        outputs = self.model(*rows, positions=positions, return_dict=True, **kwargs)
        logits = self.classify(outputs.last_hidden_state, rows[1], positions).view(inputs.shape[:2])
        loss = None if labels is None else F.cross_entropy(logits, labels)
        return MultipleChoiceModelOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


AutoModelForSequenceClassification.register(FloaterConfig, FloaterForSequenceClassification)
AutoModelForTokenClassification.register(FloaterConfig, FloaterForTokenClassification)
AutoModelForQuestionAnswering.register(FloaterConfig, FloaterForQuestionAnswering)
AutoModelForMultipleChoice.register(FloaterConfig, FloaterForMultipleChoice)
