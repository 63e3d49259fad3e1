"""Generation that solves for position vectors once."""

from __future__ import annotations

import contextlib
from typing import Any

from torch import nn
from transformers import GenerationMixin

from floater.flow import FlowEncoder
from floater.transformer.reading import Reading


class FloaterGenerationMixin(GenerationMixin):
    """Hugging Face's `generate`, its position vectors solved once and extended as the output grows."""

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """Generate token ids; see `transformers.GenerationMixin.generate` for arguments and return value.

        Liu et al. 2020, section 4.4: position vectors do not depend on the data. They are stored for the
        duration of the call, unless they are baked or frozen already.
        """
        assert isinstance(self, nn.Module)
        with contextlib.ExitStack() as stack:
            for module in self.modules():
                if isinstance(module, FlowEncoder):
                    stack.enter_context(module.baked())
            return super().generate(*args, **kwargs)  # type: ignore[misc]

    def _expand_inputs_for_generation(
        self,
        expand_size: int = 1,
        is_encoder_decoder: bool = False,
        input_ids: Any = None,
        **model_kwargs: Any,
    ) -> tuple[Any, dict[str, Any]]:
        # of its inputs transformers repeats the tensors for each hypothesis, not those inside a value
        if (positions := model_kwargs.get("positions")) is not None:
            model_kwargs["positions"] = positions.repeat(expand_size)
        if (reading := model_kwargs.get("reading")) is not None:
            model_kwargs["reading"] = Reading.of(reading).repeat(expand_size)
        length = model_kwargs.get("target_length")
        ids, expanded = super()._expand_inputs_for_generation(  # type: ignore[misc]
            expand_size, is_encoder_decoder, input_ids, **model_kwargs
        )
        if length is not None and len(length) == 1:
            expanded["target_length"] = length  # that of all texts
        return ids, expanded
