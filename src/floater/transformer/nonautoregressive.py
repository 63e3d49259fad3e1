"""Non-autoregressive Transformer by Position Learning (Bao et al. 2019) as a Hugging Face model."""

# mypy: disable-error-code="untyped-decorator"
# (the base classes of transformers are untyped)

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils.generic import can_return_tuple

from floater.encodings import PositionError, catalogue, options
from floater.encodings.decoder.pnat import PositionLearning, heuristic_order
from floater.positions import Positions, build_positions
from floater.transformer.base import refuse, token_positions
from floater.transformer.config import FloaterConfig
from floater.transformer.outputs import IGNORED, Seq2SeqLM
from floater.transformer.seq2seq import FloaterForConditionalGeneration

SOFTNESS = 0.3


def soft_copy(source: Tensor, valid: Tensor | None, lengths: Tensor) -> Tensor:
    """Return decoder inputs: means of the encoded source around t s / l, for a target of l tokens.

    The weights are softmax_j(-(j - t s / l)^2 / 0.3), as in the program of Bao et al. 2019.

    Args:
        source: (batch, S, dim), the encoder's output.
        valid: (batch or 1, S) bool, False where the source is padding; None when all are tokens.
        lengths: (batch,) tokens of the targets, l.

    Returns:
        (batch, longest, dim).

    Example:
        >>> source = torch.tensor([[[0.0], [1.0], [2.0]]])
        >>> soft_copy(source, None, torch.tensor([3]))[0, 1]
        tensor([1.])
    """
    mask = torch.ones_like(source[:1, :, 0], dtype=torch.bool) if valid is None else valid
    index = mask.cumsum(1) - 1
    at = torch.arange(int(lengths.max()), device=source.device) * (mask.sum(1) / lengths)[:, None]
    near = -((index[:, None] - at[..., None]) ** 2) / SOFTNESS
    return near.masked_fill(~mask[:, None], -torch.inf).softmax(-1).to(source.dtype) @ source


class FloaterForNonAutoregressiveGeneration(FloaterForConditionalGeneration):
    """An encoder-decoder that writes all tokens of a translation at once (PNAT).

    Length, order and tokens are predicted one after another: the length from the encoded source
    (`LengthPredictor`), that number of decoder inputs by `soft_copy`, their order by the pointer network
    of the position model `pnat`, and each token by a decoder without a causal mask. In training the order is
    that of `heuristic_order`: where a decoder input is most like a target token's embedding.

    Args:
        config: sizes and the position model `pnat`; the model keeps a copy with `is_encoder_decoder`.

    Raises:
        PositionError: if the position model is another one, or its option `plain` is False.

    Example:
        >>> config = FloaterConfig.preset("tiny", vocab_size=99, position="pnat")
        >>> model = FloaterForNonAutoregressiveGeneration(config).eval()
        >>> model.generate(torch.tensor([[5, 6, 7, 2]]), target_length=torch.tensor([3])).shape
        torch.Size([1, 5])
    """

    autoregressive = False

    def __init__(self, config: FloaterConfig) -> None:
        super().__init__(config)
        if isinstance(self.encoder.position, PositionLearning) and self.encoder.position.permutes:
            raise PositionError("plain is False: the order of the source would be predicted, never learned")

    def training_inputs(self, labels: Tensor) -> dict[str, Tensor]:
        return {"target_ids": labels}

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        encoder_outputs: BaseModelOutput | tuple[Tensor, ...] | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        positions: Positions | None = None,
        target_ids: Tensor | None = None,
        target_length: Tensor | None = None,
        **kwargs: Any,
    ) -> Seq2SeqLM:
        """Return logits of all target tokens.

        Args:
            input_ids: (batch, S) source.
            attention_mask: (batch, S), zero where the source is padding.
            encoder_outputs: the result of `encode`, instead of a source; its attention_mask is still needed.
            inputs_embeds: (batch, S, dim), instead of input_ids.
            labels: (batch, T), -100 on the right of each text.
            num_items_in_batch: divisor of the loss; by default the number of labels.
            positions: positions of the source tokens, instead of those computed from the mask.
            target_ids: labels that give the reference order; by default `labels`.
            target_length: (batch,) tokens to write, the end included; by default that of the targets, the
                positions, or a prediction.
            kwargs: arguments that Hugging Face passes along; others are refused.

        Returns:
            `logits` (batch, T, vocabulary) in the order of the target: the reference order if there are
            targets, else the predicted one; `loss` if there are labels, the encoder's output, and
            `auxiliary_loss`, a part of `loss`, if there are targets.

        Raises:
            ValueError: if targets are not padded on the right, or target_length is not theirs.
            TypeError: if an argument would be ignored.
        """
        refuse(self, kwargs)
        if encoder_outputs is None:
            encoder_outputs = self.encode(input_ids, attention_mask, inputs_embeds, positions)
        source, targets = encoder_outputs[0], labels if target_ids is None else target_ids
        source_positions = token_positions(source, positions, None, mask=attention_mask)
        lengths, auxiliary = self.target_lengths(source, source_positions, target_length, targets)
        assert lengths is not None
        lengths = lengths.expand(len(source))
        source_positions = source_positions.but(target_length=lengths)  # refuses lengths that cannot be
        x = soft_copy(source, source_positions.key_valid, lengths)
        valid = torch.arange(x.shape[1], device=x.device) < lengths[:, None]
        pointer = self._pointer
        if targets is None:
            picks = pointer(x, lengths)
        else:
            if targets.shape != valid.shape or bool((targets.ne(IGNORED) != valid).any()):
                raise ValueError(
                    f"targets are {tuple(targets.shape)}; each must have a token or more, -100 only on the "
                    f"right, and the longest {x.shape[1]} tokens"
                )
            words = self.embedding(targets.masked_fill(~valid, 0))
            picks = heuristic_order(x, words, valid).argsort(1)
            assert auxiliary is not None
            auxiliary = auxiliary + pointer.loss(x, lengths, picks)
        x = x.gather(1, picks[..., None].expand_as(x))
        target_positions = build_positions(x.shape[:2], mask=valid, device=x.device)
        hidden = self.decoder(x, target_positions, source, source_positions)
        logits = self.lm_head(self.scaled(hidden))
        loss = self.loss_of(logits, labels, auxiliary, num_items_in_batch)
        return Seq2SeqLM(loss=loss, logits=logits, encoder_last_hidden_state=source, auxiliary_loss=auxiliary)

    @property
    def _pointer(self) -> Any:
        assert isinstance(self.decoder.position, PositionLearning)
        return self.decoder.position.pointer

    @torch.no_grad()
    def generate(  # type: ignore[override]
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        positions: Positions | None = None,
        target_length: Tensor | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """Return the most likely token at each position; there is no search, so each source has one output.

        Args:
            input_ids: (batch, S) source.
            attention_mask: (batch, S), zero where the source is padding.
            positions: see `forward`.
            target_length: see `forward`.
            kwargs: none of Hugging Face's `generate`.

        Returns:
            Token ids (batch, longest + 2): the start token, each text up to its end token, padding.

        Raises:
            TypeError: if an argument would be ignored.
        """
        refuse(self, kwargs)
        start, end, pad = self._ends()
        outputs = self.encode(input_ids, attention_mask, None, positions)
        source_positions = token_positions(outputs[0], positions, None, mask=attention_mask)
        lengths, _ = self.target_lengths(outputs[0], source_positions, target_length, None)
        assert lengths is not None
        lengths = lengths.expand(len(outputs[0]))
        logits: Tensor = self(
            attention_mask=attention_mask,
            encoder_outputs=outputs,
            positions=positions,
            target_length=lengths,
            return_dict=True,
        ).logits
        logits[..., [start, pad]] = -torch.inf
        tokens = logits.argmax(-1)
        slots = torch.arange(tokens.shape[1], device=tokens.device)
        ended = (tokens == end).cumsum(1).bool() | (slots >= lengths[:, None])
        out = tokens.new_full((len(tokens), tokens.shape[1] + 2), pad)
        out[:, 0] = start
        out[:, 1:-1] = tokens.masked_fill(ended, pad)
        return out.scatter(1, (~ended).sum(1, keepdim=True) + 1, end)

    def _ends(self) -> tuple[int, int, int]:
        """Return the ids of the start, the end and the padding."""
        config = self.config
        ids = config.decoder_start_token_id, config.eos_token_id, config.pad_token_id
        if not all(isinstance(token, int) for token in ids):
            raise ValueError(
                f"decoder_start_token_id is {ids[0]}, eos_token_id {ids[1]}, pad_token_id {ids[2]}; "
                "each must be one token"
            )
        return ids


def encoder_decoder(config: FloaterConfig) -> FloaterForConditionalGeneration:
    """Build the encoder-decoder that fits a configuration's position model, with new weights.

    Raises:
        PositionError: if there is no such position model, or an option is not valid.

    Example:
        >>> type(encoder_decoder(FloaterConfig.preset("tiny", vocab_size=9, position="pnat"))).__name__
        'FloaterForNonAutoregressiveGeneration'
    """
    name, _ = config.position_at("decoder")
    options(name)  # refuses an unknown name
    if catalogue()[name].autoregressive:
        return FloaterForConditionalGeneration(config)
    return FloaterForNonAutoregressiveGeneration(config)
