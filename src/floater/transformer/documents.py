"""A Transformer over sentences, which a Transformer over their words encodes as vectors."""

# mypy: disable-error-code="no-untyped-call,untyped-decorator"
# (the base classes of transformers are untyped)

import math
from typing import Any

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from transformers import AutoConfig
from transformers.modeling_outputs import SequenceClassifierOutput

from floater.positions import Positions
from floater.transformer import FloaterConfig
from floater.transformer.base import (
    FloaterPreTrainedModel,
    bidirectional,
    changed,
    check_right_padding,
    embed,
    refuse,
)
from floater.transformer.stacks import Encoder

POSITION_SOURCES = ("length", "index")
GROUPS = 4
"""Number of groups by length in which sentences of a batch are encoded, so that little is padding."""


@strict
class DocumentsConfig(FloaterConfig):
    """Configuration of a hierarchical Transformer: sizes and positions of the sentence level, and those of
    the word level.

    Args:
        position_source: step between the positions of sentences: by the "length" of the sentence before, or
            by one ("index").
        sentence_length: words per position with "length".
        word_layers: number of blocks of the word level.
        word_position: name of the position model of the word level.
        word_position_options: options of that position model.
        word_length: training length of the word level.

    Raises:
        ValueError: if the position source is not valid, or the sentence length not positive.

    Example:
        >>> DocumentsConfig(sentence_length=22.5).position_source
        'length'
    """

    model_type = "floater_documents"

    position_source: str = "length"
    sentence_length: float | int = 1.0
    word_layers: int = 1
    word_position: str = "sinusoidal"
    word_position_options: dict[str, Any] | None = None
    word_length: int = 64

    def __post_init__(self, **kwargs: Any) -> None:
        if self.position_source not in POSITION_SOURCES:
            raise ValueError(
                f"position_source is {self.position_source!r}; valid: {', '.join(POSITION_SOURCES)}"
            )
        if not 0 < self.sentence_length < math.inf:
            raise ValueError(f"sentence_length is {self.sentence_length}; it must be a positive number")
        super().__post_init__(**kwargs)


def sentence_positions(lengths: Tensor, mask: Tensor, unit: float | None) -> Positions:
    """Return the positions of sentences: each step is the length of the sentence before.

    Source: Liu et al. 2020, appendix C: t_{i+1} - t_i is proportional to the length of sentence i.

    Args:
        lengths: (batch, S) words of each sentence.
        mask: (batch, S), non-zero where there is a sentence.
        unit: words in one position; None counts sentences instead.

    Example:
        >>> sentence_positions(torch.tensor([[4, 10, 2]]), torch.ones(1, 3), 4.0).query
        tensor([[0.0000, 1.0000, 3.5000]], dtype=torch.float64)
    """
    if unit is None:
        return Positions.from_mask(mask)
    before = (lengths * mask.bool()).cumsum(1) - lengths * mask.bool()
    return Positions.times(before.to(torch.float64) / unit, mask)


class FloaterForDocuments(FloaterPreTrainedModel):
    """Classification of documents: a vector for each sentence from its words, and one for the document from
    its sentences.

    Source: Liu et al. 2020, appendix C (hierarchical Transformers). The vector of a sentence, and that of the
    document, is the mean of the outputs of the encoder below.

    Args:
        config: sizes of both levels, the position model of the sentences, and `num_labels`.

    Example:
        >>> config = DocumentsConfig.preset("tiny", vocab_size=99, num_labels=2)
        >>> model = FloaterForDocuments(config)
        >>> model(torch.tensor([[5, 6], [7, 0], [8, 9]]), torch.tensor([[0, 1], [2, -1]])).logits.shape
        torch.Size([2, 2])
    """

    config_class = DocumentsConfig
    config: DocumentsConfig
    main_input_name = "words"

    def __init__(self, config: DocumentsConfig) -> None:
        super().__init__(bidirectional(config))
        self.embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        below = changed(
            config,
            position=config.word_position,
            position_options=config.word_position_options or {},
            num_hidden_layers=config.word_layers,
            training_length=config.word_length,
            times=None,  # these and the reading are rules for sentences
            reading=None,
        )
        self.words = Encoder(below)
        self.encoder = Encoder(config)
        self.dropout = nn.Dropout(config.dropout)
        self.classifier = nn.Linear(config.hidden_size, int(config.num_labels or 0))
        self.post_init()

    def sentence_vectors(self, words: Tensor, mask: Tensor) -> Tensor:
        """Return a vector (N, dim) for each sentence of word ids (N, W); the mask (N, W) bool is of words."""
        order = mask.sum(1).argsort(stable=True)
        vectors = []
        for rows in order.chunk(GROUPS):
            kept = mask[rows][:, : max(int(mask[rows].sum(1).max()), 1)]
            ids = words[rows][:, : kept.shape[1]]
            x = embed(self.words.recipe, self.embedding, ids, None)
            vectors.append(mean(self.words(x, Positions.from_mask(kept)), kept))
        return torch.cat(vectors)[order.argsort()]

    def forward(
        self,
        words: Tensor,
        sentences: Tensor,
        labels: Tensor | None = None,
        attention_mask: Tensor | None = None,
        **kwargs: Any,
    ) -> SequenceClassifierOutput:
        """Return logits of documents.

        Args:
            words: (N, W) ids of the words of all sentences, padded on the right.
            sentences: (batch, S) the rows of each document's sentences, -1 after the last.
            labels: (batch,), for a loss.
            attention_mask: (N, W), non-zero where there is a word; None for all ids but that of padding.
            kwargs: arguments that Hugging Face passes along; others are refused.

        Returns:
            `logits` (batch, labels), and with labels the mean `loss`.

        Raises:
            TypeError: if an argument is unknown.
            ValueError: if the padding of a sentence is not on the right.
        """
        refuse(self, kwargs)
        there = words.ne(self.config.pad_token_id or 0) if attention_mask is None else attention_mask.bool()
        check_right_padding(there, "words")
        mask, rows = sentences >= 0, sentences.clamp(min=0)
        lengths = there.sum(1)[rows]
        unit = self.config.sentence_length if self.config.position_source == "length" else None
        x = self.sentence_vectors(words, there)[rows]
        hidden = self.encoder(x, sentence_positions(lengths, mask, unit).but(key_valid=mask))
        logits = self.classifier(self.dropout(mean(hidden, mask)))
        loss = None if labels is None else nn.functional.cross_entropy(logits, labels)
        return SequenceClassifierOutput(loss=loss, logits=logits)


def mean(x: Tensor, mask: Tensor) -> Tensor:
    """Return the mean over tokens, of (N, T, dim) and (N, T) bool: (N, dim), 0 where there is none.

    Example:
        >>> mean(torch.tensor([[[1.0], [3.0], [9.0]]]), torch.tensor([[True, True, False]]))
        tensor([[2.]])
    """
    weight = mask.to(x.dtype).unsqueeze(-1)
    return (x * weight).sum(1) / weight.sum(1).clamp(min=1)


AutoConfig.register("floater_documents", DocumentsConfig)
