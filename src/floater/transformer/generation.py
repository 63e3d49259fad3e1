"""Generation that solves for position vectors once, at any positions."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F
from transformers import GenerationMixin, PreTrainedModel

from floater._hf import CACHE
from floater.encodings.stored import baked_vectors
from floater.positions import build_positions, continue_positions
from floater.transformer.base import cached_length, require_positions
from floater.transformer.length_predictor import check_lengths
from floater.transformer.reading import Reading


class FloaterGenerationMixin(GenerationMixin):
    """Hugging Face's `generate` at any positions, whose vectors are solved once and extended as the output
    grows."""

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """Generate token ids; see `transformers.GenerationMixin.generate` for arguments and return value.

        Liu et al. 2020, section 4.4: position vectors do not depend on the data. They are stored for the
        duration of the call, unless they are baked or frozen already.

        `positions`, of an encoder-decoder `decoder_positions`, are those of the prompt, cached tokens
        included, or of more tokens. Generated tokens that they do not cover continue them (see
        `floater.positions.continue_positions`). `position_ids` and `decoder_position_ids` are short for
        positions, as in `forward`.

        Example:
            >>> import torch
            >>> from floater.transformer import FloaterConfig, FloaterForCausalLM
            >>> model = FloaterForCausalLM(FloaterConfig.preset("tiny", vocab_size=99)).eval()
            >>> ids, at = torch.tensor([[5, 6]]), torch.tensor([[40, 41]])
            >>> model.generate(ids, position_ids=at, max_new_tokens=2, do_sample=False).shape
            torch.Size([1, 4])
        """
        assert isinstance(self, nn.Module)
        for prefix in ("", "decoder_"):
            _replace_position_ids(kwargs, prefix)
        if (lengths := kwargs.get("target_length")) is not None:
            check_lengths(lengths)
        with baked_vectors(self):
            return super().generate(*args, **kwargs)  # type: ignore[misc]

    def prepare_inputs_for_generation(  # type: ignore[override]
        self,
        input_ids: Tensor,
        inputs_embeds: Tensor | None = None,
        is_first_iteration: bool = False,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Return the arguments of the next forward pass; positions are those of its tokens.

        Raises:
            ValueError: if there are positions for a part of the prompt only, or they cannot be continued.
        """
        inputs: dict[str, Any] = super().prepare_inputs_for_generation(  # type: ignore[misc]
            input_ids,  # type: ignore[arg-type]
            inputs_embeds=inputs_embeds,
            is_first_iteration=is_first_iteration,
            **kwargs,
        )
        assert isinstance(self, PreTrainedModel)
        prefix = "decoder_" if self.config.is_encoder_decoder else ""
        name = f"{prefix}positions"
        if (positions := inputs.get(name)) is not None:
            ids = inputs[f"{prefix}input_ids"]
            queries = (inputs["inputs_embeds"] if ids is None else ids).shape[1]
            length, tokens = cached_length(inputs.get(CACHE)) + queries, positions.key.shape[1]
            if is_first_iteration and length > tokens:
                raise ValueError(f"the {name} are of {tokens} tokens; the prompt has {length}")
            mask = inputs.get(f"{prefix}attention_mask")
            inputs[name] = continue_positions(positions, length, queries, mask=mask)
        return inputs

    @staticmethod
    def create_masks_for_generate(*, attention_mask: Tensor | None, **kwargs: Any) -> Tensor | None:
        """Return the mask as it is: one of pairs, as a StaticCache gets it, would not show the positions."""
        return attention_mask

    def _valid_auto_compile_criteria(self, *args: Any, **kwargs: Any) -> bool:
        return False  # the filled slots of a StaticCache grow, and code would be compiled for each number

    def _expand_inputs_for_generation(
        self,
        expand_size: int = 1,
        is_encoder_decoder: bool = False,
        input_ids: Any = None,
        **model_kwargs: Any,
    ) -> tuple[Any, dict[str, Any]]:
        # of its inputs transformers repeats the tensors for each hypothesis, not those inside a value
        for name in ("positions", "decoder_positions"):
            if (positions := model_kwargs.get(name)) is not None:
                model_kwargs[name] = positions.repeat(expand_size)
        if (reading := model_kwargs.get("reading")) is not None:
            model_kwargs["reading"] = Reading.of(reading).repeat(expand_size)
        length = model_kwargs.get("target_length")
        ids, expanded = super()._expand_inputs_for_generation(  # type: ignore[misc]
            expand_size, is_encoder_decoder, input_ids, **model_kwargs
        )
        if length is not None and len(length) == 1:
            expanded["target_length"] = length  # that of all texts
        return ids, expanded


def _replace_position_ids(arguments: dict[str, Any], prefix: str) -> None:
    """Replace the position ids among the arguments of `generate` by positions.

    They may be those of more tokens than the mask, which are then no padding.
    """
    ids, name = arguments.pop(f"{prefix}position_ids", None), f"{prefix}positions"
    require_positions(arguments.get(name), name)
    if ids is None:
        return
    if arguments.get(name) is not None:
        raise ValueError(f"give {name} or {prefix}position_ids, not both")
    if not isinstance(ids, Tensor):
        raise ValueError(f"{prefix}position_ids is {ids!r}; it must be a tensor (batch, length)")
    length = ids.shape[-1] if ids.ndim else 0
    mask = arguments.get(f"{prefix}attention_mask")
    if mask is not None:
        mask = F.pad(mask, (0, max(0, length - mask.shape[1])), value=1)
    rows = len(ids if ids.ndim == 2 else ids[None]) if mask is None else len(mask)
    arguments[name] = build_positions((rows, length), mask=mask, position_ids=ids)
