"""The directory of a translation run: what only translation has in it."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import PreTrainedTokenizerFast

from floater.settings import load
from floater.tasks.bpe import load_bpe, train_bpe
from floater.tasks.run import MODEL, SETTINGS, VOCABULARY, inside, load_model
from floater.tasks.text import DataError, Pairs
from floater.tasks.translation.settings import Decoding, TranslationSettings
from floater.transformer import FloaterForConditionalGeneration, encoder_decoder


def vocabulary(settings: TranslationSettings, run: Path, pairs: Pairs) -> PreTrainedTokenizerFast:
    """The run's joint vocabulary: its own, that of the warm start, the one given, or a new one.

    Raises:
        DataError: if one cannot be read, or the one given is not that of the warm start.
    """
    if (run / VOCABULARY).is_dir():
        return load_bpe(run / VOCABULARY)
    start, data = settings.training.warm_start, settings.data
    named = [Path(path) for path in (start, data.vocabulary) if path is not None]
    found = [load_bpe(inside(path, VOCABULARY, MODEL)) for path in named]
    if len({tokenizer.backend_tokenizer.to_str() for tokenizer in found}) > 1:
        raise DataError(
            f"data.vocabulary, {data.vocabulary}, is not that of training.warm_start, {start}; leave it out"
        )
    return found[0] if found else train_bpe([*pairs.source, *pairs.target], data.vocabulary_size)


def run_settings(run: str | Path) -> TranslationSettings:
    """The settings of a run.

    Raises:
        SettingsError: if the directory holds none, or none that can be read.
    """
    return load(TranslationSettings, Path(run) / SETTINGS)


def run_decoding(run: str | Path) -> Decoding:
    """How a run translates: what its configuration says, or the defaults for a model that is no run."""
    return run_settings(run).decoding if (Path(run) / SETTINGS).is_file() else Decoding()


def load_run(
    run: str | Path, device: str | torch.device | None = None
) -> tuple[FloaterForConditionalGeneration, PreTrainedTokenizerFast]:
    """The final model and the vocabulary of a translation run; see `floater.tasks.run.load_model`."""
    return load_model(encoder_decoder, run, device)
