"""The directory of a run: settings, vocabulary, log, checkpoints, final model."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerFast

from floater.settings import dump
from floater.tasks.bpe import load_bpe, train_bpe
from floater.tasks.text import DataError, Pairs
from floater.tasks.translation.settings import TranslationSettings

SETTINGS, VOCABULARY, MODEL, LOG = "config.yaml", "vocabulary", "model", "log.json"


def open_run(settings: TranslationSettings) -> Path:
    """Make a run directory, or find in it the run to go on with.

    Args:
        settings: of the run.

    Returns:
        The directory, which holds these settings.

    Raises:
        DataError: if it holds something else, or a run with other settings; nothing is written then.
    """
    run, text = Path(settings.run), dump(settings)
    if run.exists() and not run.is_dir():
        raise DataError(f"{run} is a file; a run needs a directory")
    if run.is_dir() and any(run.iterdir()):
        config = run / SETTINGS
        if not config.is_file():
            raise DataError(f"{run} is not empty and holds no run (no {SETTINGS}); choose another directory")
        before = config.read_text(encoding="utf-8")
        if before != text:
            old, new = before.splitlines(), text.splitlines()
            line = next((n for n, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
            there, here = (lines[line].strip() if line < len(lines) else "nothing" for lines in (old, new))
            raise DataError(f"{run} holds a run with other settings: '{there}' there, '{here}' here")
        return run
    run.mkdir(parents=True, exist_ok=True)
    write_whole(run / SETTINGS, text)
    return run


def write_whole(path: Path, text: str) -> None:
    """Write a text file whole or not at all."""
    hidden = path.with_name(f".{path.name}.unfinished")
    hidden.write_text(text, encoding="utf-8")
    os.replace(hidden, path)


def save_whole(path: Path, *parts: Any) -> None:
    """Save models and tokenizers (`save_pretrained`) into one directory, whole or not at all."""
    hidden = path.with_name(f".{path.name}.unfinished")
    shutil.rmtree(hidden, ignore_errors=True)
    for part in parts:
        part.save_pretrained(hidden)
    if path.exists():
        shutil.rmtree(path)
    os.replace(hidden, path)


def vocabulary(settings: TranslationSettings, run: Path, pairs: Pairs) -> PreTrainedTokenizerFast:
    """The run's joint vocabulary: its own, the loaded one, that of the warm start, or a new one."""
    folder = run / VOCABULARY
    if not folder.is_dir():
        start, data = settings.training.warm_start, settings.data
        if start is not None:
            tokenizer = load_bpe(Path(start) / VOCABULARY)
        elif data.vocabulary is not None:
            given = Path(data.vocabulary)
            tokenizer = load_bpe(given / VOCABULARY if (given / VOCABULARY).is_dir() else given)
        else:
            tokenizer = train_bpe([*pairs.source, *pairs.target], data.vocabulary_size)
        save_whole(folder, tokenizer)
    return load_bpe(folder)


def write_json(path: Path, value: Any) -> None:
    """Write a value as indented JSON, whole or not at all."""
    write_whole(path, json.dumps(value, indent=1) + "\n")
