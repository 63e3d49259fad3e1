"""Plugged and extended models in EleutherAI's lm-evaluation-harness.

    pip install lm-eval
    python -m floater.lab.harness run --model floater --model_args pretrained=DIRECTORY --tasks TASK

The package `lm_eval` is imported when a model is requested; nothing else in this library needs it.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Sequence
from typing import Any

import torch
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from floater.errors import DataError
from floater.flow.checks import is_count
from floater.lab.tasks.finetuning.checkpoint import load_pretrained, load_tokenizer, locate
from floater.lab.tasks.finetuning.features import readable
from floater.lab.tasks.finetuning.text import special
from floater.lab.training.model import available_device
from floater.pretrained.extending.tables import find_tables
from floater.pretrained.plugged import plugged, trained_part

_OPTIONS = {
    "add_bos_token", "batch_size", "chat_template_args", "enable_thinking", "logits_cache", "max_batch_size",
    "max_length", "mixed_precision_dtype", "prefix_token_id", "softmax_dtype", "think_end_token",
}  # fmt: skip
"""Options of `HFLM` that act on a loaded model."""


@functools.cache
def model_class() -> Any:
    """Return the class of the harness's model "floater", and register it.

    It is `HFLM` with two differences. The checkpoint is located and checked as by `floater extend`, so that
    plugged and extended models load; options of `HFLM` that have no effect on a loaded model are refused. A
    request that is longer than the model is an error; `HFLM` cuts its beginning off with a warning, so that
    a task on long texts could lose the answer.

    Raises:
        DataError: if lm-eval is not installed.
    """
    try:
        from lm_eval.api.registry import register_model
        from lm_eval.models.huggingface import HFLM
    except ImportError as error:
        raise DataError(f"the evaluation harness needs the package lm-eval ({error})") from error

    @register_model("floater")
    class FloaterLM(HFLM):  # type: ignore[misc]
        """A checkpoint, plugged or extended, as the harness calls it."""

        def __init__(
            self, pretrained: str = "", device: str | None = None, dtype: str = "auto", **options: Any
        ) -> None:
            if not pretrained:
                raise DataError("--model_args names no checkpoint; it should be pretrained=DIRECTORY")
            if ignored := sorted(options.keys() - _OPTIONS):
                valid = ", ".join(sorted({"device", "dtype", "pretrained", *_OPTIONS}))
                raise DataError(f"the model 'floater' has no option '{ignored[0]}'; it has: {valid}")
            if device == "cuda:0" and not torch.cuda.is_available():
                device = None  # the harness sends its default
            model: Any = load_pretrained(locate(pretrained), dtype)
            if not model.can_generate():
                raise DataError(
                    f"{pretrained} holds {type(model).__name__}, which generates no text; the harness scores "
                    "what causal and sequence-to-sequence language models generate"
                )
            most, length = _positions(model), options.get("max_length")
            if length is not None and not (is_count(length) and length <= most):
                valid = "of at least 1" if most == math.inf else f"between 1 and {most}, the positions it has"
                raise DataError(f"max_length={length!r} of {pretrained} should be a whole number {valid}")
            model.to(available_device(device))
            tokenizer = _without_end(load_tokenizer(pretrained))
            super().__init__(pretrained=model, tokenizer=tokenizer, **options)
            self._max_length = min(self.max_length, most)  # RoBERTa's configuration counts rows of padding

        def generate_until(self, requests: Any, *arguments: Any, **options: Any) -> Any:
            try:
                with readable("a request and its answer", "max_gen_toks of the task"):
                    return super().generate_until(requests, *arguments, **options)
            except AssertionError as error:  # an answer that is longer than the model
                raise DataError(str(error)) from error

        def _loglikelihood_tokens(self, requests: Any, *arguments: Any, **options: Any) -> Any:
            # the last token is predicted, not read; an encoder reads the context, and a decoder the rest
            lengths = [
                max(len(context), len(rest)) if self.backend == "seq2seq" else len(context) + len(rest) - 1
                for _, context, rest in requests
            ]
            self._check(lengths, self.max_length)
            with readable(f"requests of up to {max(lengths, default=0)} tokens", "max_length"):
                return super()._loglikelihood_tokens(requests, *arguments, **options)

        def tok_batch_encode(
            self, strings: Any, padding_side: str = "left", left_truncate_len: Any = None, **options: Any
        ) -> Any:
            encoded = super().tok_batch_encode(strings, padding_side, **options)
            if left_truncate_len is not None:
                self._check([int(row.sum()) for row in encoded[1]], left_truncate_len)
            return encoded

        def _check(self, lengths: Sequence[int], most: int) -> None:
            """Refuse requests that are longer than what the model may read."""
            if lengths and max(lengths) > most:
                raise DataError(
                    f"a request has {max(lengths)} tokens and {most} can be read; it would be truncated"
                )

    return FloaterLM


def _positions(model: Any) -> float:
    """Return the number of positions of a model's tables and of its baked flow; infinity without these."""
    lengths: list[float] = [table.length for table in find_tables(model) if not table.image]
    if plugged(model) is not None:
        lengths.append(trained_part(model).length or math.inf)
    return min(lengths, default=math.inf)


def _without_end(tokenizer: PreTrainedTokenizerFast) -> PreTrainedTokenizerFast:
    """Keep a tokenizer from adding a token after a text, to which the harness appends an answer."""
    before, after = special(tokenizer)
    if after:
        names = [str(name) for name in tokenizer.convert_ids_to_tokens(before)]
        tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
            single=" ".join([*names, "$A"]), special_tokens=[*zip(names, before, strict=True)]
        )
    return tokenizer


def main() -> int:
    """Run the harness's command line, which then has the model "floater"."""
    try:
        model_class()
        from lm_eval.__main__ import cli_evaluate

        cli_evaluate()
    except DataError as error:
        print(f"floater: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
